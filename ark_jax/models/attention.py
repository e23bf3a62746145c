"""Attention, computed locally on each shard of batch and heads.

Kernels run inside `jax.shard_map`, so they need no sharding rules of their own. `xla` is
implemented here and runs anywhere; `cudnn` is NVIDIA's flash attention; `splash` is JAX's Pallas
kernel for TPUs; `tokamax` takes what that library chooses for the device. `auto` is `cudnn` or
`splash` where device and shapes allow it, else `xla`. Attention to shared prefixes has only `xla`.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float, Int

from ark_jax.layout import SAVED, activation_spec
from ark_jax.models import kernels, packing
from ark_jax.runtime.accelerator import device_in_use

# Finite, so that a query without a visible key gets a mean instead of NaN.
MASKED = -1e30


def attend(
    q: Float[Array, "b t n h"],
    k: Float[Array, "b t k h"],
    v: Float[Array, "b t k h"],
    visible: Bool[Array, "b t"],
    *,
    causal: bool,
    kernel: str = "auto",
) -> Float[Array, "b t n h"]:
    """Softmax attention, softmax in float32. Each key/value head serves n/k query heads.

    What padding gets depends on the kernel.

    Args:
        visible: which tokens are no padding.
        causal: hides every later token; their scores are not computed then.
        kernel: "xla", "cudnn", "splash" or "tokamax"; "auto" suits device and shapes.

    Raises:
        ValueError: the kernel is unknown, not installed, or does not support the type.
    """
    kernel = _chosen(kernel, q)

    def attend_shard(q: Array, k: Array, v: Array, visible: Array) -> Array:
        if kernel == "xla":
            return _attend_visible(q, k, v, visible, causal=causal)
        places, sources = packing.plan_shard(visible, visible.size)
        q, k, v = (packing.pack_shard(x, places, sources) for x in (q, k, v))
        out = _attend_by_length(q, k, v, places, sources, causal=causal, kernel=kernel)
        return packing.unpack_shard(out, places, sources)

    query, cache = activation_spec("b t n h"), activation_spec("b s k h")
    run = jax.shard_map(
        attend_shard,
        in_specs=(query, cache, cache, activation_spec("b t")),
        out_specs=query,
        # Pallas kernels do not declare how their results vary over the mesh.
        check_vma=kernel == "xla",
    )
    return run(q, k, v, visible)


def attend_packed(
    q: Float[Array, "streams a n h"],
    k: Float[Array, "streams a k h"],
    v: Float[Array, "streams a k h"],
    plan: packing.PackingPlan,
    *,
    causal: bool,
    kernel: str = "auto",
) -> Float[Array, "streams a n h"]:
    """`attend` for packed texts, each of which sees itself alone."""
    query, cache = activation_spec("b t n h"), activation_spec("b s k h")
    index = activation_spec("b t")
    kernel = _chosen(kernel, q, plan.places.shape[1])

    def attend_stream(
        q: Float[Array, "streams a n h"],
        k: Float[Array, "streams a k h"],
        v: Float[Array, "streams a k h"],
        places: Int[Array, "b t"],
        sources: Int[Array, "streams a"],
    ) -> Float[Array, "streams a n h"]:
        if kernel != "xla":
            return _attend_by_length(q, k, v, places, sources, causal=causal, kernel=kernel)
        q, k, v = (packing.unpack_shard(x, places, sources) for x in (q, k, v))
        out = _attend_visible(q, k, v, places < plan.capacity, causal=causal)
        return packing.pack_shard(out, places, sources)

    run = jax.shard_map(
        attend_stream,
        in_specs=(query, cache, cache, index, index),
        out_specs=query,
        check_vma=kernel == "xla",
    )
    return run(q, k, v, plan.places, plan.sources)


def _chosen(kernel: str, q: Array, tokens: int = 0) -> str:
    """The kernel for these queries, in rows of `tokens`; 0: as they lie."""
    return kernels.choose(kernel, device_in_use(), q.dtype, q.shape[-1], tokens or q.shape[1])


def _attend_by_length(
    q: Float[Array, "1 a n h"],
    k: Float[Array, "1 a k h"],
    v: Float[Array, "1 a k h"],
    places: Int[Array, "b t"],
    sources: Int[Array, "1 a"],
    *,
    causal: bool,
    kernel: str,
) -> Float[Array, "1 a n h"]:
    """Attention of a device's stream by a library, which takes lengths instead of a mask."""
    places, sources, lengths = packing.align_shard(places, sources)
    q, k, v = (packing.unpack_shard(x, places, sources) for x in (q, k, v))
    out = kernels.attend_rows(q, k, v, lengths, causal=causal, kernel=kernel)
    return packing.pack_shard(checkpoint_name(out, SAVED), places, sources)


