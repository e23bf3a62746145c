"""The workdir keeps its config: later commands need no other, and changes are asked for."""

import io
import json
import os
import pty
import subprocess
import sys

import pytest
from support import word_recipe
from support.paths import REPOSITORY

from ark_jax import config
from ark_jax.pipeline import kept_config

SOURCE = f"--config={word_recipe.__file__}"


@pytest.fixture
def call(tool, tmp_path, monkeypatch):
    """Runs a verb in a folder, whose workdir is `work`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    return lambda verb, *flags: tool(verb, "--workdir=work", *flags)


@pytest.fixture
def place(tmp_path, call):
    """A folder with a finished run in `work`."""
    (tmp_path / "text.txt").write_text("The tide of the Board")
    done = call("run", SOURCE, f"--config.text={tmp_path / 'text.txt'}")
    assert done.returncode == 0, done.stderr
    return tmp_path


def contents(place) -> dict[str, str]:
    """Stage -> the manifest of its finished folder."""
    return {path.parent.name: path.read_text() for path in place.glob("work/*/manifest.json")}


def test_commands_need_only_the_workdir(place, call):
    assert call("status").stdout.split()[1::2] == ["done"] * 3
    assert "stages to run: none" in call("plan").stdout
    assert "nothing to do" in call("run").stdout
    assert "nothing to do" in call("report").stdout
    shown = call("config").stdout
    assert "  fold_case = True" in shown and "text.txt" in shown
    changed = call("status", "--config.fold_case=False").stdout.splitlines()
    assert changed[0].split(maxsplit=2)[1:] == ["stale", "config.fold_case was True, is False"]


def test_an_unknown_field_of_a_kept_config_is_refused_with_the_nearest(place, call):
    done = call("status", "--config.fold_cas=False")
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "no field 'fold_cas' (did you mean --config.fold_case?)" in done.stderr


def test_a_workdir_without_a_config_is_refused(tmp_path, call):
    for verb in ("status", "run"):
        done = call(verb)
        assert done.returncode == 1 and done.stderr.count("\n") == 1
        assert f"writes one; {tmp_path / 'work'} keeps none of" in done.stderr
    assert "unknown verb 'count'" in call("count").stderr


def test_a_damaged_kept_config_is_named(place, call):
    path = place / "work" / kept_config.CONFIG_FILE
    path.write_text("{")
    assert f"{path} is damaged; give --config=FILE" in call("status").stderr
    assert call("run", SOURCE, f"--config.text={place / 'text.txt'}").returncode == 0
    assert json.loads(path.read_text())["fold_case"] is True


def test_replacing_finished_stages_needs_consent(place, call):
    before = contents(place)
    done = call("run", "--config.fold_case=False")
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and contents(place) == before
    assert (
        "error: config.fold_case was True, is False: this would replace 3 finished stages of "
        f"{place / 'work'} (split, count, report); add --yes" in done.stderr
    )
    done = call("run", "--config.fold_case=False", "--yes")
    assert done.returncode == 0 and "[1/3] split (again: config.fold_case was" in done.stdout
    assert contents(place) != before
    assert "nothing to do" in call("run").stdout  # the new config is kept


def test_a_single_stage_asks_only_about_itself(place, call):
    done = call("split", "--config.fold_case=False")
    assert "replace 1 finished stage of" in done.stderr and "(split)" in done.stderr
    assert call("count", "--config.fold_case=False").stderr.startswith(
        "error: stage count needs split, which is stale"
    )


class Terminal(io.StringIO):
    """A standard input where somebody types."""

    isatty = lambda self: True


def agrees(place, done: subprocess.CompletedProcess) -> bool:
    """Whether a user who was asked has agreed to replace the stages of `place`."""
    assert "this would replace 3 finished stages" in done.stdout
    assert "\n  split        config.fold_case was True, is False\n" in done.stdout
    return done.returncode == 0


@pytest.mark.parametrize(("answer", "agreed"), [("y\n", True), ("n\n", False), ("\n", False)])
def test_a_terminal_user_is_asked_for_consent(place, call, monkeypatch, answer, agreed):
    before = contents(place)
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    assert agrees(place, call("run", "--config.fold_case=False")) == agreed
    assert (contents(place) != before) == agreed


def test_ctrl_d_at_the_terminal_means_no(place):
    """Ctrl-D, of a terminal that is one."""
    ours, theirs = pty.openpty()
    os.write(ours, b"\x04")
    done = subprocess.run(
        [sys.executable, "-m", "ark_jax", "run", "--workdir=work", "--config.fold_case=False"],
        stdin=theirs,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{REPOSITORY / 'tests'}"},
    )
    os.close(ours), os.close(theirs)
    assert not agrees(place, done)


def test_changed_input_and_damage_rerun_stages_without_asking(place, call):
    """The text is another one, and a stage is damaged; neither is asked for."""
    (place / "text.txt").write_text("Another tide")
    done = call("run")
    assert (
        done.returncode == 0
        and "[1/3] split (again: the file of config.text changed)" in done.stdout
    )
    (place / "work" / "split" / "words.txt").unlink()
    done = call("run", "--config.fold_case=True")
    assert done.returncode == 0 and "words.txt is missing" in done.stdout


def test_paths_in_a_kept_config_are_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / "kb_1.tsv").touch()
    (tmp_path / "ark").mkdir()  # which config.recipe does not mean
    c = config.ark()
    c.data.path, c.retriever.path, c.generator.path = "docs", "owner/model", "~/model"
    c.llm.replies = "kb_*.tsv"
    c.train.epochs = (1, 2, 3)
    kept_config.keep(c, tmp_path)
    kept = kept_config.read(tmp_path)
    assert kept["data"]["path"] == str(tmp_path / "docs") and kept["recipe"] == "ark"
    assert kept["llm"]["replies"] == str(tmp_path / "kb_*.tsv")
    assert (kept["retriever"]["path"], kept["generator"]["path"]) == ("owner/model", "~/model")
    assert config.from_json(kept).train.epochs == (1, 2, 3)


def test_a_kept_config_of_an_earlier_version_is_read(tmp_path):
    """It lacks a section of today and has fields that are gone."""
    kept_config.keep(config.ark(), tmp_path)
    kept = kept_config.read(tmp_path)
    del kept["train"]
    kept["graph"]["gone"] = kept["gone"] = {"x": 1}
    again = config.from_json(kept)
    assert (again.train, again.graph) == (config.ark().train, config.ark().graph)
    assert "gone" not in again
