"""The pooled results of a cross-validation: as files, Markdown and HTML."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ark_jax.pipeline.recipe import Pooled
from ark_jax.report import html
from ark_jax.report.results import is_measured, is_significant, metric_heading, results


def save_pooled(pooled: Pooled | None, folder: Path) -> None:
    """Writes what a run has in its folder `evaluate`: questions.parquet and metrics.json.

    None removes what was written earlier.
    """
    if pooled is None:
        shutil.rmtree(folder, ignore_errors=True)
        return
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(pooled.rows), folder / "questions.parquet")
    table = {"metrics": pooled.metrics, "table": pooled.table}
    (folder / "metrics.json").write_text(json.dumps(table), encoding="utf-8")


def about(pooled: Pooled) -> list[str]:
    """What the table holds and shows, in sentences."""
    questions = len({row["question"] for row in pooled.rows})
    runs = len({row["run"] for row in pooled.rows})
    return [
        f"All {questions:,} questions of {runs} folds, each measured by models that were not "
        "trained on it, with 95 % bootstrap intervals over questions.",
        *pooled.notes,
    ]


def pooled_markdown(pooled: Pooled) -> str:
    """Systems by metrics; a star marks a significant difference to base."""
    heads = ["system", *map(metric_heading, pooled.metrics)]
    lines = [heads, ["---"] * len(heads)]
    for row in pooled.table:
        lines.append([row["system"], *(_cell(row["values"].get(m)) for m in pooled.metrics)])
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    marks = "\\* differs from base." if "\\*" in table else ""
    return "\n\n".join(filter(None, [table, marks, *about(pooled)]))


def _cell(value: Mapping | None) -> str:
    if not is_measured(value):
        return "–"
    mean, low, high = (html.format_number(value[name]) for name in ("mean", "low", "high"))
    mark = " \\*" if is_significant(value) else ""
    return f"{mean} [{low}, {high}]{mark}"


def pooled_html(pooled: Pooled) -> str:
    """The same table as a section of a page, with a plot of each metric."""
    notes = "\n".join(f"<p>{html.escape(line)}</p>" for line in about(pooled))
    return f"{results({'table': pooled.table, 'metrics': pooled.metrics})}\n{notes}\n"