def _attend_visible(
    q: Float[Array, "b t n h"],
    k: Float[Array, "b t k h"],
    v: Float[Array, "b t k h"],
    visible: Bool[Array, "b t"],
    *,
    causal: bool,
) -> Float[Array, "b t n h"]:
    """Attention of one shard by our own kernel."""
    b, t = visible.shape
    mask = jnp.broadcast_to(visible[:, None, :], (b, t, t))
    if not causal:
        return _attend(q, k, v, mask)
    return _attend_in_blocks(q, k, v, mask & jnp.tril(jnp.ones((t, t), bool)))


def _attend_in_blocks(
    q: Float[Array, "b t n h"],
    k: Float[Array, "b t k h"],
    v: Float[Array, "b t k h"],
    mask: Bool[Array, "b t t"],
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


class KeyValues(NamedTuple):
    """Keys and values, heads first, and which of them count."""

    k: Float[Array, "b k s h"]
    v: Float[Array, "b k s h"]
    mask: Bool[Array, "b s"] | Bool[Array, "b t s"]  # for each key, or for each query and key


def attend_with_prefixes(
    q: Float[Array, "streams a n h"],
    suffixes: KeyValues,
    prefixes: KeyValues,
    prefix_indices: Int[Array, " g"],
    by_prefix: packing.PackingPlan,
    by_row: packing.PackingPlan,
) -> Float[Array, "streams a n h"]:
    """Attention of packed texts, each of which continues a shared prefix.

    A token sees its whole prefix, and its own text as `suffixes.mask` says. Queries of one prefix
    meet its keys side by side, so no prefix is copied for each of its texts. The two parts are
    softmaxed together afterwards.

    Args:
        suffixes: keys and values of the texts, with a mask `[b t s]`.
        prefixes: keys and values of all prefixes, with a mask `[prefixes s]`.
        prefix_indices: the prefixes in use, counted within those of a device.
        by_prefix: packs the tokens as one row per entry of `prefix_indices`.
        by_row: packs the tokens as one row per text.
    """
    query, cache, index = (activation_spec(side) for side in ("b t n h", "b k s h", "b t"))
    in_specs = (
        query,
        KeyValues(cache, cache, activation_spec("b t s")),
        KeyValues(cache, cache, index),
        activation_spec("b"),
        *[index] * 4,
    )

    def local(
        q: Array, suffixes: KeyValues, prefixes: KeyValues, prefix_indices: Array, *places: Array
    ) -> Array:
        prefixes = KeyValues(*(x[prefix_indices] for x in prefixes))
        shape = (*places[0].shape, prefixes.mask.shape[1])
        mask = jnp.broadcast_to(prefixes.mask[:, None], shape)
        parts = [
            _attend_to_part(q, prefixes._replace(mask=mask), *places[:2]),
            _attend_to_part(q, suffixes, *places[2:]),
        ]
        return _softmax_together(parts).astype(q.dtype)

    return jax.shard_map(local, in_specs=in_specs, out_specs=query)(
        q,
        suffixes,
        prefixes,
        prefix_indices,
        by_prefix.places,
        by_prefix.sources,
        by_row.places,
        by_row.sources,
    )


def attend_in_slots(
    q: Float[Array, "streams a n h"],
    k: Float[Array, "streams a k h"],
    v: Float[Array, "streams a k h"],
    prefixes: KeyValues,
    prefix_indices: Int[Array, " b"],
    texts: Int[Array, "b t"],
    plan: packing.PackingPlan,
) -> Float[Array, "streams a n h"]:
    """Attention of packed texts, in rows that hold texts of one prefix side by side.

    A token sees its whole prefix and, causally, its own text.

    Args:
        prefixes: keys and values of all prefixes, with a mask `[prefixes s]`.
        prefix_indices: the prefix of each row, counted within those of a device.
        texts: the text of its row that a token is of, from 1 on; 0: padding.
        plan: packs the rows.
    """

    def local(
        q: Array,
        k: Array,
        v: Array,
        prefixes: KeyValues,
        prefix_indices: Array,
        texts: Array,
        places: Array,
        sources: Array,
    ) -> Array:
        q, k, v = (packing.unpack_shard(x, places, sources) for x in (q, k, v))
        chosen = KeyValues(*(x[prefix_indices] for x in prefixes))
        join = lambda before, x: jnp.concatenate([before, x.transpose(0, 2, 1, 3)], axis=2)
        t, s = texts.shape[1], chosen.mask.shape[1]
        text = (texts[:, :, None] == texts[:, None, :]) & jnp.tril(jnp.ones((t, t), bool))
        prefix = jnp.broadcast_to(chosen.mask[:, None], (len(texts), t, s))
        mask = jnp.concatenate([prefix, text], axis=2)
        out = _unnormalised(q, join(chosen.k, k), join(chosen.v, v), mask)
        out = (out[..., :-2] / out[..., -1:]).astype(q.dtype)
        return packing.pack_shard(out, places, sources)

    query, cache, index = (activation_spec(side) for side in ("b t n h", "b k s h", "b t"))
    keys = activation_spec("b s k h")
    return jax.shard_map(
        local,
        in_specs=(
            query,
            keys,
            keys,
            KeyValues(cache, cache, index),
            activation_spec("b"),
            index,
            index,
            index,
        ),
        out_specs=query,
    )(q, k, v, prefixes, prefix_indices, texts, plan.places, plan.sources)


def _attend_to_part(
    q: Float[Array, "1 a n h"],
    part: KeyValues,
    places: Int[Array, "b t"],
    sources: Int[Array, "1 a"],
) -> Float[Array, "1 a n h_and_2"]:
    """`_unnormalised` of a stream's queries, unpacked to one row for each row of `part`."""
    rows = packing.unpack_shard(q, places, sources)
    return packing.pack_shard(_unnormalised(rows, *part), places, sources)


def _softmax_together(parts: list[Float[Array, "1 a n h_and_2"]]) -> Float[Array, "1 a n h"]:
    """Attention to two parts at once, from `_unnormalised` of each."""
    outputs, maxima, totals = zip(
        *((x[..., :-2], x[..., -2:-1], x[..., -1:]) for x in parts), strict=True
    )
    scales = [jnp.exp(x - jnp.maximum(*maxima)) for x in maxima]
    weigh = lambda x: x[0] * scales[0] + x[1] * scales[1]
    # A place of the stream that holds no token sees no key.
    return weigh(outputs) / jnp.maximum(weigh(totals), 1e-30)


def attend_newest(
    q: Float[Array, "b 1 n h"], cache: KeyValues, prefix: KeyValues
) -> Float[Array, "b 1 n h"]:
    """Attention of the newest token of each text, in generation.

    Args:
        cache: keys and values of each text, with a mask `[b s]`.
        prefix: keys and values of the one prefix that all texts share, once on each device.
    """

    def local(q: Array, cache: KeyValues, prefix: KeyValues) -> Array:
        b, _, n, h = q.shape
        q = (q * h**-0.5).reshape(b, cache.k.shape[1], -1, h)
        # Keys stand on the left: with so few queries XLA:CPU is four times slower the other way.
        scores = _dot("bksh,bkrh->bksr", cache.k, q)
        scores = jnp.where(cache.mask[:, None, :, None], scores, MASKED)
        prefix_scores = _dot("bkrh,kuh->bkru", q, prefix.k[0])
        prefix_scores = jnp.where(prefix.mask[0], prefix_scores, MASKED)
        highest = jnp.maximum(scores.max(2), prefix_scores.max(3))
        weights = jnp.exp(scores - highest[:, :, None])
        prefix_weights = jnp.exp(prefix_scores - highest[..., None])
        total = (weights.sum(2) + prefix_weights.sum(3))[..., None]
        out = _dot("bksr,bksh->bkrh", weights.astype(cache.v.dtype), cache.v)
        out = out + _dot("bkru,kuh->bkrh", prefix_weights.astype(prefix.v.dtype), prefix.v[0])
        return (out / total).astype(q.dtype).reshape(b, 1, n, h)

    query, keys, mask = (activation_spec(side) for side in ("b t n h", "b k s h", "b t"))
    spec = KeyValues(keys, keys, mask)
    run = jax.shard_map(local, in_specs=(query, spec, spec), out_specs=query)
    return run(q, cache, prefix)


def _unnormalised(
    q: Float[Array, "b t n h"],
    k: Float[Array, "b k s h"],
    v: Float[Array, "b k s h"],
    mask: Bool[Array, "b t s"],
) -> Float[Array, "b t n h_and_2"]:
    """Softmax attention before its division, float32.

    The last axis holds the weighted sum of the values, the highest score, and the weights' sum.
    """
    size = max(64, -(-q.shape[1] // 4))
    if q.shape[1] > size:  # in tiles that fit a cache
        starts = range(0, q.shape[1], size)
        cut = lambda x, start: x[:, start : start + size]
        tiles = [_unnormalised(cut(q, i), k, v, cut(mask, i)) for i in starts]
        return jnp.concatenate(tiles, axis=1)
    scores = _scores(_heads_first(q * q.shape[-1] ** -0.5, k.shape[1]), k, mask)
    highest = scores.max(-1, keepdims=True)
    weights = jnp.exp(scores - highest)
    out = _dot("bkrs,bksh->bkrh", weights.astype(v.dtype), v)
    out = jnp.concatenate([out, highest, weights.sum(-1, keepdims=True)], axis=-1)
    return _heads_last(out, (*q.shape[:3], out.shape[-1]))


@jax.custom_vjp
def _attend(
    q: Float[Array, "b t n h"],
    k: Float[Array, "b s k h"],
    v: Float[Array, "b s k h"],
    mask: Bool[Array, "b t s"],
) -> Float[Array, "b t n h"]:
    """Softmax attention. The query heads of a key head are folded into its rows.

    The product with v comes before the division, which then takes fewer operations.
    """
    return _forward(q, k, v, mask)[0]


def _forward(q: Array, k: Array, v: Array, mask: Array) -> tuple[Array, tuple[Array, ...]]:
    """The output, and what `_backward` needs."""
    k_rows, v_rows = k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3)
    scores = _scores(_heads_first(q * q.shape[-1] ** -0.5, k.shape[2]), k_rows, mask)
    weights = jnp.exp(scores - scores.max(-1, keepdims=True))
    out = _dot("bkrs,bksh->bkrh", weights.astype(v.dtype), v_rows) / weights.sum(-1, keepdims=True)
    # Saved by rematerialised layers: otherwise the backward pass would attend once more.
    out = checkpoint_name(_heads_last(out.astype(q.dtype), q.shape), SAVED)
    return out, (q, k, v, mask, out)


def _backward(residuals: tuple[Array, ...], gradient: Array) -> tuple[Array, Array, Array, None]:
    """Computes the weights again: to store and read them would cost more, they are so large."""
    q, k, v, mask, out = residuals
    first = functools.partial(_heads_first, heads=k.shape[2])
    scale = q.shape[-1] ** -0.5
    q_rows, out_rows, g = first(q * scale), first(out), first(gradient)
    k_rows, v_rows = k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3)
    weights = jax.nn.softmax(_scores(q_rows, k_rows, mask), axis=-1)
    mean = jnp.sum(out_rows.astype(jnp.float32) * g, axis=-1, keepdims=True)
    slope = (weights * (_dot("bkrh,bksh->bkrs", g, v_rows) - mean)).astype(q.dtype)
    dq = _heads_last(scale * _dot("bkrs,bksh->bkrh", slope, k_rows), q.shape)
    dk = _dot("bkrs,bkrh->bksh", slope, q_rows).transpose(0, 2, 1, 3)
    dv = _dot("bkrs,bkrh->bksh", weights.astype(g.dtype), g).transpose(0, 2, 1, 3)
    return dq.astype(q.dtype), dk.astype(k.dtype), dv.astype(v.dtype), None


_attend.defvjp(_forward, _backward)
_dot = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)


def _scores(
    q: Float[Array, "b k r h"], k: Float[Array, "b k s h"], mask: Bool[Array, "b t s"]
) -> Float[Array, "b k r s"]:
    """Scores of folded queries: r counts the tokens of one query head after the other."""
    b, t, s = mask.shape
    mask = jnp.broadcast_to(mask[:, None, None], (b, 1, q.shape[2] // t, t, s)).reshape(b, 1, -1, s)
    return jnp.where(mask, _dot("bkrh,bksh->bkrs", q, k), MASKED)


def _heads_first(x: Float[Array, "b t n h"], heads: int) -> Float[Array, "b k r h"]:
    """Folds the n/k query heads of a key head into its rows, one after the other."""
    b, t, n, h = x.shape
    return x.reshape(b, t, heads, n // heads, h).transpose(0, 2, 3, 1, 4).reshape(b, heads, -1, h)


def _heads_last(x: Float[Array, "b k r h"], shape: tuple[int, ...]) -> Float[Array, "b t n h"]:
    """The inverse of `_heads_first`, to `shape` `[b t n h]`."""
    b, t, n, h = shape
    return x.reshape(b, x.shape[1], -1, t, h).transpose(0, 3, 1, 2, 4).reshape(b, t, n, h)
