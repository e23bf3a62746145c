"""The workdir keeps its config: later commands need no other, and changes are asked for."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from support import word_recipe
from support.paths import REPOSITORY

from ark_jax import config
from ark_jax.pipeline import kept_config

TOOL = {**os.environ, "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{REPOSITORY / 'tests'}"}
SOURCE = f"--config={word_recipe.__file__}"


def call(place: Path, verb: str, *flags: str, **options) -> subprocess.CompletedProcess:
    """Runs a verb in a folder, whose workdir is `work`."""
    words = [sys.executable, "-m", "ark_jax", verb, "--workdir=work", *flags]
    defaults = {"stdin": subprocess.DEVNULL, "stderr": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.run(words, text=True, env=TOOL, cwd=place, **{**defaults, **options})


@pytest.fixture
def place(tmp_path):
    """A folder with a finished run in `work`."""
    (tmp_path / "text.txt").write_text("The tide of the Board")
    done = call(tmp_path, "run", SOURCE, f"--config.text={tmp_path / 'text.txt'}")
    assert done.returncode == 0, done.stderr
    return tmp_path


def contents(place: Path) -> dict[str, str]:
    """Stage -> the manifest of its finished folder."""
    return {path.parent.name: path.read_text() for path in place.glob("work/*/manifest.json")}


def test_a_workdir_alone_is_enough(place):
    assert call(place, "status").stdout.split()[1::2] == ["done"] * 3
    assert "stages to run: none" in call(place, "plan").stdout
    assert "nothing to do" in call(place, "run").stdout
    assert "nothing to do" in call(place, "report").stdout
    shown = call(place, "config").stdout
    assert "  fold_case = True" in shown and "text.txt" in shown
    changed = call(place, "status", "--config.fold_case=False").stdout.splitlines()
    assert changed[0].split(maxsplit=2)[1:] == ["stale", "config.fold_case was True, is False"]


def test_an_empty_workdir_says_that_it_keeps_nothing(tmp_path):
    for verb in ("status", "run"):
        done = call(tmp_path, verb)
        assert done.returncode == 1 and done.stderr.count("\n") == 1
        assert f"writes one; {tmp_path / 'work'} keeps none of" in done.stderr
    assert "unknown verb 'count'" in call(tmp_path, "count").stderr


def test_a_damaged_config_is_named(place):
    path = place / "work" / kept_config.CONFIG_FILE
    path.write_text("{")
    assert f"{path} is damaged; give --config=FILE" in call(place, "status").stderr
    assert call(place, "run", SOURCE, f"--config.text={place / 'text.txt'}").returncode == 0
    assert json.loads(path.read_text())["fold_case"] is True


def test_finished_stages_are_not_replaced_without_a_word(place):
    before = contents(place)
    done = call(place, "run", "--config.fold_case=False")
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and contents(place) == before
    assert (
        "error: config.fold_case was True, is False: this would replace 3 finished stages of "
        f"{place / 'work'} (split, count, report); add --yes" in done.stderr
    )
    done = call(place, "run", "--config.fold_case=False", "--yes")
    assert done.returncode == 0 and "[1/3] split (again: config.fold_case was" in done.stdout
    assert contents(place) != before
    assert "nothing to do" in call(place, "run").stdout  # the new config is kept


def test_one_stage_alone_asks_for_itself(place):
    done = call(place, "split", "--config.fold_case=False")
    assert "replace 1 finished stage of" in done.stderr and "(split)" in done.stderr
    assert call(place, "count", "--config.fold_case=False").stderr.startswith(
        "error: stage count needs split, which is stale"
    )


@pytest.mark.parametrize(("answer", "status"), [("y\n", 0), ("n\n", 1), ("\n", 1), ("\x04", 1)])
def test_a_terminal_is_asked(place, answer, status):
    before = contents(place)
    ours, theirs = pty.openpty()
    os.write(ours, answer.encode())
    done = call(place, "run", "--config.fold_case=False", stdin=theirs)
    os.close(ours), os.close(theirs)
    assert done.returncode == status, done.stderr
    assert "this would replace 3 finished stages" in done.stdout
    assert "\n  split        config.fold_case was True, is False\n" in done.stdout
    assert "\n  count        split has to run first\n" in done.stdout
    assert (contents(place) == before) == bool(status)
    assert bool(status) == ("nothing is replaced" in done.stderr)


def test_what_no_flag_changed_is_done_again_as_ever(place):
    """The text is another one, and a stage is damaged; neither is asked for."""
    (place / "text.txt").write_text("Another tide")
    done = call(place, "run")
    assert (
        done.returncode == 0
        and "[1/3] split (again: the file of config.text changed)" in done.stdout
    )
    (place / "work" / "split" / "words.txt").unlink()
    done = call(place, "run", "--config.fold_case=True")
    assert done.returncode == 0 and "words.txt is missing" in done.stdout


def test_paths_are_kept_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / "kb_1.tsv").touch()
    (tmp_path / "ark").mkdir()  # which config.recipe does not mean
    c = config.ark()
    c.data.path, c.retriever.path, c.generator.path = "docs", "owner/model", "~/model"
    c.llm.replies = "kb_*.tsv"
    c.train.epochs = (1, 2, 3)
    kept_config.keep(c, tmp_path)
    plain = kept_config.read(tmp_path)
    assert plain["data"]["path"] == str(tmp_path / "docs") and plain["recipe"] == "ark"
    assert plain["llm"]["replies"] == str(tmp_path / "kb_*.tsv")
    assert (plain["retriever"]["path"], plain["generator"]["path"]) == ("owner/model", "~/model")
    assert config.from_json(plain).train.epochs == (1, 2, 3)
    del plain["train"]  # as of an earlier version, which had no such section
    plain["graph"]["gone"] = plain["gone"] = {"x": 1}  # which an earlier version had
    again = config.from_json(plain)
    assert (again.train, again.graph) == (config.ark().train, config.ark().graph)
    assert "gone" not in again
