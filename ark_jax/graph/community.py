"""Finds the seed nodes of an answer, and cuts a community from ranks (Algorithm 1).

A community ends where the log-ranks fall most.
"""

import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Container, Mapping, Sequence

import numpy as np

from ark_jax.data.stored_strings import RowsByText
from ark_jax.graph.name_words import NameIndex, words
from ark_jax.graph.store import KnowledgeGraph, fold
from ark_jax.text.word_boundaries import whole_word_pattern

RANK_DECIMALS = 5  # of a log-rank; smaller differences are rounding
PAIRS = 5  # of a model's name and a node that share words, as in ARK's released code
FOLDED_CHUNKS = 1 << 13  # folded texts that are cached


@dataclasses.dataclass(frozen=True)
class Seeds:
    """Seed nodes, and the rule of `SeedFinder.find` that chose them."""

    nodes: list[int]
    rule: str  # model | shared | exact | overlap | mention | question | embedding

    @property
    def node_set(self) -> tuple[int, ...]:
        """The nodes in ascending order, each once."""
        return tuple(sorted(set(self.nodes)))


class SeedFinder:
    """Finds the nodes that an answer names. If there are none, it tries less exact rules, so that
    every question gets seeds."""

    def __init__(
        self,
        graph: KnowledgeGraph,
        chunk_texts: Mapping[str, str],
        nearest: Callable[[str], Sequence[int]],
    ):
        """
        Args:
            graph: the graph to search.
            chunk_texts: chunk id -> text, of the chunks from which the graph was extracted.
            nearest: text -> nodes by embedding, nearest first; the last rule.
        """
        self.nearest = nearest
        # The same chunks are candidates of many questions.
        self._folded_chunk = functools.lru_cache(FOLDED_CHUNKS)(
            lambda chunk: fold(chunk_texts.get(chunk, ""))
        )
        self._names = NameIndex(graph.names)
        ends, chunks = graph.chunks.flat()
        self._mentions = RowsByText(chunks)
        self._mentioned_nodes = np.repeat(np.arange(len(ends)), np.diff(ends, prepend=0))

    def find(
        self,
        question: str,
        answers: Sequence[str],
        chunks: Sequence[str],
        limit: int = 5,
        *,
        named: Sequence[str] = (),
        within: Container[int] | None = None,
    ) -> Seeds:
        """Finds the seeds of one question by the first rule that applies.

        model: nodes whose names equal those that a model named, all of them.
        shared: nodes of the PAIRS pairs of such a name and a node with the largest Jaccard
            similarity of their words above 0.
        exact: nodes whose name equals an answer.
        overlap: nodes whose name shares at least half of the words with an answer, the largest
            share first.
        mention: nodes extracted from a chunk that contains an answer, those that the question names
            first.
        question: nodes that the question names, the longest names first.
        embedding: the nodes nearest to question and answers.

        Args:
            question: text of the question.
            answers: accepted answers.
            chunks: ids of the chunks that the question may be answered from.
            limit: largest number of seeds.
            named: names of entities that a language model found in an answer.
            within: nodes that may be seeds; None: all.
        """
        question_words = words(question)
        rules = {
            "model": lambda: self._named(named),
            "shared": lambda: self._names.overlapping(map(words, named), 0),
            "exact": lambda: self._named(answers),
            "overlap": lambda: dict.fromkeys(self._names.overlapping(map(words, answers))),
            "mention": lambda: self._mentioned(question_words, answers, chunks),
            "question": lambda: self._names.nodes_named_in(question_words),
            "embedding": lambda: self.nearest(f"{question} {' '.join(answers)}"),
        }
        most = {"model": None, "shared": PAIRS}  # the other rules have `limit`
        for rule, ranked in rules.items():
            allowed = (int(i) for i in ranked() if within is None or i in within)
            if nodes := list(itertools.islice(allowed, most.get(rule, limit))):
                return Seeds(list(dict.fromkeys(nodes)), rule)
        return Seeds([], "embedding")

    def _named(self, names: Sequence[str]) -> list[int]:
        """The nodes with one of these names, in ascending order."""
        return sorted({i for name in names for i in self._names.nodes_named(fold(name))})

    def _mentioned(
        self, question_words: frozenset[str], answers: Sequence[str], chunks: Sequence[str]
    ) -> list[int]:
        """The nodes from chunks that contain an answer, those that the question names first."""
        holders = [
            chunk for chunk in chunks if any(self._has_answer(chunk, answer) for answer in answers)
        ]
        mentions = [row for chunk in holders for row in self._mentions.get(chunk, ())]
        nodes = set(self._mentioned_nodes[mentions].tolist())

        def share_in_question(i: int) -> float:
            """The share of the words of a name that are in the question."""
            name_words = self._names.words(i)
            return len(name_words & question_words) / max(len(name_words), 1)

        return sorted(nodes, key=lambda i: (-share_in_question(i), i))

    def _has_answer(self, chunk: str, answer: str) -> bool:
        """Whether the text of a chunk, by its id, contains an answer as whole words."""
        folded = fold(answer)
        if not folded:
            return False
        return re.search(whole_word_pattern(folded), self._folded_chunk(chunk)) is not None


def community(ranks: np.ndarray, *, at_least: int, at_most: int, floor: float) -> list[int]:
    """Cuts a community from a rank vector (Algorithm 1, lines 3 to 7).

    The community is the i nodes of the highest ranks, where i is chosen so that the log-rank falls
    most from node i to node i + 1; of equal falls the first counts. Log-ranks are rounded to five
    decimals, and nodes with equal ones are ordered by index, so that machines with different
    rounding errors give one result.

    Args:
        ranks: rank of every node, `[n]`.
        at_least: smallest size of the community.
        at_most: largest size of the community.
        floor: nodes with a lower rank are excluded.

    Returns:
        Node indices, highest rank first.
    """
    nodes = _highest(ranks, at_most + 1, floor)
    if len(nodes) - 1 < at_least:
        return nodes[:at_most].tolist()
    falls = np.round(np.diff(_negative_log(ranks[nodes])), RANK_DECIMALS)
    size = at_least + int(np.argmax(falls[at_least - 1 :]))
    return nodes[:size].tolist()


def _highest(ranks: np.ndarray, count: int, floor: float) -> np.ndarray:
    """The nodes of the `count` highest ranks above 0 and not below `floor`, highest first."""
    nodes = np.flatnonzero(ranks >= floor if floor > 0 else ranks > 0)
    if len(nodes) > count:
        # The nodes that rank below the last of them, even after rounding, are not sorted.
        candidates = ranks[nodes]
        last = np.partition(candidates, -count)[-count]
        nodes = nodes[candidates >= last * (1 - 2 * 10.0**-RANK_DECIMALS)]
    depth = np.round(_negative_log(ranks[nodes]), RANK_DECIMALS)
    return nodes[np.argsort(depth, kind="stable")[:count]]


def _negative_log(ranks: np.ndarray) -> np.ndarray:
    return -np.log(ranks.astype(np.float64))
