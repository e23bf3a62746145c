"""Personalised PageRank for many seed sets at once (eq. 1 and 2).

For a walk P, a teleport probability a and a seed set s, the ranks solve x = a s + (1 - a) P x. A
node without outgoing edges returns its rank to the seeds. This only scales x, so it is left out
until the end.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jax.sharding import PartitionSpec as P
from jax.typing import ArrayLike
from jaxtyping import Bool, Float, Int

from ark_jax import layout
from ark_jax.graph.store import KnowledgeGraph
from ark_jax.graph.walk import STATISTICS, Edges, Walk
from ark_jax.runtime.accelerator import device_in_use

COLUMNS = 64  # seed sets that a device solves at once; more do not fit into the cache
PROBE_STEP = 5  # the step after which the mixing speed is estimated
JUDGE_EVERY = (
    4  # steps between residuals; on a small graph a residual costs nearly as much as a step
)
RESOLUTION = 2e-6  # relative error of a float32 sum over the edges of a hub
CORRECTIONS = 8  # largest number of corrections in float64


def personalized_pagerank(
    graph: KnowledgeGraph | Walk | scipy.sparse.sparray,
    seeds: Sequence[Sequence[int]],
    *,
    teleport: float,
    tolerance: float,
    max_iterations: int = 1000,
    dtype: str = "float32",
) -> Float[np.ndarray, "c n"]:
    """Computes PageRank vectors, one for each seed set; each sums to 1.

    The iteration starts from the seeds. A vector is complete when its residual, max |a s + (1 - a)
    P x - x|, is below `tolerance`; it does not depend on the other seed sets. If the edges have
    equal weights in both directions and the graph mixes slowly, Chebyshev steps are used, about the
    square root of the number of plain steps.

    Args:
        graph: a KnowledgeGraph, a square scipy matrix of weights from row to column, or a `Walk`,
            which is such a graph laid out for many calls.
        seeds: node indices of each set. A set is uniform over its distinct nodes.
        teleport: probability of a jump back to the seeds, in (0, 1]. networkx's alpha is 1 -
            teleport.
        tolerance: bound on the L∞ norm of the residual, as in Algorithm 1.
        max_iterations: largest number of steps.
        dtype: "float32" or "float64". In float32 the residual of an entry may exceed the bound by
            2e-6 of the entry. In float64 corrections are computed in float32, and judged and summed
            in float64, for TPUs on the host.

    Returns:
        `[c n]` in `dtype`.

    Raises:
        ValueError: a seed set is empty or names a missing node, an argument is out of range, the
            iteration does not converge, or the weights are too far apart for float32.
    """
    if not 0 < teleport <= 1:
        raise ValueError(f"teleport={teleport}: must be in (0, 1]")
    if not tolerance > 0:
        raise ValueError(f"tolerance={tolerance}: must be above 0")
    if dtype not in ("float32", "float64"):
        raise ValueError(f"dtype={dtype!r}: must be float32 or float64")
    walk = graph if isinstance(graph, Walk) else Walk(graph)
    sets = _distinct_nodes(seeds, walk.size)
    ranks = np.empty((len(sets), walk.size), dtype)
    step = block_size(walk)
    for start in range(0, len(sets), step):
        block = ranks[start : start + step]
        with np.errstate(over="ignore"):  # refused below
            solution = _solve(
                walk, sets[start : start + step], teleport, tolerance, max_iterations, dtype=dtype
            )[: len(block)]
        totals = solution.sum(axis=1, keepdims=True, dtype=np.float64)
        if not np.all(np.isfinite(totals)):
            raise ValueError(
                "ranks are NaN or infinite: the weights of the graph are too far apart; none may "
                "be 1e30 times another"
            )
        np.divide(solution, totals.astype(dtype), out=block)
    return ranks


def block_size(walk: Walk) -> int:
    """How many seed sets `personalized_pagerank` solves at once."""
    return COLUMNS * (walk.devices if walk.shard == "seeds" else 1)


def _distinct_nodes(seeds: Sequence[Sequence[int]], n: int) -> list[np.ndarray]:
    """The nodes of each seed set, each once and ascending; ValueError if a set is invalid."""
    sets = [np.unique(np.asarray(nodes, np.int64)) for nodes in seeds]
    for i, nodes in enumerate(sets):
        if not len(nodes):
            raise ValueError(f"seeds[{i}] is empty: give at least one node")
        if nodes[0] < 0 or nodes[-1] >= n:
            outside = nodes[0] if nodes[0] < 0 else nodes[-1]
            raise ValueError(f"seeds[{i}]: node {outside} is outside 0..{n - 1}")
    return sets


def _solve(
    walk: Walk, sets: list[np.ndarray], teleport: float, tolerance: float, limit: int, *, dtype: str
) -> np.ndarray:
    """Unscaled ranks of a block of seed sets, `[c n]`; rows of padding may follow."""
    spread, damping = walk.shard == "nodes", 1 - teleport
    source, mass = _sources(walk, sets, teleport, dtype)
    bound = tolerance * mass

    def iterate(source, gain: float, bound: np.ndarray):
        """Calls `_iterate` with this walk, and arrays that are sharded over its devices."""
        source = _placed(walk, source, _spec(spread, 2))
        bound = _placed(walk, bound.astype(np.float32), _spec(spread, 1))
        return _iterate(
            walk.edges("float32"),
            source,
            gain,
            bound,
            damping,
            limit,
            spread=spread,
            reversible=walk.reversible,
        )

    v, unsettled = iterate(source.astype(np.float32, copy=False), 1 / teleport, bound)
    unsettled = layout.fetch(unsettled)
    if dtype == "float64":
        v, unsettled = _refine(walk, iterate, source, v, damping, bound)
    if unsettled.any():
        raise ValueError(
            f"no convergence in {limit} iterations: raise max_iterations or tolerance={tolerance}"
        )
    if isinstance(v, np.ndarray) or v.size < 1 << 20:  # the host is faster for a small block
        strength = walk.strength.astype(v.dtype)[:, None]
        on_host = v if isinstance(v, np.ndarray) else layout.fetch(v)
        return (on_host * strength)[walk.node_rows].T
    with jax.enable_x64(dtype == "float64"):
        return np.asarray(_in_node_order(v, walk.edges(v.dtype.name).strength, walk.node_rows))


def _sources(
    walk: Walk, sets: list[np.ndarray], teleport: float, dtype: str
) -> tuple[np.ndarray, np.ndarray]:
    """Teleport vectors `[rows columns]`, and a lower bound on the sum of each column's ranks.

    Each seed set has a column; the columns after these are zeros. The vectors are divided by the
    strength of each node, as the ranks are during the iteration. The sum is below 1 because nodes
    without outgoing edges return nothing during the iteration.
    """
    shares = 1 if walk.shard == "nodes" else walk.devices
    columns = -(-len(sets) // shares)
    # XLA:CPU vectorises loops over 8 or a multiple of 32 columns well, over 16 columns badly.
    if columns > 1:
        columns = 8 if columns <= 8 else -(-columns // 32) * 32
    source = np.zeros((len(walk.strength), columns * shares), dtype)
    size = np.array([len(nodes) for nodes in sets], np.int64)
    column = np.repeat(np.arange(len(sets)), size)
    rows = walk.node_rows[np.concatenate(sets)]
    source[rows, column] = teleport / size[column] / walk.strength[rows]
    if walk.reversible:  # a walk that starts at a dangling node stays there; no other reaches it
        lost = np.bincount(column, walk.dangling[rows], len(sets)) / size
    else:
        lost = walk.dangling.any()
    mass = np.ones(source.shape[1])
    mass[: len(sets)] = np.minimum(1, 1 - (1 - teleport) * lost)
    return source, mass


def _placed(walk: Walk, x: np.ndarray | jax.Array, spec: P) -> np.ndarray | jax.Array:
    """Shards a host array if there are several devices; one device takes it faster as it is."""
    return layout.put(x, spec) if walk.devices > 1 and isinstance(x, np.ndarray) else x


def emulates_float64() -> bool:
    """Whether the devices have no float64 of their own."""
    return device_in_use().platform == "tpu"


def _refine(
    walk: Walk, iterate: Callable, source: np.ndarray, v, damping: float, bound: np.ndarray
):
    """Improves `v` to float64, and says which columns are still above the bound.

    Residuals are in float64, corrections in float32; each adds about five digits. Where devices
    have no float64, all but the corrections is computed on the host.
    """
    spread, reversible = walk.shard == "nodes", walk.reversible
    if emulates_float64():
        residual_of = lambda v: _host_residual(walk, source, v, damping)
        return _correct(residual_of, iterate, layout.fetch, layout.fetch(v), bound)
    with jax.enable_x64(True):
        edges, placed = walk.edges("float64"), layout.put(source, _spec(spread, 2))

        def residual_of(v):
            options = {"spread": spread, "reversible": reversible}
            residual, norm = _residual(edges, placed, v, damping, **options)
            return residual, layout.fetch(norm)

        return _correct(residual_of, iterate, lambda x: x, v, bound)


def _correct(
    residual_of: Callable, iterate: Callable, place: Callable, v, bound: np.ndarray
) -> tuple:
    """Corrects `v`; `place` puts a correction where the residuals are computed."""
    v = v.astype("float64")
    for _ in range(CORRECTIONS):
        residual, norm = residual_of(v)
        if np.all(norm < bound):
            break
        scale = np.maximum(norm, np.finfo(np.float64).tiny)
        relative_bound = np.clip(bound / scale / 2, 1e-5, 1.0)
        correction, _ = iterate((residual / scale).astype("float32"), 1.0, relative_bound)
        # A settled column stays as it is, so that no column depends on its block.
        v = v + place(correction).astype("float64") * np.where(norm < bound, 0, scale)
    return v, ~(norm < bound)  # also if the norm is NaN


def _host_residual(
    walk: Walk, source: np.ndarray, v: np.ndarray, damping: float
) -> tuple[np.ndarray, np.ndarray]:
    """As `_residual`."""
    strength, incoming = walk.strength[:, None], np.zeros_like(v)
    incoming[walk.node_rows] = walk.incoming @ v[walk.node_rows]
    residual = source + damping / strength * incoming - v
    norm, total = np.abs(residual * strength).max(0), (residual * strength).sum(0)
    return residual, norm if walk.reversible else norm + np.abs(total)


@jax.jit
def _in_node_order(
    v: Float[jax.Array, "rows c"],
    strength: Float[jax.Array, " rows"],
    node_rows: Int[ArrayLike, " n"],
) -> Float[jax.Array, "c n"]:
    """Ranks in the order of the graph's nodes, on every device."""
    ranks = jax.reshard(v, P()) * jax.reshard(strength, P())[:, None]
    return jax.reshard(ranks.at[node_rows].get(out_sharding=P()).T, P())


