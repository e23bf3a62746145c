"""Answer to seeds, seeds to communities: Algorithm 1 with its cut on the gaps of the log-ranks."""

import collections
import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from ark_jax.data.words import whole
from ark_jax.graph.store import KnowledgeGraph, fold


@dataclasses.dataclass(frozen=True)
class Seeds:
    nodes: list[int]
    rule: str  # which rule found them: exact | overlap | mention | question | embedding


EQUAL = 5  # decimals of a log-rank
_WORD = re.compile(r"\w+")


def words(text: str) -> frozenset[str]:
    """Folded words without punctuation."""
    return frozenset(_WORD.findall(fold(text)))


class SeedFinder:
    """Finds the nodes an answer speaks of; falls back step by step, so that no question is left without.

    Looking up costs what the rare words of answer and question touch, not a walk over all nodes.
    """

    def __init__(self, graph: KnowledgeGraph, chunk_texts: Mapping[str, str],
                 nearest: Callable[[str], Sequence[int]]):
        """
        Args:
            chunk_texts: id -> text of the chunks the graph was read from.
            nearest: text -> nodes by embedding, nearest first; the last resort.
        """
        self.nearest = nearest
        self.folded = {id: fold(text) for id, text in chunk_texts.items()}
        self.index: dict[str, list[int]] = {}  # several nodes only in a graph of others, whose names were not merged
        self.words: list[frozenset[str]] = []
        self.holding: dict[tuple[str, int], list[int]] = {}  # (word, n) -> nodes with it in a name of n words
        own: dict[str, str] = {}  # one string a word, however many names hold it
        for i, name in enumerate(graph.names):
            folded = fold(name)
            if folded:
                self.index.setdefault(folded, []).append(i)
            some = frozenset(own.setdefault(word, word) for word in _WORD.findall(folded))
            self.words.append(some)
            for word in some:
                self.holding.setdefault((word, len(some)), []).append(i)
        self.sizes = sorted({size for _, size in self.holding})
        count: collections.Counter[str] = collections.Counter()
        for (word, _), nodes in self.holding.items():
            count[word] += len(nodes)
        self.rarest: dict[str, list[int]] = {}  # word -> nodes in whose name no word is rarer
        for i, some in enumerate(self.words):
            if some:
                self.rarest.setdefault(min(some, key=lambda word: (count[word], word)), []).append(i)
        self.by_chunk: dict[str, list[int]] = {}
        for i, chunks in enumerate(graph.chunks):
            for chunk in chunks:
                self.by_chunk.setdefault(chunk, []).append(i)

    def find(self, question: str, answers: Sequence[str], chunks: Sequence[str], most: int = 5) -> Seeds:
        """Seeds of one question, at most `most`.

        exact: a node named as an answer. overlap: nodes sharing at least half of their words with an answer.
        mention: nodes described in a chunk (of `chunks`) that holds the answer, those the question names first.
        question: nodes the question names. embedding: the nodes nearest to question and answer.
        """
        exact = {i for a in answers for i in self.index.get(fold(a), ())}
        if exact:
            return Seeds(sorted(exact)[:most], "exact")
        shares: dict[int, float] = {}
        for wanted in map(words, answers):
            for i in self._overlapping(wanted):
                share = len(self.words[i] & wanted) / len(self.words[i] | wanted)
                shares[i] = max(share, shares.get(i, 0.0))
        scored = sorted((-share, i) for i, share in shares.items() if share >= 0.5)
        if scored:
            return Seeds([i for _, i in scored[:most]], "overlap")
        asked = words(question)
        named = lambda i: len(self.words[i] & asked) / max(len(self.words[i]), 1)
        holding = [c for c in chunks if any(self._holds(c, a) for a in answers)]
        mentioned = sorted({i for c in holding for i in self.by_chunk.get(c, ())}, key=lambda i: (-named(i), i))
        if mentioned:
            return Seeds(mentioned[:most], "mention")
        in_question = sorted((i for word in asked for i in self.rarest.get(word, ()) if self.words[i] <= asked),
                             key=lambda i: (-len(self.words[i]), i))
        if in_question:
            return Seeds(in_question[:most], "question")
        return Seeds(list(self.nearest(f"{question} {' '.join(answers)}"))[:most], "embedding")

    def _overlapping(self, wanted: frozenset[str]) -> Iterator[int]:
        """Every node whose name shares half of the words with `wanted`, and some others; a node may come twice.

        Sharing s of the words of n and m names means s / (n + m - s) >= 1/2. A name that shares s of `wanted` holds one of
        any len(wanted) - s + 1 of its words, so the rarest of them find it, and frequent words are not walked through.
        """
        for size in self.sizes:
            shared = -(-(len(wanted) + size) // 3)
            if shared <= min(len(wanted), size):
                rare = sorted(wanted, key=lambda word: len(self.holding.get((word, size), ())))
                for word in rare[: len(wanted) - shared + 1]:
                    yield from self.holding.get((word, size), ())

    def _holds(self, chunk: str, answer: str) -> bool:
        wanted = fold(answer)  # an answer without a word is nowhere
        return bool(wanted) and re.search(whole(wanted), self.folded.get(chunk, "")) is not None


def community(ranks: np.ndarray, *, at_least: int, at_most: int, floor: float) -> list[int]:
    """Nodes of one community, highest rank first (Algorithm 1, lines 3 to 7).

    Nodes ranked below `floor` are dropped. Of the rest the first i are kept, i in [at_least, at_most] chosen
    where -log rank rises most from the i-th to the next node; the smallest i among equals. Nodes whose ranks agree to a
    hundred-thousandth, as those do that stand alike in the graph, follow their numbers: rounding, which each machine does in its
    own way, decides nothing.
    """
    kept = np.flatnonzero(ranks >= floor if floor > 0 else ranks > 0)
    if len(kept) > at_most + 1:  # select before sorting: only so many can matter, and those equal to the last of them
        own = ranks[kept]
        last = np.partition(own, len(own) - 1 - at_most)[len(own) - 1 - at_most]
        kept = kept[own >= last * (1 - 2 * 10.0**-EQUAL)]
    depth = np.round(-np.log(ranks[kept].astype(np.float64)), EQUAL)
    order = np.argsort(depth, kind="stable")[: at_most + 1]
    if len(order) - 1 < at_least:
        return kept[order[:at_most]].tolist()
    gaps = np.round(np.diff(-np.log(ranks[kept[order]].astype(np.float64))), EQUAL)
    i = at_least + int(np.argmax(gaps[at_least - 1 :]))
    return kept[order[:i]].tolist()
