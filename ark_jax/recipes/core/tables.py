"""The closing table: systems by metrics, over all and by group, and what a sweep reads of it."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path

import numpy as np

from ark_jax.evaluate.significance import (
    DRAWS,
    FLIPS,
    bootstrap_interval,
    detectable_difference,
    holm,
    sign_flip,
)
from ark_jax.pipeline.manifest import read_manifest
from ark_jax.pipeline.recipe import Outcome
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_json, read_table, save_json, save_rows
from ark_jax.report import results
from ark_jax.runtime.log import say
from ark_jax.runtime.shown import table_html


def tabulate(
    rows: list[dict],
    metrics: Sequence[str],
    *,
    draws: int = DRAWS,
    flips: int = FLIPS,
    seed: int,
    base: str = "",
    cluster: str = "",
    parts: Mapping[str, str] | None = None,
) -> list[dict]:
    """Systems by metrics: `{"system": name, "values": {metric: {"mean", "low", "high"}}}`.

    Systems keep the order of the rows. A value of a system other than the base has `against_base`:
    the mean of the questions' differences, its 95 % bootstrap interval `low` and `high`, `p` of the
    paired randomisation test, and `p_holm`, corrected for the number of systems. Those of a hybrid
    have `against_part` too, the same against a system that it is fused from, named by `part`. A
    metric that a system has no value of, such as recall without retrieval, is left out.

    Args:
        rows: one of each system and question, the questions in one order. None is a question that a
            metric leaves out, for all systems that have the metric.
        base: the system to compare with; empty: the first one.
        cluster: the column whose equal values are drawn and flipped together; empty: none.
        parts: hybrid -> the part that it is tested against beside the base.
    """
    systems = dict.fromkeys(row["system"] for row in rows)
    table = [{"system": name, "values": {}} for name in systems]
    for metric in metrics:
        values: dict[str, list[float]] = {}
        measured = [row for row in rows if row[metric] is not None]
        for row in measured:
            values.setdefault(row["system"], []).append(row[metric])
        clusters = None
        if cluster and measured:
            first = measured[0]["system"]
            clusters = [row[cluster] for row in measured if row["system"] == first]
        cells = _cells(values, base, parts or {}, clusters, draws, flips, seed)
        for row in table:
            if row["system"] in cells:
                row["values"][metric] = cells[row["system"]]
    return table


def _cells(
    values: dict[str, list[float]],
    base: str,
    parts: Mapping[str, str],
    clusters: list | None,
    draws: int,
    flips: int,
    seed: int,
) -> dict[str, dict]:
    """system -> its cell for one metric: its interval, `against_base` and `against_part`."""
    interval = functools.partial(bootstrap_interval, draws=draws, seed=seed, clusters=clusters)
    cells = {name: interval(column) for name, column in values.items()}
    if not values:
        return cells
    base = base or next(iter(values))

    def compare(pairs: Mapping[str, str]) -> Iterator[tuple[str, dict]]:
        """Each system with its test against another one, corrected for the number of pairs."""
        differences = {a: np.subtract(values[a], values[b]) for a, b in pairs.items()}
        if not differences:
            return
        stacked = np.stack(list(differences.values()), 1)
        p = sign_flip(stacked, draws=flips, seed=seed, clusters=clusters)
        for (name, column), raw, corrected in zip(differences.items(), p, holm(p), strict=True):
            test = interval(column)
            mean = test.pop("mean")
            tests = {"p": float(raw), "p_holm": float(corrected)}
            yield name, {"difference": mean, **test, **tests}

    for name, test in compare({name: base for name in values if name != base}):
        cells[name]["against_base"] = test
    present = {a: b for a, b in parts.items() if {a, b} <= values.keys() and b != base}
    for name, test in compare(present):
        cells[name]["against_part"] = {"part": present[name], **test}
    return cells


def best_system(
    rows: list[dict],
    metric: str,
    *,
    against: Sequence[str],
    seed: int,
    cluster: str = "",
    questions: str = "the held-out questions",
) -> str:
    """A sentence on the system with the highest mean, and its differences to others.

    If several are best, the first is named. The sentence is empty if nothing was measured.

    Args:
        rows, seed, cluster: as in `tabulate`.
        against: the systems that it is compared with, as far as they are measured.
        questions: the name of the questions that the mean is over.
    """
    tested = functools.partial(tabulate, rows, (metric,), seed=seed, cluster=cluster)
    values = {row["system"]: row["values"].get(metric) for row in tested()}
    means = {system: value["mean"] for system, value in values.items() if value}
    if not means:
        return ""
    best = max(means, key=means.__getitem__)
    details = []
    for rival in against:
        if rival in means and rival != best:
            value = next(x for x in tested(base=rival) if x["system"] == best)["values"][metric]
            details.append(f"against {rival} {describe_difference(value['against_base'])}")
    head = (
        f"{best} has the highest {results.metric_heading(metric)} on {questions}, {means[best]:.3f}"
    )
    return f"{head}: {'; '.join(details)}." if details else f"{head}."


def describe_difference(tested: Mapping) -> str:
    """In words, as in "+0.040 [-0.010, 0.090], no significant difference (p = 0.2)"."""
    p = tested["p_holm"]
    shown = "p < 0.001" if p < 0.001 else f"p = {p:.2g}"
    level = ", no significant difference" * (p >= results.ALPHA)
    interval = f"[{tested['low']:.3f}, {tested['high']:.3f}]"
    return f"{tested['difference']:+.3f} {interval}{level} ({shown})"


def html_of(table: list[dict], columns: Sequence[str]) -> str:
    """The closing table for a notebook: means and 95 % intervals."""
    cells = lambda row: (cell_text(row["values"].get(metric)) for metric in columns)
    heads = ("system", *map(results.metric_heading, columns))
    return table_html(heads, ((row["system"], *cells(row)) for row in table))


def as_text(table: list[dict], columns: Sequence[str], base: str = "base") -> str:
    """The closing table for a terminal: means, 95 % intervals, marks of difference from `base`."""
    width = max(9, *(len(row["system"]) + 2 for row in table))
    cells = [[cell_text(row["values"].get(metric)) for metric in columns] for row in table]
    widths = [max(21, *(1 + len(text) for text in column)) for column in zip(*cells, strict=True)]
    heads = (results.metric_heading(m).rjust(n + 1) for m, n in zip(columns, widths, strict=True))
    lines = ["  " + "system".ljust(width) + "".join(heads)]
    for row, texts in zip(table, cells, strict=True):
        line = "  " + row["system"].ljust(width)
        mark = " "
        for value, text, n in zip(map(row["values"].get, columns), texts, widths, strict=True):
            line += mark + text.rjust(n)
            mark = "*" if results.is_significant(value) else " "
        lines.append((line + mark).rstrip())
    if len(table) > 1:
        values = [value for row in table for value in row["values"].values()]
        head = (
            f"* differs from {base}, "
            if any(map(results.is_significant, values))
            else f"No difference from {base} has "
        )
        lines.append(f"  {head}p < {results.ALPHA}: {test_name(table)}")
        lines += [f"  {line}" for line in results.against_parts(table, columns)]
    return "\n".join(lines)


def as_markdown(table: list[dict], columns: Sequence[str]) -> str:
    """The table for a model card: means and 95 % intervals."""
    lines = [["system", *map(results.metric_heading, columns)]]
    for row in table:
        lines.append([row["system"], *(cell_text(row["values"].get(m)) for m in columns)])
    return results.markdown_table(lines)


def cell_text(value: dict | None) -> str:
    """Mean and interval, as in "0.512 [0.480, 0.544]"; a dash for None."""
    return "{mean:.3f} [{low:.3f}, {high:.3f}]".format(**value) if value else "–"


def test_name(table: list[dict]) -> str:
    """The name of the significance test behind a table."""
    correction = ", Holm-corrected over systems" if len(table) > 2 else ""
    return f"paired randomisation test, two-sided{correction}"


def read_outcome(workdir: Path, metrics: Iterable[str]) -> Outcome:
    """The values of these metrics for the last system of a finished run; none if not measured."""
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


def save_empty_results(folder: Path) -> None:
    """Stores the results of an evaluate stage that has no test question."""
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
        headline: the metric in the last printed line.
    """
    save_rows(rows, folder / "questions.parquet")
    make_table = functools.partial(tabulate, metrics=measured, seed=context.config.seed)
    table, tables = make_table(rows), tables_by_group(rows, groups, make_table)
    save_json({"metrics": columns, "table": table, "groups": tables}, folder / "metrics.json")
    means = {row["system"]: {m: v["mean"] for m, v in row["values"].items()} for row in table}
    context.metrics.write("evaluate", **means)
    say_groups(tables, groups, columns)
    total = len({row["question"] for row in rows})
    if groups:
        say(f"  all: {total:,} questions")
    say(as_text(table, columns))
    say(f"  {total:,} questions: {detectable_difference(total, results.metric_heading(headline))}")


