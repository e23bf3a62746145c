"""Each format gives back the corpus that was written in it."""

import csv
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.corpora import WRITTEN, corpora

from ark_jax.data import readers
from ark_jax.data.formats.beir import write_beir
from ark_jax.data.records import BadInput, Corpus
from ark_jax.data.rows import has_visible

ONCE = settings(max_examples=40, deadline=None)


def same(corpus: Corpus, other: Corpus) -> bool:
    return (corpus.documents, corpus.questions) == (other.documents, other.questions)


def document_rows(corpus: Corpus) -> list[dict]:
    return [{"id": d.id, "title": d.title, "text": d.text} for d in corpus.documents]


def question_rows(corpus: Corpus) -> list[dict]:
    return [{**vars(q), "answers": list(q.answers)} for q in corpus.questions]


# Tables hold no NUL, and a blank cell is one that is missing.
def printable(corpus: Corpus) -> bool:
    if any(d.title and not d.title.strip() for d in corpus.documents):
        return False
    return "\\u0000" not in json.dumps([document_rows(corpus), question_rows(corpus)])


@ONCE
@given(corpus=corpora().filter(printable), suffix=st.sampled_from([".csv", ".tsv"]))
def test_any_corpus_survives_a_round_trip_in_csv_and_tsv(tmp_path_factory, corpus, suffix):
    folder = tmp_path_factory.mktemp("tables")
    for name, rows in (("documents", document_rows(corpus)), ("questions", question_rows(corpus))):
        with (folder / f"{name}{suffix}").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(
                file, rows[0], delimiter=",\t"[suffix == ".tsv"], quoting=csv.QUOTE_ALL
            )
            writer.writeheader()
            for row in rows:
                lists = {k: json.dumps(v) for k, v in row.items() if isinstance(v, list | tuple)}
                writer.writerow({**row, **lists})
    reread, problems = readers.read(folder)
    assert not problems and same(reread, corpus)


@ONCE
@given(corpus=corpora())
def test_any_corpus_survives_a_round_trip_in_parquet(tmp_path_factory, corpus):
    folder = tmp_path_factory.mktemp("parquet")
    for name, rows in (("documents", document_rows(corpus)), ("questions", question_rows(corpus))):
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{name}.parquet")
    reread, problems = readers.read(folder)
    assert not problems and same(reread, corpus)


@ONCE
@given(corpus=corpora().filter(printable))
def test_any_corpus_survives_a_round_trip_in_beir_format(tmp_path_factory, corpus):
    folder = tmp_path_factory.mktemp("beir")
    write_beir(corpus, folder)
    for path in (folder, folder / "qrels" / "test.tsv"):
        reread, problems = readers.read(path)
        assert not problems and reread.format == "beir" and same(reread, corpus)
    assert readers.read_questions(folder / "qrels" / "test.tsv", corpus.texts) == (
        corpus.questions,
        [],
    )


PASSAGES = st.lists(WRITTEN, min_size=1, max_size=4, unique=True)


@ONCE
@given(texts=PASSAGES, question=WRITTEN, answers=PASSAGES, array=st.booleans())
def test_squad_is_read_as_one_object_or_as_rows(tmp_path_factory, texts, question, answers, array):
    """As one object, and in rows as on the hub; the second question of each has no answer."""
    path = tmp_path_factory.mktemp("squad") / "f"
    spans = [{"text": a, "answer_start": 0} for a in answers]
    if array:
        qas = lambda i: [
            {"id": f"{i}a", "question": question, "answers": spans},
            {"id": f"{i}b", "question": question, "answers": [], "is_impossible": True},
        ]
        paragraphs = [{"context": text, "qas": qas(i)} for i, text in enumerate(texts)]
        data = {"version": "v2.0", "data": [{"title": "A_B", "paragraphs": paragraphs}]}
        path.write_text(json.dumps(data))
    else:
        row = lambda i, name, answers: {
            "id": f"{i}{name}",
            "title": "A B",
            "context": texts[i],
            "question": question,
            "answers": {"text": answers, "answer_start": [0] * len(answers)},
        }
        rows = [row(i, n, a) for i in range(len(texts)) for n, a in (("a", answers), ("b", []))]
        path.write_text("\n".join(map(json.dumps, rows)))
    corpus = readers.load(path)
    assert corpus.format == "squad"
    assert [(d.title, d.text) for d in corpus.documents] == [("A B", text) for text in texts]
    assert [(q.id, q.question, q.answers, q.evidence) for q in corpus.questions] == [
        (f"{i}a", question, tuple(answers), (text,)) for i, text in enumerate(texts)
    ]
    assert [q.documents for q in corpus.questions] == [(d.id,) for d in corpus.documents]
    assert sum(remark.rows for remark in corpus.remarks) == len(texts)


