"""Searchers rank the texts of a corpus for questions. All have one method, `search`.

`Dense` compares vectors, `bm25_index.BM25Index` words, and `triple_retriever.AlongGraph` goes along
a graph. `Fused` and `Reranked` are made of other searchers.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from ark_jax.retrieval.fusion import Fusion, by_ranks
from ark_jax.runtime import distributed
from ark_jax.text.token_vectors import TokenVectors, Vectors

WIDE = 4  # a scope of more than this part of all texts is wide
Scopes = Sequence[Sequence[int]] | None  # for each question the texts that it may find; None: all
Embed = Callable[[Sequence[str]], Vectors]  # questions -> their unit vectors


class Ranking(NamedTuple):
    """The best texts of a question, best first: `[k]` ids and their scores.

    Ids are positions in the corpus or names of texts.
    """

    ids: Sequence
    scores: Sequence[float]

    @classmethod
    def from_pairs(cls, pairs: Sequence[tuple[Any, float]]) -> "Ranking":
        """The ranking of pairs of id and score, best first."""
        return cls(*zip(*pairs, strict=True)) if pairs else cls((), ())

    def pairs(self) -> list[tuple[Any, float]]:
        """Each id with its score, as plain values."""
        columns = (x.tolist() if isinstance(x, np.ndarray) else x for x in self)
        return list(zip(*columns, strict=True))


class Searcher(Protocol):
    """Ranks the texts of a corpus for questions."""

    def search(self, questions: Sequence[str], k: int, scopes: Scopes = None) -> list[Ranking]:
        """The k best texts of each question, or fewer where there are no more."""


@dataclasses.dataclass(frozen=True)
class Dense:
    """Exact search by cosines, or by `late.maxsim` where each token has a vector.

    Of equal scores the text that is first in the scope is first. Every process must search.

    Attributes:
        vectors: unit vectors of the texts, `[n e]`, or their `TokenVectors`; maps stay maps.
            `dense.Keys` if they will be searched again.
    """

    vectors: Vectors
    embed: Embed

    def search(self, questions: Sequence[str], k: int, scopes: Scopes = None) -> list[Ranking]:
        return nearest_texts(self.embed(questions), self.vectors, k, scopes)


def nearest_texts(
    queries: Vectors, vectors: Vectors, k: int, scopes: Scopes = None
) -> list[Ranking]:
    """The k best of `vectors` for each of `queries`, as `Dense` ranks them.

    Queries with the same scope are searched for together.
    """
    from ark_jax.retrieval.late import nearest  # starts jax

    rows_by_scope: dict[range | bytes, tuple[Sequence[int], list[int]]] = {}
    for row, scope in enumerate(scopes or [range(len(vectors))] * len(queries)):
        # A range may be a whole corpus, which is neither listed nor copied.
        scope = scope if isinstance(scope, range) else np.asarray(scope, np.int64)
        key = scope if isinstance(scope, range) else scope.tobytes()
        rows_by_scope.setdefault(key, (scope, []))[1].append(row)
    found = [Ranking((), ())] * len(queries)
    for scope, rows in rows_by_scope.values():
        scope_queries = queries if len(rows) == len(queries) else queries[rows]
        if isinstance(scope, range):
            keys = vectors[slice(scope.start, scope.stop, scope.step)]
            positions, scores = nearest(scope_queries, keys, k)
            ids = scope.start + scope.step * positions
        else:
            wide = _nearest_in_wide_scope(scope_queries, vectors, k, scope)
            positions, scores = wide or nearest(scope_queries, vectors, k, scope)
            ids = positions if wide else scope[positions]
        for row, *ranking in zip(rows, ids, scores, strict=True):
            found[row] = Ranking(*ranking)
    return found


def _nearest_in_wide_scope(
    queries: Vectors, vectors: Vectors, k: int, scope: np.ndarray
) -> tuple[np.ndarray, np.ndarray] | None:
    """The k best texts of an ascending scope and their scores, `[q k]`; None if it is not known.

    They are found among the best of all texts, as a search takes less time than a copy of most
    vectors; a scope of few texts, or of those that are far from a query, needs the copy.
    """
    from ark_jax.retrieval.late import nearest  # starts jax

    is_wide = WIDE * len(scope) > len(vectors) and np.all(np.diff(scope) > 0)
    if isinstance(vectors, TokenVectors) or not is_wide:
        return None
    is_in_scope = np.zeros(len(vectors), bool)
    is_in_scope[scope] = True
    positions, scores = nearest(queries, vectors, 2 * WIDE * k + 32)
    passes = is_in_scope[positions]
    k = min(k, len(scope))
    if np.any(passes.sum(1) < k):
        return None
    order = np.argsort(~passes, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(positions, order, 1), np.take_along_axis(scores, order, 1)


@dataclasses.dataclass(frozen=True)
class Fused:
    """Joins what several searchers find.

    Attributes:
        join: rankings of one question as pairs -> all their texts with new scores, best first.
        depth: how many texts of each part are joined.
    """

    parts: Sequence[Searcher]
    depth: int
    join: Callable[..., list[tuple[Any, float]]] = by_ranks

    def search(self, questions: Sequence[str], k: int, scopes: Scopes = None) -> list[Ranking]:
        found = [part.search(questions, self.depth, scopes) for part in self.parts]
        return [
            Ranking.from_pairs(self.join(*(ranking.pairs() for ranking in rankings))[:k])
            for rankings in zip(*found, strict=True)
        ]


@dataclasses.dataclass(frozen=True)
class Reranked:
    """Orders what another searcher finds by new scores; equal ones keep their order.

    Attributes:
        texts: id -> text.
        score: (question, text) pairs -> scores `[pairs]`.
    """

    first: Searcher
    texts: Mapping[Any, str] | Sequence[str]
    score: Callable[[list[tuple[str, str]]], np.ndarray]

    def search(self, questions: Sequence[str], k: int, scopes: Scopes = None) -> list[Ranking]:
        ids = [ranking.ids for ranking in self.first.search(questions, k, scopes)]
        pairs = [
            (x, self.texts[id]) for x, found in zip(questions, ids, strict=True) for id in found
        ]
        scores = np.split(self.score(pairs), np.cumsum([len(found) for found in ids])[:-1])
        order = [np.argsort(-values, kind="stable") for values in scores]
        return [
            Ranking([found[i] for i in best], values[best])
            for found, values, best in zip(ids, scores, order, strict=True)
        ]


@dataclasses.dataclass(frozen=True)
class Known:
    """Returns rankings that were found before, one for each question, in their order."""

    rankings: Sequence[Ranking]

    def search(self, questions: Sequence[str], k: int, scopes: Scopes = None) -> list[Ranking]:
        pairs = zip(questions, self.rankings, strict=True)
        return [Ranking(ranking.ids[:k], ranking.scores[:k]) for _, ranking in pairs]


@dataclasses.dataclass(frozen=True)
class OnFirstProcess:
    """Makes a searcher and searches on the first of several processes; all get the results."""

    make: Callable[[], Searcher]

    def search(self, questions: Sequence[str], k: int, scopes: Scopes = None) -> list[Ranking]:
        found = distributed.on_first_process(
            lambda: [ranking.pairs() for ranking in self.make().search(questions, k, scopes)]
        )
        return list(map(Ranking.from_pairs, found))


def named_searcher(by: str, words: Searcher, vectors: Searcher, fusion: Fusion, k: int) -> Searcher:
    """The searcher that "bm25", "dense" or "hybrid" names, for k texts of each question."""
    if by == "hybrid":
        # A part without weight is left out: BM25 alone then needs no retriever.
        by = "bm25" if not fusion.dense else "dense" if not fusion.bm25 else by
    if by == "hybrid":
        return Fused((words, vectors), max(k, fusion.depth), fusion.join)
    return words if by == "bm25" else vectors
