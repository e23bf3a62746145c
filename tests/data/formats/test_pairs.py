"""Pairs and triplets, as other trainers and MS MARCO write them."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ark_jax.data import readers
from ark_jax.data.formats.base import hashed_id
from ark_jax.data.formats.pairs import are_triples_of_sentences
from ark_jax.data.records import BadInput, Question
from ark_jax.train.trainer_formats import format_rows

MILL, KILN, FORGE = "The mill burned in 1802.", "The kiln stood by the lake.", "A forge was closed."


def ids(*texts: str) -> tuple[str, ...]:
    return tuple(map(hashed_id, texts))


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


ST = {"anchor": "When?", "positive": MILL, "negative_1": KILN, "negative_2": FORGE}
FLAG = {"query": "When?", "pos": [MILL], "neg": [KILN, FORGE], "pos_scores": [1.0], "prompt": "p"}


@pytest.mark.parametrize("row", [ST, FLAG])
@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".tsv", ".parquet"])
def test_training_rows_become_documents_and_a_question(tmp_path, row, suffix):
    path = tmp_path / f"f{suffix}"
    if suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist([row]), path)
    elif suffix in (".csv", ".tsv"):
        cells = [x if isinstance(x, str) else json.dumps(x) for x in row.values()]
        quoted = ['"' + cell.replace('"', '""') + '"' for cell in cells]
        path.write_text("\n".join((",\t"[suffix == ".tsv"]).join(x) for x in (row, quoted)))
    else:
        path.write_text(json.dumps([row] if suffix == ".json" else row))
    corpus = readers.load(path)
    assert corpus.format == "pairs"
    assert [(d.id, d.text) for d in corpus.documents] == [
        (hashed_id(text), text) for text in (MILL, KILN, FORGE)
    ]
    (question,) = corpus.questions
    expected = Question(hashed_id("When?"), "When?", (), ids(MILL), (), "", ids(KILN, FORGE))
    assert question == expected


def test_a_dataset_that_datasets_saved_is_read(tmp_path):
    library = pytest.importorskip("datasets", reason="needs .[reference]")
    rows = [ST | {"anchor": f"When {i}?"} for i in range(600)]  # more than are read at once
    library.Dataset.from_list(rows).save_to_disk(tmp_path / "saved")
    (file,) = (tmp_path / "saved").glob("*.arrow")
    for path in (tmp_path / "saved", file):
        corpus = readers.load(path)
        assert [question.question for question in corpus.questions] == [x["anchor"] for x in rows]
        assert [document.text for document in corpus.documents] == [MILL, KILN, FORGE]


def test_a_cut_arrow_file_is_a_problem(tmp_path):
    table, path = pa.Table.from_pylist([ST]), tmp_path / "f.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)
    assert len(readers.load(path).questions) == 1
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(BadInput, match=r"f.arrow: cannot be read as Parquet or Arrow \("):
        readers.load(path)


def test_pairs_need_no_negatives(tmp_path):
    path = write_rows(tmp_path / "f.jsonl", [{"anchor": "When?", "positive": MILL}])
    assert readers.load(path).questions[0].negatives == ()


def test_rows_with_the_same_question_are_merged(tmp_path):
    """What one row calls positive is never a negative of the other."""
    rows = [
        {"query": "When?", "positive": MILL, "negative": KILN},
        {"query": "When?", "positive": KILN, "negative": FORGE},
        {"query": "Where?", "positive": KILN, "negative": FORGE},
    ]
    corpus = readers.load(write_rows(tmp_path / "f.jsonl", rows))
    assert len(corpus.documents) == 3
    when, where = corpus.questions
    assert when.documents == ids(MILL, KILN) and when.negatives == ids(FORGE)
    assert where.documents == ids(KILN) and where.negatives == ids(FORGE)


def test_triplets_without_a_header_are_read(tmp_path):
    path = tmp_path / "triples.train.small.tsv"
    path.write_text(f"When?\t{MILL}\t{KILN}\nWhere?\t{KILN}\t{FORGE}\n")
    corpus = readers.load(path)
    assert corpus.format == "triplets" and len(corpus.documents) == 3
    assert [q.question for q in corpus.questions] == ["When?", "Where?"]
    assert corpus.questions[0].negatives == ids(KILN)


def test_a_triplet_without_a_negative_is_refused(tmp_path):
    path = tmp_path / "triples.train.small.tsv"
    path.write_text(f"When?\t{MILL}\t{KILN}\nWhere?\t{KILN}\t{FORGE}\nWho?\t{KILN}\t\n")
    with pytest.raises(BadInput, match=r"small\.tsv:3: .*question, positive and negative"):
        readers.load(path)


@pytest.mark.parametrize(
    "text",
    [
        "Kismet\tdirected by\tWilliam Dieterle\nKismet\tstarred actors\tRonald Colman\n",
        f"question\tanswer\tevidence\nWhen?\t{MILL}\t{MILL}\n",
        f"When?\t{MILL}\nWhere?\t{KILN}\n",
    ],
)
def test_graphs_and_tables_are_not_taken_for_triplets(tmp_path, text):
    (tmp_path / "f.tsv").write_text(text)
    assert not are_triples_of_sentences(tmp_path / "f.tsv")


def test_a_faulty_row_is_named(tmp_path):
    rows = [ST, {"query": "Who?", "pos": [], "neg": [KILN]}, {"query": "Why?", "pos": [7]}]
    with pytest.raises(BadInput) as error:
        readers.load(write_rows(tmp_path / "f.jsonl", rows))
    message = str(error.value)
    assert "f.jsonl:2: pos: is empty; give a text" in message
    assert "f.jsonl:3: pos: item 1 is a number" in message


@pytest.mark.parametrize("format", ["sentence-transformers", "flagembedding"])
def test_exported_training_data_can_be_read_again(tmp_path, format):
    from ark_jax.train.batches import Example

    passages = {"m": MILL, "k": KILN, "f": FORGE}
    examples = [Example("q", "d", ("m", "k"), ("f",))]
    rows = list(format_rows(format, examples, {"q": "When?"}, passages))
    (question,) = readers.load(write_rows(tmp_path / "f.jsonl", rows)).questions
    assert question.documents == ids(MILL, KILN) and question.negatives == ids(FORGE)


def test_pairs_on_a_corpus_name_its_documents_by_text_or_id(tmp_path):
    documents = [
        {"id": "d1", "text": MILL},
        {"id": "d2", "text": KILN},
        {"id": "d3", "text": FORGE},
    ]
    corpus = write_rows(tmp_path / "documents.jsonl", documents)
    rows = [
        {"query": "When?", "pos": [MILL], "neg": ["d2"]},
        {"query": "When?", "pos": ["d2"], "neg": [FORGE]},
    ]
    pairs = write_rows(tmp_path / "pairs.jsonl", rows)
    read, problems = readers.read(corpus, str(pairs))
    assert not problems and len(read.documents) == 3
    (question,) = read.questions
    assert (question.documents, question.negatives) == (("d1", "d2"), ("d3",))
    write_rows(pairs, [*rows, {"query": "Who?", "pos": [MILL], "neg": ["Nobody."]}])
    _, (problem,) = readers.read(corpus, str(pairs))
    assert problem.line == 3 and "'Nobody.' is neither text nor id of a document" in str(problem)
