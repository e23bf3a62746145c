"""Tables over all test questions and over groups of them, printed and stored."""

from collections.abc import Mapping, Sequence, Set
from pathlib import Path

from ark_jax.evaluate.significance import what_can_be_told
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import save_json, save_rows
from ark_jax.recipes.common.table import as_text, tabulate
from ark_jax.runtime.log import say


def save_nothing(folder: Path) -> None:
    """What the evaluate stage stores where there is no test question."""
    save_json({"metrics": (), "table": [], "groups": {}}, folder / "metrics.json")


def save_tables(
    context: Context,
    folder: Path,
    rows: list[dict],
    groups: Mapping[str, Set[str]],
    *,
    columns: Sequence[str],
    measured: Sequence[str],
    headline: str,
) -> None:
    """Stores the rows and their tables, and prints the tables.

    Args:
        rows: as `tabulate` takes them, with a column `question`.
        groups: name -> ids of its questions.
        columns: the metrics that are shown.
        measured: all metrics.
        headline: the metric that the last line speaks of.
    """
    save_rows(rows, folder / "questions.parquet")
    table = _tabulate(rows, measured, context)
    tables = {
        name: _tabulate([row for row in rows if row["question"] in ids], measured, context)
        for name, ids in groups.items()
    }
    save_json({"metrics": columns, "table": table, "groups": tables}, folder / "metrics.json")
    means = {row["system"]: {m: v["mean"] for m, v in row["values"].items()} for row in table}
    context.metrics.write("evaluate", **means)
    for name, part in tables.items():
        say(f"  {name}: {len(groups[name]):,} questions")
        say(as_text(part, columns))
    total = len({row["question"] for row in rows})
    if groups:
        say(f"  all: {total:,} questions")
    say(as_text(table, columns))
    say(f"  {total:,} questions: {what_can_be_told(total, headline)}")


def _tabulate(rows: list[dict], metrics: Sequence[str], context: Context) -> list[dict]:
    return tabulate(rows, metrics, seed=context.config.seed)


def questions_by_group(questions: Sequence) -> dict[str, set[str]]:
    """group -> ids of its questions, in order of the first ones; none if all are of one group."""
    groups: dict[str, set[str]] = {}
    for question in questions:
        groups.setdefault(question.group, set()).add(question.id)
    return groups if len(groups) > 1 else {}


def by_system(rows: Sequence[Mapping]) -> dict[str, dict[str, Mapping]]:
    """system -> question -> row of `questions.parquet`."""
    out: dict[str, dict[str, Mapping]] = {}
    for row in rows:
        out.setdefault(row["system"], {})[row["question"]] = row
    return out