def _spec(spread: bool, axes: int) -> P:
    """Spec of `[rows columns]` (2 axes) or `[columns]`: by rows if `spread`, else by columns."""
    if spread:
        return P(layout.AXES) if axes == 2 else P()
    return P(None, layout.AXES) if axes == 2 else P(layout.AXES)


@functools.partial(jax.jit, static_argnames=("spread", "reversible"))
def _iterate(
    edges: Edges,
    source: Float[jax.Array, "rows c"],
    gain: ArrayLike,
    bound: Float[jax.Array, " c"],
    damping: ArrayLike,
    limit: ArrayLike,
    *,
    spread: bool,
    reversible: bool,
) -> tuple[Float[jax.Array, "rows c"], Bool[jax.Array, " c"]]:
    """Solves v = source + (1 - a) P v for every column, starting from `gain` · source.

    The ranks are v times the strengths of the nodes. In this scale a step of the walk is a plain
    sum if all weights are 1. A device holds all rows of its columns, or its rows of all columns
    (`spread`).
    """
    block, columns = _spec(spread, 2), _spec(spread, 1)

    def iterate_shard(
        edges: Edges,
        source: Float[jax.Array, "n c"],
        gain: ArrayLike,
        bound: Float[jax.Array, " c"],
        damping: ArrayLike,
        limit: ArrayLike,
    ):
        return _Iteration(edges, source, bound, damping, spread, reversible).run(gain, limit)

    return jax.shard_map(
        iterate_shard,
        in_specs=(P(layout.AXES) if spread else P(), block, P(), columns, P(), P()),
        out_specs=(block, columns),
        check_vma=False,
    )(edges, jax.reshard(source, block), gain, jax.reshard(bound, columns), damping, limit)


