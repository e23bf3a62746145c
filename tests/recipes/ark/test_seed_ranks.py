"""Ranks of a run's seed sets: by elimination, or block after block by walks on split data."""

import jax
import numpy as np
from support.matrices import random_matrix
from support.world import tiny_config

from ark_jax.graph import elimination, pagerank, walk
from ark_jax.graph.community import community
from ark_jax.graph.store import KnowledgeGraph
from ark_jax.layout import make_mesh
from ark_jax.pipeline.stage import Context
from ark_jax.recipes.ark.graph import seed_ranks
from ark_jax.runtime.log import Metrics


def dense_ranks(graph: KnowledgeGraph, seeds: list[list[int]]) -> np.ndarray:
    """Ranks by elimination, at the default teleport probability; no node is without an edge."""
    n, (source, target) = len(graph), graph.neighbours()
    step = np.zeros((n, n))
    np.add.at(step, (target, source), 1)
    step /= step.sum(axis=0)
    start = np.array([np.isin(np.arange(n), nodes) / len(set(nodes)) for nodes in seeds])
    return np.linalg.solve(np.eye(n) - 0.85 * step, 0.15 * start.T).T


def test_elimination_and_walks_give_the_same_communities(tmp_path, monkeypatch):
    pairs = random_matrix(400, 900, symmetric=False).tocoo()
    graph = KnowledgeGraph.from_triples(
        (str(a), "to", str(b)) for a, b in zip(*pairs.coords, strict=True) if a != b
    )
    count = 2 * pagerank.COLUMNS + 3  # more than one block
    seeds = [[i, (3 * i + 1) % len(graph)] for i in range(count)]
    shards = []

    class RecordedWalk(walk.Walk):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            shards.append((self.shard, self.devices))

    monkeypatch.setattr(walk, "Walk", RecordedWalk)
    config = tiny_config(tmp_path)
    ranks = {}
    with jax.set_mesh(make_mesh((1, 2, 1))):
        context = Context(config, tmp_path, Metrics(tmp_path / "metrics.jsonl"))
        config.graph.floor = 0.0
        ranks["eliminated"] = list(seed_ranks(context, graph, seeds))
        assert shards == []
        monkeypatch.setattr(elimination, "GROWTH", 0)  # as where the matrix fills
        for config.graph.shard in ("seeds", "nodes"):
            ranks[config.graph.shard] = list(seed_ranks(context, graph, seeds))
    assert shards == [("seeds", 2), ("nodes", 2)]
    expected = dense_ranks(graph, seeds)
    for rows in ranks.values():
        np.testing.assert_allclose(rows, expected, atol=1e-11)
        cut = lambda rank: community(rank, at_least=3, at_most=10, floor=1e-4)
        assert [cut(rank) for rank in rows] == [cut(rank) for rank in expected]
