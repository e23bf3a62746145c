"""Cross-validation: the results of runs that each held out another part of the questions, as one.

Every question is measured once, by models that were not trained on it.
"""

import collections
from collections.abc import Sequence
from pathlib import Path

from ark_jax.evaluate.significance import what_can_be_told
from ark_jax.pipeline.manifest import read_manifest
from ark_jax.pipeline.recipe import Pooled
from ark_jax.pipeline.tables import load_json, load_rows
from ark_jax.recipes.common import evaluate
from ark_jax.recipes.common.table import tabulate


def pool_folds(workdirs: Sequence[Path]) -> Pooled:
    """All systems over the questions of all folds, with intervals and paired tests.

    Raises:
        ValueError: the runs are no folds of one input, or measured different systems.
    """
    folders = [workdir / "evaluate" for workdir in workdirs]
    results = [load_json(folder / "metrics.json") for folder in folders]
    by_fold = [load_rows(folder / "questions.parquet") for folder in folders]
    _check_folds(workdirs, by_fold)
    rows = [
        {"run": workdir.name, **row}
        for workdir, fold_rows in zip(workdirs, by_fold, strict=True)
        for row in fold_rows
    ]
    metrics = results[0]["metrics"]
    means = [name for result in results for row in result["table"] for name in row["values"]]
    measured = tuple(dict.fromkeys([*means, *metrics]))
    _leave_out_questions_without_gold(rows, results, measured)
    seed = read_manifest(folders[0])["config"]["seed"]
    table = tabulate(rows, measured, seed=seed)
    columns = tuple(metric for metric in metrics if metric in table[-1]["values"])
    questions = len({row["question"] for row in rows})
    notes = (
        evaluate.verdict(table, columns, ()),
        f"{questions:,} held-out questions: {what_can_be_told(questions)}.",
    )
    return Pooled(rows, columns, table, notes)


def _check_folds(workdirs: Sequence[Path], by_fold: Sequence[list[dict]]) -> None:
    """Refuses runs that are no folds of one input, or that measured different systems."""
    first, *later_workdirs = workdirs
    for workdir in later_workdirs:
        if _divided(workdir) != _divided(first):
            raise ValueError(
                f"{workdir.name} and {first.name} divide different inputs, or one input by "
                "different settings: run all folds again"
            )
    counts = collections.Counter(id for rows in by_fold for id in {row["question"] for row in rows})
    if repeated := [id for id, count in counts.items() if count > 1]:
        raise ValueError(f"several runs hold out the question {min(repeated)!r}: drop one of them")
    for workdir, rows in zip(workdirs, by_fold, strict=True):
        if differing := {row["system"] for row in rows} ^ {row["system"] for row in by_fold[0]}:
            raise ValueError(
                f"only one of {workdir.name} and {first.name} measured {min(differing)!r}: run all "
                "folds with the same settings"
            )


def _divided(workdir: Path) -> tuple[dict, dict]:
    """The input of a run, and by what settings it was divided, except for the fold."""
    manifest = read_manifest(workdir / "data")
    settings = {name: x for name, x in manifest["config"].items() if name != "data.fold"}
    folds = {"folds": manifest["config"]["data.fold"][1]}
    return settings | folds, manifest["external"]


def _leave_out_questions_without_gold(
    rows: Sequence[dict], results: Sequence[dict], metrics: Sequence[str]
) -> None:
    """Sets retrieval metrics to None, as a run does that holds out all questions.

    A fold in which no question has a gold chunk has zeros instead.
    """
    from ark_jax.evaluate.answers import ANSWER_COLUMNS

    gold = {id: passages for result in results for id, passages in result["gold"].items()}
    if not any(gold.values()):
        return
    unknown = dict.fromkeys(metric for metric in metrics if metric not in ANSWER_COLUMNS)
    for row in rows:
        if not gold[row["question"]]:
            row.update(unknown)
