"""The report's drawing of a graph: positions of nodes and labels, and the SVG text."""

import math
from collections.abc import Mapping, Sequence

import networkx as nx
import numpy as np
from markupsafe import escape

from ark_jax.report.svg import label, line, px, shorten, svg, text_width

GRAPH_SIZE = (880, 560)  # pixels
CORNERS = ((0, -1.25), (1.25, 0), (0, 1.25), (-1.25, 0))  # of a diamond, in radii
# Positions of a label around its node: right, left, above, below, then the diagonals.
LABEL_DIRECTIONS = (
    (1, 0),
    (-1, 0),
    (0, -1),
    (0, 1),
    (0.7, -0.8),
    (-0.7, -0.8),
    (0.7, 0.8),
    (-0.7, 0.8),
)


def graph_layout(n: int, edges: Sequence[tuple[int, int]]) -> np.ndarray:
    """Positions of `n` ≥ 1 nodes in the unit square, float64 `[n 2]`, by Kamada and Kawai.

    Each pair of nodes has a spring as long as the path between them, or one longer than the longest
    path if there is none. It starts from a circle, so there is no randomness. The longest extent
    becomes horizontal.
    """
    graph = nx.Graph()
    graph.add_nodes_from(range(n))
    graph.add_edges_from(edges)
    lengths = dict(nx.all_pairs_shortest_path_length(graph))
    apart = 1 + max(max(row.values()) for row in lengths.values())
    distances = {a: {b: row.get(b, apart) for b in graph} for a, row in lengths.items()}
    layout = nx.kamada_kawai_layout(graph, dist=distances)
    positions = np.array([layout[i] for i in range(n)])
    # Rotate to the principal axes. The largest component of each is positive, so none is mirrored.
    axes = np.linalg.eigh(positions.T @ positions)[1][:, ::-1]
    axes = axes * np.where(axes[np.abs(axes).argmax(0), [0, 1]] < 0, -1.0, 1.0)
    positions = positions @ axes
    extent = np.ptp(positions, axis=0)
    # A nearly straight graph is not stretched to fill the square.
    extent = np.maximum(extent, 0.3 * extent.max() or 1.0)
    return 0.5 + (positions - (positions.max(0) + positions.min(0)) / 2) / extent


def push_apart(
    positions: np.ndarray, low: np.ndarray, high: np.ndarray, half_axes: tuple[float, float]
) -> np.ndarray:
    """Pushes nodes out of the ellipses around each other, within the box from `low` to `high`.

    Args:
        positions: pixels, `[n 2]`.
        low, high: corners of the box, pixels `[2]`.
        half_axes: of the ellipses, pixels.
    """
    for _ in range(80):
        gaps = (positions[:, None] - positions[None]) / np.array(half_axes)
        lengths = np.linalg.norm(gaps, axis=-1, keepdims=True)
        directions = np.divide(gaps, lengths, out=np.zeros_like(gaps), where=lengths > 1e-9)
        pushes = (np.clip(1 - lengths, 0, None) * directions).sum(1)
        positions = np.clip(positions + 0.25 * pushes * np.array(half_axes), low, high)
    return positions


def place_labels(
    positions: np.ndarray,
    radii: np.ndarray,
    texts: Sequence[str],
    order: Sequence[int],
    required: int,
    lines: np.ndarray,
) -> dict[int, tuple[float, float, str]]:
    """Places labels where they cover no node and no other label, and hide little of the edges.

    Args:
        positions: of the nodes, pixels `[n 2]`.
        radii: of the nodes, pixels `[n]`.
        order: node indices; earlier ones choose first.
        required: the first `required` nodes of `order` get a label even if it covers something.
        lines: points on the edges, `[m 2]`.

    Returns:
        node -> (x, y of the baseline, text anchor). A label that fits nowhere is left out.
    """
    boxes = np.concatenate([positions - radii[:, None], positions + radii[:, None]], 1)
    labels = {}
    for turn, i in enumerate(order):
        candidates = []
        for direction in LABEL_DIRECTIONS:
            anchor, box = _label_box(positions[i], radii[i] + 4, direction, text_width(texts[i]))
            low, high = box[:2], box[2:]
            if (low < 2).any() or (high > np.array(GRAPH_SIZE) - 2).any():
                continue
            covered = int(((low < boxes[:, 2:]) & (high > boxes[:, :2])).all(1).sum())
            if not covered or turn < required:
                hidden = int(((low < lines) & (lines < high)).all(1).sum())
                candidates.append((covered, hidden, len(candidates), anchor, box))
        if candidates:
            *_, labels[i], box = min(candidates, key=lambda candidate: candidate[:3])
            boxes = np.vstack([boxes, box])
    return labels


