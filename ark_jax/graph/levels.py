"""Three levels of relevance for a question about a masked triple (GPR, eq. 1 to 3).

The triple itself comes first, then its neighbours, which share an entity with it, then all that
share none. The paper leaves open how neighbours are drawn, and what becomes of siblings: triples
that answer the same question, since they differ from it in the masked entity alone.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
from jaxtyping import Bool, Int

from ark_jax.graph.triples import Triples

ROUNDS = 16  # most draws for a question until one is valid
NONE = -1  # stands for a row where a question has no such triple


@dataclasses.dataclass(frozen=True)
class DrawRules:
    """How neighbours and negatives are drawn.

    Attributes:
        siblings: "skip" never draws them, nor another triple of the same two entities;
            "neighbour" draws them as neighbours, as eq. 2 says; "positive" draws the positive
            among them.
        neighbours: "entity" draws one of the two entities first, each with probability one half,
            and then one of its triples; "triple" draws among the triples of both, which mostly
            gives those of the entity that has more; "none" draws none.
        hub: an entity with more triples lends no neighbours if the other one has fewer; 0: all do.
    """

    siblings: str = "skip"
    neighbours: str = "entity"
    hub: int = 0


@dataclasses.dataclass(frozen=True)
class Levels:
    """Rows of a graph for each question; NONE where a question has no such triple."""

    positives: Int[np.ndarray, " n"]
    neighbours: Int[np.ndarray, " n"]
    negatives: Int[np.ndarray, " n"]

    def select(self, numbers: Int[np.ndarray, " m"]) -> "Levels":
        """The rows of some of the questions, by their numbers."""
        return Levels(self.positives[numbers], self.neighbours[numbers], self.negatives[numbers])


def draw_levels(
    graph: Triples,
    rows: Int[np.ndarray, " n"],
    asks_tail: Bool[np.ndarray, " n"],
    rules: DrawRules,
    rng: np.random.Generator,
) -> Levels:
    """Draws one neighbour and one negative for each question.

    Args:
        rows: the triples that the questions are about.
        asks_tail: which of them mask the tail; the others mask the head.

    Raises:
        ValueError: no question has a negative, since its triple shares an entity with all others.
    """
    positives = rows
    if rules.siblings == "positive":
        positives = _draw_siblings(graph, rows, asks_tail, rng)
    neighbours = np.full(len(rows), NONE, np.int64)
    if rules.neighbours != "none":
        neighbours = _draw_valid(
            len(rows),
            lambda chosen: _draw_neighbours(graph, rows[chosen], rules, rng),
            lambda chosen, drawn: _may_be_neighbour(
                graph, rows[chosen], asks_tail[chosen], drawn, rules
            ),
        )
    negatives = _draw_valid(
        len(rows),
        lambda chosen: rng.integers(0, len(graph), len(chosen)),
        lambda chosen, drawn: ~share_entity(graph, rows[chosen], drawn),
    )
    for number in np.flatnonzero(negatives == NONE):
        unrelated = np.flatnonzero(~share_entity(graph, rows[number], np.arange(len(graph))))
        if len(unrelated):
            negatives[number] = rng.choice(unrelated)
    if len(rows) and (negatives == NONE).all():
        raise ValueError(
            f"every triple that a question asks about shares an entity with each of the "
            f"{len(graph):,} triples, so there is no negative to learn from; give a larger graph"
        )
    return Levels(positives, neighbours, negatives)


def share_entity(graph: Triples, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Whether triples have an entity in common, row by row; `a` and `b` broadcast."""
    head, tail = graph.head, graph.tail
    return (head[a] == head[b]) | (head[a] == tail[b]) | (tail[a] == head[b]) | (tail[a] == tail[b])


def are_siblings(graph: Triples, a: np.ndarray, asks_tail: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Whether `b` answers the question about `a` too, or joins the same two entities.

    `a` is its own sibling. Arguments broadcast.
    """
    head, tail = graph.head, graph.tail
    known = np.where(asks_tail, head[a] == head[b], tail[a] == tail[b])
    same_answer = (graph.relation[a] == graph.relation[b]) & known
    same_pair = (head[a] == head[b]) & (tail[a] == tail[b])
    turned_pair = (head[a] == tail[b]) & (tail[a] == head[b])
    return same_answer | same_pair | turned_pair


def _draw_valid(
    count: int,
    draw: Callable[[np.ndarray], np.ndarray],
    is_valid: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> np.ndarray:
    """Draws a row for each of `count` questions, again until it is valid; NONE after ROUNDS."""
    rows = np.full(count, NONE, np.int64)
    for _ in range(ROUNDS):
        open_numbers = np.flatnonzero(rows == NONE)
        if not len(open_numbers):
            break
        drawn = draw(open_numbers)
        valid = (drawn != NONE) & is_valid(open_numbers, drawn)
        rows[open_numbers[valid]] = drawn[valid]
    return rows


def _may_be_neighbour(
    graph: Triples, rows: np.ndarray, asks_tail: np.ndarray, drawn: np.ndarray, rules: DrawRules
) -> np.ndarray:
    """Whether the rules allow each drawn triple as a neighbour: bool `[n]`."""
    if rules.siblings == "neighbour":
        return rows != drawn
    return ~are_siblings(graph, rows, asks_tail, drawn)


def _draw_neighbours(
    graph: Triples, rows: np.ndarray, rules: DrawRules, rng: np.random.Generator
) -> np.ndarray:
    """A triple of the head or the tail of each row, whether valid or not: int64 `[n]`."""
    head, tail = graph.head[rows], graph.tail[rows]
    degrees = graph.degrees()
    head_share = 0.5
    if rules.neighbours == "triple":
        head_share = degrees[head] / (degrees[head] + degrees[tail])
    by_head = rng.random(len(rows)) < head_share
    if rules.hub:
        is_hub = degrees > rules.hub
        by_head = np.where(is_hub[head] == is_hub[tail], by_head, is_hub[tail])
    return _draw_triples(graph, np.where(by_head, head, tail), rng)


def _draw_triples(graph: Triples, nodes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draws one of each node's triples, all equally likely; a self-loop counts twice."""
    bounds, order = graph.incoming
    leaving = graph.outgoing[nodes + 1] - graph.outgoing[nodes]
    entering = bounds[nodes + 1] - bounds[nodes]
    drawn = (rng.random(len(nodes)) * (leaving + entering)).astype(np.int64)
    entering_place = np.minimum(bounds[nodes] + np.maximum(drawn - leaving, 0), len(order) - 1)
    return np.where(drawn < leaving, graph.outgoing[nodes] + drawn, order[entering_place])


def _draw_siblings(
    graph: Triples, rows: np.ndarray, asks_tail: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Draws one of the triples that answer each question, all equally likely: int64 `[n]`."""
    _, order = graph.incoming
    key = lambda node: node.astype(np.int64) * len(graph.relations) + graph.relation
    # Triples are sorted by head and relation, `order` sorts them by tail and relation: in both, the
    # triples that answer one question are contiguous.
    by_head, by_tail = key(graph.head), key(graph.tail)
    siblings = np.empty(len(rows), np.int64)
    for chosen, keys, places in (
        (asks_tail, by_head, np.arange(len(graph))),
        (~asks_tail, by_tail, order),
    ):
        asked_keys = keys[rows[chosen]]
        first, last = (
            np.searchsorted(keys[places], asked_keys, side) for side in ("left", "right")
        )
        drawn = first + (rng.random(len(asked_keys)) * (last - first)).astype(np.int64)
        siblings[chosen] = places[drawn]
    return siblings