def tables_by_group(
    rows: Sequence[dict],
    groups: Mapping[str, Set[str]],
    make_table: Callable[[list[dict]], list[dict]],
) -> dict[str, list[dict]]:
    """group -> the table of its questions' rows; arguments are those of `save_tables`."""
    return {
        name: make_table([row for row in rows if row["question"] in ids])
        for name, ids in groups.items()
    }


def say_groups(
    tables: Mapping[str, list[dict]],
    groups: Mapping[str, Set[str]],
    columns: Sequence[str],
    base: str = "base",
) -> None:
    """Prints the table of each group; `base` is that of `as_text`."""
    for name, part in tables.items():
        say(f"  {name}: {len(groups[name]):,} questions")
        say(as_text(part, columns, base))


def questions_by_group(questions: Sequence) -> dict[str, set[str]]:
    """group -> ids of its questions; empty if all are of one group."""
    groups: dict[str, set[str]] = {}
    for question in questions:
        groups.setdefault(question.group, set()).add(question.id)
    return groups if len(groups) > 1 else {}


def by_system(rows: Sequence[Mapping]) -> dict[str, dict[str, Mapping]]:
    """system -> question -> row of `questions.parquet`."""
    found: dict[str, dict[str, Mapping]] = {}
    for row in rows:
        found.setdefault(row["system"], {})[row["question"]] = row
    return found
