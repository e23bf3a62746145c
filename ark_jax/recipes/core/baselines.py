"""Untrained systems: their results before anything is trained, and what a run gains on them."""

import functools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ark_jax.evaluate.significance import (
    DEVIATION,
    POWER,
    detectable_difference,
    smallest_difference,
)
from ark_jax.pipeline.manifest import read_manifest
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_json, read_table, save_json
from ark_jax.recipes.core.tables import as_text, by_system, describe_difference, tabulate
from ark_jax.report.results import ALPHA, metric_heading
from ark_jax.runtime.log import say

STAGE = "baselines"
FILE = "metrics.json"
ROWS = "questions.parquet"  # a row of each untrained system and question
CEILING = 0.95  # what is left is often wrong marks
GAIN = 0.1  # of nDCG@10: what tuning gained in study 2 (notebooks/README.md)
ENOUGH = math.ceil((POWER * DEVIATION / GAIN) ** 2)  # questions that can tell such a gain


def save_results(
    folder: Path,
    rows: list[dict],
    metrics: Sequence[str],
    headline: str,
    *,
    doubt: Callable[[list[dict], int], list[str]] | None = None,
    base: str = "base",
    cluster: str = "",
    parts: Mapping[str, str] | None = None,
) -> None:
    """Stores the table of untrained systems and the doubts, and prints both.

    Args:
        rows, metrics, base, cluster, parts: as in `tabulate`; rows have a column `question`.
        headline: the metric that is spoken of.
        doubt: (table, number of questions) -> doubts; by default those of `doubts_about`.
    """
    # A seed of its own: runs of a sweep with other seeds share this stage.
    table = tabulate(rows, metrics, seed=0, base=base, cluster=cluster, parts=parts)
    questions = len({row["question"] for row in rows})
    doubt = doubt or functools.partial(doubts_about, metric=headline)
    doubts = doubt(table, questions)
    save_json({"metrics": metrics, "table": table, "doubts": doubts}, folder / FILE)
    say(as_text(table, metrics, base))
    difference = detectable_difference(questions, metric_heading(headline))
    say(f"  {questions:,} held-out questions: {difference}")
    for sentence in doubts:
        say(f"  {sentence}")


def doubts_about(
    table: Sequence[Mapping],
    questions: int,
    metric: str,
    *,
    harder: str = "ask harder questions",
    keeping: str = "",
    advice: str = "",
) -> list[str]:
    """Reasons against training, each with what to do instead, in sentences.

    Args:
        metric: the one that leaves something to gain, or nothing.
        harder: what to do if it leaves nothing.
        keeping: how to use an untrained system.
        advice: what else to do if questions are too few.
    """
    value = lambda row: row["values"].get(metric, {"mean": 0.0})["mean"]
    all_means = lambda row: sum(x["mean"] for x in row["values"].values() if x)
    best, doubts = max(table, key=lambda row: (value(row), all_means(row))), []
    if value(best) > CEILING:
        doubts.append(
            f"{best['system']} reaches {value(best):.3f} in {metric_heading(metric)}: training has "
            f"hardly anything to gain; {harder}, or keep {best['system']} as it is{keeping}"
        )
    if questions < ENOUGH:
        doubts.append(
            f"{questions:,} questions miss most gains below {smallest_difference(questions):.2f}, "
            f"and training may gain less: ask at least {ENOUGH} to see {GAIN}{advice}"
        )
    return doubts


def stored_doubts(folder: Path) -> list[str]:
    """The doubts in the finished folder of the stage; none if nothing was measured."""
    path = folder / FILE
    return load_json(path)["doubts"] if path.is_file() else []


def conclusion(
    run: Path | Context, metric: str, *, base: str = "base", cluster: str = ""
) -> list[str]:
    """What ships, and its differences to the base, the best untrained system and the best of all.

    The last system of the closing table ships. There are no sentences if nothing was measured.

    Args:
        run: the workdir of a finished run, or the context of a stage that reads it.
        base: the untrained system that training began with.
        cluster: as in `tabulate`.
    """
    folder, untrained = run / "evaluate", run / STAGE / ROWS
    if not untrained.is_file():  # nor is it in a run of an earlier version
        return []
    columns = ["system", "question", metric, *([cluster] if cluster else [])]
    read = lambda path: by_system(read_table(path, columns).to_pylist())
    compared = read(untrained)
    rows = compared | read(folder / ROWS)
    is_measured = lambda name: all(row[metric] is not None for row in rows[name].values())
    rows = {name: rows[name] for name in rows if is_measured(name)}
    evaluated, seed = load_json(folder / FILE), read_manifest(folder)["config"]["seed"]
    shipped = evaluated["table"][-1]
    name = shipped["system"]
    means = {x: statistics.fmean(row[metric] for row in rows[x].values()) for x in rows}
    best = lambda systems: max(systems, key=means.__getitem__)
    tests = {}
    winner = best((name, *rows))
    for rival in dict.fromkeys((base, best(compared), winner)):
        if rival == name:
            continue
        if rival == evaluated.get("base", "base"):  # as in the table
            tests[rival] = shipped["values"][metric]["against_base"]
        else:
            pair = [*rows[rival].values(), *rows[name].values()]
            _, tested = tabulate(pair, (metric,), seed=seed, cluster=cluster)
            tests[rival] = tested["values"][metric]["against_base"]
    rank = f"highest of {len(rows)} systems" if winner == name else f"below {winner}"
    return [
        f"{name} ships, unchosen, {rank} in {metric_heading(metric)}: no question was set aside "
        "to choose by.",
        *held_out_sentences(metric, len(rows[name]), means[name], tests),
    ]


def held_out_sentences(
    metric: str,
    questions: int,
    mean: float,
    against: Mapping[str, Mapping],
    *,
    is_trained: bool = True,
) -> list[str]:
    """How good a system is on the held-out questions, and what to do where it gains nothing.

    Args:
        against: system -> the tested difference to it; none that is trained is worse.
        is_trained: whether the system is.
    """
    details = [f"against {x} {describe_difference(tested)}" for x, tested in against.items()]
    said = [
        f"On {questions:,} held-out questions its {metric_heading(metric)} is {mean:.3f}; "
        f"{'; '.join(details)}."
    ]
    if better := [x for x, tested in against.items() if tested["difference"] < 0]:
        best = min(better, key=lambda x: against[x]["difference"])
        said.append(
            f"There it is below {' and '.join(better)}: have more questions, or keep {best}."
        )
    elif against and is_trained:
        nearest = min(against, key=lambda x: against[x]["difference"])
        if against[nearest]["p_holm"] >= ALPHA:
            said.append(f"It gains nothing significant over {nearest}, which needs no training.")
    return said
