"""PageRank of every node for each of many seed sets, by the settings of `config.graph`."""

from collections.abc import Iterator, Sequence

import numpy as np

from ark_jax.pipeline.stage import Context


def seed_ranks(context: Context, graph, seeds: Sequence[Sequence[int]]) -> Iterator[np.ndarray]:
    """Yields the ranks of each seed set, float64 `[n]`, in their order.

    Ranks below `graph.floor` may be 0. Graphs of texts are solved by elimination, others by walks.
    Memory may not hold the ranks of all seed sets, so they are solved in blocks.

    Args:
        context: the run, of whose mesh all devices take part.
        graph: the KnowledgeGraph.
        seeds: the nodes of each seed set.
    """
    from ark_jax.graph.elimination import Elimination
    from ark_jax.graph.pagerank import block_size, personalized_pagerank
    from ark_jax.graph.walk import Walk

    context.enter_mesh()
    settings = context.config.graph
    eliminated = (
        Elimination.from_graph(graph, settings.teleport) if settings.shard == "seeds" else None
    )
    if eliminated:
        yield from eliminated.ranks(seeds, floor=settings.floor)
        return
    walk = Walk(graph, shard=settings.shard)
    block = block_size(walk)
    for start in range(0, len(seeds), block):
        yield from personalized_pagerank(
            walk,
            seeds[start : start + block],
            teleport=settings.teleport,
            tolerance=settings.tolerance,
            dtype="float64",
        )
