"""Arms of a sweep: groups of runs that differ only in their seed, compared with base.

A difference between two runs may come from their seeds. So arms are compared by the mean of each
question over the seeds that both arms have.
"""

import json
from collections.abc import Mapping, Sequence

import numpy as np

from ark_jax.evaluate.significance import bootstrap_interval, holm, sign_flip
from ark_jax.pipeline.recipe import Outcome
from ark_jax.report.page import format_number
from ark_jax.report.results import tested_p

BASE = "base"
SEED = "seed"  # the field that runs of an arm differ in


def compare_arms(runs: Mapping[str, tuple[Mapping, Outcome]], metrics: Sequence[str]) -> list[dict]:
    """A row for each arm: `arm`, `seeds`, and `values` by metric.

    All but base have `against_base`. There are no rows unless base has several seeds. An arm has no
    values if it shares no seed with base, or has other questions.

    Args:
        runs: name -> changes of the config, and outcome.
    """
    arms: dict[str, dict[object, Outcome]] = {}
    names: dict[str, str] = {}
    for run, (changes, outcome) in runs.items():
        key = json.dumps({name: x for name, x in changes.items() if name != SEED}, sort_keys=True)
        arm = names.setdefault(key, run)
        arms.setdefault(arm, {})[changes.get(SEED)] = outcome
    if len(arms.get(BASE, {})) < 2 or len(arms) < 2:
        return []
    rows = [
        {"arm": arm, "seeds": len(by_seed), "values": _arm_values(by_seed, arms[BASE], metrics)}
        for arm, by_seed in arms.items()
    ]
    for metric in metrics:
        compared = [row["values"][metric] for row in rows[1:] if metric in row["values"]]
        corrected = holm([value["against_base"]["p"] for value in compared])
        for value, p in zip(compared, corrected, strict=True):
            value["against_base"]["p_holm"] = float(p)
    return rows


def _arm_values(
    arm: Mapping[object, Outcome], base: Mapping[object, Outcome], metrics: Sequence[str]
) -> dict[str, dict]:
    """metric -> mean and interval of an arm, and its test against base.

    Args:
        arm, base: seed -> outcome.
    """
    seeds = [seed for seed in base if seed in arm]
    values = {}
    for metric in metrics:
        of_arm, of_base = (
            [outcomes[seed].by_question.get(metric, {}) for seed in seeds]
            for outcomes in (arm, base)
        )
        questions = list(of_base[0]) if seeds else []
        if not questions or any(set(x) != set(questions) for x in (*of_arm, *of_base)):
            continue
        ours, theirs = (
            np.array([[by_question[q] for q in questions] for by_question in outcomes]).mean(0)
            for outcomes in (of_arm, of_base)
        )
        seed = base[seeds[0]].seed
        values[metric] = bootstrap_interval(ours, seed=seed)
        if arm is not base:
            difference = bootstrap_interval(ours - theirs, seed=seed)
            (p,) = sign_flip((ours - theirs)[:, None], seed=seed)
            difference["difference"] = difference.pop("mean")
            values[metric]["against_base"] = difference | {"p": float(p)}
    return values


def arms_cells(rows: Sequence[dict], names: Mapping[str, str]) -> list[list[str]]:
    """The lines of a table of arms, its head first.

    Args:
        names: metric -> heading.
    """
    head = ["arm", "seeds", *names.values()]
    return [
        head,
        *(
            [row["arm"], str(row["seeds"]), *(_arm_cell(row["values"].get(m)) for m in names)]
            for row in rows
        ),
    ]


def _arm_cell(value: Mapping | None) -> str:
    """Mean, difference to base, its interval and p, as far as there are any."""
    if value is None:
        return "–"
    mean, against = format_number(value["mean"]), value.get("against_base")
    if against is None:
        return mean
    difference, low, high = (format_number(against[name]) for name in ("difference", "low", "high"))
    sign = "+" if against["difference"] > 0 else ""
    return f"{mean}: {sign}{difference} [{low}, {high}], {tested_p(against)}"