@ONCE
@given(texts=PASSAGES, question=WRITTEN, answer=WRITTEN, old=st.booleans(), data=st.data())
def test_both_versions_of_ragas_are_read(tmp_path_factory, texts, question, answer, old, data):
    path = tmp_path_factory.mktemp("ragas") / "f.jsonl"
    gold = data.draw(st.lists(st.sampled_from(texts), unique=True, max_size=2))
    if old:
        row = {"question": question, "ground_truth": answer, "contexts": texts, "answer": "no"}
    else:
        row = {
            "user_input": question,
            "reference": answer,
            "reference_contexts": gold,
            "retrieved_contexts": texts,
            "response": "no",
        }
    path.write_text(json.dumps(row) + "\n" + json.dumps(row))
    corpus = readers.load(path)
    assert corpus.format == "ragas" and {d.text for d in corpus.documents} == set(texts)
    (reread,) = corpus.questions
    assert (reread.question, reread.answers) == (question, (answer,))
    assert set(reread.documents) == {d.id for d in corpus.documents}
    assert reread.evidence == (() if old else tuple(gold))
    assert "the line repeats line 1; it is read once" in str(corpus.remarks[0])


TITLED = st.lists(st.tuples(WRITTEN, WRITTEN), min_size=2, max_size=5, unique_by=lambda p: p[1])


@ONCE
@given(passages=TITLED, asked=st.booleans(), folder=st.booleans())
def test_hipporag_is_read_from_a_file_or_a_folder(tmp_path_factory, passages, asked, folder):
    root = tmp_path_factory.mktemp("hipporag")
    path = root / "x_corpus.json"
    path.write_text(json.dumps([{"title": title, "text": text} for title, text in passages]))
    title, text = passages[0]
    paragraphs = [
        {"title": title, "text": f" {text} ", "is_supporting": True},
        {"title": passages[1][0], "paragraph_text": passages[1][1], "is_supporting": False},
    ]
    question = {"id": "q", "question": "Who?", "answer": ["Ada"], "paragraphs": paragraphs}
    if asked:
        (root / "x.json").write_text(json.dumps([question]))
    reread = readers.load(root if folder else path)
    assert [(d.title, d.text) for d in reread.documents] == passages
    if asked:
        assert reread.questions[0].evidence == (passages[0][1],)
        assert [q.answers for q in reread.questions] == [("Ada",)]
        assert reread.questions[0].documents == tuple(d.id for d in reread.documents)[:2]
    else:
        assert reread.questions == []


@ONCE
@given(corpus=corpora(), cuts=st.integers(1, 4), placed=st.booleans(), joined=st.booleans())
def test_given_chunks_keep_their_place_in_the_document(
    tmp_path_factory, corpus, cuts, placed, joined
):
    """Of documents that are known, or joined from them when every chunk says where it stands."""
    folder = tmp_path_factory.mktemp("chunks")
    rows, pieces = [], []
    for document in corpus.documents:
        for start in range(0, len(document.text), cuts):
            text = document.text[start : start + cuts]
            if has_visible(text):
                pieces.append((document.id, text))
                row = {"id": f"{document.id}#{start}", "document": document.id, "text": text}
                end = start + len(text)
                rows.append({**row, **({"start": start, "end": end} if placed else {})})
    (folder / "chunks.jsonl").write_text("\n".join(map(json.dumps, rows)))
    if not joined:
        lines = map(json.dumps, document_rows(corpus))
        (folder / "documents.jsonl").write_text("\n".join(lines))
    reread = readers.load(folder)
    assert [(c.document, c.text) for c in reread.chunks] == pieces
    for chunk in reread.chunks:
        assert reread.texts[chunk.document][chunk.start : chunk.end] == chunk.text
    assert {d.id for d in reread.documents} == {d.id for d in corpus.documents}
    if not joined:
        assert reread.documents == corpus.documents


