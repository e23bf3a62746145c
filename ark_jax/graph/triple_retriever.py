"""A retriever of triples: finds the facts of a graph that support the answers of questions."""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ark_jax.graph.triple_index import TripleIndex
from ark_jax.graph.triple_texts import By, triple_texts
from ark_jax.graph.triple_walk import WalkRules, walk
from ark_jax.graph.triples import Triples
from ark_jax.models.towers import DualEncoder
from ark_jax.retrieval.searcher import Ranking, Scopes
from ark_jax.runtime.shown import Records, one_line, record_html

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
            rules: how far the search goes along the graph, see `triple_walk.walk`. With `hops=1` a
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
            results = [
                walk(self.graph, cosines_of, *nearest, rules)
                for cosines_of, *nearest in zip(cosines, rows, scores, strict=True)
            ]
            # Each walk returns at least the triples that it began with.
            rows = np.stack([best[:k] for best, _ in results])
            scores = np.stack([best[:k] for _, best in results])
        return rows[:, :k], scores[:, :k]

    def search(
        self, questions: Sequence[str], *, k: int = 20, rules: WalkRules = ALONG_THE_GRAPH
    ) -> list[list[Triple]]:
        """The k best triples of each question, best first; see `search_rows`."""
        rows, scores = self.search_rows(questions, k=k, rules=rules)
        return [
            Records(self.triple(int(row), float(x)) for row, x in zip(*results, strict=True))
            for results in zip(rows, scores, strict=True)
        ]

    def facts(
        self, questions: Sequence[str], *, k: int = 20, rules: WalkRules = ALONG_THE_GRAPH
    ) -> list[list[str]]:
        """The texts of the k best triples of each question, for `answer_lists.facts_prompt`."""
        rows, _ = self.search_rows(questions, k=k, rules=rules)
        return [triple_texts(self.graph, results, self.by) for results in rows]

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
