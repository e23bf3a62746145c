"""Retrieval metrics from ranked lists and gold sets, with bootstrap intervals."""

import collections
from collections.abc import Mapping, Sequence

import numpy as np

from ark_jax.data.records import Chunk


def gold_chunks(evidence: Sequence[str], documents: Mapping[str, str], chunks: Sequence[Chunk]) -> list[list[str]]:
    """For each evidence passage the chunks that hold it: those sharing at least half of the shorter of the two.

    Overlapping chunks may all hold one passage; finding any of them finds it.
    """
    found = []
    for passage in evidence:
        holders = []
        for chunk in chunks:
            start = documents[chunk.document].find(passage)
            shared = min(chunk.end, start + len(passage)) - max(chunk.start, start)
            if start >= 0 and 2 * shared >= min(len(passage), chunk.end - chunk.start):
                holders.append(chunk.id)
        if holders:
            found.append(holders)
    return found


def metrics(ranked: Sequence[str], gold: Sequence[Sequence[str]]) -> dict[str, float]:
    """Metrics of one question.

    Args:
        ranked: retrieved ids, best first.
        gold: one list of equivalent ids per passage that is needed.

    Returns:
        recall@5, recall@10: share of the needed passages that are among the first k.
        ndcg@10: each needed passage gains 1 / log2(rank + 1) where it is first found, over what the best list
            gains; where every passage has one chunk of its own this is the usual nDCG.
        mrr: 1 / rank of the first needed passage, 0 if none is listed.
    """
    ranks = [next((i for i, id in enumerate(ranked, 1) if id in holders), 0) for holders in gold]
    within = lambda k: sum(0 < r <= k for r in ranks) / max(len(ranks), 1)
    gain = lambda found: sum(1 / np.log2(r + 1) for r in found if 0 < r <= 10)
    best = gain(_ideal(gold))
    first = min((r for r in ranks if r), default=0)
    return {"recall@5": within(5), "recall@10": within(10), "ndcg@10": min(float(gain(ranks) / best), 1.0) if best else 0.0,
            "mrr": 1 / first if first else 0.0}


def _ideal(gold: Sequence[Sequence[str]]) -> list[int]:
    """The rank of each needed passage in the list whose every chunk holds as many missing ones as any (greedy, so in
    odd cases not the very best list)."""
    left, ranks = [set(holders) for holders in gold if holders], []
    while left:
        counts = collections.Counter(id for holders in left for id in holders)
        best = min(counts, key=lambda id: (-counts[id], id))
        rank = max(ranks, default=0) + 1
        ranks += [rank] * counts[best]
        left = [holders for holders in left if best not in holders]
    return ranks


def interval(values: Sequence[float], *, draws: int, seed: int) -> dict[str, float]:
    """Mean and 95 % percentile bootstrap interval over questions."""
    values = np.asarray(values, np.float64)
    if not len(values):
        return {"mean": float("nan"), "low": float("nan"), "high": float("nan")}
    rng = np.random.default_rng(seed)
    means = values[rng.integers(0, len(values), (draws, len(values)))].mean(axis=1)
    low, high = np.quantile(means, (0.025, 0.975))
    return {"mean": float(values.mean()), "low": float(low), "high": float(high)}
