"""Attention, computed locally on each shard of batch and heads.

Kernels run inside `jax.shard_map`, so they need no sharding rules of their own. `xla` is
implemented here and runs anywhere; `cudnn` is NVIDIA's flash attention; `splash` is JAX's Pallas
kernel for TPUs; `tokamax` takes what that library chooses for the device. `auto` is `cudnn` or
`splash` where device and shapes allow it, else `xla`.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float, Int

from ark_jax.layout import SAVED, activation_spec
from ark_jax.models import kernels, packing
from ark_jax.runtime.accelerator import device_in_use

# Finite, so that a query without a visible key gets a mean instead of NaN.
MASKED = -1e30


FAR = 2**30  # farther than any two tokens of a text


def reach(cfg: Any, is_local: Bool[Array, ""] | None, tokens: int) -> Int[Array, ""] | None:
    """Places below which tokens of a layer see each other; None if all of so many tokens do."""
    windowed = is_local is not None and cfg.window < tokens
    return jnp.where(is_local, cfg.window, FAR) if windowed else None  # type: ignore[arg-type]


class Windows(NamedTuple):
    """Which other tokens a kernel of a library hides."""

    causal: bool  # later ones
    size: int  # in local layers, those that are so many places away, or more


class Distances(NamedTuple):
    """What scores gain by the distance of two tokens.

    Attributes:
        tables: a number for each bucket and head, `[x n]`; or the states that queries and keys are
            multiplied with, `[x k h]` and `[x n h]`, for as many key heads as query heads.
        rows: tokens of a row -> the bucket of each pair (query, key), int32 `[t s]`.
    """

    tables: tuple[Array, ...]
    rows: Callable[[int], Any]


@functools.lru_cache(maxsize=64)
def rows_of_bias(tokens: int, buckets: int, farthest: int) -> Int[np.ndarray, "t s"]:
    """MPNet's bucket of each pair (query, key), as T5's: half of them for keys on each side.

    The first half of a side's buckets hold one distance each, the others grow by a factor.
    """
    distance = np.arange(tokens)[None] - np.arange(tokens)[:, None]
    half = buckets // 2
    exact, far = half // 2, np.maximum(np.abs(distance), 1).astype(np.float32)
    grown = np.log(far / np.float32(exact)) / np.float32(np.log(farthest / exact))
    bucket = np.minimum(exact + (grown * (half - exact)).astype(np.int32), half - 1)
    bucket = np.where(np.abs(distance) < exact, np.abs(distance), bucket)
    return (bucket + half * (distance > 0)).astype(np.int32)


@functools.lru_cache(maxsize=64)
def rows_of_states(tokens: int, buckets: int, farthest: int) -> Int[np.ndarray, "t s"]:
    """DeBERTa's row of each pair (query, key); `buckets` are those of both sides.

    Beyond half of a side's buckets, they grow by a factor, up to `farthest`; 0 bounds distances.
    """
    distance = np.arange(tokens)[:, None] - np.arange(tokens)[None]
    side = buckets // 2
    if farthest:
        middle = side // 2
        far = np.maximum(np.abs(distance), middle).astype(np.float32)
        grown = np.log(far / np.float32(middle)) / np.log(np.float32((farthest - 1) / middle))
        bucket = np.ceil(grown * np.float32(middle - 1)) + middle
        bucket = np.where(np.abs(distance) <= middle, np.abs(distance), bucket)
        distance = (np.sign(distance) * bucket).astype(np.int32)
    return np.clip(distance + side, 0, buckets - 1).astype(np.int32)


def attend(
    q: Float[Array, "b t n h"],
    k: Float[Array, "b t k h"],
    v: Float[Array, "b t k h"],
    visible: Bool[Array, "b t"],
    *,
    causal: bool,
    kernel: str = "auto",
    reach: Int[Array, ""] | None = None,
    window: int = 0,
    distances: Distances | None = None,
) -> Float[Array, "b t n h"]:
    """Softmax attention, softmax in float32. Each key/value head serves n/k query heads.

    The values at padding depend on the kernel.

    Args:
        visible: true for tokens, false for padding.
        causal: hides every later token; their scores are not computed then.
        kernel: "xla", "cudnn", "splash" or "tokamax"; "auto" suits device and shapes.
        reach: hides tokens that are so many places away, or more.
        window: what `reach` is, if it is not `FAR`, for kernels of libraries.
        distances: is added to scores.

    Raises:
        ValueError: the kernel is unknown, not installed, or does not support the type or what is
            asked.
    """
    seen = Windows(causal, window)
    kernel = choose_kernel(kernel, q, q.shape[1], reach, distances, seen)

    def attend_shard(
        q: Array, k: Array, v: Array, visible: Array, reach: Array | None, tables: tuple[Array, ...]
    ) -> Array:
        if kernel == "xla":
            return _attend_visible(q, k, v, visible, reach, tables, distances, causal=causal)
        places, sources = packing.plan_shard(visible, visible.size)
        q, k, v = (packing.pack_shard(x, places, sources) for x in (q, k, v))
        out = _attend_by_length(q, k, v, places, sources, reach, seen, kernel)
        return packing.unpack_shard(out, places, sources)

    tables = distances.tables if distances else ()
    return _over_shards(attend_shard, kernel)(q, k, v, visible, reach, tables)


def attend_packed(
    q: Float[Array, "streams a n h"],
    k: Float[Array, "streams a k h"],
    v: Float[Array, "streams a k h"],
    plan: packing.PackingPlan,
    *,
    causal: bool,
    kernel: str = "auto",
    reach: Int[Array, ""] | None = None,
    window: int = 0,
    distances: Distances | None = None,
) -> Float[Array, "streams a n h"]:
    """`attend` for packed texts. A token sees only tokens of its own text."""
    seen = Windows(causal, window)
    kernel = choose_kernel(kernel, q, plan.places.shape[1], reach, distances, seen)

    def attend_stream(
        q: Float[Array, "streams a n h"],
        k: Float[Array, "streams a k h"],
        v: Float[Array, "streams a k h"],
        places_and_sources: tuple[Int[Array, "b t"], Int[Array, "streams a"]],
        reach: Int[Array, ""] | None,
        tables: tuple[Array, ...],
    ) -> Float[Array, "streams a n h"]:
        places, sources = places_and_sources
        if kernel != "xla":
            return _attend_by_length(q, k, v, places, sources, reach, seen, kernel)
        q, k, v = (packing.unpack_shard(x, places, sources) for x in (q, k, v))
        visible = places < plan.capacity
        out = _attend_visible(q, k, v, visible, reach, tables, distances, causal=causal)
        return packing.pack_shard(out, places, sources)

    tables, places = distances.tables if distances else (), (plan.places, plan.sources)
    return _over_shards(attend_stream, kernel)(q, k, v, places, reach, tables)


def _over_shards(attend_shard: Callable, kernel: str) -> Callable:
    """Runs the attention of a shard on each device: of q, k, v, its texts, reach and tables."""
    query, cache = activation_spec("b t n h"), activation_spec("b s k h")
    return jax.shard_map(
        attend_shard,
        in_specs=(query, cache, cache, activation_spec("b t"), P(), P(None, "tensor")),
        out_specs=query,
        # Pallas kernels do not declare how their results vary over the mesh.
        check_vma=kernel == "xla",
    )


def choose_kernel(
    kernel: str,
    q: Array,
    tokens: int,
    reach: Array | None,
    distances: Distances | None = None,
    windows: Windows | None = None,
) -> str:
    """The kernel for these queries, in rows of `tokens`.

    Args:
        windows: None: only our own kernel hides what is far away.

    Raises:
        ValueError: the kernel is unknown, or has no windows or distances.
    """
    chosen = kernels.choose(kernel, device_in_use(), q.dtype, q.shape[-1], tokens)
    has_windows = reach is None or (windows and kernels.has_windows(chosen, windows.causal))
    if distances is None and has_windows:
        return chosen
    if kernel not in ("auto", "xla"):
        part = "distances of tokens" if distances else "such windows"
        raise ValueError(
            f"attention={kernel!r}: has no {part}, which this model has: set it to 'auto' or 'xla'"
        )
    return "xla"


def _attend_by_length(
    q: Float[Array, "1 a n h"],
    k: Float[Array, "1 a k h"],
    v: Float[Array, "1 a k h"],
    places: Int[Array, "b t"],
    sources: Int[Array, "1 a"],
    reach: Int[Array, ""] | None,
    windows: Windows,
    kernel: str,
) -> Float[Array, "1 a n h"]:
    """Attention of a device's stream by a library, which takes lengths instead of a mask."""
    places, sources, lengths = packing.align_shard(places, sources)
    q, k, v = (packing.unpack_shard(x, places, sources) for x in (q, k, v))
    attend = functools.partial(kernels.attend_rows, causal=windows.causal, kernel=kernel)
    if reach is None:
        out = attend(q, k, v, lengths)
    else:
        near = functools.partial(attend, window=windows.size)
        out = jax.lax.cond(reach < FAR, near, attend, q, k, v, lengths)
    return packing.pack_shard(checkpoint_name(out, SAVED), places, sources)


