"""Pairs of passages that an entity and its community in the graph join, to write questions from."""

from collections.abc import Mapping, Sequence

import numpy as np

from ark_jax.data.records import Chunk
from ark_jax.graph.store import KnowledgeGraph
from ark_jax.pipeline.stage import Context
from ark_jax.recipes.common.written_from import hash_order


def join_by_community(
    context: Context, passages: Sequence[Chunk], count: int
) -> list[tuple[Chunk, Chunk]]:
    """At most `count` pairs of passages that share an entity, each pair once.

    Of the passages that name an entity, the first is the one whose entities weigh most in the small
    community around it. The second adds most to that, from another document if there is one. So
    the two have the entity in common and differ in what they say of its neighbours.
    """
    from ark_jax.graph.pagerank import COLUMNS, personalized_pagerank
    from ark_jax.graph.walk import Walk

    context.enter_mesh()
    settings = context.config.graph
    graph = KnowledgeGraph.load(context / "graph")
    by_id = {chunk.id: chunk for chunk in passages}
    shared = _shared_entities(graph, by_id, context.config.seed)
    nodes_by_chunk = _nodes_by_chunk(graph, by_id)
    pairs: dict[tuple[str, str], None] = {}
    walk = Walk(graph)
    block = COLUMNS * walk.devices  # memory may not hold the ranks of all entities
    for start in range(0, len(shared), block):
        entities = shared[start : start + block]
        ranks = personalized_pagerank(
            walk,
            [[entity] for entity in entities],
            teleport=settings.teleport,
            tolerance=settings.tolerance,
            dtype="float64",
        )
        for entity, rank in zip(entities, ranks, strict=True):
            holders = [by_id[id] for id in graph.chunks[entity] if id in by_id]
            weights = _community_weights(entity, rank, settings)
            if pair := _choose_pair(holders, nodes_by_chunk, weights):
                pairs[pair] = None
            if len(pairs) == count:
                return [(by_id[a], by_id[b]) for a, b in pairs]
    return [(by_id[a], by_id[b]) for a, b in pairs]


def _shared_entities(graph: KnowledgeGraph, by_id: Mapping[str, Chunk], seed: int) -> list[int]:
    """The entities that passages of different places name, in an order that hashes decide."""
    nodes = {}
    for node, chunk_ids in enumerate(graph.chunks):
        holders = [by_id[id] for id in chunk_ids if id in by_id]
        if any(_apart(a, b) for a in holders[:1] for b in holders[1:]):
            nodes[graph.names[node]] = node
    return [nodes[name] for name in hash_order(nodes, seed)]


def _nodes_by_chunk(graph: KnowledgeGraph, by_id: Mapping[str, Chunk]) -> dict[str, set[int]]:
    nodes: dict[str, set[int]] = {id: set() for id in by_id}
    for node, chunk_ids in enumerate(graph.chunks):
        for id in chunk_ids:
            if id in nodes:
                nodes[id].add(node)
    return nodes


def _community_weights(entity: int, rank: np.ndarray, settings) -> dict[int, float]:
    """node -> its rank, of the small community around an entity without the entity itself."""
    from ark_jax.graph.community import community

    least, most = settings.small
    nodes = community(rank, at_least=least, at_most=most, floor=settings.floor)
    # Machines differ in the last digits, which must decide nothing.
    return {node: round(float(rank[node]), 9) for node in nodes if node != entity}


def _choose_pair(
    holders: Sequence[Chunk], nodes_by_chunk: Mapping[str, set[int]], weights: Mapping[int, float]
) -> tuple[str, str] | None:
    """The ids of two passages of different places, in the order of their ids; None without any."""

    def weight(chunk: Chunk, known: set[int]) -> float:
        nodes = nodes_by_chunk[chunk.id] - known
        return round(sum(weights.get(node, 0.0) for node in sorted(nodes)), 9)

    ordered = sorted(holders, key=lambda chunk: (-weight(chunk, set()), chunk.id))
    for first in ordered:
        known = nodes_by_chunk[first.id]
        others = [chunk for chunk in ordered if _apart(first, chunk)]
        elsewhere = [chunk for chunk in others if chunk.document != first.document]
        if others:
            second = min(elsewhere or others, key=lambda chunk: (-weight(chunk, known), chunk.id))
            return tuple(sorted((first.id, second.id)))
    return None


def _apart(a: Chunk, b: Chunk) -> bool:
    """Whether chunks are of two documents, or have at least half of one between them."""
    between = max(a.start, b.start) - min(a.end, b.end)
    return a.document != b.document or 2 * between >= min(a.end - a.start, b.end - b.start)
