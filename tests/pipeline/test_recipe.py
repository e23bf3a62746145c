"""The recipe seam: every tool works with a method that it has never heard of."""

import ast
import json
import os
import re
import signal
import subprocess
import sys
import time

import pyarrow.parquet as pq
import pytest
from support import word_recipe
from support.command_line import call_here
from support.paths import REPOSITORY

from ark_jax.pipeline.recipe import load_recipe, recipe_names
from ark_jax.recipes.ark import config
from ark_jax.recipes.ark.recipe import stages

TEXT = "The tide table of the Tidal Board"
TOOL = {**os.environ, "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{REPOSITORY / 'tests'}"}


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def command(text, verb: str, *flags: str) -> list[str]:
    source = f"--config={word_recipe.__file__}"
    workdir = f"--workdir={text.parent / 'work'}"
    return [verb, source, workdir, f"--config.text={text}", *flags]


def call(text, verb: str, *flags: str) -> str:
    done = call_here(command(text, verb, *flags), REPOSITORY, {})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_all_commands_work_with_a_new_recipe(text):
    assert call(text, "status").split() == [
        "split",
        "missing",
        "count",
        "missing",
        "report",
        "missing",
    ]
    assert "stages to run: split, count, report" in call(text, "plan")
    said = call(text, "run")
    assert "[1/3] split" in said and "7 words" in said and "6 distinct" in said
    assert call(text, "status").split()[1::2] == ["done"] * 3
    assert "stages to run: none" in call(text, "plan")
    page = (text.parent / "work" / "report.html").read_text()
    assert "<h1>Words</h1>" in page and "count: distinct" in page
    assert "nothing to do" in call(text, "run") and call(text, "run", "--quiet") == ""
    text.write_text(f"{TEXT} again")
    why = call(text, "status").splitlines()[0].split(maxsplit=2)
    assert why == ["split", "stale", "the file of config.text changed"]


def test_a_killed_run_of_a_new_recipe_resumes(text):
    hold = text.parent / "hold"
    hold.touch()
    process = subprocess.Popen(
        [sys.executable, "-m", "ark_jax", *command(text, "run")], env=TOOL, cwd=REPOSITORY
    )
    progress = text.parent / "work" / ".partial" / "count" / "progress"
    deadline = time.monotonic() + 60
    while not progress.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    hold.unlink()
    assert "begun, will go on where it stopped" in call(text, "status")
    said = call(text, "run")
    assert "split" not in said.split("[2/3]")[0]  # what was finished is not run again
    manifest = json.loads((text.parent / "work" / "count" / "manifest.json").read_text())
    assert manifest["counts"] == {"distinct": 6, "resumed": True}


def test_a_sweep_of_a_new_recipe_makes_one_table(text):
    workdir = text.parent / "sweep"
    done = subprocess.run(
        [
            sys.executable,
            "launch/sweep.py",
            f"--config={word_recipe.__file__}:sweep=case",
            f"--workdir={workdir}",
            f"--config.text={text}",
        ],
        capture_output=True,
        text=True,
        env=TOOL,
        cwd=REPOSITORY,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = pq.read_table(workdir / "results.parquet").to_pylist()
    assert [(row["run"], row["mean"], row["difference"]) for row in rows] == [
        ("exact", 7.0, 1.0),
        ("base", 6.0, None),
    ]
    assert "distinct words" in (workdir / "results.md").read_text()


def test_the_names_of_recipes_include_ark():
    assert set(recipe_names()) >= {"ark"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("arc", r"config\.recipe='arc': no module ark_jax\.recipes\.arc"),
        ("json.decoder", r"config\.recipe='json\.decoder': .* defines no RECIPE"),
        ("../../x", "not the name of a module; name a recipe of ark_jax"),
        (".ark", "not the name of a module; name a recipe of ark_jax"),
        ("", "not the name of a module; name a recipe of ark_jax"),
        ("a b", "not the name of a module; name a recipe of ark_jax"),
    ],
)
def test_an_unknown_recipe_is_refused_with_its_name(name, message):
    with pytest.raises(ValueError, match=message):
        load_recipe(name)


def ark_stage_names() -> set[str]:
    """The stages that ARK alone has; data, evaluate, export and the like are every recipe's."""
    c = config.ark()
    c.train.merge, c.judge.repeats, c.mine.by = 0.5, 1, "rewritten"
    c.train.stages = (1, 2, 3)
    common = {"data", "baselines", "evaluate", "judge", "export", "report"}
    whole = {stage.name for stage in stages(c)}
    c.train.stages = (0,)
    return (whole | {stage.name for stage in stages(c)}) - common - {"graph"}


def test_no_module_outside_recipes_names_a_stage_of_ark():
    """`graph` is left out: it is also the name of a room and of a config section.

    So is `positives` where it is a field of the training examples, `candidates` where it is one of
    lists, and `score` where it is a column of judgments, rankings or passages, a key that clients
    read, or a config section with a model.
    """
    names = ark_stage_names()
    assert {"extract", "rewrite", "score", "positives", "stage2", "mine3", "merged"} <= names
    mentions = []
    for path in (REPOSITORY / "ark_jax").rglob("*.py"):
        if "recipes" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and node.value in names:
                mentions.append(f"{path.relative_to(REPOSITORY)}:{node.lineno} {node.value}")
    other_meanings = (
        r"train/batches.py:\d+ positives|train/list_batches.py:\d+ candidates|"
        r"(data/(predictions|readers|formats/(base|beir|contexts))|serve/embeddings|index/passages|"
        r"integrations/\w+).py"
        r":\d+ score|estimate/plan.py:\d+ score"
    )
    assert [name for name in mentions if not re.search(other_meanings, name)] == []
    for path in (REPOSITORY / "ark_jax" / "cli").glob("*.py"):
        assert not re.search(r"\bstage[0-3]\b", path.read_text()), path