def _attend_visible(
    q: Float[Array, "b t n h"],
    k: Float[Array, "b t k h"],
    v: Float[Array, "b t k h"],
    visible: Bool[Array, "b t"],
    reach: Int[Array, ""] | None,
    tables: tuple[Array, ...],
    distances: Distances | None,
    *,
    causal: bool,
) -> Float[Array, "b t n h"]:
    """Attention of one shard by our own kernel; `tables` are the shard's of `distances`."""
    t, mask = visible.shape[1], visible[:, None, :]
    if reach is not None:
        mask = mask & (jnp.abs(jnp.arange(t)[:, None] - jnp.arange(t)) < reach)
    if distances:
        return _attend_by_distance(q, k, v, mask, tables, distances.rows(t))
    if not causal:
        out = _attend(q, k, v, mask)
        # A token whose window holds no visible one gets zeros, as in torch, and not a mean.
        return out if reach is None else jnp.where(mask.any(-1)[..., None, None], out, 0)
    return _attend_in_blocks(q, k, v, mask & jnp.tril(jnp.ones((t, t), bool)))


def _attend_by_distance(
    q: Float[Array, "b t n h"],
    k: Float[Array, "b t n h"],
    v: Float[Array, "b t n h"],
    mask: Bool[Array, "b rows t"],
    tables: tuple[Array, ...],
    rows: Int[np.ndarray, "t t"],
) -> Float[Array, "b t n h"]:
    """Attention whose scores depend on distances; see `Distances`."""
    scores = dot("btnh,bsnh->bnts", q, k)
    if len(tables) == 1:
        gains = jnp.moveaxis(tables[0].astype(jnp.float32)[rows], -1, 0)
        scores = scores * q.shape[-1] ** -0.5 + gains
    else:
        # A key's distance is that of its query: rows of the transposed scores are transposed too.
        keys, queries = tables
        of_query = dot("btnh,xnh->bntx", q, keys)
        of_key = dot("bsnh,xnh->bnsx", k, queries)
        take = lambda x, rows: jnp.take_along_axis(x, jnp.asarray(rows)[None, None], axis=-1)
        gains = take(of_query, rows) + take(of_key, rows.T).swapaxes(-1, -2)
        scores = (scores + gains) * (3 * q.shape[-1]) ** -0.5
    weights = jax.nn.softmax(jnp.where(mask[:, None], scores, MASKED), axis=-1)
    out = dot("bnts,bsnh->btnh", weights.astype(v.dtype), v).astype(q.dtype)
    return checkpoint_name(out, SAVED)


