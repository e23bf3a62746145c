"""Personalised PageRank for many seed sets at once (eq. 1 and 2)."""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ark_jax.graph.store import KnowledgeGraph


def personalized_pagerank(
    graph: KnowledgeGraph,
    seeds: Sequence[Sequence[int]],
    *,
    teleport: float,
    tolerance: float,
    max_iterations: int = 1000,
    weight: np.ndarray | None = None,
) -> Float[np.ndarray, "c n"]:
    """Rank vectors, one row a seed set; each sums to 1.

    Power iteration from the seeds themselves; row c stops when no entry of it moves by `tolerance` or more.
    A node without neighbours gives its rank back to the seeds.

    Args:
        seeds: node indices of each set; the set is uniform over its distinct nodes.
        teleport: probability of jumping back to the seeds, in (0, 1]. (networkx's alpha is 1 - teleport.)
        tolerance: bound on the L∞ distance of successive iterates, as in Algorithm 1.
        weight: one non-negative number per edge of `graph.neighbours()`; None counts edges alike.

    Raises:
        ValueError: an empty seed set, a seed that is no node, a bad weight or teleport, or no convergence.
    """
    n = len(graph)
    source, target = graph.neighbours()
    if not 0 < teleport <= 1:
        raise ValueError(f"teleport={teleport}: must be in (0, 1]")
    if weight is None:
        weight = np.ones(len(source), np.float32)
    if len(weight) != len(source) or not np.all(np.isfinite(weight)) or np.any(weight < 0):
        raise ValueError(f"weight: needs {len(source)} finite non-negative numbers, one per edge of neighbours()")
    start = np.zeros((len(seeds), n), np.float32)
    for row, some in enumerate(seeds):
        some = np.unique(np.asarray(some, np.int64))
        if not len(some):
            raise ValueError(f"seeds[{row}] is empty: give at least one node")
        if some[0] < 0 or some[-1] >= n:
            raise ValueError(f"seeds[{row}]: node {some[0] if some[0] < 0 else some[-1]} is outside 0..{n - 1}")
        start[row, some] = 1 / len(some)
    degree = np.bincount(source, weight, n)
    share = (weight / np.maximum(degree[source], 1e-30)).astype(np.float32)
    ranks, moved = _power(start.T, source, target, share, degree == 0, teleport, tolerance, max_iterations)
    if len(seeds) and np.max(moved) >= tolerance:
        raise ValueError(f"no convergence in {max_iterations} iterations: raise max_iterations or tolerance={tolerance}")
    return np.asarray(ranks).T


@functools.partial(jax.jit, static_argnums=7)
def _power(start, source, target, share, dangling, teleport, tolerance, max_iterations):
    """Columns are seed sets. One that has converged keeps its value, so no column depends on its batch."""
    n = start.shape[0]

    def step(state):
        x, before, i = state
        flow = jax.ops.segment_sum(x[source] * share[:, None], target, n, indices_are_sorted=True)
        lost = jnp.sum(jnp.where(dangling[:, None], x, 0), axis=0)
        y = teleport * start + (1 - teleport) * (flow + lost * start)
        active = before >= tolerance
        y = jnp.where(active, y, x)
        return y, jnp.where(active, jnp.max(jnp.abs(y - x), axis=0), before), i + 1

    def unsettled(state):
        return jnp.any(state[1] >= tolerance) & (state[2] < max_iterations)

    first = (start, jnp.full(start.shape[1], jnp.inf), 0)
    x, moved, _ = jax.lax.while_loop(unsettled, step, first)
    return x / x.sum(axis=0), moved
