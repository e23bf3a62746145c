"""What a sweep compares finished runs by: the metrics of the trained system, and by group."""

from pathlib import Path

from ark_jax.pipeline.manifest import read_manifest
from ark_jax.pipeline.recipe import Outcome
from ark_jax.pipeline.tables import load_json, read_table
from ark_jax.recipes.gpr.evaluate import CURVES
from ark_jax.report.results import metric_heading

METRIC_HEADINGS = {name: metric_heading(name) for name in CURVES}


def read_outcome(workdir: Path) -> Outcome:
    folder = workdir / "evaluate"
    table = load_json(folder / "metrics.json")["table"]
    if not table:
        return Outcome("", {})
    last, values = table[-1]["system"], table[-1]["values"]
    rows = read_table(folder / "questions.parquet", columns=["system", "question", *CURVES])
    rows = [row for row in rows.to_pylist() if row["system"] == last]
    by_question = {name: {row["question"]: row[name] for row in rows} for name in CURVES}
    settings = read_manifest(folder)["config"]
    return Outcome(last, values, by_question, settings["evaluate.bootstrap"], settings["seed"])