class _State(NamedTuple):
    """What a step of `_Iteration` passes to the next."""

    v: jax.Array  # [n c]
    previous: jax.Array  # the iterate before v
    settled: jax.Array  # the judged iterates of settled columns
    statistics: jax.Array  # [2 c] of the step that led to v, see `_Iteration.judge`
    energy: jax.Array  # [c], squared norm of an earlier change, for the mixing speed
    radius: jax.Array  # [c], Chebyshev's bound on the other eigenvalues; 0 gives plain steps
    omega: jax.Array  # [c], Chebyshev's weight
    active: jax.Array  # [c], whether the column has not settled
    count: jax.Array  # number of steps


@dataclasses.dataclass(frozen=True)
class _Iteration:
    """The iteration on one device."""

    edges: Edges
    source: jax.Array  # [n c]
    bound: jax.Array  # [c]
    damping: jax.Array
    spread: bool
    reversible: bool

    def run(self, gain, limit):
        """As `_iterate`, for the columns and rows of this device."""

        def unfinished(state: _State):
            unsettled = state.active
            if not self.spread:
                unsettled &= ~(self.residual(state.statistics) < self.bound)
            return jnp.any(unsettled) & (state.count < limit)

        end = jax.lax.while_loop(unfinished, self.step, self.start(gain))
        ranks, active = end.settled, end.active
        if not self.spread:  # no further step has judged the last one
            settled = active & (self.residual(end.statistics) < self.bound)
            ranks, active = _select(settled, end.previous, ranks), active & ~settled
        return ranks, active

    def start(self, gain) -> _State:
        """The state before the first step, whose v is `gain` · source."""
        v, zero = gain * self.source, jnp.zeros_like(self.source[0])
        return _State(
            v=v,
            previous=v,
            settled=v,
            statistics=jnp.stack([zero + jnp.inf, zero + jnp.inf]),
            energy=zero,
            radius=zero,
            omega=zero + 1,
            active=zero == 0,
            count=0,
        )

    def step(self, state: _State) -> _State:
        """Judges the iterate before v, and makes the one after v."""
        v, previous, count = state.v, state.previous, state.count
        rows, statistics = self.gather(v, state.statistics)
        energy = statistics[1]
        judged = _is_judged(count - 1)
        settled = state.active & (self.residual(statistics) < self.bound) & judged
        probing, radius = count == PROBE_STEP, state.radius
        if self.reversible:
            # Chebyshev's steps converge for any radius < 1, and best if the walk's other
            # eigenvalues lie within ±radius. Fast mixing shows in the first steps; slow mixing
            # only gets slower.
            seen = jnp.sqrt(energy / jnp.maximum(state.energy, jnp.finfo(v.dtype).tiny))
            estimate = jnp.where(seen > 0.6 * self.damping, self.damping, 1.1 * seen)
            radius = jnp.where(probing, estimate, radius)
        omega = 1 / (1 - radius**2 * state.omega / 4)
        incoming = self.edges.incoming_sums(rows)
        plain = self.source + self.damping / self.edges.strength[:, None] * incoming
        return _State(
            v=previous + jnp.where(probing, 1, omega) * (plain - previous),
            previous=v,
            settled=_select(settled, previous, state.settled),
            statistics=jax.lax.cond(
                _is_judged(count), self.judge, lambda *_: state.statistics, plain, v
            ),
            energy=energy,
            radius=radius,
            omega=jnp.where(probing, 2, omega),
            active=state.active & ~settled,
            count=count + 1,
        )

    def gather(self, v, statistics):
        """Rows that the sources index, and statistics over all devices: at most one collective."""
        if not self.spread:
            return v, statistics
        rows = _gathered(v, statistics)
        parts = rows.reshape(-1, len(v) + STATISTICS, rows.shape[1])[:, len(v) :]
        return rows, jnp.stack([parts[:, 0].max(0), parts[:, 1].sum(0)])

    def judge(self, plain, v):
        """Statistics of a step from `v` to `plain`."""
        strength = self.edges.strength[:, None]
        change = (plain - v) * strength
        unresolved = RESOLUTION * strength * jnp.abs(plain)
        total = change**2 / strength if self.reversible else change
        return jnp.stack([(jnp.abs(change) - unresolved).max(0), total.sum(0)])

    def residual(self, statistics):
        """Largest residual of the scaled ranks, less what float32 cannot resolve.

        If rank is lost at nodes without outgoing edges, scaling returns the sum of the residual to
        the seeds, so it is added. In a reversible walk no rank is lost, and the sum is zero.
        """
        if self.reversible:
            return statistics[0]
        return statistics[0] + jnp.maximum(jnp.abs(statistics[1]) - RESOLUTION, 0)


