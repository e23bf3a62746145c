"""Searches and fusions as short loops, which those of the library must equal."""

from ark_jax.retrieval.bm25_index import count_bm25


def bm25(queries: list[str], texts: list[str], scopes: list, k: int) -> list[list[int]]:
    """The positions of the k best texts of each query; `test_bm25` compares with the formula."""
    return [ranking.ids.tolist() for ranking in count_bm25(texts).search(queries, k, scopes)]


def fuse(rankings: list[list], k: int) -> list:
    """The ids with the k highest sums of 1 / (60 + rank); equal sums as the ids are met."""
    scores: dict = {}
    for ranking in rankings:
        for rank, id in enumerate(ranking, 1):
            scores[id] = scores.get(id, 0.0) + 1 / (60 + rank)
    return sorted(scores, key=lambda id: -round(scores[id], 12))[:k]
