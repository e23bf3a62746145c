"""Finds the seed nodes of an answer, and cuts a community from ranks (Algorithm 1).

A community ends where the log-ranks fall most.
"""

import dataclasses
import functools
import itertools
import math
import re
from array import array
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence, Set

import numpy as np

from ark_jax.data.text_columns import HashedStrings, RowsByText, TextColumn
from ark_jax.graph.store import KnowledgeGraph, fold
from ark_jax.text.word_boundaries import whole_word_pattern

ROUNDING = 1e-9  # may leave out no node: 3 words are enough of 9 for a similarity of 1/2
_WORD = re.compile(r"\w+")


def words(text: str) -> frozenset[str]:
    """Words of the folded text, without punctuation."""
    return frozenset(_WORD.findall(fold(text)))


class RowsByNumber:
    """The rows that hold a number, in ascending order.

    Args:
        ends: where each row ends in `numbers`, int64 `[rows]`.
        numbers: the numbers of all rows, row by row, `[entries]`.
    """

    def __init__(self, ends: np.ndarray, numbers: np.ndarray):
        rows = np.repeat(np.arange(len(ends), dtype=np.int32), np.diff(ends, prepend=0))
        order = np.argsort(numbers, kind="stable")
        self._rows, numbers = rows[order], numbers[order]
        starts = np.flatnonzero(np.diff(numbers, prepend=-1))
        self._numbers, self._ends = numbers[starts], np.append(starts[1:], len(numbers))

    def rows(self, number: int) -> np.ndarray:
        """The rows that hold a number, int32; none if it is unknown."""
        place = int(self._numbers.searchsorted(number))
        if place == len(self._numbers) or self._numbers[place] != number:
            return self._rows[:0]
        return self._rows[self._ends[place - 1] if place else 0 : self._ends[place]]


class NameIndex:
    """Finds nodes by name, and by words of the name.

    The cost of a search depends on how rare its words are, not on the number of nodes.
    """

    def __init__(self, names: TextColumn):
        self._names = names
        # A name has several nodes only in a graph of another program, whose names were not merged.
        folded = TextColumn(map(fold, names))
        self._by_name = HashedStrings(folded, len(folded))
        self._numbers: dict[str, int] = {}  # word -> its number
        numbers, ends = array("i"), array("q")
        for name in folded:
            name_words = sorted(set(_WORD.findall(name)))
            numbers.extend(
                self._numbers.setdefault(word, len(self._numbers)) for word in name_words
            )
            ends.append(len(numbers))
        self._words = list(self._numbers)
        numbers, self._ends = np.array(numbers, np.int32), np.array(ends, np.int64)
        self._word_numbers = numbers
        lengths = np.diff(self._ends, prepend=0)
        self._lengths = np.unique(lengths[lengths > 0]).tolist()
        self._by_word_and_length = self._group_by_length(numbers, lengths)
        self._by_rarest_word = self._group_by_rarest(numbers, lengths)

    def _group_by_length(self, numbers: np.ndarray, lengths: np.ndarray) -> RowsByNumber:
        """The nodes by a word of their name and the number of all its words."""
        places = np.repeat(np.searchsorted(self._lengths, lengths), lengths)
        return RowsByNumber(self._ends, numbers.astype(np.int64) * len(self._lengths) + places)

    def _group_by_rarest(self, numbers: np.ndarray, lengths: np.ndarray) -> RowsByNumber:
        """The nodes by the rarest word of their name; equally rare ones go by code point."""
        counts = np.bincount(numbers, minlength=len(self._words))
        order = sorted(range(len(self._words)), key=lambda i: (counts[i], self._words[i]))
        ranks = np.empty(len(order), np.int64)
        ranks[order] = np.arange(len(order))
        worded = lengths > 0
        starts = (self._ends - lengths)[worded]
        rarest = np.minimum.reduceat(ranks[numbers], starts) if len(starts) else starts
        return RowsByNumber(worded.cumsum(), np.array(order, np.int64)[rarest])

    def nodes_named(self, folded: str) -> list[int]:
        """The nodes with this folded name, in ascending order; none for an empty one."""
        if not folded:
            return []
        return [i for i in self._by_name.rows(folded) if fold(self._names[i]) == folded]

    def words(self, node: int) -> frozenset[str]:
        """The words of a node's name."""
        start = self._ends[node - 1] if node else 0
        numbers = self._word_numbers[start : self._ends[node]]
        return frozenset(self._words[number] for number in numbers)

    def overlapping(self, targets: Iterable[Set[str]], least: float = 0.5) -> list[int]:
        """The nodes whose names have a Jaccard similarity of at least `least`, and above 0, with
        one of `targets`; a node comes once for each of these.

        The most similar come first.
        """
        pairs = []
        for target in targets:
            for i in set(self._overlap_candidates(target, least)):
                name_words = self.words(i)
                share = len(name_words & target) / len(name_words | target)
                if share >= least:
                    pairs.append((-share, i))
        return [i for _, i in sorted(pairs)]

    def _overlap_candidates(self, target: Set[str], least: float = 0.5) -> Iterator[int]:
        """Every node whose name has a Jaccard similarity of at least `least` with `target`, and a
        word in common, and some others; nodes may repeat.

        Names of n and m words that share s have a similarity of s / (n + m - s), which is at least
        t if s >= (n + m) t / (1 + t). A name that shares s words with `target` has at least one of
        any len(target) - s + 1 words of `target`, so it is enough to look up the rarest ones.
        """
        for place, length in enumerate(self._lengths):
            shared = max(1, math.ceil((len(target) + length) * least / (1 + least) - ROUNDING))
            if shared <= min(len(target), length):
                nodes = [self._nodes_with_word(word, place) for word in target]
                nodes.sort(key=len)
                for rare in nodes[: len(target) - shared + 1]:
                    yield from rare.tolist()

    def _nodes_with_word(self, word: str, place: int) -> np.ndarray:
        """The nodes whose name has the word, and `self._lengths[place]` words in all."""
        number = self._numbers.get(word)
        if number is None:
            return np.empty(0, np.int32)
        return self._by_word_and_length.rows(number * len(self._lengths) + place)

    def nodes_named_in(self, text_words: Set[str]) -> list[int]:
        """The nodes all of whose words are among these, the longest names first."""
        numbers = (self._numbers[word] for word in text_words if word in self._numbers)
        nodes = [i for number in numbers for i in self._by_rarest_word.rows(number).tolist()]
        name_words = {i: self.words(i) for i in nodes}
        inside = [i for i in nodes if name_words[i] <= text_words]
        return sorted(inside, key=lambda i: (-len(name_words[i]), i))


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
            chunks: ids of the chunks that the question may be answered from.
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
        limits = {"model": None, "shared": PAIRS}  # the other rules have `limit`
        for rule, ranked in rules.items():
            allowed = (int(i) for i in ranked() if within is None or i in within)
            if nodes := list(itertools.islice(allowed, limits.get(rule, limit))):
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
