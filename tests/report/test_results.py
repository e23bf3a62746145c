"""The results: stars, differences with their tests, the judge's verdicts."""

import math
import re

from support.report_pages import table_cells
from support.report_sample import render, sample


def untested_rows() -> list[dict]:
    """The table of a run without significance tests."""
    rows = sample()["table"]
    for row in rows:
        for v in row["values"].values():
            v.pop("against_base", None)
    return rows


def test_the_results_table_stars_the_best_and_shows_differences():
    assert table_cells(render(sample()), "Results by system") == [
        ["system", "recall@5", "MRR"],
        ["base", "0.500 0.450 to 0.550", "★ best: 0.400 0.350 to 0.450"],
        [
            "stage1",
            "★ best: 0.600 +0.100* p < 0.001 0.550 to 0.650",
            "0.300 −0.100 p = 0.062 0.250 to 0.350",
        ],
        [
            "stage2",
            "★ best: 0.600 +0.100* p = 0.040 0.550 to 0.650",
            "★ best: 0.400 ±0.000 p = 1.000 0.350 to 0.450",
        ],
        ["stage3", "0.450 −0.050 p = 0.500 0.400 to 0.500", "–"],
    ]


def test_results_without_a_test_claim_no_significance():
    page = render(sample() | {"table": untested_rows()})
    assert table_cells(page, "Results by system")[2] == [
        "stage1",
        "★ best: 0.600 +0.100 0.550 to 0.650",
        "0.300 −0.100 0.250 to 0.350",
    ]
    assert (
        "randomisation" not in page
        and "two that overlap may still differ" in page
        and "recall@5 (0 to 1)" in page
    )


def test_insignificant_differences_are_drawn_as_rings():
    page = render(sample())
    recall, mrr = re.findall(r'<svg [^>]*aria-labelledby="interval-.*?</svg>', page, re.DOTALL)
    assert "stage1: 0.100, interval 0.080 to 0.120" in recall and "base:" not in recall
    assert recall.count('class="point"') == 2 and recall.count('class="point hollow"') == 1
    assert mrr.count('class="point"') == 0 and mrr.count('class="point hollow"') == 2
    assert "randomisation" in page and "two that overlap may still differ" not in page


def test_the_log_likelihood_nearest_to_zero_is_the_best():
    data = sample() | {"table": untested_rows(), "metrics": ["answer_likelihood"]}
    for row, mean in zip(data["table"], (-12.5, -3.25, -20.0, -3.5), strict=True):
        value = {"mean": mean, "low": mean - 1, "high": mean + 1}
        row["values"]["answer_likelihood"] = value
    page = render(data)
    assert table_cells(page, "Results by system")[:3] == [
        ["system", "answer likelihood"],
        ["base", "−12.500 −13.500 to −11.500"],
        ["stage1", "★ best: −3.250 +9.250 −4.250 to −2.250"],
    ]
    assert "of the reference as the reader" in page and "answer likelihood (0 to 1)" not in page


def test_equal_results_have_no_star():
    data = sample() | {
        "table": [
            row | {"values": {"mrr": row["values"].get("mrr")}} for row in untested_rows()[:3:2]
        ]
    }
    assert table_cells(render(data), "Results by system")[1:] == [
        ["base", "–", "0.400 0.350 to 0.450"],
        ["stage2", "–", "0.400 ±0.000 0.350 to 0.450"],
    ]


def test_a_single_system_has_no_star_and_no_difference():
    data = sample() | {"table": untested_rows()[1:2]}
    data["table"][0]["values"]["mrr"]["mean"] = math.nan
    assert table_cells(render(data), "Results by system")[1:] == [
        ["stage1", "0.600 0.550 to 0.650", "–"]
    ]


def test_the_results_of_the_judge_are_shown_with_its_bias():
    page = render(sample())
    assert table_cells(page, "Verdicts on stage3 against base") == [
        [
            "criterion",
            "win rate",
            "won",
            "lost",
            "tied",
            "decided by position",
            "disqualified",
            "range over repeats",
            "position bias",
            "both orders agree",
        ],
        ["overall", "0.640", "12", "5", "3", "4", "1", "0.600 to 0.680", "−0.12", "83 %"],
        ["conciseness", "–", "0", "0", "0", "0", "0", "–", "–", "–"],
    ]
    assert (
        "9 of 60 answers are the same" in page and "overall: 0.640, interval 0.590 to 0.690" in page
    )
