"""Attention to prefixes that several texts share, computed locally on each shard.

It runs inside `jax.shard_map`. Prefix and own text are attended apart, each by the kernel that
suits its length, and joined by the sums of both softmaxes.
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float, Int, Shaped

from ark_jax.layout import activation_spec
from ark_jax.models import kernels, packing
from ark_jax.models.attention import MASKED, choose_kernel, dot, folded_scores
from ark_jax.runtime.accelerator import device_in_use

# How many places away a layer's tokens still see each other, and the positions of tokens in their
# texts, prefixes included.
Near = tuple[Int[Array, ""], Int[Array, "streams a"]]


class KeyValues(NamedTuple):
    """Keys and values, heads first, and which of them count."""

    k: Float[Array, "b k s h"]
    v: Float[Array, "b k s h"]
    mask: Bool[Array, "b s"]


def _key_value_specs(cache: P, mask: P) -> KeyValues:
    """The partition specs of keys, values and mask, for `shard_map`."""
    return KeyValues(cache, cache, mask)  # type: ignore[arg-type]  # in place of arrays


def attend_with_prefixes(
    q: Float[Array, "streams a n h"],
    k: Float[Array, "b t k h"],
    v: Float[Array, "b t k h"],
    texts: Int[Array, "b t"],
    prefixes: KeyValues,
    prefix_indices: Int[Array, " g"],
    by_prefix: packing.PackingPlan,
    by_row: packing.PackingPlan,
    *,
    kernel: str,
    near: Near | None = None,
) -> Float[Array, "streams a n h"]:
    """Attention of packed texts, each of which continues a shared prefix.

    A token sees its whole prefix and, causally, its own text. Queries of one prefix are side by
    side, so no prefix is copied for each of its texts. One softmax covers both parts.

    Args:
        k, v: of the texts.
        texts: 1 for a token of the row's text, which begins at its left; 0: padding.
        prefixes: keys and values of all prefixes, with a mask `[prefixes s]`.
        prefix_indices: the prefixes in use, counted within those of a device.
        by_prefix: packs the tokens as one row per entry of `prefix_indices`.
        by_row: packs the tokens as one row per text.
        kernel: as of `attention.attend`.
        near: hides what is farther away; None: a token sees all before it.
    """
    choose = functools.partial(_choose_kernel, kernel, q, prefixes, near)
    prefix_kernel = choose(by_prefix.places.shape[1], prefixes.k.shape[2])
    text_kernel = choose(*texts.shape[1:] * 2)

    def attend_shard(
        q: Array,
        k: Array,
        v: Array,
        prefixes: KeyValues,
        prefix_indices: Array,
        texts: Array,
        places: tuple[Array, ...],
        near: Near | None,
    ) -> Array:
        """Both parts in rows of their own, joined in the stream."""
        near = near and (near[0], packing.unpack_shard(near[1], *places[:2]))
        unpack = lambda *places: _swap(packing.unpack_shard(q, *places))
        pack = lambda part, *places: [packing.pack_shard(_swap(x), *places) for x in part]
        to_prefix = _attend_to_prefixes(
            unpack(*places[:2]), prefixes, prefix_indices, prefix_kernel, near
        )
        to_text = _attend_to_texts(
            unpack(*places[2:]), _swap(k), _swap(v), texts, text_kernel, near
        )
        return _join(pack(to_prefix, *places[:2]), pack(to_text, *places[2:])).astype(q.dtype)

    places = by_prefix.places, by_prefix.sources, by_row.places, by_row.sources
    run = _over_shards(attend_shard, near, prefix_kernel == text_kernel == "xla")
    return run(q, k, v, prefixes, prefix_indices, texts, places, near)


def attend_in_slots(
    q: Float[Array, "streams a n h"],
    k: Float[Array, "streams a k h"],
    v: Float[Array, "streams a k h"],
    prefixes: KeyValues,
    prefix_indices: Int[Array, " b"],
    texts: Int[Array, "b t"],
    plan: packing.PackingPlan,
    *,
    kernel: str,
    near: Near | None = None,
) -> Float[Array, "streams a n h"]:
    """Attention of packed texts, in rows that hold texts of one prefix side by side.

    A token sees its whole prefix and, causally, its own text.

    Args:
        prefixes: keys and values of all prefixes, with a mask `[prefixes s]`.
        prefix_indices: the prefix of each row, counted within those of a device.
        texts: number of the token's text in its row, from 1; 0: padding.
        plan: packs the rows.
        kernel, near: as of `attend_with_prefixes`.
    """
    choose = functools.partial(_choose_kernel, kernel, q, prefixes, near)
    prefix_kernel = choose(texts.shape[1], prefixes.k.shape[2])
    text_kernel = choose(*texts.shape[1:] * 2)
    if text_kernel == "cudnn":
        text_kernel = "xla"  # it takes one text a row

    def attend_shard(
        q: Array,
        k: Array,
        v: Array,
        prefixes: KeyValues,
        prefix_indices: Array,
        texts: Array,
        places: tuple[Array, ...],
        near: Near | None,
    ) -> Array:
        q, k, v = (_swap(packing.unpack_shard(x, *places)) for x in (q, k, v))
        near = near and (near[0], packing.unpack_shard(near[1], *places))
        to_prefix = _attend_to_prefixes(q, prefixes, prefix_indices, prefix_kernel, near)
        to_text = _attend_to_texts(q, k, v, texts, text_kernel, near)
        out = _join(to_prefix, to_text).astype(q.dtype)
        return packing.pack_shard(_swap(out), *places)

    run = _over_shards(attend_shard, near, prefix_kernel == text_kernel == "xla")
    return run(q, k, v, prefixes, prefix_indices, texts, (plan.places, plan.sources), near)


def _over_shards(attend_shard: Callable, near: Near | None, is_ours: bool) -> Callable:
    """Runs the attention of a shard on each device.

    Args:
        is_ours: Pallas kernels do not declare how their results vary over the mesh.
    """
    query, keys, index = (activation_spec(side) for side in ("b t n h", "b s k h", "b t"))
    prefixes = _key_value_specs(activation_spec("b k s h"), index)
    specs = query, keys, keys, prefixes, activation_spec("b"), index, index
    return jax.shard_map(
        attend_shard,
        in_specs=(*specs, (P(), index) if near else None),
        out_specs=query,
        check_vma=is_ours,
    )


def attend_newest(
    q: Float[Array, "b 1 n h"],
    cache: KeyValues,
    prefix: KeyValues,
    first: Int[Array, " b"] | None = None,
) -> Float[Array, "b 1 n h"]:
    """Attention of the newest token of each text, in generation.

    Args:
        first: the first position of the prefix that each text's token sees; None: it sees all.
        cache: keys and values of each text, with a mask `[b s]`.
        prefix: keys and values of the one prefix that all texts share, once on each device.
    """

    def attend_shard(q: Array, cache: KeyValues, prefix: KeyValues, first: Array | None) -> Array:
        b, _, n, h = q.shape
        q = (q * h**-0.5).reshape(b, cache.k.shape[1], -1, h)
        scores = dot("bkrh,bksh->bkrs", q, cache.k)
        scores = jnp.where(cache.mask[:, None, None], scores, MASKED)
        prefix_scores = dot("bkrh,kuh->bkru", q, prefix.k[0])
        seen = prefix.mask[0]
        if first is not None:
            seen = (seen & (jnp.arange(len(seen)) >= first[:, None]))[:, None, None]
        prefix_scores = jnp.where(seen, prefix_scores, MASKED)
        highest = jnp.maximum(scores.max(-1), prefix_scores.max(-1))[..., None]
        weights, prefix_weights = jnp.exp(scores - highest), jnp.exp(prefix_scores - highest)
        total = (weights.sum(-1) + prefix_weights.sum(-1))[..., None]
        out = dot("bkrs,bksh->bkrh", weights.astype(cache.v.dtype), cache.v)
        # In the order "bkrh", XLA:CPU of jax 0.11 and 0.12 has no such product in 16 bits.
        of_prefix = dot("bkru,kuh->kbrh", prefix_weights.astype(prefix.v.dtype), prefix.v[0])
        out = out + of_prefix.transpose(1, 0, 2, 3)
        return (out / total).astype(q.dtype).reshape(b, 1, n, h)

    query, keys, mask = (activation_spec(side) for side in ("b t n h", "b k s h", "b t"))
    spec = _key_value_specs(keys, mask)
    specs = query, spec, spec, activation_spec("b")
    run = jax.shard_map(attend_shard, in_specs=specs, out_specs=query)
    return run(q, cache, prefix, first)


def _choose_kernel(
    kernel: str,
    q: Float[Array, "streams a n h"],
    prefixes: KeyValues,
    near: Near | None,
    tokens: int,
    keys: int,
) -> str:
    """The kernel for rows of `tokens` queries that see so many keys."""
    if near:
        return choose_kernel(kernel, q, tokens, near[0])
    heads, size = q.shape[2:]
    queries = heads // prefixes.k.shape[1] * tokens
    return kernels.choose_for_part(kernel, device_in_use(), q.dtype, size, queries, keys)


def _swap(x: Shaped[Array, "b i j h"]) -> Shaped[Array, "b j i h"]:
    """Heads before tokens, or back."""
    return x.transpose(0, 2, 1, 3)


# Attention to a part of the keys, `[b n t h]`, and the logarithm of its softmax's sum, `[b n t 1]`.
Part = Sequence[Array]


def _attend_to_prefixes(
    q: Float[Array, "b n t h"],
    prefixes: KeyValues,
    prefix_indices: Int[Array, " b"],
    kernel: str,
    near: Near | None,
) -> Part:
    """Attention of each row to its whole prefix, or to what is near."""

    def by_xla(q: Array, prefixes: KeyValues, prefix_indices: Array) -> Part:
        k, v, mask = (x[prefix_indices] for x in prefixes)
        b, s = mask.shape
        seen = jnp.broadcast_to(mask[:, None], (b, q.shape[2], s))
        if near:
            seen &= near[1][..., None] - jnp.arange(s) < near[0]
        return _attend(q, k, v, seen)

    def by_library(q: Array, prefixes: KeyValues, prefix_indices: Array) -> Part:
        k, v, mask = prefixes
        lengths = jnp.sum(mask, axis=1, dtype=jnp.int32)
        out, sums = kernels.attend_prefixes(
            _fold(q, k), k, v, lengths, prefix_indices, kernel=kernel
        )
        sums = jnp.where((lengths > 0)[prefix_indices, None, None], sums, MASKED)
        return out.astype(jnp.float32).reshape(q.shape), sums.reshape(*q.shape[:3], 1)

    attend = by_xla if kernel == "xla" else _with_gradient(by_library, by_xla)
    return attend(q, prefixes, prefix_indices)


def _attend_to_texts(
    q: Float[Array, "b n t h"],
    k: Float[Array, "b k t h"],
    v: Float[Array, "b k t h"],
    texts: Int[Array, "b t"],
    kernel: str,
    near: Near | None,
) -> Part:
    """Causal attention of each token to its own text."""

    def by_xla(q: Array, k: Array, v: Array, texts: Array) -> Part:
        mask = texts[:, :, None] == texts[:, None]
        if near:
            column = jnp.arange(texts.shape[1])
            mask &= column[:, None] - column < near[0]
        return _attend(q, k, v, mask & jnp.tril(jnp.ones(mask.shape[1:], bool)), before=0)

    def by_library(q: Array, k: Array, v: Array, texts: Array) -> Part:
        out, sums = kernels.attend_texts(q, k, v, texts, kernel=kernel)
        return out.astype(jnp.float32), sums[..., None]

    attend = by_xla if kernel == "xla" else _with_gradient(by_library, by_xla)
    return attend(q, k, v, texts)


def _with_gradient(function: Callable, other: Callable) -> Callable:
    """`function` with the gradient of `other`, which computes the same."""
    attend = jax.custom_vjp(function)
    attend.defvjp(
        lambda *arrays: (function(*arrays), arrays),
        lambda arrays, gradient: jax.vjp(other, *arrays)[1](gradient),
    )
    return attend


def _join(*parts: Part) -> Float[Array, "b i j h"]:
    """Attention to two parts together.

    A place of a stream that holds no token is zero in both.
    """
    outputs, sums = zip(*parts, strict=True)
    weights = [jnp.exp(x - jnp.maximum(*sums)) for x in sums]
    weighted = [weight * out for weight, out in zip(weights, outputs, strict=True)]
    return sum(weighted) / sum(weights)


def _attend(
    q: Float[Array, "b n t h"],
    k: Float[Array, "b k s h"],
    v: Float[Array, "b k s h"],
    mask: Bool[Array, "b t s"],
    before: int | None = None,
) -> Part:
    """Softmax attention by our own kernel, in float32.

    Args:
        before: query i sees no key after key `before` + i, so those are not computed. None: it may
            see all keys.
    """
    tokens = q.shape[2]
    size = max(64, -(-tokens // 4))
    if tokens > size:  # in tiles that fit a cache
        tiles = []
        for start in range(0, tokens, size):
            queries = slice(start, start + size)
            seen = slice(None if before is None else before + start + size)
            tile = q[:, :, queries], k[:, :, seen], v[:, :, seen], mask[:, queries, seen]
            tiles.append(_attend(*tile))
        return jax.tree.map(lambda *x: jnp.concatenate(x, axis=2), *tiles)
    scores = folded_scores(_fold(q * q.shape[-1] ** -0.5, k), k, mask)
    highest = scores.max(-1, keepdims=True)
    weights = jnp.exp(scores - highest)
    total = weights.sum(-1, keepdims=True)
    out = dot("bkrs,bksh->bkrh", weights.astype(v.dtype), v) / total
    return out.reshape(q.shape), (highest + jnp.log(total)).reshape(*q.shape[:3], 1)


def _fold(q: Float[Array, "b n t h"], k: Float[Array, "prefixes k s h"]) -> Array:
    """`[b k r h]`: the query heads of a key head folded into its rows."""
    b, _, _, h = q.shape
    return q.reshape(b, k.shape[1], -1, h)
