"""BM25: lexical retrieval, a baseline that needs no training."""

import logging
from collections.abc import Iterable, Sequence

import numpy as np

K1, B = 1.5, 0.75  # Lucene's are 1.2 and 0.75; these are bm25s's


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
    import bm25s

    logging.getLogger("bm25s").setLevel(logging.WARNING)  # it logs every step at lower levels
    of_texts = stems(texts)
    if not any(of_texts):
        return [[] for _ in queries]
    index = bm25s.BM25(method="lucene", k1=K1, b=B, backend="numpy")
    index.index(of_texts, show_progress=False)
    rankings = []
    for words, scope in zip(stems(queries), scopes, strict=True):
        scope = np.asarray(scope, np.int64)
        scores = index.get_scores(words)[scope] if words else np.zeros(len(scope))
        best = np.argsort(-scores, kind="stable")[:k]
        best = best[scores[best] > 0]
        rankings.append(list(zip(scope[best].tolist(), scores[best].tolist(), strict=True)))
    return rankings


def stems(texts: Sequence[str]) -> list[list[str]]:
    """The English stems of each text, in order, without stop words."""
    return _tokenize(texts, return_ids=False)


def stem_numbers(texts: Sequence[str]) -> tuple[list[list[int]], dict[str, int]]:
    """`stems` as numbers, and stem -> its number. Which number a stem gets is left open."""
    numbers = _tokenize(texts, return_ids=True)
    return numbers.ids, numbers.vocab


def _tokenize(texts: Sequence[str], *, return_ids: bool):
    import bm25s
    import Stemmer

    stemmer = Stemmer.Stemmer("english")
    return bm25s.tokenize(
        list(texts), stopwords="en", stemmer=stemmer, return_ids=return_ids, show_progress=False
    )
