"""ColBERT's tables without a header, as its trainer and MS MARCO have them."""

import gzip

import pytest
from support.input_files import write

from ark_jax.data import readers
from ark_jax.data.records import BadInput
from ark_jax.graph import triple_check

PASSAGES = "0\tThe mill burned in 1802.\n1\tThe kiln stood by the lake.\n2\tA forge was closed.\n"
QUERIES = "7\tWhen did the mill burn?\n9\tWhere was the kiln?\n11\tWho?\n"
TRIPLES = "[7, 0, 1]\n[7, 0, 2]\n[9, 1, 0]\n"
FILES = {"collection.tsv": PASSAGES, "queries.tsv": QUERIES, "triples.jsonl": TRIPLES}


def asked(questions):
    return [(q.id, q.documents, q.negatives) for q in questions]


def messages(found):
    return [(p.line, p.field, p.message.partition(";")[0]) for p in found]


@pytest.mark.parametrize("packed", [False, True])
def test_passages_queries_and_triples_are_read(tmp_path, packed):
    files = FILES
    if packed:
        files = {f"{name}.gz": gzip.compress(text.encode()) for name, text in FILES.items()}
    corpus = readers.load(write(tmp_path, files))
    assert corpus.format == "colbert" and not triple_check.are_about_graph(tmp_path)
    assert [f"{d.id}\t{d.text}\n" for d in corpus.documents] == PASSAGES.splitlines(keepends=True)
    assert asked(corpus.questions) == [("7", ("0",), ("1", "2")), ("9", ("1",), ("0",))]
    assert messages(corpus.remarks) == [(0, "", "1 queries have no relevant passage")]
    assert len(readers.files(tmp_path)) == 3
    queries = next(tmp_path.glob("queries.tsv*"))
    assert readers.read_questions(queries, corpus.texts)[0] == corpus.questions


def test_judgments_say_what_is_relevant_too(tmp_path):
    write(tmp_path, FILES | {"qrels.dev.tsv": "11\t0\t2\t1\n9\t0\t0\t2\n"})
    assert asked(readers.load(tmp_path).questions) == [
        ("7", ("0",), ("1", "2")),
        ("9", ("0", "1"), ()),
        ("11", ("2",), ()),
    ]
    assert readers.read_grades(tmp_path) == {"11": {"2": 1}, "9": {"0": 2}}


def test_a_title_and_a_header_are_taken_as_colbert_takes_them(tmp_path):
    table = "id\ttext\ttitle\n0\tThe mill burned.\tMill\n1\t\tKiln\n"
    corpus = readers.load(write(tmp_path, {"collection.tsv": table}))
    titled = [(d.id, d.title, d.text) for d in corpus.documents]
    assert titled == [("0", "Mill", "The mill burned."), ("1", "Kiln", "")]
    assert messages(corpus.remarks)[0] == (
        0,
        "",
        "the third column is read as the title, as ColBERT does",
    )


def test_tables_are_judged_by_what_is_inside(tmp_path):
    """A table whose header says otherwise, and triples of numbers between tabs."""
    write(tmp_path, {"collection.tsv": "id\ttitle\ttext\n0\tMill\tThe mill burned.\n"})
    assert readers.read(tmp_path)[1]
    write(tmp_path, FILES | {"qidpidtriples.tsv": "7\t2\t0\n"})
    corpus = readers.load(tmp_path)
    assert corpus.questions[0].documents == ("0",)
    assert "1 files (qidpidtriples.tsv, ...) are not ColBERT's" in corpus.remarks[0].message


def test_faults_are_reported_by_file_and_line(tmp_path):
    damaged = {
        "collection.tsv": PASSAGES * 7 + "cut off\n",
        "triples.jsonl": TRIPLES + "[9, 5, 0]\n[9, [1, 0.5], [0, 0.1]]\n[9, 1, 0\n[9, 1, 5]\n",
    }
    _, problems = readers.read(write(tmp_path, FILES | damaged))
    found = [
        (p.file.rpartition("/")[2], *m) for p, m in zip(problems, messages(problems), strict=True)
    ]
    assert found[0] == ("collection.tsv", 4, "id", "repeats '0' of line 1")
    assert [x for x in found if x[0] == "triples.jsonl" or "field" in x[3]] == [
        ("collection.tsv", 22, "", "1 field(s)"),
        ("triples.jsonl", 4, "", "'5' is not found in the collection"),
        ("triples.jsonl", 5, "", "is not [query, positive, negative, ...] of numbers"),
        ("triples.jsonl", 6, "", "is not [query, positive, negative, ...] of numbers"),
        ("triples.jsonl", 7, "", "'5' is not found in the collection"),
    ]


def test_queries_alone_are_refused(tmp_path):
    write(tmp_path, {"queries.tsv": QUERIES})
    with pytest.raises(BadInput, match="holds queries and no passages"):
        readers.load(tmp_path / "queries.tsv")
    with pytest.raises(BadInput, match=r"put judgments \(qrels\) or triples beside them"):
        readers.read_questions(tmp_path / "queries.tsv", {"0": "x"})
    write(tmp_path, {"triples.json": "[1, 0, 0]\n"})
    with pytest.raises(BadInput, match="queries and judgments must use the same ids"):
        readers.read_questions(tmp_path / "queries.tsv", {"0": "x"})
