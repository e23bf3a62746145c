"""Personalised PageRank for many seed sets at once (eq. 1 and 2).

With the walk P, the teleport probability a and a seed set s, the ranks are what solves x = a s + (1 - a) P x, where
a node that leads nowhere gives its rank back to the seeds. That only scales x, so it is left out until the end.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from jaxtyping import Float

from ark_jax import layout
from ark_jax.graph.store import KnowledgeGraph
from ark_jax.graph.walk import STATISTICS, Edges, Walk

COLUMNS = 64  # solved at once on a device: more leave the cache
PROBE = 5  # plain steps after which a column shows how fast the graph mixes
JUDGED = 4  # every so manieth step a residual is taken, which costs nearly as much as a step of a small graph
RESOLVED = 2e-6  # of an entry: what sums of float32 can tell, with hubs' long ones


def personalized_pagerank(
    graph: KnowledgeGraph | Walk,
    seeds: Sequence[Sequence[int]],
    *,
    teleport: float,
    tolerance: float,
    max_iterations: int = 1000,
    weight: np.ndarray | None = None,
    dtype: str = "float32",
    backend: str = "jax",
) -> Float[np.ndarray, "c n"]:
    """Rank vectors, one row a seed set; each sums to 1.

    Starts from the seeds. A row is done when its residual, max |a s + (1 - a) P x - x|, is below `tolerance`, whatever
    stands beside it. On a graph that mixes slowly, and whose edges count alike in both directions, steps are
    Chebyshev's, which get there in some sqrt of the steps; else they are plain.

    Args:
        graph: a KnowledgeGraph, a square scipy matrix of weights from row to column, several of either side by side,
            or the `Walk` of one, which spares laying it out again.
        seeds: node indices of each set; the set is uniform over its distinct nodes. Of several graphs: a list for each.
        teleport: probability of jumping back to the seeds, in (0, 1]. (networkx's alpha is 1 - teleport.)
        tolerance: bound on the L∞ norm of the residual, as in Algorithm 1.
        weight: one non-negative number per edge of `graph.neighbours()`; None counts edges alike.
        dtype: "float32", where an entry's residual may be up to 2e-6 of the entry above the bound, for finer ones are not
            resolved; or "float64", where corrections are still found in float32 and only judged and summed in float64.
        backend: "jax", or "networkx" for its `pagerank`, one set after the other: a reference, slow.

    Returns:
        `[c n]` in `dtype`; of several graphs a list of such arrays.

    Raises:
        ValueError: an empty seed set, a seed that is no node, a bad weight or teleport, or no convergence.
    """
    if not 0 < teleport <= 1:
        raise ValueError(f"teleport={teleport}: must be in (0, 1]")
    if not tolerance > 0:
        raise ValueError(f"tolerance={tolerance}: must be above 0")
    if dtype not in ("float32", "float64"):
        raise ValueError(f"dtype={dtype!r}: must be float32 or float64")
    if backend not in ("jax", "networkx"):
        raise ValueError(f"backend={backend!r}: must be jax or networkx")
    if weight is not None and isinstance(graph, Walk):
        raise ValueError("weight: give it to the Walk")
    walk = graph if isinstance(graph, Walk) else Walk(graph, weight=weight)
    if len(seeds) != len(walk.sizes) and walk.several:
        raise ValueError(f"seeds: {len(seeds)} lists for {len(walk.sizes)} graphs: give one list of sets for each graph")
    sets = [_distinct(some, size, f"seeds[{g}]" if walk.several else "seeds")
            for g, (some, size) in enumerate(zip(seeds if walk.several else [seeds], walk.sizes, strict=True))]
    ranks = [np.empty((len(some), size), dtype) for some, size in zip(sets, walk.sizes, strict=True)]
    solve = functools.partial(_solve, double=dtype == "float64") if backend == "jax" else _networkx
    step = COLUMNS * (walk.devices if walk.shard == "seeds" else 1)
    for at in range(0, max(map(len, sets), default=0), step):
        solved = solve(walk, [some[at : at + step] for some in sets], teleport, tolerance, max_iterations)
        for out, first, size in zip(ranks, walk.first, walk.sizes, strict=True):
            part = solved[: len(out[at : at + step]), first : first + size]
            whole = part.sum(axis=1, keepdims=True, dtype=np.float64).astype(part.dtype)
            np.divide(part, whole, out=out[at : at + step])
    return ranks if walk.several else ranks[0]


def _distinct(seeds: Sequence[Sequence[int]], n: int, name: str) -> list[np.ndarray]:
    out = [np.unique(np.asarray(some, np.int64)) for some in seeds]
    for row, some in enumerate(out):
        if not len(some):
            raise ValueError(f"{name}[{row}] is empty: give at least one node")
        if some[0] < 0 or some[-1] >= n:
            raise ValueError(f"{name}[{row}]: node {some[0] if some[0] < 0 else some[-1]} is outside 0..{n - 1}")
    return out


def _solve(walk: Walk, sets: list[list[np.ndarray]], teleport: float, tolerance: float, limit: int, *,
           double: bool) -> np.ndarray:
    """Unscaled ranks `[c n]` of a block of sets; row j holds the j-th set of every graph."""
    spread, kept = walk.shard == "nodes", 1 - teleport
    shares = 1 if spread else walk.devices
    each = -(-max(map(len, sets)) // shares)
    # XLA:CPU vectorises its loops over rows of 8 or of whole 32s well, over 16 it does not.
    each = each if each <= 1 else 8 if each <= 8 else -(-each // 32) * 32
    source = np.zeros((len(walk.strength), each * shares), np.float64 if double else np.float32)
    mass = np.ones(source.shape[1])  # of a column at least, when nodes that lead nowhere give nothing back
    for first, some in zip(walk.first, sets, strict=True):
        size = np.array([len(nodes) for nodes in some], np.int64)
        column = np.repeat(np.arange(len(some)), size)
        at = walk.place[first + np.concatenate([np.zeros(0, np.int64), *some])]
        source[at, column] = teleport / size[column] / walk.strength[at]
        lost = np.bincount(column, walk.dangling[at], len(some)) / size if walk.reversible else walk.dangling.any()
        mass[: len(some)] = np.minimum(mass[: len(some)], 1 - kept * lost)
    # Between several devices an array is cut on its way; to one it goes along with the call, which takes half the time.
    put = lambda x, spec: layout.put(x, spec) if walk.devices > 1 and isinstance(x, np.ndarray) else x
    iterate = lambda source, gain, bound: _iterate(
        walk.edges("float32"), put(source, _spec(spread, 2)), gain, put(bound.astype(np.float32), _spec(spread, 1)), kept,
        limit, spread=spread, reversible=walk.reversible)
    v, unsettled = iterate(source.astype(np.float32, copy=False), 1 / teleport, tolerance * mass)
    unsettled = layout.fetch(unsettled)
    if double:
        v, unsettled = _refine(walk, iterate, source, v, kept, tolerance * mass)
    if unsettled.any():
        raise _too_few(limit, tolerance)
    if v.size < 1 << 20:  # sooner done than asked for
        return (layout.fetch(v) * walk.strength.astype(v.dtype)[:, None])[walk.place].T
    with jax.enable_x64(double):
        return np.asarray(_in_order(v, walk.edges(v.dtype.name).strength, walk.place))


def _too_few(limit: int, tolerance: float) -> ValueError:
    return ValueError(f"no convergence in {limit} iterations: raise max_iterations or tolerance={tolerance}")


def _networkx(walk: Walk, sets: list[list[np.ndarray]], teleport: float, tolerance: float, limit: int) -> np.ndarray:
    """As `_solve`. networkx bounds the mean change of an entry, so its tolerance is divided by their number."""
    import networkx as nx

    whole = nx.from_scipy_sparse_array(walk.into.T, create_using=nx.DiGraph)
    out = np.zeros((max(map(len, sets)), len(walk.place)))
    for first, size, some in zip(walk.first, walk.sizes, sets, strict=True):
        graph = whole.subgraph(range(first, first + size))
        for column, nodes in enumerate(some):
            try:
                ranks = nx.pagerank(graph, alpha=1 - teleport, personalization=dict.fromkeys(first + nodes, 1),
                                    max_iter=limit, tol=tolerance / size)
            except nx.PowerIterationFailedConvergence:
                raise _too_few(limit, tolerance) from None
            out[column, list(ranks)] = list(ranks.values())
    return out


def _refine(walk: Walk, iterate, source: np.ndarray, v: jax.Array, kept: float, bound: np.ndarray):
    """Takes residuals in float64 and corrects by solutions in float32, each of which brings some five digits."""
    with jax.enable_x64(True):
        spread = walk.shard == "nodes"
        edges, source, v = walk.edges("float64"), layout.put(source, _spec(spread, 2)), v.astype("float64")
        for _ in range(8):
            residual, norm = _residual(edges, source, v, kept, spread=spread, reversible=walk.reversible)
            norm = layout.fetch(norm)
            if np.all(norm < bound):
                break
            scale = np.maximum(norm, np.finfo(np.float64).tiny)
            wanted = np.clip(bound / scale / 2, 1e-5, 1.0)
            more, _ = iterate((residual / scale).astype("float32"), 1.0, wanted)
            v = v + more.astype("float64") * scale
        return v, norm >= bound


@jax.jit
def _in_order(v, strength, place):
    """Ranks of all nodes as the graph counts them, `[c n]`, on every device."""
    return jax.reshard((jax.reshard(v, P()) * jax.reshard(strength, P())[:, None]).at[place].get(out_sharding=P()).T, P())


def _spec(spread: bool, axes: int) -> P:
    """Rows are cut over all devices, or columns; `[c]` alone as the columns are."""
    if spread:
        return P(layout.AXES) if axes == 2 else P()
    return P(None, layout.AXES) if axes == 2 else P(layout.AXES)


@functools.partial(jax.jit, static_argnames=("spread", "reversible"))
def _iterate(edges: Edges, source, gain, bound, kept, limit, *, spread: bool, reversible: bool):
    block, columns = _spec(spread, 2), _spec(spread, 1)
    local = functools.partial(_local, spread=spread, reversible=reversible)
    return jax.shard_map(
        local, in_specs=(P(layout.AXES) if spread else P(), block, P(), columns, P(), P()), out_specs=(block, columns),
        check_vma=False)(edges, jax.reshard(source, block), gain, jax.reshard(bound, columns), kept, limit)


def _gathered(v, statistics):
    """Every shard's rows, each followed by its statistics: as `Walk` numbers the sources."""
    return jax.lax.all_gather(jnp.concatenate([v, statistics]), layout.AXES, axis=0, tiled=True)


def _local(edges: Edges, source, gain, bound, kept, limit, *, spread: bool, reversible: bool):
    """Solves v = source + (1 - a) P v for every column, ranks being v times the nodes' strengths: so scaled, a step of
    the walk is a plain sum where edges count alike. A device holds all rows of its columns, or its rows of all columns.

    Starts at `gain` · source. Returns v and which columns have not settled. Of one that has it is the iterate that was
    judged, whatever the steps that the others still take, so no column depends on its block.
    """
    strength = edges.strength[:, None]

    def known(v, statistics):
        """What the sources index, and what all devices know of the iterate before: one collective, or none."""
        if not spread:
            return v, statistics
        every = _gathered(v, statistics)
        told = every.reshape(-1, len(v) + STATISTICS, every.shape[1])[:, len(v) :]
        return every, jnp.stack([told[:, 0].max(0), told[:, 1].sum(0)])

    def worst(statistics):
        """Largest entry of the residual of the scaled ranks, less what is not resolved. Where rank is lost on the way,
        scaling gives what the entries sum to back to the seeds; where it is not, they sum to zero."""
        return statistics[0] if reversible else statistics[0] + jnp.maximum(jnp.abs(statistics[1]) - RESOLVED, 0)

    def judged(i):
        return (i % JUDGED == JUDGED - 1) | (i == PROBE - 1) | (i == PROBE - 2)

    def judge(plain, v):
        moved = (plain - v) * strength
        unresolved = RESOLVED * strength * jnp.abs(plain)
        return jnp.stack([(jnp.abs(moved) - unresolved).max(0), (moved**2 / strength if reversible else moved).sum(0)])

    def keep(settled, before, ranks):
        return jax.lax.cond(jnp.any(settled), lambda: jnp.where(settled, before, ranks), lambda: ranks)

    def step(state):
        v, before, ranks, statistics, energy_before, rho, omega, active, i = state
        every, told = known(v, statistics)
        energy, settled = told[1], active & (worst(told) < bound) & judged(i - 1)
        active &= ~settled
        probing = i == PROBE
        if reversible:
            # Chebyshev's steps converge for any rho < 1 and best where the walk's other eigenvalues lie within ±rho. A
            # graph that mixes fast shows it at once; what looks slow after so few steps grows slower still.
            seen = jnp.sqrt(energy / jnp.maximum(energy_before, jnp.finfo(v.dtype).tiny))
            rho = jnp.where(probing, jnp.where(seen > 0.6 * kept, kept, 1.1 * seen), rho)
        omega = 1 / (1 - rho**2 * omega / 4)
        plain = source + kept / strength * edges.into(every)
        new = before + jnp.where(probing, 1, omega) * (plain - before)
        statistics = jax.lax.cond(judged(i), judge, lambda *_: statistics, plain, v)
        return (new, v, keep(settled, before, ranks), statistics, energy, rho, jnp.where(probing, 2, omega), active, i + 1)

    def unsettled(state):
        statistics, active, i = state[3], state[7], state[8]
        return jnp.any(active if spread else active & ~(worst(statistics) < bound)) & (i < limit)

    start, zero = gain * source, jnp.zeros_like(source[0])
    first = (start, start, start, jnp.stack([zero + jnp.inf, zero + jnp.inf]), zero, zero, zero + 1, zero == 0, 0)
    _, before, ranks, statistics, _, _, _, active, _ = jax.lax.while_loop(unsettled, step, first)
    if not spread:  # the last step was not followed by another that would have judged it
        settled = active & (worst(statistics) < bound)
        ranks, active = keep(settled, before, ranks), active & ~settled
    return ranks, active


@functools.partial(jax.jit, static_argnames=("spread", "reversible"))
def _residual(edges: Edges, source, v, kept, *, spread: bool, reversible: bool):
    """source + (1 - a) P v - v, and of each column the largest entry in terms of ranks, as `_local` judges it."""
    def local(edges, source, v, kept):
        every = _gathered(v, jnp.zeros((STATISTICS, v.shape[1]), v.dtype)) if spread else v
        strength = edges.strength[:, None]
        residual = source + kept / strength * edges.into(every) - v
        norm, total = jnp.abs(residual * strength).max(0), (residual * strength).sum(0)
        if spread:
            norm, total = jax.lax.pmax(norm, layout.AXES), jax.lax.psum(total, layout.AXES)
        return residual, norm if reversible else norm + jnp.abs(total)

    block, columns = _spec(spread, 2), _spec(spread, 1)
    return jax.shard_map(local, in_specs=(P(layout.AXES) if spread else P(), block, block, P()),
                         out_specs=(block, columns), check_vma=False)(edges, source, v, kept)
