"""Files and folders are recognised, read and summed up."""

import ast
import json
import sys
from pathlib import Path

import pytest
from support.input_files import LONG, write
from support.paths import DATA, REPOSITORY

from ark_jax.data import formats, readers, rows
from ark_jax.data.records import Corpus, Document, Question


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("musique_trian.json", "does not exist; did you mean musique_train.json?"),
        ("other", "does not exist; mend the path, or put it into"),
        ("no/such.json", "does not exist, nor does the folder"),
        ("musique_train.json/x", "cannot be read (Not a directory); give a readable file"),
    ],
)
def test_a_wrong_path_is_reported_with_its_fix(tmp_path, name, words):
    write(tmp_path, {"musique_train.json": "[]"})
    corpus, problems = readers.read(tmp_path / name)
    assert [(p.file, p.line, p.field) for p in problems] == [(str(tmp_path / name), 0, "")]
    assert words in problems[0].message and corpus == Corpus([], [], "")


def test_a_folder_of_empty_files_is_called_so(tmp_path):
    _, (problem,) = readers.read(write(tmp_path, {"a.sgml": "", "b.sgml": ""}))
    assert problem.message.startswith("holds empty files alone, a.sgml, b.sgml, no known format;")


def test_the_format_is_detected_despite_bad_first_rows(tmp_path):
    write(tmp_path, {"f.jsonl": '{"_id": "0"}\n7\n' + LONG})
    corpus, problems = readers.read(tmp_path / "f.jsonl")
    assert corpus.format == "longbench" and [q.id for q in corpus.questions] == ["1"]
    assert {(p.line, p.field) for p in problems} == {
        (1, "input"),
        (1, "context"),
        (1, "answers"),
        (2, ""),
    }


def test_the_corpus_of_the_demo_is_read():
    # Counted with wc and jq.
    corpus = readers.load(REPOSITORY / "ark_jax" / "demo")
    assert (len(corpus.documents), len(corpus.questions)) == (16, 192)
    assert all(q.evidence for q in corpus.questions)


def test_the_published_musique_file_is_read_completely():
    path = DATA / "musique_openie" / "musique_train.json"
    if not path.exists():
        pytest.skip("set ARK_DATA to a folder with musique_openie/musique_train.json")
    corpus = readers.load(path)
    # The numbers are counted with jq: rows, distinct [title, paragraph_text], supporting
    # paragraphs,
    # and answers with aliases.
    assert (len(corpus.questions), len(corpus.documents)) == (100, 1890)
    assert sum(len(q.evidence) for q in corpus.questions) == 237
    assert sum(len(q.answers) for q in corpus.questions) == 153
    assert {len(q.documents) for q in corpus.questions} == {20}
    texts = {d.id: d.text for d in corpus.documents}
    assert all(
        passage in {texts[d] for d in q.documents}
        for q in corpus.questions
        for passage in q.evidence
    )


@pytest.mark.parametrize(
    ("path", "form", "documents", "questions"),
    [
        ("squad/xquad.en.json", "squad", 240, 1190),
        ("musique_openie", "hipporag", 1890, 100),
        ("musique_openie/musique_train_corpus.json", "hipporag", 1890, 100),
    ],
)
def test_published_squad_and_hipporag_files_are_read_completely(path, form, documents, questions):
    """The numbers are counted with jq: contexts or passages, and questions."""
    if not (DATA / path).exists():
        pytest.skip(f"set ARK_DATA to a folder with {path}")
    corpus = readers.load(DATA / path)
    assert (corpus.format, len(corpus.documents)) == (form, documents)
    assert len(corpus.questions) == questions and corpus.remarks == []
    assert all(document.title for document in corpus.documents)
    for question in corpus.questions:
        texts = [corpus.texts[id] for id in question.documents]
        assert all(any(passage in text for text in texts) for passage in question.evidence)
        if form == "squad":
            assert any(answer in texts[0] for answer in question.answers)


@pytest.mark.parametrize(
    ("path", "stories", "questions", "answers", "evidence"),
    [
        (".", 255, 9573, 15586, 10636),
        ("questions/train", 232, 8548, 12961, 9503),
        ("section-stories/val", 23, 1025, 2625, 1133),
    ],
)
def test_the_published_fairytaleqa_is_read_completely(path, stories, questions, answers, evidence):
    if not (DATA / "fairytaleqa").exists():
        pytest.skip("set ARK_DATA to a folder with fairytaleqa/")
    corpus = readers.load(DATA / "fairytaleqa" / path)
    # The numbers are counted with a csv.DictReader loop. One gold section, number 5 of the
    # remarkable
    # rocket, stands for two.
    assert (len(corpus.documents), len(corpus.questions)) == (stories, questions)
    assert sum(len(q.answers) for q in corpus.questions) == answers
    assert sum(len(q.evidence) for q in corpus.questions) == evidence
    assert len({q.id for q in corpus.questions}) == questions
    texts = {d.id: d.text for d in corpus.documents}
    assert all(passage in texts[q.documents[0]] for q in corpus.questions for passage in q.evidence)


