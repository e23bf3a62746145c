"""What an input may be, and what the data stage makes of it."""

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
