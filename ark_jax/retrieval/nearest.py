"""The nearest vectors, by the host alone; limits pairs of vectors to the nearest of each."""

from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import ArrayLike

BLOCK = 4096  # keys whose numbers in float64 are held at once
PRODUCTS = 1 << 24  # products of queries and keys that are held at once
Norms = Sequence[ArrayLike]  # norms of vectors, and of their rounding errors
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


def top_k_on_host(
    queries: Float[np.ndarray, "q e"], keys: np.ndarray, k: int, longest: float = 0.0
) -> tuple[Int[np.ndarray, "q k"], Float[np.ndarray, "q k"]]:
    """`dense.top_k`: products in float32 leave few keys, among which those in float64 decide.

    Args:
        longest: the largest norm of a key; 0: it is measured.
    """
    lengths = norms_of(queries)
    check_finite("queries", lengths)
    k, longest = min(k, len(keys)), longest or longest_of(keys)
    found, step = [], max(1, PRODUCTS // len(keys))
    for first in range(0, len(queries), step):
        asked = queries[first : first + step]
        blocks = (keys[i : i + BLOCK] for i in range(0, len(keys), BLOCK))
        products = np.concatenate([asked @ np.asarray(block, np.float32).T for block in blocks], 1)
        for query, length, row in zip(asked, lengths[first:], products, strict=False):
            error = error_bound((length, 0), (longest, 0), len(query))
            # NaN, of products that overflow, counts as large.
            chosen = np.flatnonzero(~(row < np.partition(row, -k)[-k] - 2 * error))
            found.append(_best_of_chosen(query, keys, chosen, k))
    positions, best = map(np.array, zip(*found, strict=True))
    return positions.astype(np.int32), best.astype(np.float32)


def _best_of_chosen(
    query: Float[np.ndarray, " e"], keys: np.ndarray, chosen: Int[np.ndarray, " c"], k: int
) -> tuple[Int[np.ndarray, " k"], Float[np.ndarray, " k"]]:
    """The k best of the chosen keys, by products in float64."""
    wide, values = as_float64(query), np.empty(len(chosen))
    for first in range(0, len(chosen), BLOCK):
        rows = slice(first, first + BLOCK)
        values[rows] = np.vecdot(wide, as_float64(keys[chosen[rows]]))
    positions, best = best_of(chosen[None], values[None], k)
    return positions[0], best[0]


def longest_of(keys: np.ndarray) -> float:
    """The largest norm of a vector; ValueError if a number is not finite."""
    longest = 0.0
    for first in range(0, len(keys), BLOCK):
        norms = norms_of(keys[first : first + BLOCK])
        check_finite("keys", norms, first)
        longest = max(longest, float(norms.max()))
    return longest


def error_bound(x: Norms, y: Norms, width: int) -> np.ndarray | np.floating:
    """Bound on the error of the screen's product of two rounded vectors.

    x·y − x̂·ŷ = (x − x̂)·y + x̂·(y − ŷ), at most |x − x̂| |y| + |x̂| |y − ŷ|
    by Cauchy-Schwarz, with the measured norms. Adding up e terms in float32 errs by
    e · 2^-24 |x̂| |ŷ|; four times that, as accelerators truncate.
    """
    # The norms are float32 sums too, and the squares of values below 2^-63 are zero.
    (x, dx), (y, dy) = (
        [1.001 * np.asarray(norm, np.float64) + width**0.5 * 2.0**-62 for norm in side]
        for side in (x, y)
    )
    return dx * y + (x + dx) * dy + width * 2.0**-22 * (x + dx) * (y + dy)


def best_of(
    positions: Int[np.ndarray, "q c"], values: Float[np.ndarray, "q c"], k: int
) -> tuple[np.ndarray, np.ndarray]:
    """The k largest values of each row, `[q k]`, and their positions; of equals the lower first."""
    order = np.lexsort((positions, -values))[:, :k]
    return np.take_along_axis(positions, order, 1), np.take_along_axis(values, order, 1)


def as_float64(x: np.ndarray) -> np.ndarray:
    return np.asarray(x, np.float32).astype(np.float64)


def norms_of(x: np.ndarray) -> np.ndarray:
    """The norm of each row, float32 `[n]`."""
    x = np.asarray(x, np.float32)
    return np.sqrt(np.einsum("ne,ne->n", x, x))


def check_finite(name: str, norms: np.ndarray, first: int = 0) -> None:
    """Raises ValueError if a norm of the vectors `name` is not finite."""
    if (bad := np.flatnonzero(~np.isfinite(norms))).size:
        raise ValueError(
            f"{name}[{first + bad[0]}] holds a number that is not finite, "
            "or too large to be squared in float32"
        )
