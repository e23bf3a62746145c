"""Runs of the command line that are killed, and runs on several devices."""

import signal
import subprocess
import time

import jax
import numpy as np
import pytest
from support.bar_world import call, context_of, start
from support.world import outputs

from ark_jax.models import hf
from ark_jax.models.language import LanguageModel
from ark_jax.pipeline.tables import load_rows
from ark_jax.recipes.bar_rag import read, select
from ark_jax.select.scorer import Selector

pytestmark = pytest.mark.slow


def test_a_killed_and_resumed_run_gives_the_same_bytes(world):
    """SIGKILL at moments spread over the run; stage outputs equal those of the whole run."""
    uninterrupted, workdir = world / "whole", world / "killed"
    assert call(world, uninterrupted).returncode == 0
    began, seconds, kills = time.monotonic(), 4.0, 0
    for _ in range(7):
        try:
            done = call(world, workdir, timeout=seconds)
            break
        except subprocess.TimeoutExpired:  # the process was killed
            kills, seconds = kills + 1, seconds * 1.5
    else:
        done = call(world, workdir)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    assert done.returncode == 0 and kills and time.monotonic() - began > 4
    assert outputs(workdir) == outputs(uninterrupted)


@pytest.mark.parametrize("kill", ["select-1", "read-1"])
def test_a_stage_killed_between_two_steps_gives_the_same_bytes(world, kill):
    """The process is killed as soon as the draws of the second step are on disk."""
    uninterrupted, workdir = world / "whole", world / f"killed in {kill}"
    if not (uninterrupted / "report.html").is_file():
        assert call(world, uninterrupted).returncode == 0
    process = start(world, workdir)
    step = workdir / ".partial" / kill / "step-000001.parquet"
    while process.poll() is None and not step.is_file():
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL and not (workdir / kill).exists()
    assert call(world, workdir).returncode == 0
    assert outputs(workdir) == outputs(uninterrupted)


def test_training_on_a_mesh_gives_the_same_draws_and_nearly_the_same_weights(
    run, world, tmp_path, any_mesh
):
    """The selector's and the reader's training, from the stages of a run on one device."""
    with jax.set_mesh(any_mesh):
        for name, train in (("select-1", select.train_selector), ("read-1", read.train_reader)):
            folder = tmp_path / name
            folder.mkdir()
            train(context_of(world, run.workdir), folder, iteration=1)
        selectors = [
            hf.named_parameters(Selector.from_pretrained(path / "select-1" / "selector").model)
            for path in (run.workdir, tmp_path)
        ]
        for (name, ours), (_, theirs) in zip(*map(list, selectors), strict=True):
            np.testing.assert_allclose(ours[...], theirs[...], atol=1e-4, err_msg=name)
        readers = [
            LanguageModel.from_pretrained(path / "read-1" / "model").model
            for path in (run.workdir, tmp_path)
        ]
        change = lambda a, b: float(np.abs(np.asarray(a) - np.asarray(b)).max())
        assert max(jax.tree.leaves(jax.tree.map(change, *readers))) < 1e-4
    for path, exact, close in (
        ("select-1/sets.parquet", ("question_id", "chunk_ids", "live"), ("p", "reward")),
        ("read-1/answers.parquet", ("question_id", "ids", "ended"), ("reward", "advantage")),
    ):
        ours, theirs = (load_rows(folder / path) for folder in (run.workdir, tmp_path))
        for column in exact:
            assert [row[column] for row in ours] == [row[column] for row in theirs], column
        for column in close:
            values = ([row[column] for row in rows] for rows in (ours, theirs))
            np.testing.assert_allclose(*values, atol=1e-4, err_msg=column)
