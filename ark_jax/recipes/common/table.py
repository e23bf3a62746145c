"""The closing table: systems by metrics, with intervals and tests against the first system."""

from collections.abc import Sequence

import numpy as np

from ark_jax.report.results import ALPHA, is_significant, metric_heading


def tabulate(
    rows: list[dict], metrics: Sequence[str], *, draws: int, flips: int, seed: int
) -> list[dict]:
    """Systems by metrics: `{"system": name, "values": {metric: {"mean", "low", "high"}}}`.

    Systems keep the order of the rows; the first one is the base. A value of a later system has
    `against_base`: the mean of the questions' differences, its 95 % bootstrap interval `low` and
    `high`, `p` of the paired randomisation test, and `p_holm`, corrected for the number of systems.
    A metric that a system has no value of, such as recall without retrieval, is left out.

    Args:
        rows: one of each system and question, the questions in one order. None is a question that a
            metric leaves out, for all systems that have the metric.
        draws: of the bootstrap.
        flips: of the randomisation test.
    """
    systems = dict.fromkeys(row["system"] for row in rows)
    table = [{"system": name, "values": {}} for name in systems]
    for metric in metrics:
        values: dict[str, list[float]] = {}
        for row in rows:
            if row[metric] is not None:
                values.setdefault(row["system"], []).append(row[metric])
        cells = _cells(values, draws, flips, seed)
        for row in table:
            if row["system"] in cells:
                row["values"][metric] = cells[row["system"]]
    return table


def _cells(values: dict[str, list[float]], draws: int, flips: int, seed: int) -> dict[str, dict]:
    """system -> its interval and its difference to the first system."""
    from ark_jax.evaluate.significance import bootstrap_interval, holm, sign_flip

    cells = {
        name: bootstrap_interval(column, draws=draws, seed=seed) for name, column in values.items()
    }
    if not values:
        return cells
    base, *compared = values
    differences = {name: np.subtract(values[name], values[base]) for name in compared}
    if not differences:
        return cells
    p = sign_flip(np.stack(list(differences.values()), 1), draws=flips, seed=seed)
    for name, raw, corrected in zip(compared, p, holm(p), strict=True):
        against = bootstrap_interval(differences[name], draws=draws, seed=seed)
        mean = against.pop("mean")
        tested = {"p": float(raw), "p_holm": float(corrected)}
        cells[name]["against_base"] = {"difference": mean, **against, **tested}
    return cells


def as_text(table: list[dict], columns: Sequence[str]) -> str:
    """The closing table for a terminal: means, 95 % intervals, marks of difference from base."""
    width = max(9, *(len(row["system"]) + 2 for row in table))
    lines = ["  " + "system".ljust(width) + "".join(metric_heading(m).rjust(22) for m in columns)]
    for row in table:
        line = "  " + row["system"].ljust(width)
        mark = " "
        for value in map(row["values"].get, columns):
            line += mark + cell_text(value).rjust(21)
            mark = "*" if is_significant(value) else " "
        lines.append((line + mark).rstrip())
    if len(table) > 1:
        values = [value for row in table for value in row["values"].values()]
        head = (
            "* differs from base, "
            if any(map(is_significant, values))
            else "No difference from base has "
        )
        lines.append(f"  {head}p < {ALPHA}: {test_name(table)}")
    return "\n".join(lines)


def as_markdown(table: list[dict], columns: Sequence[str]) -> str:
    """The table for a model card: means and 95 % intervals."""
    lines = [["system", *map(metric_heading, columns)], ["---"] * (len(columns) + 1)]
    for row in table:
        lines.append([row["system"], *(cell_text(row["values"].get(m)) for m in columns)])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def cell_text(value: dict | None) -> str:
    return "{mean:.3f} [{low:.3f}, {high:.3f}]".format(**value) if value else "–"


def test_name(table: list[dict]) -> str:
    correction = ", Holm-corrected over systems" if len(table) > 2 else ""
    return f"paired randomisation test, two-sided{correction}"
