"""Search that goes on along the graph from the triples that are like a question.

A question of two hops ("who directed the films of X?") names one end of the chain alone. The triple
with its answer shares no entity with the question, so no vector of it is near. But it shares one
with a triple that is near.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
from jaxtyping import Float, Int

from ark_jax.graph.triples import Triples


@dataclasses.dataclass(frozen=True)
class WalkRules:
    """How far a search goes along the graph.

    Attributes:
        hops: longest chain, in triples; 1 goes nowhere.
        share: weight of the chain so far in the score of the triple that continues it.
        starts: best triples to go on from, at each hop.
        hub: entities with more triples are not walked through; 0: all are.
    """

    hops: int = 3
    share: float = 0.8
    starts: int = 20
    hub: int = 1000


def walk(
    graph: Triples,
    cosines_of: Callable[[np.ndarray], np.ndarray],
    rows: Int[np.ndarray, " n"],
    scores: Float[np.ndarray, " n"],
    rules: WalkRules,
) -> tuple[Int[np.ndarray, " k"], Float[np.ndarray, " k"]]:
    """All triples that were retrieved or reached, best first, with their scores.

    A triple that continues a chain of score s has `share` · s + (1 - `share`) · its own cosine. Its
    score is the best of all chains that reach it, and of its cosine. Equal scores keep the order of
    the rows.

    Args:
        cosines_of: rows of the graph -> cosines of these triples with the question.
        rows, scores: the triples nearest to the question, at least `starts` of them, with cosines.
    """
    known, best = rows.astype(np.int64), scores.astype(np.float64)
    degrees = graph.degrees()
    for _ in range(rules.hops - 1):
        starts = np.lexsort((known, -best))[: rules.starts]
        neighbours = [
            _adjacent_triples(graph, int(row), degrees, rules.hub) for row in known[starts]
        ]
        reached, numbers = np.unique(np.concatenate(neighbours), return_inverse=True)
        chain = np.full(len(reached), -np.inf)
        np.maximum.at(chain, numbers, np.repeat(best[starts], list(map(len, neighbours))))
        cosines = cosines_of(reached).astype(np.float64)
        continued = rules.share * chain + (1 - rules.share) * cosines
        known, best = _merge_best(known, best, reached, np.maximum(cosines, continued))
    order = np.lexsort((known, -best))
    return known[order], best[order].astype(np.float32)


def _adjacent_triples(graph: Triples, row: int, degrees: np.ndarray, hub: int) -> np.ndarray:
    """The triples that share an entity with a triple, itself included, but not through hubs."""
    ends = {int(graph.head[row]), int(graph.tail[row])}
    parts = [graph.rows(node) for node in ends if not hub or degrees[node] <= hub]
    return np.concatenate([np.zeros(0, np.int64), *parts])


def _merge_best(
    rows: np.ndarray, scores: np.ndarray, more_rows: np.ndarray, more_scores: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """All rows once, ascending, each with its better score."""
    merged, numbers = np.unique(np.concatenate([rows, more_rows]), return_inverse=True)
    best = np.full(len(merged), -np.inf)
    np.maximum.at(best, numbers, np.concatenate([scores, more_scores]))
    return merged, best
