"""What a sweep compares finished runs by: the metrics of the trained system."""

from pathlib import Path

from ark_jax.pipeline.recipe import Outcome
from ark_jax.recipes.common import outcome
from ark_jax.recipes.star.measures import STANDARD
from ark_jax.report.results import metric_heading

METRIC_HEADINGS = {name: metric_heading(name) for name in STANDARD}


def read_outcome(workdir: Path) -> Outcome:
    return outcome.read_outcome(workdir, STANDARD)
