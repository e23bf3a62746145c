"""What a tuned retriever is compared with, beside its base: BM25, and the fusion of several rankings."""

import importlib.util
import logging
from collections.abc import Iterable, Sequence

import numpy as np

RRF = 60  # ranks that a first place is worth: Cormack, Clarke and Büttcher 2009


def check_bm25() -> None:
    """Raises:
        RuntimeError: what BM25 needs is not installed.
    """
    lacking = [name for name, module in (("bm25s", "bm25s"), ("PyStemmer", "Stemmer")) if not importlib.util.find_spec(module)]
    if lacking:
        raise RuntimeError(f"BM25 needs {' and '.join(lacking)}: pip install 'ark-jax[evaluate]', or leave bm25 out of "
                           "config.evaluate.baselines and config.mine.by")


def bm25(queries: Sequence[str], texts: Sequence[str], scopes: Iterable[Sequence[int]], k: int) -> list[list[int]]:
    """For each query the best k of the texts that its scope names, best first; the earlier among equals.

    Lucene's BM25 (k1 1.5, b 0.75) of English stems without stop words, over the statistics of all texts. A text that shares no
    word with a query is not found, so a list may be shorter than k.
    """
    check_bm25()
    import bm25s
    import Stemmer

    logging.getLogger("bm25s").setLevel(logging.WARNING)  # the library tells each step of its own
    stem = lambda some: bm25s.tokenize(list(some), stopwords="en", stemmer=Stemmer.Stemmer("english"), return_ids=False,
                                       show_progress=False)
    stems = stem(texts)
    if not any(stems):
        return [[] for _ in queries]
    index, out = bm25s.BM25(method="lucene", k1=1.5, b=0.75, backend="numpy"), []
    index.index(stems, show_progress=False)
    for words, scope in zip(stem(queries), scopes, strict=True):
        scope = np.asarray(scope, np.int64)
        scores = index.get_scores(words)[scope] if words else np.zeros(len(scope))
        best = np.argsort(-scores, kind="stable")[:k]
        out.append(scope[best[scores[best] > 0]].tolist())
    return out


def fuse(rankings: Sequence[Sequence[str]], k: int) -> list[str]:
    """Reciprocal-rank fusion: the k ids with the largest sums of 1 / (60 + rank) over the rankings.

    Among equals the one that is met first, ranking after ranking.
    """
    scores: dict[str, float] = {}
    for ranked in rankings:
        for rank, id in enumerate(ranked, 1):
            scores[id] = scores.get(id, 0.0) + 1 / (RRF + rank)
    return sorted(scores, key=lambda id: -round(scores[id], 12))[:k]  # a sum must not depend on the order of its terms
