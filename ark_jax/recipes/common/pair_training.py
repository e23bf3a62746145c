"""Training of a pair scorer on lists, as a stage."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ark_jax.pipeline.stage import Context

if TYPE_CHECKING:  # their modules start jax
    from ark_jax.models.pairs import PairScorer
    from ark_jax.train.lists import PairList


def train_pair_scorer(
    context: Context,
    folder: Path,
    scorer: "PairScorer",
    lists: Sequence["PairList"],
    *,
    loss: Callable,
    label: str,
    **settings,
) -> dict:
    """Trains a copy of the scorer; stores it under `model`, and returns counts for the manifest.

    Args:
        loss: as in `listwise.train`.
        label: the stage, for progress lines, errors and metrics.
        settings: fields of `ListwiseConfig`. Those that are not given are `config.train`'s.
    """
    from ark_jax.train import listwise

    config = context.config
    settings = {"seed": config.seed} | settings
    fields = {field.name for field in dataclasses.fields(listwise.ListwiseConfig)}
    shared = {name: config.train[name] for name in fields - settings.keys()}
    tuned, curve = listwise.train(
        scorer,
        lists,
        listwise.ListwiseConfig(**settings, **shared),
        folder,
        loss=loss,
        label=label,
        on_step=functools.partial(context.metrics.step, label),
        on_pace=functools.partial(context.metrics.write, label),
    )
    tuned.save_pretrained(folder / "model")
    return {
        "lists": len(lists),
        "steps": len(curve),
        "first_loss": round(curve[0]["loss"], 4),
        "last_loss": round(curve[-1]["loss"], 4),
    }
