"""Thirteen steps of contrastive training, which tests stop, damage and resume."""

import dataclasses
import json
import os
import signal
from pathlib import Path

import jax
import pytest

from ark_jax import Retriever, layout
from ark_jax.runtime import preemption
from ark_jax.runtime.log import append_row, read_rows
from ark_jax.train import contrastive, fit, losses
from ark_jax.train.batches import Example
from ark_jax.train.config import ContrastiveConfig

WORDS = ["tide", "lamp", "salt", "lathe", "wool", "pilot", "strike", "harbour", "bell", "ledger"]
EXAMPLES = [Example(f"q{i}", f"d{i // 2}", (f"c{i}",), (f"c{(i + 3) % 10}",)) for i in range(10)]
QUESTIONS = {f"q{i}": f"who kept the {word}?" for i, word in enumerate(WORDS)}
# As long as each other but for one, which decides the shapes.
PASSAGES = {
    f"c{i}": f"every {word} was in the care of the clerk" + " and of his wife" * (i == 4)
    for i, word in enumerate(WORDS)
}
CONFIG = ContrastiveConfig(
    batch=4, chunks=1, order="document", save_every=3, remat="products", lora_alpha=4.0
)
TRAINING = {"epochs": 5, "learning_rate": 1e-3, "seed": 1, "loss": losses.info_nce}
STEPS = 13
# Distillation of two candidates, further negatives being those of the batch.
DISTILLATION = {
    "loss": losses.distil,
    "examples": [
        dataclasses.replace(e, positives=e.positives + e.negatives, shares=(0.7, 0.3))
        for e in EXAMPLES
    ],
}
ONE_DEVICE = (1, 1, 1)


def train(base: Path, folder: Path, mesh=ONE_DEVICE, examples=EXAMPLES, **changes) -> list[dict]:
    """Trains from where `folder` stands and saves the model there. Returns the curve."""
    folder.mkdir(exist_ok=True)
    settings = {name: changes.pop(name, value) for name, value in TRAINING.items()}
    on_step = lambda row: append_row(row, folder / "reported.jsonl")
    with jax.set_mesh(layout.make_mesh(mesh)):
        tuned, _, curve = contrastive.train(
            Retriever.from_pretrained(base),
            examples,
            QUESTIONS,
            PASSAGES,
            dataclasses.replace(CONFIG, **changes),
            fit.Run(folder, "stage 1", on_step),
            **settings,
        )
        tuned.save_pretrained(folder / "model")
    return curve


def terminate() -> None:
    """Sends SIGTERM to this process."""
    os.kill(os.getpid(), signal.SIGTERM)


def train_until(step: int, base: Path, folder: Path, at_step, **changes) -> Path:
    """Trains until SIGTERM comes in that step. Returns `folder`."""
    at_step(step, terminate)
    with pytest.raises(preemption.Preempted, match=f"stage 1: step {step} of {STEPS} is saved"):
        train(base, folder, **changes)
    at_step(0, None)
    return folder


def curve_rows(folder: Path) -> list[dict]:
    """The rows of curve.jsonl."""
    return list(map(json.loads, (folder / "curve.jsonl").read_text().splitlines()))


def checkpoint_names(folder: Path) -> list[str]:
    """Names of the checkpoints, by step."""
    names = (path.name for path in (folder / "checkpoints").iterdir())
    return sorted(names, key=lambda name: int(name.split(".")[0]))


def assert_same_outcome(folder: Path, expected: Path) -> None:
    """All steps are made and reported in order, and curve and weights have the same bytes."""
    assert [row["step"] for row in curve_rows(folder)] == list(range(1, STEPS + 1))
    reported = [row["step"] for row in read_rows(folder / "reported.jsonl")]
    # No step is reported twice; one that a kill interrupts may be missing.
    assert reported == sorted(set(reported)) and reported[-1] == STEPS
    for name in ("curve.jsonl", "model/model.safetensors"):
        assert (folder / name).read_bytes() == (expected / name).read_bytes(), name
