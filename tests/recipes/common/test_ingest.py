"""What an input may be, and what the data stage makes of it."""

import json
import shutil

import pytest
from support.world import call, make_world


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


def test_questions_of_which_none_has_an_answer_are_refused_with_what_helps(world, tmp_path):
    corpus = tmp_path / "corpus"
    shutil.copytree(world / "corpus", corpus)
    rows = map(json.loads, (corpus / "questions.jsonl").read_text().splitlines())
    lines = [json.dumps({**row, "answers": []}) + "\n" for row in rows]
    (corpus / "questions.jsonl").write_text("".join(lines))
    done = call(world, tmp_path / "w", "data", f"--config.data.path={corpus}")
    assert done.returncode == 1 and "questions has an answer, so none can be" in done.stderr
    assert "--config.questions.source=written" in done.stderr


def test_a_run_says_that_a_question_searches_its_own_documents(world, tmp_path):
    done = call(world, tmp_path / "w", "data")
    assert done.returncode == 0, done.stderr
    assert "config.data.pool=corpus searches all 78 chunks" in done.stdout + done.stderr