def test_the_summary_counts_documents_questions_and_answers():
    documents = [
        Document("a", "", "one two three"),
        Document("b", "", "one"),
        Document("c", "", "one two"),
    ]
    questions = [
        Question("q", "?", ("x", "y", "Two"), ("a",), ("one",)),
        Question("r", "?", ("x", "y"), ("b",)),
    ]
    assert readers.summary(Corpus(documents, questions, "plain")) == (
        "format: plain\ndocuments: 3, median 2 words\nquestions: 2, 2.50 answers each\n"
        "evidence: given for 50% of the questions\n"
        "answers: of 1 of 2 questions, none occurs in their documents word for word"
    )


def test_a_corpus_that_cannot_be_read_has_a_summary(tmp_path):
    assert "documents: 0" in readers.summary(readers.read(tmp_path)[0])


@pytest.mark.parametrize("module", [readers, rows, formats, sys.modules[Corpus.__module__]])
def test_readers_import_only_the_standard_library(module):
    tree = ast.parse(Path(module.__file__).read_text())
    names = [
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    ]
    names += [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert {name.split(".")[0] for name in names} <= {*sys.stdlib_module_names, "ark_jax"}
    # Data may lie in a bucket.
    ours = ("ark_jax.data", "ark_jax.runtime")
    assert all(name.startswith(ours) for name in names if name.startswith("ark_jax"))


MILL = '{"id": "d", "text": "The mill burned."}\n'


def test_a_readme_beside_rows_is_no_second_format(tmp_path):
    write(tmp_path, {"documents.jsonl": MILL, "README.md": "# Data"})
    corpus = readers.load(tmp_path)
    assert corpus.format == "plain" and not corpus.remarks


def test_a_second_format_that_fits_a_folder_is_reported(tmp_path):
    write(tmp_path, {"documents.jsonl": MILL, "notes.md": "# Notes", "tides.txt": "Low."})
    corpus = readers.load(tmp_path)
    (remark,) = corpus.remarks
    assert len(corpus.documents) == 1 and remark.rows == 0
    assert remark.message == (
        "fits files too; it is read as plain, without 2 files such as notes.md: move them away, or "
        "name one of both"
    )


def test_rows_that_fit_two_kinds_are_reported(tmp_path):
    row = '{"question": "When?", "context": "In 1802.", "answers": ["1802"]'
    write(tmp_path, {"a.jsonl": row + ', "text": "A note."}\n', "b.jsonl": row + "}\n"})
    (remark,) = readers.load(tmp_path / "a.jsonl").remarks
    assert remark.message == "its rows fit documents too; they are read as squad"
    assert not readers.load(tmp_path / "b.jsonl").remarks


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_a_table_of_scores_is_read(form, tmp_path):
    path = tmp_path / f"scores.{form}"
    rows = [("who?", "the board", 1.5), ("who?", "a lamp", -2), ("when?", "a lamp", 0)]
    rows.append(rows[0])  # equal rows are one
    names = ("question", "passage", "score")
    lines = [json.dumps(dict(zip(names, row, strict=True))) for row in rows]
    if form == "csv":
        lines = [",".join(names), *(",".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines))
    wanted = {"who?": {"the board": 1.5, "a lamp": -2.0}, "when?": {"a lamp": 0.0}}
    assert readers.read_scores(path) == wanted


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"score": "high"}, "score: is 'high'; write a finite number"),
        ({"score": 2}, "score: differs from that of an earlier line; keep one"),
        ({"passage": ""}, "passage: is empty"),
        ({"score": None}, "score: is None; write a finite number"),
    ],
)
def test_a_wrong_row_of_scores_is_named(row, message, tmp_path):
    good = {"question": "who?", "passage": "the board", "score": 1}
    path = tmp_path / "scores.jsonl"
    path.write_text("\n".join(map(json.dumps, (good, good | row))))
    with pytest.raises(readers.BadInput, match=rf"scores.jsonl:2: {message}"):
        readers.read_scores(path)
