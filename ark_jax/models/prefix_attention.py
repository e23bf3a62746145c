"""Attention to prefixes that several texts share, computed locally on each shard.

It runs inside `jax.shard_map`, and has one kernel, XLA's. No prefix is copied for its texts.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float, Int

from ark_jax.layout import activation_spec
from ark_jax.models import packing
from ark_jax.models.attention import MASKED, dot, folded_scores, heads_first, heads_last


class KeyValues(NamedTuple):
    """Keys and values, heads first, and which of them count."""

    k: Float[Array, "b k s h"]
    v: Float[Array, "b k s h"]
    mask: Bool[Array, "b s"] | Bool[Array, "b t s"]  # for each key, or for each query and key


def _key_value_specs(cache: P, mask: P) -> KeyValues:
    """The partition specs of keys, values and mask, for `shard_map`."""
    return KeyValues(cache, cache, mask)  # type: ignore[arg-type]  # in place of arrays


def attend_with_prefixes(
    q: Float[Array, "streams a n h"],
    suffixes: KeyValues,
    prefixes: KeyValues,
    prefix_indices: Int[Array, " g"],
    by_prefix: packing.PackingPlan,
    by_row: packing.PackingPlan,
) -> Float[Array, "streams a n h"]:
    """Attention of packed texts, each of which continues a shared prefix.

    A token sees its whole prefix, and the part of its own text that `suffixes.mask` shows. Queries
    of one prefix are side by side, so no prefix is copied for each of its texts. One softmax covers
    both parts.

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
        _key_value_specs(cache, activation_spec("b t s")),
        _key_value_specs(cache, index),
        activation_spec("b"),
        *[index] * 4,
    )

    def attend_shard(
        q: Array, suffixes: KeyValues, prefixes: KeyValues, prefix_indices: Array, *places: Array
    ) -> Array:
        prefixes = KeyValues(*(x[prefix_indices] for x in prefixes))
        shape = (*places[0].shape, prefixes.mask.shape[1])
        mask = jnp.broadcast_to(prefixes.mask[:, None], shape)
        parts = [
            _attend_to_part(q, prefixes._replace(mask=mask), *places[:2]),
            _attend_to_part(q, suffixes, *places[2:], before=0),
        ]
        return _combine_softmax(parts).astype(q.dtype)

    return jax.shard_map(attend_shard, in_specs=in_specs, out_specs=query)(
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
        texts: number of the token's text in its row, from 1; 0: padding.
        plan: packs the rows.
    """

    def attend_shard(
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
        join = lambda prefix, x: jnp.concatenate([prefix, x.transpose(0, 2, 1, 3)], axis=2)
        t, s = texts.shape[1], chosen.mask.shape[1]
        text_mask = (texts[:, :, None] == texts[:, None, :]) & jnp.tril(jnp.ones((t, t), bool))
        prefix_mask = jnp.broadcast_to(chosen.mask[:, None], (len(texts), t, s))
        mask = jnp.concatenate([prefix_mask, text_mask], axis=2)
        out = _unnormalised_attention(q, join(chosen.k, k), join(chosen.v, v), mask, before=s)
        out = (out[..., :-2] / out[..., -1:]).astype(q.dtype)
        return packing.pack_shard(out, places, sources)

    query, cache, index = (activation_spec(side) for side in ("b t n h", "b k s h", "b t"))
    keys = activation_spec("b s k h")
    return jax.shard_map(
        attend_shard,
        in_specs=(
            query,
            keys,
            keys,
            _key_value_specs(cache, index),
            activation_spec("b"),
            index,
            index,
            index,
        ),
        out_specs=query,
    )(q, k, v, prefixes, prefix_indices, texts, plan.places, plan.sources)


def attend_newest(
    q: Float[Array, "b 1 n h"], cache: KeyValues, prefix: KeyValues
) -> Float[Array, "b 1 n h"]:
    """Attention of the newest token of each text, in generation.

    Args:
        cache: keys and values of each text, with a mask `[b s]`.
        prefix: keys and values of the one prefix that all texts share, once on each device.
    """

    def attend_shard(q: Array, cache: KeyValues, prefix: KeyValues) -> Array:
        b, _, n, h = q.shape
        q = (q * h**-0.5).reshape(b, cache.k.shape[1], -1, h)
        scores = dot("bkrh,bksh->bkrs", q, cache.k)
        scores = jnp.where(cache.mask[:, None, None], scores, MASKED)
        prefix_scores = dot("bkrh,kuh->bkru", q, prefix.k[0])
        prefix_scores = jnp.where(prefix.mask[0], prefix_scores, MASKED)
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
    run = jax.shard_map(attend_shard, in_specs=(query, spec, spec), out_specs=query)
    return run(q, cache, prefix)


def _attend_to_part(
    q: Float[Array, "1 a n h"],
    part: KeyValues,
    places: Int[Array, "b t"],
    sources: Int[Array, "1 a"],
    *,
    before: int | None = None,
) -> Float[Array, "1 a n h_and_2"]:
    """`_unnormalised_attention` of a stream's queries, unpacked to the rows of `part`."""
    rows = packing.unpack_shard(q, places, sources)
    return packing.pack_shard(_unnormalised_attention(rows, *part, before), places, sources)


def _combine_softmax(parts: list[Float[Array, "1 a n h_and_2"]]) -> Float[Array, "1 a n h"]:
    """Attention to two parts together, from `_unnormalised_attention` to each."""
    outputs, maxima, totals = zip(
        *((x[..., :-2], x[..., -2:-1], x[..., -1:]) for x in parts), strict=True
    )
    scales = [jnp.exp(x - jnp.maximum(*maxima)) for x in maxima]
    weigh = lambda x: x[0] * scales[0] + x[1] * scales[1]
    # A place of the stream that holds no token sees no key.
    return weigh(outputs) / jnp.maximum(weigh(totals), 1e-30)


def _unnormalised_attention(
    q: Float[Array, "b t n h"],
    k: Float[Array, "b k s h"],
    v: Float[Array, "b k s h"],
    mask: Bool[Array, "b t s"],
    before: int | None = None,
) -> Float[Array, "b t n h_and_2"]:
    """Softmax attention before its division, float32.

    The last axis holds the weighted sum of the values, the highest score, and the weights' sum.

    Args:
        before: query i sees no key after key `before` + i, so those are not computed. None: it may
            see all keys.
    """
    size = max(64, -(-q.shape[1] // 4))
    if q.shape[1] > size:  # in tiles that fit a cache
        tiles = []
        for start in range(0, q.shape[1], size):
            end = start + size
            seen = slice(None if before is None else before + end)
            tile = q[:, start:end], k[:, :, seen], v[:, :, seen], mask[:, start:end, seen]
            tiles.append(_unnormalised_attention(*tile))
        return jnp.concatenate(tiles, axis=1)
    scores = folded_scores(heads_first(q * q.shape[-1] ** -0.5, k.shape[1]), k, mask)
    highest = scores.max(-1, keepdims=True)
    weights = jnp.exp(scores - highest)
    out = dot("bkrs,bksh->bkrh", weights.astype(v.dtype), v)
    out = jnp.concatenate([out, highest, weights.sum(-1, keepdims=True)], axis=-1)
    return heads_last(out, (*q.shape[:3], out.shape[-1]))
