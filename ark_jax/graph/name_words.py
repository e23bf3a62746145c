"""Finds nodes by the words of their names. The index takes some 40 bytes for each word."""

import math
import re
from array import array
from collections.abc import Iterable, Iterator, Set

import numpy as np

from ark_jax.data.stored_strings import HashedStrings
from ark_jax.data.text_columns import TextColumn
from ark_jax.graph.store import fold

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
