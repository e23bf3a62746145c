"""Knowledge graphs of numbers, where only the edges matter."""

import dataclasses

import numpy as np

from ark_jax.graph.store import KnowledgeGraph


def numbered(n: int, edges: list[tuple[int, int]]) -> KnowledgeGraph:
    """Nodes "0", "1", ... and these edges."""
    empty = KnowledgeGraph.from_triples([])
    return dataclasses.replace(
        empty, names=[str(i) for i in range(n)], edges=np.array(edges, np.int32).reshape(-1, 2)
    )
