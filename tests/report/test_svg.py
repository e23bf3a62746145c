"""The drawings: proportions, ticks, the layout of a graph, colours of the style sheet."""

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.report_sample import render, sample

from ark_jax.report import graph_drawing, svg


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


def test_the_graph_layout_is_deterministic_and_within_the_unit_square():
    edges = np.random.default_rng(0).integers(0, 50, (90, 2)).tolist()
    layout = graph_drawing.graph_layout(50, edges)
    assert graph_drawing.graph_layout(50, list(edges)).tobytes() == layout.tobytes()
    assert layout.shape == (50, 2) and layout.min() >= -1e-9 and layout.max() <= 1 + 1e-9
    gaps = np.linalg.norm(layout[:, None] - layout[None], axis=-1)[~np.eye(50, dtype=bool)]
    assert gaps.min() > 0.01


def test_a_path_is_laid_out_as_a_line():
    path = graph_drawing.graph_layout(5, [(2, 3), (0, 1), (3, 4), (1, 2)])
    steps = np.diff(path[:, 0])
    assert (steps > 0.2).all() or (steps < -0.2).all()
    assert np.ptp(path[:, 1]) < 0.2


def test_neighbours_on_a_ring_are_nearer_than_opposite_nodes():
    ring = graph_drawing.graph_layout(4, [(0, 1), (1, 2), (2, 3), (3, 0)])
    distance = lambda a, b: float(np.linalg.norm(ring[a] - ring[b]))
    assert distance(0, 2) > distance(0, 1) and distance(1, 3) > distance(1, 2)


def test_components_of_a_graph_are_laid_out_apart():
    x = graph_drawing.graph_layout(4, [(0, 1), (2, 3)])[:, 0]
    assert max(x[:2]) < min(x[2:]) or min(x[:2]) > max(x[2:])


def test_nodes_without_edges_are_laid_out():
    assert graph_drawing.graph_layout(1, []).tolist() == [[0.5, 0.5]]
    first, second, _ = graph_drawing.graph_layout(3, [])
    assert np.linalg.norm(first - second) > 0.1


def random_graph() -> tuple[list[dict], list[dict]]:
    """Fifty nodes, two seeds and eight small among them, in a tree of 49 edges."""
    rng = np.random.default_rng(1)
    nodes = [
        {
            "name": f"a fairly long name {i}",
            "type": "place",
            "rank": float(r),
            "seed": i < 2,
            "small": i < 8,
        }
        for i, r in enumerate(np.sort(rng.random(50))[::-1])
    ]
    edges = [{"a": i, "b": int(rng.integers(0, i)), "similarity": i % 5 == 0} for i in range(1, 50)]
    return nodes, edges


def test_a_graph_is_drawn_the_same_way_each_time():
    nodes, edges = random_graph()
    drawing = graph_drawing.graph("g", "t", nodes, edges)
    assert drawing == graph_drawing.graph("g", "t", nodes, edges)


def test_nodes_and_edges_of_a_drawn_graph_are_marked_by_kind():
    drawing = graph_drawing.graph("g", "t", *random_graph())
    # The two seeds are small as well; of the edges 1 to 49, nine are multiples of five.
    assert drawing.count('<path class="seed"') == 2 and drawing.count('class="small"') == 6
    assert drawing.count('class="large"') == 42
    assert drawing.count('class="similar"') == 9 and drawing.count('class="relation"') == 40
    assert "50 entities, 8 of them in the small community, joined by 49 edges." in drawing


def test_labels_of_a_drawn_graph_do_not_overlap():
    nodes, edges = random_graph()
    drawing = graph_drawing.graph("g", "t", nodes, edges)
    labels = re.findall(
        r'<text class="node[^"]*" x="([\d.]+)" y="([\d.]+)" text-anchor="(\w+)">([^<]+)<', drawing
    )
    assert len(labels) > 25
    assert {nodes[0]["name"], nodes[1]["name"]} <= {name for *_, name in labels}
    areas = []
    for x, y, anchor, name in labels:
        width = 6.7 * len(name)
        left_edge = float(x) - {"start": 0, "middle": width / 2, "end": width}[anchor]
        areas.append((left_edge, float(y) - 11, left_edge + width, float(y) + 4))
        assert left_edge >= 0 and left_edge + width <= 880 and 0 < float(y) < 560
    for i, a in enumerate(areas):
        for b in areas[:i]:  # coordinates are rounded to a tenth of a pixel
            assert a[0] > b[2] - 0.2 or b[0] > a[2] - 0.2 or a[1] > b[3] - 0.2 or b[1] > a[3] - 0.2


def test_every_drawing_has_a_title_and_a_description():
    drawings = re.findall(r"<svg (?=[^>]*role=).*?</svg>", render(sample()), re.DOTALL)
    # Means; two metrics; loss and rate of two stages; cosines, difficulty, community, judge.
    assert len(drawings) == 1 + 2 + 2 * 2 + 4
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
