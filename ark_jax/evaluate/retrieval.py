"""Metrics of ranked lists.

A metric is named `ndcg@10`, or `ndcg` for the whole list:

    recall     share of the needed passages that the first k ids hold
    precision  share of the first k ids that are relevant; missing ids count as irrelevant
    hit        1 if any of the first k ids is relevant
    mrr        1 / rank of the first relevant id, 0 without one
    map        mean precision at the rank that first holds each needed passage, 0 if none does
    ndcg       sum of gain / log2(rank + 1), divided by that of the ideal list

Gold comes in two forms.

Passages: a list of needed passages, each a list of the ids that hold it. An id is relevant if it
holds any passage. The gain of a rank is the number of passages that it is the first to hold;
further copies of a passage add nothing.

Judgements: id -> grade. The metrics are then trec_eval's recall, P, success, recip_rank, map and
ndcg (ndcg_cut). An id is relevant and needed if its grade reaches `level`. Its gain is its grade.
Ids without a judgement or with a negative grade are not relevant and have no gain.
"""

import collections
import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

Gold = Sequence[Sequence[str]] | Mapping[str, int]
METRICS = ("recall", "precision", "hit", "mrr", "map", "ndcg")


def parse_metric(name: str) -> tuple[str, int | None]:
    """Splits a metric's name: `ndcg@10` -> ("ndcg", 10), `map` -> ("map", None).

    Raises:
        ValueError: the metric is unknown, or k is not a positive integer.
    """
    kind, separator, k = name.partition("@")
    if kind not in METRICS or (separator and not (k.isdecimal() and int(k))):
        raise ValueError(
            f"metric {name!r}: must be {', '.join(METRICS[:-1])} or {METRICS[-1]}, "
            "alone or with @k, as in ndcg@10"
        )
    return kind, int(k) if separator else None


def ranking(scores: Mapping[str, float]) -> list[str]:
    """Ids by descending score, in trec_eval's order: scores equal in float32 go by descending id.

    Raises:
        ValueError: a score is NaN.
    """
    ids = sorted(scores, reverse=True)
    values = np.array([scores[id] for id in ids], np.float32)
    if np.isnan(values).any():
        raise ValueError(
            f"the score of {ids[int(np.isnan(values).argmax())]!r} is nan; give a number"
        )
    return [ids[i] for i in np.argsort(-values, kind="stable")]


def measures(
    run: Mapping[str, Mapping[str, float] | Sequence[str]],
    gold: Mapping[str, Gold],
    names: Sequence[str],
    *,
    level: int = 1,
) -> dict[str, dict[str, float]]:
    """Measures every query that has gold.

    A query without a list in the run counts as an empty list (trec_eval's -c). A query without gold
    is ignored.

    Args:
        run: query -> id -> score, or query -> ids, best first.
        gold: query -> needed passages or judgements (`qrels`).
        names: names of the metrics, such as "ndcg@10".
        level: lowest grade that makes a judged id relevant (trec_eval's -l). Gains are grades,
            whatever the level.

    Returns:
        query -> metric -> value.

    Raises:
        ValueError: a metric is unknown, a score is NaN or a list repeats an id. The message names
            the query.
    """
    values = {}
    for query, needed in gold.items():
        results = run.get(query, ())
        try:
            ranked = ranking(results) if isinstance(results, Mapping) else results
            values[query] = measure(ranked, needed, names, level=level)
        except ValueError as error:
            raise ValueError(f"query {query!r}: {error}") from None
    return values


def measure(
    ranked: Sequence[str], gold: Gold, names: Sequence[str], *, level: int = 1
) -> dict[str, float]:
    """Measures the list of one query, ids best first; see `measures`."""
    if len(set(ranked)) < len(ranked):
        repeated = next(id for id, count in collections.Counter(ranked).items() if count > 1)
        raise ValueError(f"{repeated!r} is listed twice; a list may hold an id once")
    if isinstance(gold, Mapping):
        gains = _judged_gains(ranked, gold, level)
    else:
        gains = _passage_gains(ranked, gold)
    return {name: gains.metric(*parse_metric(name)) for name in names}


@dataclasses.dataclass(frozen=True)
class _Gains:
    """Relevance and gain of each rank in a list of r ids."""

    relevant: np.ndarray  # bool [r]
    new: np.ndarray  # int [r]: number of needed passages that the rank is the first to hold
    needed: int  # number of needed passages
    gains: np.ndarray  # [r]
    ideal: np.ndarray  # gains of the ideal list

    def metric(self, kind: str, k: int | None) -> float:
        """A metric of `METRICS` on the first k ids; None: on all."""
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
                best = _discounted_sum(self.ideal[:k])
                # The ideal list of passages is greedy, so a list may exceed it.
                return min(_discounted_sum(self.gains[:k]) / best, 1.0) if best else 0.0


def _discounted_sum(gains: np.ndarray) -> float:
    """DCG: each gain `[r]` divided by log2(rank + 1), summed."""
    return float((gains / np.log2(np.arange(2, len(gains) + 2))).sum())


def _judged_gains(ranked: Sequence[str], grades: Mapping[str, int], level: int) -> _Gains:
    """Gains of ids with grades; ids without a grade have none."""
    listed = np.array([grades.get(id, -1) for id in ranked], np.int64)
    judged = np.array(list(grades.values()), np.int64)
    relevant = (listed >= level) & (listed >= 0)
    return _Gains(
        relevant=relevant,
        new=relevant,
        needed=int(((judged >= level) & (judged >= 0)).sum()),
        gains=np.maximum(listed, 0),
        ideal=np.sort(np.maximum(judged, 0))[::-1],
    )


def _passage_gains(ranked: Sequence[str], passages: Sequence[Sequence[str]]) -> _Gains:
    """Gains of ids that hold needed passages; each passage counts once, at its first rank."""
    ranks = {id: rank for rank, id in enumerate(ranked)}
    first_ranks = [
        min((ranks[id] for id in holders if id in ranks), default=None) for holders in passages
    ]
    held_ranks = [rank for rank in first_ranks if rank is not None]
    new = np.bincount(held_ranks, minlength=len(ranked)).astype(np.int64)
    holding = {id for holders in passages for id in holders}
    relevant = np.array([id in holding for id in ranked], bool)
    return _Gains(relevant, new, len(passages), gains=new, ideal=_ideal_gains(passages))


def _ideal_gains(passages: Sequence[Sequence[str]]) -> np.ndarray:
    """Gains of a list where each next id holds as many of the missing passages as possible.

    This greedy list is not always the best one. A passage that no id holds, such as a judged
    document that the corpus lacks, counts as one more id.
    """
    missing, gains = [set(holders) for holders in passages if holders], []
    while missing:
        counts = collections.Counter(id for holders in missing for id in holders)
        best = min(counts, key=lambda id: (-counts[id], id))
        gains.append(counts[best])
        missing = [holders for holders in missing if best not in holders]
    nowhere = sum(not holders for holders in passages)
    return np.array(gains + [1] * nowhere, np.int64)
