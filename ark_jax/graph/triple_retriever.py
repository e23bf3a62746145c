"""A retriever of triples: finds the facts of a graph that support the answers of questions."""

import dataclasses
import functools
from collections.abc import Callable, Sequence, Set
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from ark_jax.graph.linked_questions import Mentions
from ark_jax.graph.triple_index import TripleIndex
from ark_jax.graph.triples import By, Triples
from ark_jax.models.towers import DualEncoder
from ark_jax.retrieval.searcher import Ranking, Scopes
from ark_jax.runtime.shown import Records, one_line, record_html


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
    share: float = 0.9
    starts: int = 20
    hub: int = 1000


def walk(
    graph: Triples,
    cosines_of: Callable[[np.ndarray], np.ndarray],
    rows: Int[np.ndarray, " n"],
    scores: Float[np.ndarray, " n"],
    rules: WalkRules,
    named: Set[int] = frozenset(),
) -> tuple[Int[np.ndarray, " k"], Float[np.ndarray, " k"]]:
    """All triples that were retrieved or reached, best first, with their scores.

    A triple that continues a chain of score s has `share` · s + (1 - `share`) · its own cosine. Its
    score is the best of all chains that reach it, and of its cosine. The triples of a named entity
    continue the best one. Equal scores keep the order of the rows.

    Args:
        cosines_of: rows of the graph -> cosines of these triples with the question.
        rows, scores: the triples nearest to the question, at least `starts` of them, with cosines.
        named: nodes that the question names. Chains begin at them, and none leads through them.
    """
    known, best = rows.astype(np.int64), scores.astype(np.float64)
    degrees = graph.degrees()

    def triples_of(nodes: Set[int]) -> np.ndarray:
        """The triples of all nodes but hubs."""
        parts = [graph.rows(node) for node in nodes if not rules.hub or degrees[node] <= rules.hub]
        return np.concatenate([np.zeros(0, np.int64), *parts])

    def with_chains(reached: np.ndarray, chain: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """All triples, those too that continue chains of these scores, and their best scores."""
        cosines = cosines_of(reached).astype(np.float64)
        continued = rules.share * chain + (1 - rules.share) * cosines
        return _merge_best(known, best, reached, np.maximum(cosines, continued))

    beginning = np.unique(triples_of(named))
    known, best = with_chains(beginning, np.full(len(beginning), best.max()))
    for _ in range(rules.hops - 1):
        starts = np.lexsort((known, -best))[: rules.starts]
        ends = np.stack([graph.head[known[starts]], graph.tail[known[starts]]], axis=1).tolist()
        neighbours = [triples_of(set(pair) - named) for pair in ends]
        reached, numbers = np.unique(np.concatenate(neighbours), return_inverse=True)
        chain = np.full(len(reached), -np.inf)
        np.maximum.at(chain, numbers, np.repeat(best[starts], list(map(len, neighbours))))
        known, best = with_chains(reached, chain)
    order = np.lexsort((known, -best))
    return known[order], best[order].astype(np.float32)


def _merge_best(
    rows: np.ndarray, scores: np.ndarray, more_rows: np.ndarray, more_scores: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """All rows once, ascending, each with its better score."""
    merged, numbers = np.unique(np.concatenate([rows, more_rows]), return_inverse=True)
    best = np.full(len(merged), -np.inf)
    np.maximum.at(best, numbers, np.concatenate([scores, more_scores]))
    return merged, best


ALONG_THE_GRAPH = WalkRules()


class Triple(NamedTuple):
    """A fact by names, or by ids where a node or relation has no name, and its score."""

    head: str
    relation: str
    tail: str
    score: float
    _repr_html_ = record_html


@dataclasses.dataclass(frozen=True)
class TripleRetriever:
    """Embeds questions and searches the whole graph; it needs no topic."""

    towers: DualEncoder
    graph: Triples
    index: TripleIndex
    by: By = "last"  # how a relation is written
    batch_tokens: int = 0  # of `Retriever.encode`
    __repr__ = one_line("towers", "graph", "by")

    @classmethod
    def from_pretrained(
        cls,
        name_or_folder: str | Path,
        graph: Triples | str | Path,
        index: str | Path | None = None,
        *,
        by: By = "last",
        dtype: str = "float32",
    ) -> "TripleRetriever":
        """Opens a model and the index of a graph, which is made or extended where it lacks triples.

        Args:
            name_or_folder: as in `DualEncoder.from_pretrained`: an export, or any retriever.
            graph: the triples, or a path that `Triples.read` reads.
            index: folder of the index, see `TripleIndex.open`; None embeds the graph in memory.
            by: how a relation is written: "last" or "whole", see `relation_texts`.
            dtype: of the index: "float32" or "float16".

        Raises:
            BadInput: the graph's file has problems.
            FileNotFoundError: there is no such model.
            ValueError: the model is not implemented, or the graph has no triple.
        """
        graph = graph if isinstance(graph, Triples) else Triples.read(graph)
        towers = DualEncoder.from_pretrained(name_or_folder)
        return cls(towers, graph, TripleIndex.open(index, towers, graph, by=by, dtype=dtype), by)

    def search_rows(
        self, questions: Sequence[str], *, k: int = 20, rules: WalkRules = ALONG_THE_GRAPH
    ) -> tuple[np.ndarray, np.ndarray]:
        """The rows of the graph with the k best triples of each question, int64 `[q k]`, best
        first, and their scores, float32 `[q k]`.

        A graph of fewer triples gives all of them. Every process must call this.

        Args:
            rules: how far the search goes along the graph, see `walk`. With `hops=1` a
                score is the cosine.

        Raises:
            ValueError: k is below 1.
        """
        queries = self.towers.encode(questions, kind="query", batch_tokens=self.batch_tokens)
        if k < 1:
            raise ValueError(f"k={k}: must be at least 1")
        rows, scores = self.index.search(queries, max(k, rules.starts))
        if rules.hops > 1 and len(questions):
            cosines = [functools.partial(self.index.cosines, query) for query in queries]
            named = map(frozenset, self._mentions.nodes_in(questions))
            results = [
                walk(self.graph, cosines_of, *nearest, rules, names)
                for cosines_of, *nearest, names in zip(cosines, rows, scores, named, strict=True)
            ]
            # Each walk returns at least the triples that it began with.
            rows = np.stack([best[:k] for best, _ in results])
            scores = np.stack([best[:k] for _, best in results])
        return rows[:, :k], scores[:, :k]

    @functools.cached_property
    def _mentions(self) -> Mentions:
        return Mentions(self.graph.nodes)

    def search(
        self, questions: Sequence[str], *, k: int = 20, rules: WalkRules = ALONG_THE_GRAPH
    ) -> list[list[Triple]]:
        """The k best triples of each question, best first; see `search_rows`."""
        rows, scores = self.search_rows(questions, k=k, rules=rules)
        return [
            Records(self.triple(int(row), float(x)) for row, x in zip(*results, strict=True))
            for results in zip(rows, scores, strict=True)
        ]

    def triple(self, row: int, score: float) -> Triple:
        """Translates a row of the graph into names."""
        graph = self.graph
        return Triple(
            graph.nodes.name(int(graph.head[row])),
            graph.relations.name(int(graph.relation[row])),
            graph.nodes.name(int(graph.tail[row])),
            score,
        )


@dataclasses.dataclass(frozen=True)
class AlongGraph:
    """A `searcher.Searcher` of a graph's triples, whose ids are their rows.

    Attributes:
        rules: how far it goes along the graph, see `TripleRetriever.search_rows`.
    """

    retriever: TripleRetriever
    rules: WalkRules = ALONG_THE_GRAPH

    def search(self, questions: Sequence[str], k: int, scopes: Scopes = None) -> list[Ranking]:
        """The k best triples of each question; `scopes` is ignored."""
        return list(map(Ranking, *self.retriever.search_rows(questions, k=k, rules=self.rules)))
