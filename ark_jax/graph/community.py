"""From an answer to seed nodes, and from ranks to a community (Algorithm 1).

A community ends where the log-ranks fall most.
"""

import collections
import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from ark_jax.graph.store import KnowledgeGraph, fold
from ark_jax.text.word_boundaries import whole_word_pattern

RANK_DECIMALS = 5  # of a log-rank; smaller differences are rounding
_WORD = re.compile(r"\w+")


@dataclasses.dataclass(frozen=True)
class Seeds:
    """Seed nodes, and the rule of `SeedFinder.find` that chose them."""

    nodes: list[int]
    rule: str  # exact | overlap | mention | question | embedding

    @property
    def node_set(self) -> tuple[int, ...]:
        """The nodes in ascending order, each once."""
        return tuple(sorted(set(self.nodes)))


def words(text: str) -> frozenset[str]:
    """Words of the folded text, without punctuation."""
    return frozenset(_WORD.findall(fold(text)))


class SeedFinder:
    """Finds the nodes that an answer names. Less exact rules follow, so that every question gets
    seeds.

    An index by words makes the cost of a search depend on the rare words of answer and question,
    not on the number of nodes.
    """

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
        self.folded_chunks = {id: fold(text) for id, text in chunk_texts.items()}
        # A name has several nodes only in a graph of another program, whose names were not merged.
        self.nodes_by_name: dict[str, list[int]] = {}
        self.words: list[frozenset[str]] = []
        # (word, n) -> nodes whose name has n words, with that word among them
        self.nodes_by_word: dict[tuple[str, int], list[int]] = {}
        interned: dict[str, str] = {}  # one string per word, to save memory
        for i, name in enumerate(graph.names):
            folded = fold(name)
            if folded:
                self.nodes_by_name.setdefault(folded, []).append(i)
            name_words = frozenset(
                interned.setdefault(word, word) for word in _WORD.findall(folded)
            )
            self.words.append(name_words)
            for word in name_words:
                self.nodes_by_word.setdefault((word, len(name_words)), []).append(i)
        self.lengths = sorted({length for _, length in self.nodes_by_word})
        self.nodes_by_rarest_word = self._index_rarest_words()
        self.nodes_by_chunk: dict[str, list[int]] = {}
        for i, chunks in enumerate(graph.chunks):
            for chunk in chunks:
                self.nodes_by_chunk.setdefault(chunk, []).append(i)

    def _index_rarest_words(self) -> dict[str, list[int]]:
        """word -> nodes whose name contains no rarer word."""
        counts: collections.Counter[str] = collections.Counter()
        for (word, _), nodes in self.nodes_by_word.items():
            counts[word] += len(nodes)
        index: dict[str, list[int]] = {}
        for i, name_words in enumerate(self.words):
            if name_words:
                rarest = min(name_words, key=lambda word: (counts[word], word))
                index.setdefault(rarest, []).append(i)
        return index

    def find(
        self, question: str, answers: Sequence[str], chunks: Sequence[str], limit: int = 5
    ) -> Seeds:
        """Finds the seeds of one question by the first rule that applies.

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
        """
        exact = {i for answer in answers for i in self.nodes_by_name.get(fold(answer), ())}
        if exact:
            return Seeds(sorted(exact)[:limit], "exact")
        if overlapping := self._overlapping(answers):
            return Seeds(overlapping[:limit], "overlap")
        question_words = words(question)
        if mentioned := self._mentioned(question_words, answers, chunks):
            return Seeds(mentioned[:limit], "mention")
        if named := self._named(question_words):
            return Seeds(named[:limit], "question")
        return Seeds(list(self.nearest(f"{question} {' '.join(answers)}"))[:limit], "embedding")

    def _overlapping(self, answers: Sequence[str]) -> list[int]:
        shares: dict[int, float] = {}
        for target in map(words, answers):
            for i in self._overlap_candidates(target):
                share = len(self.words[i] & target) / len(self.words[i] | target)
                shares[i] = max(share, shares.get(i, 0.0))
        ordered = sorted((-share, i) for i, share in shares.items() if share >= 0.5)
        return [i for _, i in ordered]

    def _overlap_candidates(self, target: frozenset[str]) -> Iterator[int]:
        """Every node whose name shares half of its words with `target`, and some others; nodes may
        repeat.

        Names of n and m words share s of them. They overlap by half if s / (n + m - s) >= 1/2. A
        name that shares s words with `target` has one of any len(target) - s + 1 of its words, so
        the rarest are enough.
        """
        for length in self.lengths:
            shared = -(-(len(target) + length) // 3)
            if shared <= min(len(target), length):
                by_frequency = sorted(
                    target, key=lambda word: len(self.nodes_by_word.get((word, length), ()))
                )
                for word in by_frequency[: len(target) - shared + 1]:
                    yield from self.nodes_by_word.get((word, length), ())

    def _mentioned(
        self, question_words: frozenset[str], answers: Sequence[str], chunks: Sequence[str]
    ) -> list[int]:
        holders = [
            chunk for chunk in chunks if any(self._contains(chunk, answer) for answer in answers)
        ]
        nodes = {i for chunk in holders for i in self.nodes_by_chunk.get(chunk, ())}

        def asked_share(i: int) -> float:
            return len(self.words[i] & question_words) / max(len(self.words[i]), 1)

        return sorted(nodes, key=lambda i: (-asked_share(i), i))

    def _named(self, question_words: frozenset[str]) -> list[int]:
        nodes = (
            i
            for word in question_words
            for i in self.nodes_by_rarest_word.get(word, ())
            if self.words[i] <= question_words
        )
        return sorted(nodes, key=lambda i: (-len(self.words[i]), i))

    def _contains(self, chunk: str, answer: str) -> bool:
        folded = fold(answer)
        if not folded:
            return False
        text = self.folded_chunks.get(chunk, "")
        return re.search(whole_word_pattern(folded), text) is not None


def community(ranks: np.ndarray, *, at_least: int, at_most: int, floor: float) -> list[int]:
    """Cuts a community from a rank vector (Algorithm 1, lines 3 to 7).

    The first i nodes by rank form the community. i is chosen where -log rank rises most from the
    i-th to the next node; the smallest i among equal rises. Log-ranks are compared to five
    decimals, and nodes with equal ones are ordered by index, so that rounding, which differs
    between machines, decides nothing.

    Args:
        ranks: rank of every node, `[n]`.
        at_least: smallest size of the community.
        at_most: largest size of the community.
        floor: nodes with a lower rank are excluded.

    Returns:
        Node indices, highest rank first.
    """
    nodes = np.flatnonzero(ranks >= floor if floor > 0 else ranks > 0)
    if len(nodes) > at_most + 1:
        # Only the first at_most + 1 nodes matter, and those equal to the last of them: select
        # before sorting.
        selected = ranks[nodes]
        position = len(selected) - 1 - at_most
        last = np.partition(selected, position)[position]
        nodes = nodes[selected >= last * (1 - 2 * 10.0**-RANK_DECIMALS)]
    depth = np.round(-np.log(ranks[nodes].astype(np.float64)), RANK_DECIMALS)
    order = np.argsort(depth, kind="stable")[: at_most + 1]
    if len(order) - 1 < at_least:
        return nodes[order[:at_most]].tolist()
    log_ranks = -np.log(ranks[nodes[order]].astype(np.float64))
    gaps = np.round(np.diff(log_ranks), RANK_DECIMALS)
    size = at_least + int(np.argmax(gaps[at_least - 1 :]))
    return nodes[order[:size]].tolist()
