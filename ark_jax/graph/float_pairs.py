"""PageRank residuals in pairs of float32, for devices that emulate float64 (TPUs).

A pair is an unevaluated sum of two float32, with some 48 bits. Sums are Knuth's, products Dekker's
(1971). XLA neither reassociates additions nor drops them.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from jaxtyping import Bool, Float, Int

from ark_jax import layout
from ark_jax.graph.walk import STATISTICS, Edges, Walk

HIGH_BITS = np.int32(-(1 << 12))  # keeps 12 of the 24 bits of a float32


class Pair(NamedTuple):
    high: jax.Array | np.ndarray  # float32
    low: jax.Array | np.ndarray  # float32, at most half a unit in the last place of `high`


def split(x: np.ndarray) -> Pair:
    """float64 -> float32 pair."""
    high = x.astype(np.float32)
    return Pair(high, (x - high).astype(np.float32))


def joined(pair: Pair) -> np.ndarray:
    """float32 pair -> float64, on the host."""
    return layout.fetch(pair.high).astype(np.float64) + layout.fetch(pair.low)


def add(a: Pair, b: Pair) -> Pair:
    total, error = _exact_sum(a.high, b.high)
    low, low_error = _exact_sum(a.low, b.low)
    total, error = _renormalised(total, error + low)
    return Pair(*_renormalised(total, error + low_error))


def multiply(a: Pair, b: Pair) -> Pair:
    """The product, whose leading terms are exact products of 12-bit halves.

    Compilers may fuse a product and a sum into one operation, so that a product is rounded in one
    place and not in another. An exact product is the same in both.
    """
    a_top, b_top = _leading_bits(a.high), _leading_bits(b.high)
    a_rest, b_rest = a.high - a_top, b.high - b_top
    total, error = _exact_sum(a_top * b_top, a_top * b_rest)
    total, more = _exact_sum(total, a_rest * b_top)
    small = a_rest * b_rest + (a.high * b.low + a.low * b.high)
    return Pair(*_renormalised(total, (error + more) + small))


def _exact_sum(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The rounded sum, and its rounding error."""
    total = a + b
    b_part = total - a
    return total, (a - (total - b_part)) + (b - b_part)


def _renormalised(high: jax.Array, low: jax.Array) -> tuple[jax.Array, jax.Array]:
    """As `_exact_sum`, where `high` is at least as large as `low` in magnitude."""
    total = high + low
    return total, low - (total - high)


def _leading_bits(x: jax.Array) -> jax.Array:
    """The first 12 bits of each number: a product of two such numbers is exact."""
    bits = jax.lax.bitcast_convert_type(x, jnp.int32) & HIGH_BITS
    return jax.lax.bitcast_convert_type(bits, jnp.float32)


def incoming_sums(edges: Edges, rest: Edges, v: Pair) -> Pair:
    """`Edges.incoming_sums` of pairs `[p c]`; `rest` holds what float32 drops of the weights."""
    wide_nodes = len(edges.strength) - len(edges.narrow[0])
    sources, weights = edges.wide
    chunks = _row_sums(v, sources, weights, rest.wide[1])
    wide = _segment_sums(chunks, edges.owner, wide_nodes)
    sources, weights = edges.narrow
    narrow = _row_sums(v, sources, weights, rest.narrow[1])
    return Pair(*map(jnp.concatenate, zip(wide, narrow, strict=True)))


def _row_sums(
    v: Pair,
    sources: Int[jax.Array, "rows width"],
    weights: Float[jax.Array, "rows width"] | None,
    rest: Float[jax.Array, "rows width"] | None,
) -> Pair:
    """Sums of the rows of a table, `[rows c]`.

    A loop adds them: XLA:CPU takes minutes to compile as many sums in one expression.
    """

    def add_column(k: jax.Array, total: Pair) -> Pair:
        column = lambda x: jax.lax.dynamic_index_in_dim(x, k, axis=1, keepdims=False)
        take = lambda x: x.at[column(sources)].get(mode="promise_in_bounds")
        value = Pair(*map(take, v))
        if weights is not None and rest is not None:
            value = multiply(Pair(column(weights)[:, None], column(rest)[:, None]), value)
        return add(total, value)

    zeros = jnp.zeros((len(sources), v.high.shape[1]), jnp.float32)
    return jax.lax.fori_loop(0, sources.shape[1], add_column, Pair(zeros, zeros))


