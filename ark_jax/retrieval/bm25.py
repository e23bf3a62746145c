"""BM25: lexical retrieval, a baseline that needs no training."""

from collections.abc import Iterable, Sequence

import numpy as np

from ark_jax.retrieval.bm25_index import best_texts, count_bm25
from ark_jax.retrieval.stems import stems


def bm25(
    queries: Sequence[str], texts: Sequence[str], scopes: Iterable[Sequence[int]], k: int
) -> list[list[int]]:
    """Ranks texts for each query by Lucene's BM25 (k1 = 1.5, b = 0.75).

    Texts and queries become English stems without stop words. Document frequencies and lengths are
    those of all texts, whatever the scope of a query.

    Args:
        queries: texts of the queries.
        texts: texts of the whole collection.
        scopes: for each query the indices into `texts` that it may return.
        k: largest number of results per query.

    Returns:
        For each query the indices of its best texts, best first. Equal scores keep the order of the
        scope. Texts without a word of the query are left out, so a list may be shorter than `k`.
    """
    rankings = scored_bm25(queries, texts, scopes, k)
    return [[position for position, _ in ranking] for ranking in rankings]


def scored_bm25(
    queries: Sequence[str], texts: Sequence[str], scopes: Iterable[Sequence[int]], k: int
) -> list[list[tuple[int, float]]]:
    """As `bm25`, with the score of each text."""
    index, rankings = count_bm25(texts), []
    everything = range(len(index))
    for words, scope in zip(stems(queries), scopes, strict=True):
        if scope == everything:
            positions, scores = index.best(words, k)
        else:
            positions = _positions(scope)
            scores = index.scores(words)[positions]
            best = best_texts(scores, k)
            positions, scores = positions[best], scores[best]
        rankings.append(list(zip(positions.tolist(), scores.tolist(), strict=True)))
    return rankings


def _positions(scope: Sequence[int]) -> np.ndarray:
    if isinstance(scope, range):  # numpy would ask it for each number
        return np.arange(scope.start, scope.stop, scope.step)
    return np.asarray(scope, np.int64)
