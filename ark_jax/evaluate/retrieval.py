"""Retrieval metrics from ranked lists and gold (needed passages, answers, or graded judgements), with bootstrap intervals.

A metric is written `ndcg@10`, or `ndcg` of the whole list:

    recall     share of what is needed that is among the first k
    precision  share of the first k that is relevant; a list of fewer is filled up with what is not
    hit        1 if any of the first k is relevant
    mrr        1 / rank of the first relevant one, 0 if there is none
    map        mean, over what is needed, of the precision at the rank where it is first found; 0 where it is not
    ndcg       gain / log2(rank + 1), summed, over the sum of the best list there could be

Where gold is a list of passages, each a list of the ids that hold it, a passage is needed, an id that holds any is relevant, and
the gain of a rank is the number of passages first found there: copies of what was found bring nothing more. Where gold are
judgements (id -> grade) this is trec_eval's recall, P, success, recip_rank, map and ndcg (or ndcg_cut): an id is relevant, and
needed, at `level` or above, its grade is its gain, and what was not judged, or below zero, is neither relevant nor a gain.
"""

import bisect
import collections
import dataclasses
import functools
import unicodedata
from collections.abc import Mapping, Sequence

import numpy as np

from ark_jax.data.records import Chunk
from ark_jax.data.words import unspaced

Gold = Sequence[Sequence[str]] | Mapping[str, int]
BLOCK = 1 << 22  # indices drawn at once
NAMES = ("recall", "precision", "hit", "mrr", "map", "ndcg")


def gold_chunks(evidence: Sequence[str], documents: Mapping[str, str], chunks: Sequence[Chunk]) -> list[list[str]]:
    """For each evidence passage the chunks that hold it: those sharing at least half of the shorter of the two.

    Overlapping chunks may all hold one passage, and so may chunks from all over a document that repeats it; finding any of them
    finds it. Where a cut in its middle leaves none, those hold it that share most.
    """
    found = []
    for passage in evidence:
        starts = {document: _starts(documents[document], passage) for document in dict.fromkeys(c.document for c in chunks)}
        shared = {chunk.id: _shared(chunk, starts[chunk.document], len(passage)) for chunk in chunks}
        most = max(shared.values(), default=0)
        holders = [c.id for c in chunks if 0 < min(len(passage), c.end - c.start) <= 2 * shared[c.id]]
        if most:
            found.append(holders or [id for id, some in shared.items() if some == most])
    return found


def _starts(text: str, passage: str) -> list[int]:
    """Where in a text a passage stands."""
    starts, at = [], text.find(passage) if passage else -1
    while at >= 0:
        starts.append(at)
        at = text.find(passage, at + len(passage))
    return starts


def _shared(chunk: Chunk, starts: Sequence[int], length: int) -> int:
    """The most characters that a chunk has of one of the places of a passage."""
    near = starts[bisect.bisect_right(starts, chunk.start - length) : bisect.bisect_left(starts, chunk.end)]
    return max((min(chunk.end, start + length) - max(chunk.start, start) for start in near), default=0)


def answer_chunks(answers: Sequence[str], chunks: Sequence[Chunk]) -> list[list[str]]:
    """One needed passage, in any chunk that contains an answer: its words in their order, whatever their case, whole words
    only (as DPR has it: NFD, lower case, runs of letters, digits and marks, other signs one by one, blanks do not count; letters
    of scripts that know no blanks one by one too, where DPR takes a whole sentence for a word)."""
    sought = [words for words in map(_words, answers) if words.strip()]
    holders = [chunk.id for chunk in chunks if any(words in _words(chunk.text) for words in sought)]
    return [holders] if holders else []


@functools.lru_cache(4096)  # the questions of a document ask for the same chunks
def _words(text: str) -> str:
    """Words and signs between single blanks, and a blank at either end: to contain words is to contain this."""
    return f" {' '.join(unicodedata.normalize('NFD', text).lower().translate(_KINDS).split())} "


class _Kinds(dict):
    """What a character becomes, by its Unicode category; filled as characters are seen."""

    def __missing__(self, code: int) -> str:
        kind = unicodedata.category(chr(code))[0]
        self[code] = " " if kind in "ZC" else chr(code) if kind in "LNM" and not unspaced(chr(code)) else f" {chr(code)} "
        return self[code]


_KINDS = _Kinds()


def parse(name: str) -> tuple[str, int | None]:
    """`ndcg@10` -> ("ndcg", 10), `map` -> ("map", None).

    Raises:
        ValueError: no such metric, or a k that is no whole number above zero.
    """
    kind, at, k = name.partition("@")
    if kind not in NAMES or (at and not (k.isdecimal() and int(k))):
        raise ValueError(f"metric {name!r}: must be {', '.join(NAMES[:-1])} or {NAMES[-1]}, alone or with @k, as in ndcg@10")
    return kind, int(k) if at else None


def ranking(scores: Mapping[str, float]) -> list[str]:
    """Ids by falling score; of equal scores, in float32, the later id first. This is trec_eval's order.

    Raises:
        ValueError: a score that is no number, with its id.
    """
    ids = sorted(scores, reverse=True)
    values = np.array([scores[id] for id in ids], np.float32)
    if np.isnan(values).any():
        raise ValueError(f"the score of {ids[int(np.isnan(values).argmax())]!r} is nan; give a number")
    return [ids[i] for i in np.argsort(-values, kind="stable")]