@ONCE
@given(corpus=corpora(), lacking=st.sampled_from(["answers", "documents", "both"]))
def test_questions_may_lack_answers_or_documents(tmp_path_factory, corpus, lacking):
    folder = tmp_path_factory.mktemp("questions")
    dropped = ("answers", "documents") if lacking == "both" else (lacking,)
    rows = [{k: v for k, v in vars(q).items() if k not in dropped} for q in corpus.questions]
    (folder / "questions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "documents.jsonl").write_text("\n".join(map(json.dumps, document_rows(corpus))))
    reread, problems = readers.read(folder)
    complete = [q for q in corpus.questions if q.evidence or lacking != "both"]
    assert [p.field for p in problems] == ["answers"] * (len(rows) - len(complete))
    assert [(q.id, q.evidence) for q in reread.questions] == [(q.id, q.evidence) for q in complete]
    assert all(not getattr(q, name) for q in reread.questions for name in dropped)
    if not problems:
        questions, remarks = readers.read_questions(folder / "questions.jsonl", corpus.texts)
        assert questions == reread.questions and remarks == []


def test_chunks_without_positions_are_joined_in_order(tmp_path):
    rows = [("a", "d", "One."), ("b", "e", "Two."), ("c", "d", "Three.")]
    fields = ("id", "document", "text")
    lines = (json.dumps(dict(zip(fields, row, strict=True))) for row in rows)
    (tmp_path / "f.jsonl").write_text("\n".join(lines))
    corpus = readers.load(tmp_path / "f.jsonl")
    assert dict(corpus.texts) == {"d": "One.\n\nThree.", "e": "Two."}
    places = [(c.id, c.start, c.end) for c in corpus.chunks]
    assert places == [("a", 0, 4), ("b", 0, 4), ("c", 6, 12)]


def test_a_gap_before_a_positioned_chunk_is_filled_with_line_breaks(tmp_path):
    (tmp_path / "f.jsonl").write_text('{"id": "x", "document": "d", "text": "y", "start": 4}')
    assert dict(readers.load(tmp_path / "f.jsonl").texts) == {"d": "\n\n\n\ny"}


def test_several_parquet_files_are_read_as_one(tmp_path):
    rows = [
        {"_id": i, "input": "Who?", "context": f"Ada {i}.", "answers": ["Ada"]} for i in range(5)
    ]
    (tmp_path / "data").mkdir()
    (tmp_path / "README.md").write_text("# A data set")
    for name, part in (("train-00000-of-00002", rows[:3]), ("train-00001-of-00002", rows[3:])):
        pq.write_table(pa.Table.from_pylist(part), tmp_path / "data" / f"{name}.parquet")
    corpus = readers.load(tmp_path)
    assert corpus.format == "longbench" and [q.id for q in corpus.questions] == list("01234")
    assert [path.name for path in readers.files(tmp_path)] == [
        "train-00000-of-00002.parquet",
        "train-00001-of-00002.parquet",
    ]


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"f.parquet": "PAR1 and no more"}, "cannot be read as Parquet"),
        (
            {"f.jsonl": '{"question": "Who?", "answers": ["Ada"]}'},
            "holds questions and no documents",
        ),
        ({"f.csv": "id,text,text\n1,a,b\n"}, "the column 'text' occurs twice; rename one"),
        ({"f.jsonl": '{"user_input": [{"content": "Hi"}], "reference": "x"}'}, "is a conversation"),
        ({"f.json": '{"data": [{"paragraphs": [{"context": "x", "qas"'}, "invalid JSON"),
        ({"f.json": '{"data": [{"paragraphs": [{"qas": []}]}]}'}, "item 1: context is missing"),
        (
            {"f.jsonl": '{"id": "c", "document": "d", "text": "ab", "start": 0, "end": 9}'},
            "is 9, but the text has 2 characters from 0 on",
        ),
        (
            {
                "f.jsonl": '{"id": "c", "document": "d", "text": "abc", "start": 0}\n'
                '{"id": "e", "document": "d", "text": "xy", "start": 1}'
            },
            "1 is inside an earlier chunk of the document with other text",
        ),
        (
            {
                "f.jsonl": '{"id": "c", "document": "d", "text": "a\\nc", "start": 0}\n'
                '{"id": "e", "document": "d", "text": "b", "start": 1}'
            },
            "1 is inside an earlier chunk of the document with other text",
        ),
        (
            {"f.jsonl": '{"id": "c", "text": "abc", "start": 1000000000000}'},
            "1000000000000 is far behind the chunks before it; count characters",
        ),
    ],
)
def test_faulty_files_are_reported(tmp_path, files, words):
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    _, problems = readers.read(tmp_path / name)
    assert words in str(problems[0]), problems


