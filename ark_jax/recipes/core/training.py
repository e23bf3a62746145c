"""What all stages that train share: where they report to, and what they count."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ark_jax.runtime.log import Metrics

if TYPE_CHECKING:  # these modules start jax
    from ark_jax.train.fit import Run


def training_run(metrics: Metrics, folder: Path, stage: str, *, label: str = "") -> "Run":
    """The training of a stage in its folder, whose steps and pace go to `metrics`.

    Args:
        label: for progress lines and errors; empty: the stage.
    """
    from ark_jax.train.fit import Run

    on_step = functools.partial(metrics.step, stage)
    on_pace = functools.partial(metrics.write, stage)
    return Run(folder, label or stage, on_step, on_pace)


def first_and_last_loss(curve: Sequence[dict]) -> dict[str, float]:
    """`first_loss` and `last_loss` of a training curve, for the manifest."""
    first, last = (round(curve[i]["loss"], 4) for i in (0, -1))
    return {"first_loss": first, "last_loss": last}
