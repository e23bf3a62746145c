"""What a sweep compares finished runs by: the metrics of the last system of the closing table."""

from collections.abc import Iterable
from pathlib import Path

from ark_jax.pipeline.manifest import read_manifest
from ark_jax.pipeline.recipe import Outcome
from ark_jax.pipeline.tables import load_json, read_table
from ark_jax.recipes.common import evaluate
from ark_jax.report.results import metric_heading

METRIC_HEADINGS = {name: metric_heading(name) for name in evaluate.MODEL_CARD_METRICS}


def read_outcome(workdir: Path, metrics: Iterable[str] = tuple(METRIC_HEADINGS)) -> Outcome:
    """The last system's values of these metrics; none if nothing was measured."""
    folder = workdir / "evaluate"
    table = load_json(folder / "metrics.json")["table"]
    if not table:
        return Outcome("", {})
    last, values = table[-1]["system"], table[-1]["values"]
    measured = [name for name in metrics if name in values]
    rows = read_table(folder / "questions.parquet", columns=["system", "question", *measured])
    rows = [row for row in rows.to_pylist() if row["system"] == last]
    by_question = {
        name: {row["question"]: row[name] for row in rows if row[name] is not None}
        for name in measured
    }
    return Outcome(last, values, by_question, read_manifest(folder)["config"]["seed"])