def _label_box(
    position: np.ndarray, distance: float, direction: tuple[float, float], width: float
) -> tuple[tuple[float, float, str], np.ndarray]:
    """A label beside a node, as (x, baseline y, anchor) and as left, top, right, bottom `[4]`."""
    dx, dy = direction
    x, baseline = position[0] + dx * distance, position[1] + 4 + dy * (distance + 6)
    left_edge = x - width * (0.5 - 0.5 * np.sign(dx))
    anchor = "start" if dx > 0 else "end" if dx < 0 else "middle"
    return (x, baseline, anchor), np.array(
        [left_edge, baseline - 11, left_edge + width, baseline + 4]
    )


def membership(node: Mapping) -> str:
    """The part of the community that a node belongs to: seed, small or large."""
    return "seed" if node["seed"] else "small" if node["small"] else "large"


def graph(
    name: str, title: str, nodes: Sequence[Mapping], edges: Sequence[Mapping], *, desc: str = ""
) -> str:
    """A graph of the report's data, with at least one node.

    Seeds are diamonds, members of the small community discs, the others rings. Size shows rank.

    Args:
        desc: description for screen readers; empty: counts of the community.
    """
    top_rank = max(node["rank"] for node in nodes) or 1.0
    radii = np.array([5 + 9 * math.sqrt(max(node["rank"], 0.0) / top_rank) for node in nodes])
    low, high = np.array([70.0, 26.0]), np.array(GRAPH_SIZE) - [70.0, 26.0]
    pairs = [(edge["a"], edge["b"]) for edge in edges]
    positions = low + graph_layout(len(nodes), pairs) * (high - low)
    positions = push_apart(positions, low, high, (84.0, 46.0))
    body = [
        line(*positions[e["a"]], *positions[e["b"]], "similar" if e["similarity"] else "relation")
        for e in edges
    ]
    priority = lambda i: (not nodes[i]["seed"], not nodes[i]["small"], -radii[i])
    order = sorted(range(len(nodes)), key=priority)
    body += [_node_mark(nodes[i], positions[i], radii[i]) for i in reversed(order)]
    texts = [shorten(str(node["name"]), 28) for node in nodes]
    seeds = [str(node["name"]) for node in nodes if node["seed"]]
    edge_points = _points_on_edges(positions, pairs)
    labels = place_labels(positions, radii * 1.15, texts, order, len(seeds), edge_points)
    for i, (x, y, anchor) in labels.items():
        style = "node" if nodes[i]["seed"] or nodes[i]["small"] else "node minor"
        body.append(label(x, y, texts[i], style, anchor))
    small = sum(node["small"] for node in nodes)
    desc = desc or (
        f"{len(nodes)} entities, {small} of them in the small community, joined by {len(edges)} "
        f"edges. Seeds: {', '.join(seeds) or 'none'}. The table below lists every entity."
    )
    return svg(name, title, desc, GRAPH_SIZE, body)


def _node_mark(node: Mapping, position: np.ndarray, radius: float) -> str:
    """The SVG of a node, with a tooltip."""
    x, y = position
    shape = f'<circle class="{membership(node)}" cx="{px(x)}" cy="{px(y)}" r="{px(radius)}"/>'
    if node["seed"]:
        corners = [f"{px(x + dx * radius)} {px(y + dy * radius)}" for dx, dy in CORNERS]
        shape = f'<path class="seed" d="M{"L".join(corners)}Z"/>'
    text = f"{node['name']} ({node['type']}), rank {node['rank']:.3g}"
    return f"<g><title>{escape(text)}</title>{shape}</g>"


def _points_on_edges(positions: np.ndarray, edges: Sequence[tuple[int, int]]) -> np.ndarray:
    """33 points on every edge, pixels `[m 2]`."""
    ends = positions[np.array(edges, int).reshape(-1, 2)]  # [edges 2 2]
    shares = np.linspace(0, 1, 33)[:, None, None]
    return (ends[:, 0] * (1 - shares) + ends[:, 1] * shares).reshape(-1, 2)
