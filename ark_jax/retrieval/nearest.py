"""Limits pairs of vectors to the nearest ones of each vector."""

from collections.abc import Iterable

import numpy as np
from jaxtyping import Bool, Float, Int

Pairs = tuple[np.ndarray, np.ndarray, np.ndarray]  # first and second vectors, and their cosines


def among_nearest(
    i: Int[np.ndarray, " s"],
    j: Int[np.ndarray, " s"],
    cosines: Float[np.ndarray, " s"],
    nearest: int,
) -> Bool[np.ndarray, " s"]:
    """Whether each pair is one of the `nearest` with the highest cosines of either of its vectors.

    Of equal cosines, that with the vector of the lower number comes first.
    """
    ends, far_ends = np.concatenate([i, j]), np.concatenate([j, i])
    order = np.lexsort((far_ends, -np.concatenate([cosines, cosines]), ends))
    ranks = np.arange(len(order)) - np.searchsorted(ends[order], ends[order])
    stays = np.zeros(len(order), bool)
    stays[order] = ranks < nearest
    return stays[: len(i)] | stays[len(i) :]


def limit_pairs(parts: Iterable[Pairs], count: int, nearest: int) -> tuple[Pairs, int]:
    """The pairs of all parts that are `among_nearest`, and how many pairs the parts have.

    It never holds more than about three times the pairs that may stay.

    Args:
        count: number of vectors.
        nearest: how many stay of each; 0 keeps all pairs.
    """
    total, held, recent = 0, [], []

    def limited() -> list[Pairs]:
        """The pairs so far that may stay, as one part."""
        i, j, cosines = map(np.concatenate, zip(*held, *recent, strict=True))
        stays = among_nearest(i, j, cosines, nearest)
        return [(i[stays], j[stays], cosines[stays])]

    for part in parts:
        recent.append(part)
        total += len(part[0])
        # A dropped pair has `nearest` nearer ones on both sides, whatever parts follow.
        if nearest and sum(len(rows) for rows, _, _ in recent) > 2 * count * nearest:
            held, recent = limited(), []
    if nearest and total:
        held, recent = limited(), []
    return tuple(map(np.concatenate, zip(*held, *recent, strict=True))), total
