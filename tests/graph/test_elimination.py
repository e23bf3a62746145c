"""Ranks by elimination are those of a dense solution; what is left out is below the floor."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ark_jax.graph import elimination
from ark_jax.graph.elimination import Elimination
from ark_jax.graph.pagerank import personalized_pagerank
from ark_jax.graph.store import KnowledgeGraph

TELEPORT = 0.2


def graph_of(count: int, pairs) -> KnowledgeGraph:
    """`count` nodes, of which those without a pair have no neighbours."""
    pairs, empty = list(pairs), [[] for _ in range(count)]
    return KnowledgeGraph.from_columns(
        [f"node {i}" for i in range(count)],
        ["thing"] * count,
        empty,
        empty,
        pairs,
        [1.0] * len(pairs),
        [()] * len(pairs),
        [()] * len(pairs),
    )


def dense_ranks(graph: KnowledgeGraph, seeds) -> np.ndarray:
    """A node without neighbours returns its rank to the seeds, which only scales the ranks."""
    n, (source, target) = len(graph), graph.neighbours()
    step = np.zeros((n, n))
    np.add.at(step, (target, source), 1)
    step /= np.maximum(step.sum(axis=0), 1)
    start = np.array([np.isin(np.arange(n), nodes) / len(set(nodes)) for nodes in seeds])
    ranks = np.linalg.solve(np.eye(n) - (1 - TELEPORT) * step, TELEPORT * start.T).T
    return ranks / ranks.sum(axis=1, keepdims=True)


@st.composite
def graphs(draw):
    count = draw(st.integers(1, 40))
    node = st.integers(0, count - 1)
    pairs = draw(st.lists(st.tuples(node, node), max_size=80))
    seeds = draw(st.lists(st.lists(node, min_size=1, max_size=5), min_size=1, max_size=5))
    return count, pairs, seeds


@example((1, [], [[0]]), 0, 0.0)
@example((6, [(0, i) for i in range(1, 5)], [[0, 5], [1]]), 2, 0.05)
@given(graphs(), st.integers(0, 8), st.sampled_from([0.0, 1e-3, 0.05, 0.3]))
@settings(deadline=None)
def test_ranks_by_elimination_equal_a_dense_solution(drawn, core, floor):
    count, pairs, seeds = drawn
    graph = graph_of(count, pairs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(elimination, "CORE", core)
        patch.setattr(elimination, "LARGE_CORE", core)
        patch.setattr(elimination, "GROWTH", 100)
        patch.setattr(elimination, "BLOCK", 2 * count)  # a few seed sets at once
        eliminated = Elimination.from_graph(graph, TELEPORT)
    assert sum(len(level.nodes) for level in eliminated.levels) + len(eliminated.core[0]) == count
    ranks, expected = (
        np.array(list(eliminated.ranks(seeds, floor=floor))),
        dense_ranks(graph, seeds),
    )
    left_out = ranks == 0
    np.testing.assert_allclose(ranks[~left_out], expected[~left_out], rtol=1e-10)
    if floor:
        assert np.all(expected[left_out] < floor * (1 + 1e-10))
    else:
        np.testing.assert_allclose(ranks, expected, rtol=1e-10, atol=1e-300)


def tree_with_hubs(count: int) -> KnowledgeGraph:
    """Every node is tied to two earlier ones, most often to the first."""
    random = np.random.default_rng(0)
    earlier = (random.random((count, 2)) ** 4 * np.arange(count)[:, None]).astype(int)
    return graph_of(count, [(i, j) for i, pair in enumerate(earlier.tolist()) for j in pair])


def test_a_floor_leaves_low_ranks_uncomputed(mesh):
    graph = tree_with_hubs(6000)
    eliminated = Elimination.from_graph(graph, TELEPORT)
    assert 0 < len(eliminated.core[0]) <= elimination.CORE
    seeds = [[5000], [17, 4321]]
    [exact, other], pruned = eliminated.ranks(seeds), list(eliminated.ranks(seeds, floor=1e-4))
    walked = personalized_pagerank(
        graph, seeds, teleport=TELEPORT, tolerance=1e-13, dtype="float64"
    )
    np.testing.assert_allclose([exact, other], walked, atol=1e-11)
    for ranks, fewer in zip((exact, other), pruned, strict=True):
        assert np.array_equal(ranks[ranks >= 1e-4], fewer[ranks >= 1e-4])
        assert (ranks > 0).all() and (fewer == 0).mean() > 0.3


def test_a_dense_core_is_not_eliminated(monkeypatch):
    monkeypatch.setattr(elimination, "CORE", 8)
    clique = [(i, j) for i in range(100) for j in range(i)]
    graph = graph_of(400, clique + [(i, i % 100) for i in range(100, 400)])
    eliminated = Elimination.from_graph(graph, TELEPORT)
    assert [len(level.nodes) for level in eliminated.levels] == [300]
    [ranks] = eliminated.ranks([[0, 399]])
    np.testing.assert_allclose(ranks, dense_ranks(graph, [[0, 399]])[0], rtol=1e-10)
    monkeypatch.setattr(elimination, "LARGE_CORE", 8)
    assert Elimination.from_graph(graph, TELEPORT) is None  # a level for each of the hundred


def test_a_graph_with_too_much_fill_in_is_not_eliminated():
    pairs = np.random.default_rng(0).integers(0, 3000, (30_000, 2)).tolist()
    assert Elimination.from_graph(graph_of(3000, pairs), TELEPORT) is None