def _is_judged(count):
    """Whether the step after `count` steps computes a residual."""
    regular = count % JUDGE_EVERY == JUDGE_EVERY - 1
    return regular | (count == PROBE_STEP - 1) | (count == PROBE_STEP - 2)


def _select(
    columns: Bool[jax.Array, " c"], new: Float[jax.Array, "rows c"], old: Float[jax.Array, "rows c"]
) -> Float[jax.Array, "rows c"]:
    """Replaces columns of `old` by those of `new`."""
    return jax.lax.cond(jnp.any(columns), lambda: jnp.where(columns, new, old), lambda: old)


def _gathered(v, statistics):
    """Rows and statistics of all shards, one after another, as `Walk` numbers the sources."""
    return jax.lax.all_gather(jnp.concatenate([v, statistics]), layout.AXES, axis=0, tiled=True)


@functools.partial(jax.jit, static_argnames=("spread", "reversible"))
def _residual(
    edges: Edges,
    source: Float[jax.Array, "rows c"],
    v: Float[jax.Array, "rows c"],
    damping: ArrayLike,
    *,
    spread: bool,
    reversible: bool,
) -> tuple[Float[jax.Array, "rows c"], Float[jax.Array, " c"]]:
    """source + (1 - a) P v - v, and the largest entry of each column in terms of ranks."""

    def shard_residual(edges: Edges, source: jax.Array, v: jax.Array, damping: ArrayLike):
        rows = _gathered(v, jnp.zeros((STATISTICS, v.shape[1]), v.dtype)) if spread else v
        strength = edges.strength[:, None]
        residual = source + damping / strength * edges.incoming_sums(rows) - v
        norm, total = jnp.abs(residual * strength).max(0), (residual * strength).sum(0)
        if spread:
            norm, total = jax.lax.pmax(norm, layout.AXES), jax.lax.psum(total, layout.AXES)
        return residual, norm if reversible else norm + jnp.abs(total)

    block, columns = _spec(spread, 2), _spec(spread, 1)
    return jax.shard_map(
        shard_residual,
        in_specs=(P(layout.AXES) if spread else P(), block, block, P()),
        out_specs=(block, columns),
        check_vma=False,
    )(edges, source, v, damping)
