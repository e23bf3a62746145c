"""Several files of one setting: their documents are one corpus, their names are groups."""

import json

import pytest

from ark_jax.cli import check
from ark_jax.data import readers
from ark_jax.pipeline.fingerprints import read_input_digest

CORPUS = {"d1": "The mill burned.", "d2": "The kiln stood."}


def save(folder, name, rows):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / name


@pytest.fixture
def folder(tmp_path):
    """Two test sets whose questions have the same id, one of them with passages of its own."""
    sets = tmp_path / "sets"
    asked = {"id": "test_0", "question": "What burned?", "golden_answers": ["mill"]}
    save(sets, "nq.jsonl", [asked])
    passage = {"id": "d3", "title": "", "text": "The barn fell."}
    save(
        sets,
        "popqa.jsonl",
        [{"id": "test_0", "question": "What fell?", "answers": ["barn"]} | {"ctxs": [passage]}],
    )
    return sets


@pytest.mark.parametrize("form", ["folder", "list"])
def test_test_sets_are_groups_of_one_test(folder, form):
    path = str(folder) if form == "folder" else f"{folder}/nq.jsonl, {folder}/popqa.jsonl"
    test, problems = readers.read_test(path, CORPUS)
    assert not problems
    assert [(q.id, q.group, q.documents) for q in test.questions] == [
        ("nq/test_0", "nq", ()),
        ("popqa/test_0", "popqa", ("d3",)),
    ]
    assert list(test.texts) == ["d3"]


def test_one_file_stays_as_it_is(folder):
    test, _ = readers.read_test(folder / "popqa.jsonl", CORPUS)
    assert [(q.id, q.group) for q in test.questions] == [("test_0", "")]


def test_documents_of_several_files_are_one_corpus(tmp_path):
    row = {"input": "What burned?", "context": "The mill burned.", "answers": ["mill"]}
    save(tmp_path / "train", "fin.jsonl", [row | {"_id": "a"}])
    save(
        tmp_path / "train", "legal.jsonl", [row | {"_id": "a"}, row | {"_id": "b", "context": "x"}]
    )
    corpus = readers.load(tmp_path / "train")
    assert [q.id for q in corpus.questions] == ["fin/a", "legal/a", "legal/b"]
    assert len(corpus.documents) == 2


def test_documents_of_two_files_with_one_id_are_refused(tmp_path):
    for name, text in (("a.jsonl", "x"), ("b.jsonl", "y")):
        save(tmp_path / "two", name, [{"id": "d", "text": text}])
    _, problems = readers.read(tmp_path / "two")
    assert "'d' has another text in an earlier file" in str(problems[0])


def test_the_digest_covers_each_file(folder):
    paths = f"{folder}/nq.jsonl,{folder}/popqa.jsonl"
    before = read_input_digest(paths)
    save(folder, "popqa.jsonl", [{"question": "?", "answers": ["x"]}])
    assert read_input_digest(paths) != before


def test_check_counts_the_questions_of_each_set(folder, tmp_path, capsys):
    documents = [{"id": id, "text": text} for id, text in CORPUS.items()]
    corpus = save(tmp_path, "documents.jsonl", documents)
    assert check.Check(verb="check", path=str(corpus), test=str(folder)).run() == 0
    printed = capsys.readouterr().out
    assert "  nq: 1 questions\n  popqa: 1 questions\ntest set: 2 questions" in printed
