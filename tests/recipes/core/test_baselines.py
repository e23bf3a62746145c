"""Doubts that training helps, and what a finished run says of the untrained systems."""

import pytest

from ark_jax.pipeline.manifest import write_manifest
from ark_jax.pipeline.reads import empty_record
from ark_jax.pipeline.tables import load_json, save_json, save_rows
from ark_jax.recipes.core import baselines
from ark_jax.recipes.core.tables import tabulate

METRIC = "hit@1"


def table(**means: float) -> list[dict]:
    return [{"system": x, "values": {METRIC: {"mean": y}}} for x, y in means.items()]


def test_doubts_need_a_high_value_or_few_questions():
    doubts = lambda questions=baselines.ENOUGH, **means: baselines.doubts_about(
        table(**means), questions, METRIC
    )
    assert not doubts(base=0.95, bm25=0.8)
    (few,) = doubts(baselines.ENOUGH - 1, base=0.95)
    assert few.startswith("45 questions miss most gains below 0.10") and "at least 46" in few
    (ceiling,) = doubts(base=0.5, bm25=0.96)
    assert ceiling == (
        "bm25 reaches 0.960 in hit rate@1: training has hardly anything to gain; ask harder "
        "questions, or keep bm25 as it is"
    )


def test_of_systems_at_the_ceiling_the_one_with_the_better_other_metrics_is_kept():
    rows = table(base=1.0, bm25=1.0)
    for row, mean in zip(rows, (0.6, 0.7), strict=True):
        row["values"]["mrr"] = {"mean": mean}
    (ceiling,) = baselines.doubts_about(rows, baselines.ENOUGH, METRIC, keeping=" (so)")
    assert ceiling.endswith("or keep bm25 as it is (so)")


def rows_of(**hits: str) -> list[dict]:
    """Rows of systems; `hits` has a digit for each question."""
    return [
        {"system": name.replace("_", " "), "question": f"q{i}", METRIC: float(hit)}
        for name, digits in hits.items()
        for i, hit in enumerate(digits)
    ]


def test_results_are_stored_and_printed_with_doubts(tmp_path, capsys):
    baselines.save_results(tmp_path, rows_of(base="11", bm25="10"), [METRIC], METRIC)
    stored, said = load_json(tmp_path / baselines.FILE), capsys.readouterr().out
    assert [row["system"] for row in stored["table"]] == ["base", "bm25"]
    assert baselines.stored_doubts(tmp_path) == stored["doubts"] and len(stored["doubts"]) == 2
    assert all(f"  {doubt}\n" in said for doubt in stored["doubts"])
    assert "2 held-out questions: a test would likely miss a difference in hit rate@1 below" in said
    assert baselines.stored_doubts(tmp_path / "nothing measured") == []


@pytest.fixture
def finish(tmp_path):
    """Writes what a finished run leaves; the last system ships."""

    def write(untrained: list[dict], measured: list[dict]) -> None:
        for name, rows in ((baselines.STAGE, untrained), ("evaluate", measured)):
            (tmp_path / name).mkdir()
            save_rows(rows, tmp_path / name / baselines.ROWS)
        closing = {"table": tabulate(measured, [METRIC], seed=5)}
        save_json(closing, tmp_path / "evaluate" / baselines.FILE)
        record = empty_record({}) | {"config": {"seed": 5}}
        write_manifest(tmp_path / "evaluate", "evaluate", record, {}, {})
        return closing["table"]

    return write


def test_a_run_is_compared_with_the_base_and_the_best_untrained_system(finish, tmp_path):
    untrained = rows_of(base="0000000000", bm25="1100000000", both="1110000000")
    stored = finish(untrained, [*rows_of(base="0" * 10, bm25="11" + "0" * 8, tuned="1" * 10)])
    first, numbers = baselines.conclusion(tmp_path, METRIC)
    assert first == (
        "tuned ships, unchosen, highest of 4 systems in hit rate@1: no question was set aside to "
        "choose by."
    )
    assert numbers.startswith("On 10 held-out questions its hit rate@1 is 1.000; against base +1")
    p = stored[-1]["values"][METRIC]["against_base"]["p_holm"]  # as in the table, corrected
    assert f"+1.000 [1.000, 1.000] (p = {p:.2g}); against both +0.700 [" in numbers


def test_a_run_below_an_untrained_or_another_trained_system_says_so(finish, tmp_path):
    measured = rows_of(base="1100000000", fused="1111000000", tuned="1000000000")
    finish(rows_of(base="1100000000", bm25="0" * 10), measured)
    first, numbers, advice = baselines.conclusion(tmp_path, METRIC)
    assert first.startswith("tuned ships, unchosen, below fused in hit rate@1: ")
    assert "against base -0.100 [-0.300, 0.000], no significant difference" in numbers
    assert advice == ("There it is below base and fused: have more questions, or keep fused.")


def test_without_measurements_nothing_is_concluded(tmp_path):
    assert baselines.conclusion(tmp_path, METRIC) == []
