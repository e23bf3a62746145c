"""What a sweep compares finished runs by: the metrics of the last reader."""

from pathlib import Path

from ark_jax.pipeline.recipe import Outcome
from ark_jax.recipes.bar_rag.measures import METRICS
from ark_jax.recipes.common import outcome
from ark_jax.report.results import metric_heading

METRIC_HEADINGS = {name: metric_heading(name) for name in METRICS}


def read_outcome(workdir: Path) -> Outcome:
    return outcome.read_outcome(workdir, METRICS)
