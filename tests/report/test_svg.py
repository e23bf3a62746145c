"""The drawings: proportions, ticks, colours of the style sheet."""

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.report_sample import render, sample

from ark_jax.report import svg


def line_chart(losses):
    steps = list(range(1, len(losses) + 1))
    return svg.line_chart("n", "t", steps, losses, x_title="step", y_title="loss")


def test_a_line_chart_omits_and_counts_non_finite_values():
    chart = line_chart([3.0, math.nan, 1.0, None, math.inf, 2.0])
    assert (
        "loss from step 1 to 6: first 3, last 2, lowest 1, highest 3. "
        "Values that are not finite: 3." in chart
    )
    assert chart.count('class="dot"') == 3 and "nan" not in chart and "inf" not in chart


def test_a_line_chart_without_finite_values_is_empty():
    assert line_chart([math.nan]) == "" and line_chart([]) == ""


def test_a_line_chart_of_one_value_is_a_dot():
    assert line_chart([2.0]).count('class="dot"') == 1


def test_a_line_chart_of_many_values_stays_small():
    assert len(line_chart(np.sin(np.arange(200_000)).tolist())) < 20_000


def coordinates(drawing: str, pattern: str) -> list[float]:
    return [float(number) for number in re.findall(pattern, drawing)]


def test_an_interval_plot_is_drawn_to_scale():
    drawing = svg.interval_plot(
        "n", "t", [("base", 0.5, 0.4, 0.6), ("stage1", 0.7, 0.6, 0.8)], x_title="x", reference=0.5
    )
    base, stage = coordinates(drawing, r'class="point" cx="([\d.]+)"')
    reference = coordinates(drawing, r'class="reference" x1="([\d.]+)"')
    starts = coordinates(drawing, r'class="interval" x1="([\d.]+)"')[::3]
    ends = coordinates(drawing, r'class="interval" x1="[\d.]+" y1="[\d.]+" x2="([\d.]+)"')[::3]
    assert reference == [base]
    unit = (stage - base) / 0.2
    assert starts == pytest.approx([base - 0.1 * unit, base + 0.1 * unit], abs=0.2)
    assert ends == pytest.approx([base + 0.1 * unit, base + 0.3 * unit], abs=0.2)


def test_two_histograms_are_drawn_up_and_down_in_shares():
    drawing = svg.histograms(
        "n", "t", ("up", [0.1] * 4), ("down", [0.1, 0.9]), x_title="x", x_range=(0.0, 1.0)
    )
    heights = [
        [float(y) for _, y in re.findall(r"([\d.]+) ([\d.]+)", path)]
        for path in re.findall(r'<path class="(?:above|below)" d="M([^"]+)"', drawing)
    ]
    zero = heights[0][0]
    assert heights[1][0] == zero and min(heights[1]) == zero and max(heights[0]) == zero
    full, half = zero - min(heights[0]), max(heights[1]) - zero
    assert full > 50 and half == pytest.approx(
        full / 2, abs=0.2
    )  # 100 % in one bin, 50 % in each of two
    assert "up: 4 values, median 0.10; down: 2 values, median 0.50." in drawing
    assert "down: 0 values." in svg.histograms(
        "n", "t", ("up", [0.1]), ("down", []), x_title="x", x_range=(0.0, 1.0)
    )


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [
        (0.0, 1.0, ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        (0.53, 0.67, ["0.55", "0.60", "0.65"]),
        (-3.0, 3.0, ["−3", "−2", "−1", "0", "1", "2", "3"]),
        (0.0, 2500.0, ["0", "500", "1,000", "1,500", "2,000", "2,500"]),
        (0.0, 2.2e-5, ["0", "5e−6", "1e−5", "1.5e−5", "2e−5"]),
    ],
)
def test_tick_labels_are_round_numbers(low, high, labels):
    assert svg.tick_labels(svg.ticks(low, high)) == labels


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
def test_ticks_are_few_and_within_the_range(low, width):
    values = svg.ticks(low, low + width)
    assert 2 <= len(values) <= 7
    assert all(low - 1e-6 * width <= v <= low + width * (1 + 1e-6) for v in values)


def test_every_drawing_has_a_title_and_a_description():
    drawings = re.findall(r"<svg (?=[^>]*role=).*?</svg>", render(sample()), re.DOTALL)
    # Means; two metrics; loss and rate of two stages; cosines, difficulty, judge.
    assert len(drawings) == 1 + 2 + 2 * 2 + 3
    for drawing in drawings:
        name, desc = re.search(
            r'aria-labelledby="(\S+)" aria-describedby="(\S+)"', drawing
        ).groups()
        assert re.search(
            rf'<title id="{name}">[^<]+</title><desc id="{desc}">[^<]+\.</desc>', drawing
        )


@pytest.mark.parametrize(
    "title",
    [
        "loss (nats)",
        "step (updates)",
        "learning rate (per update)",
        "cosine similarity (−1 to 1)",
        "share of passages (%)",
        "difference in recall@5",
        "win rate (0 to 1)",
    ],
)
def test_every_axis_names_its_unit(title):
    assert f">{title}</text>" in render(sample())


def test_the_cosine_drawing_states_how_many_pairs_are_in_order():
    # 0.9 is above three negatives and 0.5 above one: 4 of 6 pairs.
    assert (
        "2 positives, 3 hard negatives; the positive has the higher cosine in 67 % of all pairs"
    ) in render(sample())
