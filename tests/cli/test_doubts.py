"""A run asks on a terminal before it goes on although a stage doubts it."""

import dataclasses
import io
import sys

import pytest
from support import word_recipe

from ark_jax.pipeline.stage import Stage

SOURCE = f"--config={word_recipe.__file__}"


@pytest.fixture
def call(tool, tmp_path, monkeypatch):
    """Runs a recipe whose first stage doubts that the second is worth it."""
    doubtful = Stage(
        "split", word_recipe.split, doubts=lambda folder: [f"few words: {folder.name}"]
    )
    stages = lambda config: [doubtful, Stage("count", word_recipe.count)]
    changed = dataclasses.replace(word_recipe.RECIPE, stages=stages)
    monkeypatch.setattr(word_recipe, "RECIPE", changed)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("The tide")
    return lambda *words: tool(*words, SOURCE, "--config.text=text.txt", "--workdir=work")


def answering(monkeypatch, text: str, *, terminal: bool = True) -> None:
    stdin = io.StringIO(text)
    stdin.isatty = lambda: terminal
    monkeypatch.setattr(sys, "stdin", stdin)


@pytest.mark.parametrize(
    ("answer", "flags", "goes_on"),
    [("y\n", (), True), ("\n", (), False), ("", (), False), ("n\n", ("--yes",), True)],
)
def test_a_run_asks_on_a_terminal_before_it_goes_on_in_doubt(
    call, monkeypatch, tmp_path, answer, flags, goes_on
):
    answering(monkeypatch, answer)
    done = call("run", *flags)
    assert (done.returncode == 0) == goes_on == (tmp_path / "work" / "count").is_dir()
    assert (tmp_path / "work" / "split").is_dir()
    if not goes_on:
        assert "nothing is trained; the same command again trains" in done.stderr
        assert call("run").returncode == 0


def test_a_run_without_a_terminal_goes_on_in_doubt(call, monkeypatch, tmp_path):
    answering(monkeypatch, "n\n", terminal=False)
    assert call("run").returncode == 0 and (tmp_path / "work" / "count").is_dir()


def test_the_run_of_a_single_stage_asks_nothing(call, monkeypatch):
    answering(monkeypatch, "n\n")
    assert call("split").returncode == 0
