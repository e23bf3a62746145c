"""Whether two systems differ by more than chance: a paired randomisation test, and Holm's correction for several tests."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

BLOCK = 1 << 22  # signs drawn at once


def sign_flip(differences: Float[np.ndarray, "q m"], *, draws: int, seed: int) -> Float[np.ndarray, "m"]:
    """Two-sided p-values of a paired randomisation (Fisher-Pitman) test, one a column.

    A row holds one question's differences between two systems, a column one metric. If the systems were alike, a difference
    would have its sign by chance: p is the share of ways to choose the signs whose mean is as far from zero as the one seen. All
    ways are gone through where questions that differ at all have at most `draws`; otherwise so many are drawn, the same for all
    columns, and p is (k + 1) / (draws + 1).

    Raises:
        ValueError: a difference that is not finite, or no draws.
    """
    differences = np.asarray(differences, np.float64)
    if not np.isfinite(differences).all() or draws < 1:
        raise ValueError(f"{differences.shape} differences and {draws} draws: differences must be finite, draws at least 1")
    seen = np.abs(differences.sum(0))
    # Sums that are equal but for the order of their terms are equal.
    seen -= 1e-12 * np.abs(differences).sum(0)
    out, drawn = np.ones(differences.shape[1]), []
    for j, column in enumerate(differences.T):
        moved = column[column != 0]
        if len(moved) <= np.log2(draws):
            sums = np.zeros(1)
            for value in moved:
                sums = np.concatenate([sums + value, sums - value])
            out[j] = (np.abs(sums) >= seen[j]).mean()
        else:
            drawn.append(j)
    if drawn:
        rng, some, far = np.random.default_rng(seed), differences[:, drawn], 0
        step = max(1, BLOCK // len(some))
        for at in range(0, draws, step):
            signs = 2.0 * rng.integers(0, 2, (min(step, draws - at), len(some)), np.int8) - 1
            far += (np.abs(signs @ some) >= seen[drawn]).sum(0)
        out[drawn] = (far + 1) / (draws + 1)
    return out


def holm(p: Sequence[float]) -> np.ndarray:
    """p-values that stay comparable to one level however many tests were made (Holm 1979), in the order given."""
    p = np.asarray(p, np.float64)
    order = np.argsort(p, kind="stable")
    out = np.empty_like(p)
    out[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)), 1.0)
    return out
