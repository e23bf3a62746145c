"""A stage that several runs share is made once, whatever is killed or damaged."""

import functools
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.paths import REPOSITORY

from ark_jax.pipeline import engine, manifest, store
from ark_jax.runtime.log import Metrics

AFTER = {"one": (), "two": ("one",), "three": ("one", "two")}


def pair(ran: list, fail: str = "") -> list[engine.Stage]:
    def run(context, folder, name):
        _ = context.config[name], [context / before for before in AFTER[name]]
        left = sorted(path.name for path in folder.iterdir() if path.name != "reads.jsonl")
        ran.append((context.workdir.name, name, left))
        (folder / "half").write_text(context.workdir.name)
        if fail == name:
            raise ValueError("half-way")
        (folder / "whole").write_text(name)
        return {}

    return [engine.Stage(name, functools.partial(run, name=name)) for name in AFTER]


def work(root: Path, name: str, stages, **settings) -> None:
    settings = {"one": 1, "two": 2, "three": 3, **settings}
    engine.run(
        stages,
        engine.Context(
            settings, root / name, Metrics(root / name / "metrics.jsonl"), root / "shared"
        ),
    )


def test_a_run_continues_the_unfinished_stage_of_another(tmp_path):
    ran: list = []
    with pytest.raises(ValueError, match="half-way"):
        work(tmp_path, "a", pair(ran, fail="two"))
    assert not (tmp_path / "a" / "two").exists()
    work(tmp_path, "b", pair(ran))
    work(tmp_path, "a", pair(ran))
    work(tmp_path, "c", pair(ran), two=22)
    assert ran == [
        ("a", "one", []),
        ("a", "two", []),
        ("b", "two", ["half"]),
        ("b", "three", []),
        ("c", "two", []),
        ("c", "three", []),
    ]
    assert {path.name for path in (tmp_path / "a" / "two").iterdir()} == {
        "half",
        "whole",
        "manifest.json",
    }
    assert (tmp_path / "a" / "three" / "half").read_text() == "b"


def test_unfinished_stages_that_no_run_uses_are_removed(tmp_path):
    ran: list = []
    for two in (2, 22):
        with pytest.raises(ValueError, match="half-way"):
            work(tmp_path, "a", pair(ran, fail="two"), two=two)
    other, ours = sorted((tmp_path / "shared" / ".partial").iterdir())
    with store.locked(tmp_path / "shared" / ".locks" / ours.name):
        store.clear(tmp_path / "shared")
    assert ours.is_dir() and not other.exists()
    store.clear(tmp_path / "shared")
    store.clear(tmp_path / "there is none")
    assert not any((tmp_path / "shared" / ".partial").iterdir()) and any(
        (tmp_path / "shared").glob("one-*")
    )


def test_a_damaged_shared_stage_is_rebuilt_once_for_all_runs(tmp_path):
    ran: list = []
    for name in ("a", "b"):
        work(tmp_path, name, pair(ran))
    (tmp_path / "a" / "one" / "whole").write_text("")  # the same file in the store and in b
    for name in ("a", "b"):
        work(tmp_path, name, pair(ran))
        assert (tmp_path / name / "one" / "whole").read_text() == "one"
    assert [stage for _, stage, _ in ran].count("one") == 2 and [
        stage for _, stage, _ in ran
    ].count("two") == 1