def measures(run: Mapping[str, Mapping[str, float] | Sequence[str]], gold: Mapping[str, Gold], names: Sequence[str], *,
             level: int = 1) -> dict[str, dict[str, float]]:
    """Every metric of every query that has gold: query -> name -> value.

    A query that the run lacks counts as one without a result (trec_eval's -c); one without gold is not measured.

    Args:
        run: query -> id -> score, or ids best first.
        gold: query -> needed passages, or judgements (`qrels`).
        names: metrics, such as "ndcg@10".
        level: the grade from which on a judged id is relevant (trec_eval's -l); gains are grades all the same.

    Raises:
        ValueError: an unknown metric, a score that is no number, an id listed twice, with its query.
    """
    out = {}
    for query, needed in gold.items():
        ranked = run.get(query, ())
        try:
            out[query] = measure(ranking(ranked) if isinstance(ranked, Mapping) else ranked, needed, names, level=level)
        except ValueError as error:
            raise ValueError(f"query {query!r}: {error}") from None
    return out


def measure(ranked: Sequence[str], gold: Gold, names: Sequence[str], *, level: int = 1) -> dict[str, float]:
    """Metrics of one query, whose ids are given best first; as in `measures`."""
    if len(set(ranked)) < len(ranked):
        twice = next(id for id, times in collections.Counter(ranked).items() if times > 1)
        raise ValueError(f"{twice!r} is listed twice; a list may hold an id once")
    found = _judged(ranked, gold, level) if isinstance(gold, Mapping) else _held(ranked, gold)
    return {name: found.value(*parse(name)) for name in names}


@dataclasses.dataclass(frozen=True)
class _Found:
    """What a list of r ids brings, rank by rank."""

    relevant: np.ndarray  # [r] bool
    new: np.ndarray  # [r] of what is needed, how much is first found here
    needed: int  # in all
    gains: np.ndarray  # [r]
    ideal: np.ndarray  # gains of the best list there could be

    def value(self, kind: str, k: int | None) -> float:
        relevant, new = self.relevant[:k], self.new[:k]
        match kind:
            case "recall":
                return float(new.sum() / max(self.needed, 1))
            case "precision":
                return float(relevant.sum() / (k or max(len(relevant), 1)))
            case "hit":
                return float(relevant.any())
            case "mrr":
                return float(1 / (relevant.argmax() + 1)) if relevant.any() else 0.0
            case "map":
                precision = np.cumsum(relevant) / np.arange(1, len(relevant) + 1)
                return float((new * precision).sum() / max(self.needed, 1))
            case "ndcg":
                best = _discounted(self.ideal[:k])
                return min(_discounted(self.gains[:k]) / best, 1.0) if best else 0.0  # the ideal of passages is a greedy one


def _discounted(gains: np.ndarray) -> float:
    return float((gains / np.log2(np.arange(2, len(gains) + 2))).sum())


def _judged(ranked: Sequence[str], grades: Mapping[str, int], level: int) -> _Found:
    """Of graded judgements."""
    known = np.array([grades.get(id, -1) for id in ranked], np.int64)
    every = np.array(list(grades.values()), np.int64)
    relevant = (known >= level) & (known >= 0)
    return _Found(relevant, relevant, int(((every >= level) & (every >= 0)).sum()), np.maximum(known, 0),
                  np.sort(np.maximum(every, 0))[::-1])


def _held(ranked: Sequence[str], passages: Sequence[Sequence[str]]) -> _Found:
    """Of needed passages, each a list of the ids that hold it."""
    at = {id: i for i, id in enumerate(ranked)}
    first = [min((at[id] for id in holders if id in at), default=None) for holders in passages]
    new = np.bincount([i for i in first if i is not None], minlength=len(ranked)).astype(np.int64)
    holding = {id for holders in passages for id in holders}
    relevant = np.array([id in holding for id in ranked], bool)
    return _Found(relevant, new, len(passages), new, _ideal(passages))


def _ideal(passages: Sequence[Sequence[str]]) -> np.ndarray:
    """Passages first found at each rank of the list whose every id holds as many missing ones as any (greedy, so in odd cases
    not the very best list)."""
    left, gains = [set(holders) for holders in passages if holders], []
    while left:
        counts = collections.Counter(id for holders in left for id in holders)
        best = min(counts, key=lambda id: (-counts[id], id))
        gains.append(counts[best])
        left = [holders for holders in left if best not in holders]
    return np.array(gains, np.int64)


def interval(values: Sequence[float], *, draws: int, seed: int) -> dict[str, float]:
    """Mean and 95 % percentile bootstrap interval over questions."""
    values = np.asarray(values, np.float64)
    if not len(values):
        return {"mean": float("nan"), "low": float("nan"), "high": float("nan")}
    rng = np.random.default_rng(seed)
    step = max(1, BLOCK // len(values))
    means = np.concatenate([values[rng.integers(0, len(values), (min(step, draws - at), len(values)))].mean(axis=1)
                            for at in range(0, draws, step)])
    low, high = np.quantile(means, (0.025, 0.975))
    return {"mean": float(values.mean()), "low": float(low), "high": float(high)}
