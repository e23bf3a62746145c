"""How questions are split, and what an input may be."""

import shutil

import pytest
from support.world import call, make_world

from ark_jax.data.records import Question
from ark_jax.recipes.ark import config
from ark_jax.recipes.common import ingest


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("world"))


def test_a_broken_input_is_refused_before_any_work(world, tmp_path):
    corpus = tmp_path / "corpus"
    shutil.copytree(world / "corpus", corpus)
    with (corpus / "questions.jsonl").open("a") as file:
        file.write(
            '{"id": "x", "question": "Why?", "answers": [7], "documents": ["tidal-board"]}\n'
        )
    done = call(world, tmp_path / "w", "run", f"--config.data.path={corpus}")
    assert done.returncode == 1
    assert (
        "questions.jsonl:" in done.stderr
        and "answers" in done.stderr
        and "Traceback" not in done.stderr
    )
    assert not (tmp_path / "w" / "data").exists()


def split(questions, **settings):
    c = config.ark()
    c.data.update(settings)
    parts, by = ingest._split(questions, c)
    assert sorted(q.id for part in parts.values() for q in part) == sorted(q.id for q in questions)
    return parts, by


def documents_of(questions) -> set[str]:
    return {d for q in questions for d in q.documents}


def test_ids_may_be_numbers():
    questions = [Question(f"q{i}", "?", ("x",), (str(i),)) for i in range(4)]
    parts, by = split(questions, held_out_documents=(3,), ignored_questions=("q0",))
    assert (
        [q.id for q in parts["held_out"]] == ["q3"]
        and [q.id for q in parts["ignored"]] == ["q0"]
        and by == "document"
    )


def test_documents_that_a_question_joins_are_split_together():
    """Twenty paragraphs a question, as in MuSiQue: drawn one by one, hardly a question would have
    all in one part."""
    questions = [
        Question(f"q{i}", "?", ("a",), tuple(f"d{i}-{k}" for k in range(20))) for i in range(200)
    ]
    questions.append(Question("both", "?", ("a",), ("d0-3", "d1-4")))
    parts, by = split(questions)
    assert by == "document" and not parts["ignored"]
    assert not documents_of(parts["train"]) & documents_of(parts["held_out"])
    assert 20 <= len(parts["held_out"]) <= 60  # a fifth is wanted
    more, _ = split([*questions, Question("new", "?", ("a",), ("new",))])
    assert [q for q in more["held_out"] if q.id != "new"] == parts["held_out"]


def test_questions_over_one_pool_of_documents_are_split_one_by_one(capsys):
    questions = [Question(f"q{i}", "?", ("a",), (f"d{i}", f"d{i + 1}")) for i in range(100)]
    parts, by = split(questions)
    assert by == "question" and 8 <= len(parts["held_out"]) <= 35
    assert "the split is by question" in capsys.readouterr().out


def test_named_documents_are_held_out_and_what_straddles_is_left_out():
    of = lambda *documents: Question(" ".join(documents), "?", ("a",), documents)
    parts, by = split(
        [of("a"), of("b"), of("a", "b"), of("c"), of("b", "x")],
        held_out_documents=("b",),
        ignored_documents=("c",),
    )
    assert {name: [q.id for q in some] for name, some in parts.items()} == {
        "train": ["a"],
        "held_out": ["b"],
        "ignored": ["c", "a b", "b x"],
    }
    assert by == "document"


def test_named_questions_are_held_out_whatever_their_documents():
    questions = [Question(f"q{i}", "?", ("a",), ("d",)) for i in range(5)]
    parts, by = split(questions, held_out_questions=("q3", "q1"), ignored_questions=("q0", "q1"))
    assert {name: [q.id for q in some] for name, some in parts.items()} == {
        "train": ["q2", "q4"],
        "held_out": ["q3"],
        "ignored": ["q0", "q1"],
    }
    assert by == "question"
    with pytest.raises(ValueError, match="not both"):
        split(questions, held_out_questions=("q3",), held_out_documents=("d",))