def _attend_in_blocks(
    q: Float[Array, "b t n h"],
    k: Float[Array, "b t k h"],
    v: Float[Array, "b t k h"],
    mask: Bool[Array, "b rows t"],
) -> Float[Array, "b t n h"]:
    """Causal attention in blocks of queries, each with the keys up to its end.

    That computes half of the scores, in tiles that fit a cache.
    """
    size = max(64, -(-q.shape[1] // 4))
    blocks = []
    for start in range(0, q.shape[1], size):
        end = start + size
        block_mask = mask[:, start:end, :end]
        blocks.append(_attend(q[:, start:end], k[:, :end], v[:, :end], block_mask))
    return jnp.concatenate(blocks, axis=1)


@jax.custom_vjp
def _attend(
    q: Float[Array, "b t n h"],
    k: Float[Array, "b s k h"],
    v: Float[Array, "b s k h"],
    mask: Bool[Array, "b rows s"],
) -> Float[Array, "b t n h"]:
    """Softmax attention. The query heads of a key head are folded into its rows.

    The product with v comes before the division, which then takes fewer operations.
    """
    return _forward(q, k, v, mask)[0]


def _forward(q: Array, k: Array, v: Array, mask: Array) -> tuple[Array, tuple[Array, ...]]:
    """The output, and what `_backward` needs."""
    k_rows, v_rows = k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3)
    scores = folded_scores(heads_first(q * q.shape[-1] ** -0.5, k.shape[2]), k_rows, mask)
    weights = jnp.exp(scores - scores.max(-1, keepdims=True))
    out = dot("bkrs,bksh->bkrh", weights.astype(v.dtype), v_rows) / weights.sum(-1, keepdims=True)
    # Saved by rematerialised layers: otherwise the backward pass would attend once more.
    out = checkpoint_name(heads_last(out.astype(q.dtype), q.shape), SAVED)
    return out, (q, k, v, mask, out)


def _backward(residuals: tuple[Array, ...], gradient: Array) -> tuple[Array, Array, Array, None]:
    """The gradients of q, k and v.

    The weights are computed again: they are so large that to store and read them would cost more.
    """
    q, k, v, mask, out = residuals
    first = functools.partial(heads_first, heads=k.shape[2])
    scale = q.shape[-1] ** -0.5
    q_rows, out_rows, g = first(q * scale), first(out), first(gradient)
    k_rows, v_rows = k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3)
    weights = jax.nn.softmax(folded_scores(q_rows, k_rows, mask), axis=-1)
    mean = jnp.sum(out_rows.astype(jnp.float32) * g, axis=-1, keepdims=True)
    slope = (weights * (dot("bkrh,bksh->bkrs", g, v_rows) - mean)).astype(q.dtype)
    dq = heads_last(scale * dot("bkrs,bksh->bkrh", slope, k_rows), q.shape)
    dk = dot("bkrs,bkrh->bksh", slope, q_rows).transpose(0, 2, 1, 3)
    dv = dot("bkrs,bkrh->bksh", weights.astype(g.dtype), g).transpose(0, 2, 1, 3)
    return dq.astype(q.dtype), dk.astype(k.dtype), dv.astype(v.dtype), None


