"""Pairs of passages that an entity and its community in the graph join, to write questions from."""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from ark_jax.data.records import Chunk
from ark_jax.graph.store import KnowledgeGraph
from ark_jax.pipeline.stage import Context
from ark_jax.recipes.ark.seed_ranks import seed_ranks
from ark_jax.recipes.common.written_from import hash_order

ENTITIES = 20  # looked at for each pair that is wanted
HOLDERS = 32  # passages of one entity that are compared
Ids = tuple[str, str]


def join_by_community(
    context: Context, passages: Sequence[Chunk], count: int
) -> list[tuple[Chunk, Chunk]]:
    """At most `count` pairs of passages that share an entity, the strongest first.

    A pair is the stronger, the more PageRank the small community around the entity has at entities
    that both passages name. A passage comes twice only when there is no pair without it.
    """
    graph = KnowledgeGraph.load(context / "graph")
    by_id = {chunk.id: chunk for chunk in passages}
    shared = _shared_entities(graph, by_id)[: ENTITIES * count]
    nodes_by_chunk = _nodes_by_chunk(graph, by_id)
    strengths: dict[Ids, float] = {}
    for entity, weights in _communities(context, graph, shared):
        holders = [by_id[id] for id in graph.chunks[entity] if id in by_id][:HOLDERS]
        if best := _strongest_pair(holders, nodes_by_chunk, weights):
            pair, strength = best
            strengths[pair] = max(strength, strengths.get(pair, 0.0))
    return [(by_id[a], by_id[b]) for a, b in _choose(strengths, count)]


def _shared_entities(graph: KnowledgeGraph, by_id: Mapping[str, Chunk]) -> list[int]:
    """The entities that passages of different places name, in an order that hashes decide."""
    nodes = {}
    for node, chunk_ids in enumerate(graph.chunks):
        holders = [by_id[id] for id in chunk_ids if id in by_id]
        if any(_apart(holders[0], holder) for holder in holders[1:]):
            nodes[graph.names[node]] = node
    return [nodes[name] for name in hash_order(nodes)]


def _nodes_by_chunk(graph: KnowledgeGraph, by_id: Mapping[str, Chunk]) -> dict[str, set[int]]:
    nodes: dict[str, set[int]] = {id: set() for id in by_id}
    for node, chunk_ids in enumerate(graph.chunks):
        for id in chunk_ids:
            if id in nodes:
                nodes[id].add(node)
    return nodes


def _communities(context: Context, graph: KnowledgeGraph, entities: Sequence[int]):
    """Each entity with its small community: node -> rank, without the entity itself."""
    from ark_jax.graph.community import community

    settings = context.config.graph
    smallest, largest = settings.small
    ranks = seed_ranks(context, graph, [[entity] for entity in entities])
    for entity, rank in zip(entities, ranks, strict=True):
        nodes = community(rank, at_least=smallest, at_most=largest, floor=settings.floor)
        yield entity, _rounded({node: rank[node] for node in nodes if node != entity})


def _rounded(ranks: Mapping[int, np.floating]) -> dict[int, float]:
    """Machines differ in the last digits, which must decide nothing."""
    return {node: round(float(rank), 9) for node, rank in ranks.items()}


def _strongest_pair(
    holders: Sequence[Chunk], nodes_by_chunk: Mapping[str, set[int]], weights: Mapping[int, float]
) -> tuple[Ids, float] | None:
    """The ids of two passages of different places, and their strength; None without any."""
    strengths = {}
    for a, b in itertools.combinations(sorted(holders, key=lambda chunk: chunk.id), 2):
        if _apart(a, b):
            common = sorted(nodes_by_chunk[a.id] & nodes_by_chunk[b.id])
            strengths[a.id, b.id] = round(sum(weights.get(node, 0.0) for node in common), 9)
    return min(strengths.items(), key=lambda pair: (-pair[1], pair[0]), default=None)


def _choose(strengths: Mapping[Ids, float], count: int) -> list[Ids]:
    order = sorted(strengths, key=lambda pair: (-strengths[pair], pair))
    first, used = [], set()
    for pair in order:
        if used.isdisjoint(pair):
            first.append(pair)
            used |= set(pair)
    return [*first, *(pair for pair in order if pair not in first)][:count]


def _apart(a: Chunk, b: Chunk) -> bool:
    """Whether chunks are of two documents, or have at least half of one between them."""
    gap = max(a.start, b.start) - min(a.end, b.end)
    return a.document != b.document or 2 * gap >= min(a.end - a.start, b.end - b.start)
