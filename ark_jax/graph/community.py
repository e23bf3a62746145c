"""Answer to seeds, seeds to communities: Algorithm 1 with its cut on the gaps of the log-ranks."""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ark_jax.graph.store import KnowledgeGraph, fold


@dataclasses.dataclass(frozen=True)
class Seeds:
    nodes: list[int]
    rule: str  # which rule found them: exact | overlap | mention | question | embedding


def words(text: str) -> frozenset[str]:
    """Folded words without punctuation."""
    return frozenset(re.findall(r"\w+", fold(text)))


class SeedFinder:
    """Finds the nodes an answer speaks of; falls back step by step, so that no question is left without."""

    def __init__(self, graph: KnowledgeGraph, chunk_texts: Mapping[str, str],
                 nearest: Callable[[str], Sequence[int]]):
        """
        Args:
            chunk_texts: id -> text of the chunks the graph was read from.
            nearest: text -> nodes by embedding, nearest first; the last resort.
        """
        self.graph, self.nearest = graph, nearest
        self.folded = {id: fold(text) for id, text in chunk_texts.items()}
        self.index = {fold(name): i for i, name in enumerate(graph.names)}
        self.words = [words(name) for name in graph.names]
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
        exact = [self.index[fold(a)] for a in answers if fold(a) in self.index]
        if exact:
            return Seeds(sorted(set(exact))[:most], "exact")
        wanted = [words(a) for a in answers]
        overlap = lambda i: max((len(self.words[i] & w) / len(self.words[i] | w) for w in wanted if w), default=0.0)
        scored = sorted((-overlap(i), i) for i in range(len(self.graph)) if overlap(i) >= 0.5)
        if scored:
            return Seeds([i for _, i in scored[:most]], "overlap")
        asked = words(question)
        named = lambda i: len(self.words[i] & asked) / max(len(self.words[i]), 1)
        holding = [c for c in chunks if any(self._holds(c, a) for a in answers)]
        mentioned = sorted({i for c in holding for i in self.by_chunk.get(c, ())}, key=lambda i: (-named(i), i))
        if mentioned:
            return Seeds(mentioned[:most], "mention")
        in_question = sorted((i for i in range(len(self.graph)) if self.words[i] and self.words[i] <= asked),
                             key=lambda i: (-len(self.words[i]), i))
        if in_question:
            return Seeds(in_question[:most], "question")
        return Seeds(list(self.nearest(f"{question} {' '.join(answers)}"))[:most], "embedding")

    def _holds(self, chunk: str, answer: str) -> bool:
        wanted = fold(answer)  # an answer without a word is nowhere
        return bool(wanted) and re.search(rf"(?<!\w){re.escape(wanted)}(?!\w)", self.folded.get(chunk, "")) is not None


def community(ranks: np.ndarray, *, at_least: int, at_most: int, floor: float) -> list[int]:
    """Nodes of one community, highest rank first (Algorithm 1, lines 3 to 7).

    Nodes ranked below `floor` are dropped. Of the rest the first i are kept, i in [at_least, at_most] chosen
    where -log rank rises most from the i-th to the next node; the smallest i among equals.
    """
    order = np.lexsort((np.arange(len(ranks)), -ranks))
    order = order[ranks[order] > max(floor, 0.0)] if floor <= 0 else order[ranks[order] >= floor]
    last = min(at_most, len(order) - 1)
    if last < at_least:
        return order[:at_most].tolist()
    gaps = np.diff(-np.log(ranks[order[: last + 1]]))
    i = at_least + int(np.argmax(gaps[at_least - 1 : last]))
    return order[:i].tolist()