def _segment_sums(rows: Pair, owner: Int[jax.Array, " rows"], count: int) -> Pair:
    """Sums `[count c]` of the rows of each owner; `owner` ascends.

    After step d a row holds the sum of the last 2 ** (d + 1) rows of its owner up to itself.
    """
    number = jnp.arange(len(owner))

    def add_preceding(d: jax.Array, sums: Pair) -> Pair:
        back = number - (1 << d)
        source = jnp.maximum(back, 0)
        joins = ((back >= 0) & (owner[source] == owner))[:, None]
        return add(sums, Pair(*(jnp.where(joins, x[source], 0) for x in sums)))

    sums = jax.lax.fori_loop(0, max(len(owner) - 1, 0).bit_length(), add_preceding, rows)
    numbers = jnp.arange(count, dtype=owner.dtype)
    last = jnp.searchsorted(owner, numbers, side="right") - 1
    present = (owner[last] == numbers)[:, None]
    return Pair(*(jnp.where(present, x[last], 0) for x in sums))


def refine(
    walk: Walk,
    iterate: Callable,
    source: Float[np.ndarray, "rows c"],
    v: Float[jax.Array, "rows c"],
    damping: float,
    bound: Float[np.ndarray, " c"],
    *,
    block: P,
    corrections: int,
) -> tuple[Float[np.ndarray, "rows c"], Bool[np.ndarray, " c"]]:
    """`pagerank._refine` without float64 on the devices.

    Args:
        block: how the rows and columns are sharded over the mesh.
        corrections: largest number of corrections.
    """
    spread = walk.shard == "nodes"
    place = lambda x, spec: Pair(*(layout.put(part, spec) for part in split(x)))
    gain = place(damping / walk.strength, P(layout.AXES) if spread else P())
    source_pair = place(source, block)
    ranks = Pair(v, jnp.zeros_like(v))
    for _ in range(corrections):
        residual, norm = _residual(
            walk.edges("float32"),
            walk.edges("rest"),
            gain,
            source_pair,
            ranks,
            block=block,
            spread=spread,
            reversible=walk.reversible,
        )
        norm = layout.fetch(norm)
        if np.all(norm < bound):
            break
        scale = np.maximum(norm, np.finfo(np.float32).tiny)
        relative_bound = np.clip(bound / scale / 2, 1e-5, 1.0)
        correction, _ = iterate(residual / scale, 1.0, relative_bound)
        # A settled column stays as it is, so that no column depends on its block.
        change = correction * np.where(norm < bound, 0, scale).astype(np.float32)
        ranks = add(ranks, Pair(change, jnp.zeros_like(change)))
    return joined(ranks), ~(norm < bound)  # also if the norm is NaN


@functools.partial(jax.jit, static_argnames=("block", "spread", "reversible"))
def _residual(
    edges: Edges,
    rest: Edges,
    gain: Pair,
    source: Pair,
    v: Pair,
    *,
    block: P,
    spread: bool,
    reversible: bool,
) -> tuple[Float[jax.Array, "rows c"], Float[jax.Array, " c"]]:
    """`pagerank._residual`, rounded to float32 at its end. `gain` is (1 - a) / strength, `[n]`."""

    def shard_residual(edges: Edges, rest: Edges, gain: Pair, source: Pair, v: Pair):
        rows = Pair(*map(_gathered_rows, v)) if spread else v
        gain = Pair(*(x[:, None] for x in gain))
        incoming = multiply(gain, incoming_sums(edges, rest, rows))
        residual = add(add(source, incoming), Pair(-v.high, -v.low)).high
        ranks = residual * edges.strength[:, None]
        norm, total = jnp.abs(ranks).max(0), ranks.sum(0)
        if spread:
            norm, total = jax.lax.pmax(norm, layout.AXES), jax.lax.psum(total, layout.AXES)
        return residual, norm if reversible else norm + jnp.abs(total)

    side = P(layout.AXES) if spread else P()
    return jax.shard_map(
        shard_residual,
        in_specs=(side, side, side, block, block),
        out_specs=(block, P() if spread else P(layout.AXES)),
        check_vma=False,
    )(edges, rest, gain, source, v)


def _gathered_rows(v: jax.Array) -> jax.Array:
    """The rows of all shards one after another, as `Walk` numbers the sources: `[p c]`."""
    statistics = jnp.zeros((STATISTICS, v.shape[1]), v.dtype)
    return jax.lax.all_gather(jnp.concatenate([v, statistics]), layout.AXES, axis=0, tiled=True)