def test_repeated_rows_without_ids_are_read_once(tmp_path):
    (tmp_path / "documents.csv").write_text("text\nOne.\nOne.\nTwo.\n")
    (tmp_path / "questions.csv").write_text("Question,Answer\nWho?,Ada\nWho?,Ada\nWho?,Eve\n")
    corpus, problems = readers.read(tmp_path)
    assert not problems and list(corpus.texts.values()) == ["One.", "Two."]
    assert [q.answers for q in corpus.questions] == [("Ada",), ("Eve",)]
    assert [(r.line, r.message) for r in corpus.remarks] == [
        (3, "the line repeats line 2; it is read once")
    ] * 2


def test_a_beir_corpus_needs_no_questions(tmp_path):
    (tmp_path / "corpus.jsonl").write_text('{"_id": "a", "title": "T", "text": "x"}\n')
    corpus = readers.load(tmp_path)
    assert (len(corpus.documents), corpus.questions, corpus.format) == (1, [], "beir")
    assert "questions: none" in readers.summary(corpus)


def test_beir_judgments_without_queries_are_a_problem(tmp_path):
    (tmp_path / "corpus.jsonl").write_text('{"_id": "a", "title": "T", "text": "x"}\n')
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\ta\t1\n")
    _, problems = readers.read(tmp_path)
    assert [str(p).split(":")[0] for p in problems] == [str(tmp_path / "queries.jsonl")]


def test_a_test_question_on_an_unknown_document_is_refused(tmp_path):
    write_test_set(tmp_path / "test.jsonl")
    with pytest.raises(BadInput, match="'none' is not found in the corpus"):
        readers.read_questions(tmp_path / "test.jsonl", {"d": "The tide rose."})


def test_a_test_question_on_an_unknown_document_can_be_tolerated(tmp_path):
    write_test_set(tmp_path / "test.jsonl")
    texts = {"d": "The tide rose."}
    questions, remarks = readers.read_questions(tmp_path / "test.jsonl", texts, tolerate=0.4)
    assert [q.id for q in questions] == ["a", "b"] and len(remarks) == 1


def test_a_test_set_without_questions_is_refused(tmp_path):
    (tmp_path / "only.jsonl").write_text('{"text": "x"}')
    with pytest.raises(BadInput, match="no questions"):
        readers.read_questions(tmp_path / "only.jsonl", {"d": "The tide rose."})


def test_a_missing_test_set_is_refused_with_the_nearest_file(tmp_path):
    write_test_set(tmp_path / "test.jsonl")
    with pytest.raises(BadInput, match=r"did you mean test\.jsonl"):
        readers.read_questions(tmp_path / "tset.jsonl", {"d": "The tide rose."})


def write_test_set(path):
    """Three questions, the third on a document that the corpus does not have."""
    rows = [
        {"id": "a", "question": "What?", "answers": ["the tide"]},
        {"id": "b", "question": "What?", "documents": ["d"], "evidence": ["tide rose"]},
        {"id": "c", "question": "What?", "documents": ["none"]},
    ]
    path.write_text("\n".join(map(json.dumps, rows)))


def test_a_test_set_may_bring_its_own_documents(tmp_path):
    texts = {"d": "The tide rose."}
    question = {"id": "a", "question": "What?", "answers": ["tide"], "documents": ["d"]}
    (tmp_path / "test.jsonl").write_text(json.dumps(question))
    test, problems = readers.read_test(tmp_path / "test.jsonl", texts)
    assert ([q.id for q in test.questions], list(test.documents), problems) == (["a"], [], [])
    with_documents = tmp_path / "own"
    with_documents.mkdir()
    (with_documents / "questions.jsonl").write_text(json.dumps(question))
    for text, messages in (
        ("The tide rose.", []),
        ("It fell.", ["'d' has another text in the corpus; give one of them another id"]),
    ):
        (with_documents / "documents.jsonl").write_text(json.dumps({"id": "d", "text": text}))
        test, problems = readers.read_test(with_documents, texts)
        assert [q.id for q in test.questions] == ["a"]
        assert [d.text for d in test.documents] == [text]
        assert [problem.message for problem in problems] == messages
    assert problems.fatal  # no tolerance covers it


def test_a_refusal_names_the_tolerance_that_would_accept_the_rest(tmp_path):
    rows = [json.dumps({"id": f"d{i}", "text": "x" if i else ""}) for i in range(40)]
    (tmp_path / "documents.jsonl").write_text("\n".join(rows))
    with pytest.raises(BadInput) as raised:
        readers.load(tmp_path)
    last = (
        "they are in 1 of 40 rows: mend them, or read the rest with --tolerate=0.025 "
        "(config.data.tolerate)"
    )
    assert str(raised.value).splitlines()[-1] == last
    assert len(readers.load(tmp_path, 0.025).documents) == 39


