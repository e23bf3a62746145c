"""The table of a sweep: which runs can be compared, and by what."""

import json

import pytest

from ark_jax.pipeline.recipe import Outcome
from ark_jax.recipes.ark.recipe import RECIPE
from ark_jax.report import sweep_table


def test_runs_on_different_questions_are_compared_without_an_interval():
    base, other = (
        Outcome("stage3", {}, {"mrr": values})
        for values in ({"a": 0.5, "c": 0.0}, {"a": 1.0, "b": 0.5})
    )
    assert sweep_table.compare_runs(base, other, "mrr") == {"difference": 0.5}


def test_runs_without_the_metric_have_no_plot():
    row = dict.fromkeys(sweep_table.NUMBERS)
    assert sweep_table.interval_figures([row | {"run": "base"}], "answer_f1") == ""


COMPARISON = sweep_table.Comparison("mrr", RECIPE.metrics, RECIPE.outcome)


def test_runs_with_other_command_line_fields_are_not_compared(tmp_path):
    runs = [
        sweep_table.SweepRun(name, {}, tmp_path / name, tmp_path / f"{name}.log")
        for name in ("base", "x")
    ]
    for run, error, fields in zip(runs, ("stopped", ""), (["--config.seed=7"], []), strict=True):
        run.workdir.mkdir()
        run.result_file.write_text(json.dumps({"error": error, "seconds": 1.0, "fields": fields}))
    by_run = {row["run"]: row for row in sweep_table.collect_rows(runs, COMPARISON)}
    assert (by_run["base"]["state"], by_run["x"]["state"]) == ("failed", "stale")
    assert by_run["x"]["error"] == "made with no fields, base with --config.seed=7; run it again"


@pytest.mark.parametrize(
    ("difference", "cell"), [(0.5, "+0.500"), (0.0, "0.000"), (-0.5, "−0.500"), (None, "–")]
)
def test_the_sign_of_a_difference_is_shown_where_it_is_above_zero(difference, cell):
    row = dict.fromkeys(sweep_table.NUMBERS, None) | {"run": "x", "changes": "{}", "seconds": 1.0}
    row |= {"mean": 0.5, "difference": difference} | dict.fromkeys(COMPARISON.other_metrics)
    assert sweep_table._run_cells(row, COMPARISON.other_metrics)[2] == cell


def test_the_sweep_page_escapes_names_and_loads_nothing():
    page = sweep_table.as_html("<b>", [["run"], ["<script>x"]], ["<i>"], "caption", "")
    assert "Content-Security-Policy" in page and "default-src 'none'" in page
    assert not any(tag in page for tag in ("<b>", "<i>", "<script>x"))
