"""Runs that each held out a part of the questions, pooled; a real run is in test_launch.py."""

import pytest

from ark_jax.pipeline.manifest import write_manifest
from ark_jax.pipeline.reads import empty_record
from ark_jax.pipeline.tables import save_json, save_rows
from ark_jax.recipes.core.tables import tabulate
from ark_jax.recipes.documents.evaluate import pool_folds

METRICS = ("ndcg@10", "answer_f1")
EVALUATION = {"seed": 3}


def row(system: str, question: str, ndcg: float | None, f1: float | None = 0.5) -> dict:
    values = {"ndcg@10": ndcg, "answer_f1": f1}
    return {"system": system, "question": question, "answer": "x", "ranked": ["c"], **values}


def finished(workdir, fold: int, rows, gold=None, digest="one", seed=3, metrics=METRICS):
    """A workdir with what the stages data and evaluate leave."""
    for stage in ("data", "evaluate"):
        (workdir / stage).mkdir(parents=True)
    divided = {"config": {"data.fold": (fold, 2), "seed": seed}, "external": {"input": digest}}
    write_manifest(workdir / "data", "data", empty_record({}) | divided, {}, {})
    measured = empty_record({}) | {"config": EVALUATION}
    write_manifest(workdir / "evaluate", "evaluate", measured, {}, {})
    table = tabulate(rows, metrics, draws=10, flips=10, seed=0)
    gold = gold or {each["question"]: [["c"]] for each in rows}
    save_json({"metrics": metrics, "table": table, "gold": gold}, workdir / "evaluate/metrics.json")
    save_rows(rows, workdir / "evaluate" / "questions.parquet")
    return workdir


def rows_of(questions, gain: float = 0.25) -> list[dict]:
    return [
        row(system, id, i / 8 + more)
        for system, more in (("base", 0.0), ("stage3", gain))
        for i, id in enumerate(questions)
    ]


def test_the_pooled_table_equals_that_of_one_run_over_all_questions(tmp_path):
    first, second = rows_of("abc"), rows_of("de", gain=0.5)
    pooled = pool_folds([finished(tmp_path / "1", 1, first), finished(tmp_path / "2", 2, second)])
    systems = ("base", "stage3")
    at_once = [x for s in systems for rows in (first, second) for x in rows if x["system"] == s]
    assert pooled.table == tabulate(at_once, METRICS, seed=3)
    assert pooled.metrics == METRICS
    assert pooled.rows == [{"run": "1", **x} for x in first] + [{"run": "2", **x} for x in second]
    difference = pooled.table[1]["values"]["ndcg@10"]["against_base"]
    assert difference["difference"] == pytest.approx((3 * 0.25 + 2 * 0.5) / 5)
    assert pooled.notes[1].startswith("5 held-out questions: a test would")


def test_a_fold_without_any_gold_chunk_measures_no_retrieval(tmp_path):
    """A run by itself has zeros then, since nothing else would say so."""
    blank = [row("base", "d", 0.0), row("stage3", "d", 0.0)]
    folds = [
        finished(tmp_path / "1", 1, rows_of("abc")),
        finished(tmp_path / "2", 2, blank, gold={"d": []}),
    ]
    pooled = pool_folds(folds)
    values = pooled.table[0]["values"]
    assert values["ndcg@10"]["mean"] == pytest.approx((0 + 1 / 8 + 2 / 8) / 3)
    assert values["answer_f1"]["mean"] == 0.5
    assert [x["ndcg@10"] for x in pooled.rows if x["question"] == "d"] == [None, None]


def test_a_likelihood_needs_no_gold_chunk(tmp_path):
    first, blank = rows_of("abc"), [row("base", "d", 0.0), row("stage3", "d", 0.0)]
    for each in (*first, *blank):
        each["answer_likelihood"] = -1.5
    names = (*METRICS, "answer_likelihood")
    folds = [
        finished(tmp_path / "1", 1, first, metrics=names),
        finished(tmp_path / "2", 2, blank, gold={"d": []}, metrics=names),
    ]
    pooled = pool_folds(folds)
    assert [x["answer_likelihood"] for x in pooled.rows] == [-1.5] * 8
    assert pooled.metrics == names


@pytest.mark.parametrize(
    ("second", "changes", "says"),
    [
        (rows_of("cd"), {}, "several runs hold out the question 'c'"),
        (rows_of("de"), {"digest": "two"}, "2 and 1 divide different inputs"),
        (rows_of("de"), {"seed": 4}, "2 and 1 divide .* one input by different settings"),
        ([row("base", "d", 0.5)], {}, "only one of 2 and 1 measured 'stage3'"),
    ],
)
def test_runs_that_are_not_folds_of_one_input_are_not_pooled(tmp_path, second, changes, says):
    first = finished(tmp_path / "1", 1, rows_of("abc"))
    with pytest.raises(ValueError, match=says):
        pool_folds([first, finished(tmp_path / "2", 2, second, **changes)])
