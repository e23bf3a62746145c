"""The pooled results of a cross-validation: as files, Markdown and HTML."""

import dataclasses
import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ark_jax.pipeline.recipe import Pooled
from ark_jax.report.page import Section, format_number
from ark_jax.report.results import (
    is_measured,
    is_significant,
    markdown_table,
    metric_heading,
    results,
)


def save_pooled(pooled: Pooled | None, folder: Path) -> None:
    """Writes questions.parquet and metrics.json, as a run does in its folder `evaluate`.

    None deletes the folder.
    """
    if pooled is None:
        shutil.rmtree(folder, ignore_errors=True)
        return
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(pooled.rows), folder / "questions.parquet")
    table = {"metrics": pooled.metrics, "table": pooled.table}
    (folder / "metrics.json").write_text(json.dumps(table), encoding="utf-8")


def pooled_parts(pooled: Pooled) -> tuple[str, Section]:
    """The table of systems by metrics, as Markdown and as a section of a page."""
    questions = len({row["question"] for row in pooled.rows})
    runs = len({row["run"] for row in pooled.rows})
    caption = [
        f"All {questions:,} questions of {runs} folds, each measured by models that were not "
        "trained on it, with 95 % bootstrap intervals over questions.",
        *pooled.notes,
    ]
    lines = [["system", *map(metric_heading, pooled.metrics)]]
    for row in pooled.table:
        lines.append([row["system"], *(_pooled_cell(row["values"].get(m)) for m in pooled.metrics)])
    table = markdown_table(lines)
    marks = "\\* differs from base." if "\\*" in table else ""
    shown = results(pooled.table, pooled.metrics)
    section = dataclasses.replace(shown, title="All folds", body=[*shown.body, *caption])
    return "\n\n".join(filter(None, [table, marks, *caption])), section


def _pooled_cell(value: Mapping | None) -> str:
    """Mean and interval, with a star if the difference to base is significant."""
    if not is_measured(value):
        return "–"
    mean, low, high = (format_number(value[name]) for name in ("mean", "low", "high"))
    mark = " \\*" if is_significant(value) else ""
    return f"{mean} [{low}, {high}]{mark}"
