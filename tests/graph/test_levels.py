"""Neighbours, negatives and siblings of a masked triple, against their definitions."""

import collections

import numpy as np
import pytest
from support.fact_graphs import FACTS, random_graph, row_of

from ark_jax.graph.levels import NONE, DrawRules, are_siblings, draw_levels, share_entity
from ark_jax.graph.triples import Triples

GRAPH = Triples.from_triples(FACTS)
ASKED = row_of(GRAPH, FACTS[0])


def drawn(rules: DrawRules, asks_tail: bool, *, times: int = 600, graph: Triples = GRAPH):
    """How often each fact is drawn as positive, neighbour and negative of "a r b"."""
    rows, asked_rows = np.full(times, ASKED), np.full(times, asks_tail)
    levels = draw_levels(graph, rows, asked_rows, rules, np.random.default_rng(0))
    facts = list(graph)
    return [
        collections.Counter("".join(facts[row]) for row in part if row != NONE)
        for part in (levels.positives, levels.neighbours, levels.negatives)
    ]


def test_skipped_siblings_are_never_drawn():
    for asks_tail, sibling in ((True, "arc"), (False, "drb")):
        positives, neighbours, negatives = drawn(DrawRules("skip"), asks_tail)
        assert set(positives) == {"arb"}
        near_facts = {"arc", "drb"} - {sibling}
        assert set(neighbours) == {"ase", "esb", *near_facts}
        assert set(negatives) == {"cse", "frg"}


def test_siblings_can_be_drawn_as_neighbours():
    _, neighbours, _ = drawn(DrawRules("neighbour"), True)
    assert set(neighbours) == {"arc", "drb", "bsa", "asb", "ase", "esb"}


def test_siblings_can_be_drawn_as_positives():
    positives, neighbours, _ = drawn(DrawRules("positive"), True)
    assert set(positives) == {"arb", "arc"} and min(positives.values()) > 200
    assert set(neighbours) == {"ase", "esb", "drb"}
    positives, _, _ = drawn(DrawRules("positive"), False)
    assert set(positives) == {"arb", "drb"}


def test_neighbours_can_be_switched_off():
    assert not drawn(DrawRules(neighbours="none"), True)[1]


def test_an_entity_is_drawn_before_its_triple():
    """With a hub at one end, the other end lends half of the neighbours, not a few of a hundred."""
    hub = [("a", "r", f"x{i}") for i in range(100)]
    graph = Triples.from_triples([("a", "s", "b"), ("c", "s", "b"), ("y", "s", "z"), *hub])
    rows = np.full(2000, row_of(graph, ("a", "s", "b")))
    facts = list(graph)

    def share(**rules) -> float:
        levels = draw_levels(
            graph, rows, np.ones(2000, bool), DrawRules(**rules), np.random.default_rng(1)
        )
        return np.mean([facts[row] == ("c", "s", "b") for row in levels.neighbours])

    # Half of the draws, and more since half of the other end's are the triple itself.
    assert share(neighbours="entity") == pytest.approx(1 / 3, abs=0.04)
    assert share(neighbours="triple") == pytest.approx(1 / 101, abs=0.01)
    assert share(hub=50) == 1


def test_draws_on_random_graphs_satisfy_their_definitions():
    for seed in range(20):
        graph, rng = random_graph(seed), np.random.default_rng(seed)
        rows, asks_tail = np.arange(len(graph)), rng.random(len(graph)) < 0.5
        levels = draw_levels(graph, rows, asks_tail, DrawRules(), rng)
        has = levels.neighbours != NONE
        assert share_entity(graph, rows, levels.neighbours)[has].all()
        assert not are_siblings(graph, rows, asks_tail, levels.neighbours)[has].any()
        assert not share_entity(graph, rows, levels.negatives)[levels.negatives != NONE].any()
        facts = list(graph)
        for row, negative in zip(rows, levels.negatives, strict=True):
            ends = {facts[row][0], facts[row][2]}
            apart = [f for f in facts if not ends & {f[0], f[2]}]
            assert (negative != NONE) == bool(apart)  # a rare one is found too


def test_the_same_generator_gives_the_same_draws():
    graph = random_graph(3)
    rows, asks_tail = np.arange(len(graph)), np.ones(len(graph), bool)
    draw = lambda seed: draw_levels(
        graph, rows, asks_tail, DrawRules(), np.random.default_rng(seed)
    )
    assert np.array_equal(draw(4).negatives, draw(4).negatives)
    assert not np.array_equal(draw(4).negatives, draw(5).negatives)


def test_a_graph_without_a_negative_is_refused():
    star = Triples.from_triples([("a", "r", "b"), ("a", "r", "c")])
    with pytest.raises(ValueError, match="there is no negative to learn from"):
        draw_levels(star, np.arange(2), np.ones(2, bool), DrawRules(), np.random.default_rng(0))