@pytest.mark.parametrize("suffix", ["csv", "tsv", "parquet"])
def test_a_misspelled_column_is_reported_once(tmp_path, suffix):
    (tmp_path / "documents.jsonl").write_text('{"id": "d", "text": "The tide rose."}')
    path = tmp_path / f"questions.{suffix}"
    columns = {"question": [f"What {i}?" for i in range(30)], "document": ["d"] * 30}
    if suffix == "parquet":
        pq.write_table(pa.table(columns), path)
    else:
        lines = [columns, *zip(*columns.values(), strict=True)]
        delimiter = "," if suffix == "csv" else "\t"
        path.write_text("\n".join(delimiter.join(line) for line in lines))
    corpus, problems = readers.read(tmp_path)
    message = "the column is missing, but there is 'document'; rename 'document' to 'documents'"
    reported = [(x.line, x.field, x.message) for x in problems if x.field == "documents"]
    assert reported == [(0, "documents", message)]
    assert problems.fatal and corpus.questions == []


def test_faults_of_a_beir_folder_are_reported(tmp_path):
    corpus = '{"_id": "a", "title": "", "text": "x"}\n{"_id": "b", "title": "Only", "text": ""}\n'
    (tmp_path / "corpus.jsonl").write_text(corpus)
    (tmp_path / "queries.jsonl").write_text(
        '{"_id": "1", "text": "Who?"}\n{"_id": "2", "text": "What?"}\n{"_id": "3", "text": "Why?"}'
    )
    (tmp_path / "qrels").mkdir()
    head = "query-id\tcorpus-id\tscore\n"
    (tmp_path / "qrels" / "dev.tsv").write_text(head + "1\tb\t2\n1\ta\t0\n")
    (tmp_path / "qrels" / "test.tsv").write_text(
        head + "2\ta\t1\n2\tnone\t1\n9\ta\t1\n2\tb\thigh\n"
    )
    reread, problems = readers.read(tmp_path)
    # A relevant document that the corpus lacks counts, though it has no text.
    assert [(q.id, q.documents) for q in reread.questions] == [("1", ("b",)), ("2", ("a", "none"))]
    assert reread.texts == {"a": "x", "b": "Only", "none": ""}
    assert [(p.line, p.field) for p in problems] == [(5, "score"), (0, "")]
    assert "such as '9', are not found" in problems[1].message
    assert [remark.message for remark in reread.remarks] == [
        "holds the splits dev, test; all are read, and qrels/SPLIT.tsv names one",
        "1 relevant documents, such as 'none', are not in corpus.jsonl; they count in recall and "
        "nDCG, as in BEIR, and no search finds them",
        "1 queries have no relevant document; they are passed over",
    ]
    split = readers.load(tmp_path / "qrels" / "dev.tsv")
    assert [q.id for q in split.questions] == ["1"]


def test_unknown_documents_are_problems_if_most_of_the_judged_are_unknown(tmp_path):
    """The ids are then wrong, not the corpus incomplete."""
    (tmp_path / "corpus.jsonl").write_text('{"_id": "a", "text": "x"}\n')
    (tmp_path / "queries.jsonl").write_text(
        '{"_id": "1", "text": "Who?"}\n{"_id": "2", "text": "What?"}\n'
    )
    (tmp_path / "qrels").mkdir()
    judged = "1\tx\t2\n1\ty\t1\n2\ta\t1\n"
    (tmp_path / "qrels" / "dev.tsv").write_text(f"query-id\tcorpus-id\tscore\n{judged}")
    reread, problems = readers.read(tmp_path)
    assert [(p.line, p.field) for p in problems] == [(2, "corpus-id"), (3, "corpus-id")]
    assert [q.documents for q in reread.questions] == [("a",)]


def test_empty_documents_of_a_beir_folder_are_kept(tmp_path):
    rows = [{"_id": "a", "title": "", "text": ""}, {"_id": "b", "text": " "}, {"_id": "c"}]
    rows.append({"_id": "d", "text": "x"})
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    corpus, (problem,) = readers.read(tmp_path)
    assert corpus.texts == {"a": "", "b": "", "d": "x"}
    assert (problem.line, problem.field) == (3, "text")
    assert "2 documents hold no text; they stay" in corpus.remarks[0].message