@pytest.mark.parametrize("moment", ["file_digest", "_put_into_place", "replace"])
def test_a_kill_while_a_stage_is_moved_into_place_loses_no_work(moment, tmp_path, monkeypatch):
    """Hashing gigabytes takes a while, and checkpoints must be there until the manifest is."""
    outcomes = []

    def run(context, folder):
        outcomes.append(sorted(path.name for path in folder.iterdir()))
        (folder / "checkpoints").mkdir(exist_ok=True)
        (folder / "checkpoints" / "7").write_text("state")
        (folder / "model").write_text("weights")
        return {"steps": 7}

    stages = [engine.Stage("train", run)]
    begin = lambda: engine.run(
        stages, engine.Context({}, tmp_path, Metrics(tmp_path / "metrics.jsonl"))
    )
    replace = os.replace

    def killed(*paths):
        if moment == "replace" and paths[1].name != "manifest.json":
            return replace(*paths)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        module = {"replace": os, "file_digest": manifest, "_put_into_place": engine}[moment]
        patched.setattr(module, moment, killed)
        begin()
    begin()
    begin()
    left = [
        "checkpoints",
        *(["manifest.json.new"] if moment == "replace" else []),
        "model",
        "reads.jsonl",
    ]
    assert outcomes == [
        ["reads.jsonl"],
        *([] if moment == "_put_into_place" else [left]),
    ]  # there the manifest was written
    assert {path.name for path in (tmp_path / "train").iterdir()} == {"model", "manifest.json"}
    assert engine.read_manifest(tmp_path / "train")["counts"] == {"steps": 7}


def test_a_shared_stage_with_a_damaged_manifest_runs_again(tmp_path, capsys):
    work(tmp_path, "a", pair([]))
    for manifest_file in tmp_path.rglob("one*/manifest.json"):
        manifest_file.write_text("")
    ran: list = []
    work(tmp_path, "a", pair(ran))
    assert "one (again: manifest.json is damaged)" in capsys.readouterr().out
    assert [stage for _, stage, _ in ran] == ["one"]


def test_stages_are_copied_where_hard_links_are_not_allowed(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError("no hard links here")

    ran: list = []
    monkeypatch.setattr(os, "link", refuse)
    for name in ("a", "b"):
        work(tmp_path, name, pair(ran))
    assert [stage for _, stage, _ in ran].count("one") == 1
    assert not (tmp_path / "b" / "one" / "whole").samefile(tmp_path / "a" / "one" / "whole")


PROGRAM = """
import sys, time
from pathlib import Path
from ark_jax.pipeline import engine
from ark_jax.runtime.log import Metrics

root, name, value = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])

def make(context, folder):
    (root / f"{name} begins").touch()
    time.sleep(0.3)
    value = context.config["value"]
    (root / f"{name} works").touch()
    while (root / f"hold {value}").exists():
        time.sleep(0.01)
    (folder / "value").write_text(str(value))
    return {}

context = engine.Context(
    {"value": value, "unread": name}, root / name, Metrics(root / name / "m.jsonl"), root / "shared"
)
engine.run([engine.Stage("make", make)], context)
"""


def test_a_run_waits_for_another_only_while_they_share_a_stage(tmp_path):
    (tmp_path / "hold 1").touch()
    processes = {}

    def start(name: str, value: int, until: str):
        command = [sys.executable, "-c", PROGRAM, tmp_path, name, str(value)]
        processes[name] = subprocess.Popen(
            command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True
        )
        wait_for(tmp_path / until)

    start("a", 1, "a begins")
    start("b", 1, "a works")
    start("c", 2, "c works")  # once a has read another value
    assert processes["c"].wait(60) == 0 and not (tmp_path / "b works").exists()
    (tmp_path / "hold 1").unlink()
    said = {name: process.communicate(timeout=60)[0] for name, process in processes.items()}
    assert [process.returncode for process in processes.values()] == [0, 0, 0]
    assert "another run is making it: waiting" in said["b"] and "made already" in said["b"]
    assert not (tmp_path / "b begins").exists()
    values = {name: (tmp_path / name / "make" / "value").read_text() for name in "abc"}
    assert values == {"a": "1", "b": "1", "c": "2"}
    manifest = json.loads((tmp_path / "b" / "make" / "manifest.json").read_text())
    assert manifest["config"] == {"value": 1}


def wait_for(path: Path) -> None:
    for _ in range(6000):
        if path.exists():
            return
        time.sleep(0.01)
    raise TimeoutError(path)