_attend.defvjp(_forward, _backward)
dot = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)


def folded_scores(
    q: Float[Array, "b k r h"], k: Float[Array, "b k s h"], mask: Bool[Array, "b t s"]
) -> Float[Array, "b k r s"]:
    """Scores of folded queries: r counts the tokens of one query head after the other.

    A mask of one row is that of all queries. It is added, which XLA:CPU fuses with the softmax: so
    attention takes a quarter less time.
    """
    b, t, s = mask.shape
    if t == 1:
        return dot("bkrh,bksh->bkrs", q, k) + jnp.where(mask, 0, MASKED)[:, None]
    mask = jnp.broadcast_to(mask[:, None, None], (b, 1, q.shape[2] // t, t, s)).reshape(b, 1, -1, s)
    return jnp.where(mask, dot("bkrh,bksh->bkrs", q, k), MASKED)


def heads_first(x: Float[Array, "b t n h"], heads: int) -> Float[Array, "b k r h"]:
    """Folds the n/k query heads of a key head into its rows, one after the other."""
    b, t, n, h = x.shape
    return x.reshape(b, t, heads, n // heads, h).transpose(0, 2, 3, 1, 4).reshape(b, heads, -1, h)


def heads_last(x: Float[Array, "b k r h"], shape: tuple[int, ...]) -> Float[Array, "b t n h"]:
    """The inverse of `heads_first`, to `shape` `[b t n h]`."""
    b, t, n, h = shape
    return x.reshape(b, x.shape[1], -1, t, h).transpose(0, 3, 1, 2, 4).reshape(b, t, n, h)
