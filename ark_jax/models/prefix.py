"""Computes keys and values of shared prefixes once, and runs the texts that continue them."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ark_jax.models import decoder, packing, prefix_attention
from ark_jax.models.attention import attend_packed
from ark_jax.models.prefix_attention import KeyValues

# Keys and values of all layers.
PrefixCache = tuple[Float[Array, "l prefixes k s h"], Float[Array, "l prefixes k s h"]]


class Suffixes(NamedTuple):
    """Texts without their prefixes, on the devices, each in a row of its own."""

    tokens: Int[Array, "b t"]
    mask: Bool[Array, "b t"]
    prefix_lengths: Int[Array, " b"]
    prefix_indices: Int[Array, " g"]  # the prefixes in use, counted within those of a device
    tokens_per_prefix: Bool[Array, "g r"]  # one true for each token that continues the prefix


class SlotArrays(NamedTuple):
    """Texts without their prefixes, on the devices; fields as in `prefix_plan.SuffixBatch`."""

    tokens: Int[Array, "b t"]
    positions: Int[Array, "b t"]
    texts: Int[Array, "b t"]
    prefix_indices: Int[Array, " b"]


@functools.partial(jax.jit, static_argnums=(1, 4))
def compute(
    model: decoder.Decoder,
    cfg: decoder.Config,
    tokens: Int[Array, "prefixes s"],
    mask: Bool[Array, "prefixes s"],
    capacity: int,
) -> PrefixCache:
    """Keys and values of prefixes, in every layer.

    Args:
        capacity: at least the number of visible tokens of any device.
    """
    plan = packing.plan_packing(mask, capacity)

    def attend(
        q: Float[Array, "streams a n h"],
        k: Float[Array, "streams a k h"],
        v: Float[Array, "streams a k h"],
        _: None,
        reach: Int[Array, ""] | None,
    ) -> tuple[Array, tuple[Array, ...]]:
        """The attention of a layer, and its keys and values with the heads first."""
        heads_first = tuple(packing.unpack(x, plan).transpose(0, 2, 1, 3) for x in (k, v))
        options: dict[str, Any] = {"kernel": cfg.attention, "reach": reach, "window": cfg.window}
        out = attend_packed(q, k, v, plan, causal=True, **options)
        return out, heads_first

    positions = jnp.zeros_like(tokens) + jnp.arange(tokens.shape[1])
    x = packing.pack(model.embeddings(tokens, cfg), plan)
    places = packing.pack(positions, plan)
    return model.layers(x, places, attend, cfg, length=tokens.shape[1])[1]


def run_suffixes(
    model: decoder.Decoder,
    cfg: decoder.Config,
    cache: PrefixCache,
    prefix_mask: Bool[Array, "prefixes s"],
    batch: Suffixes,
    capacity: int,
    *,
    keep: bool,
) -> tuple[Float[Array, "streams a d"], tuple[Array, Array] | None]:
    """Hidden states of the suffixes, packed.

    Args:
        cache: from `compute`.
        capacity: at least the number of visible suffix tokens of any device.
        keep: also returns the suffixes' own keys and values, `[l b t k h]` each.
    """
    t = batch.tokens.shape[1]
    by_row = packing.plan_packing(batch.mask, capacity)
    by_prefix = packing.plan_packing(batch.tokens_per_prefix, capacity)
    texts = batch.mask.astype(jnp.int32)

    def attend(
        q: Float[Array, "streams a n h"],
        k: Float[Array, "streams a k h"],
        v: Float[Array, "streams a k h"],
        layer_cache: tuple[Array, Array],
        reach: Int[Array, ""] | None,
    ) -> tuple[Array, tuple[Array, Array] | None]:
        """The attention of a layer, and the suffixes' keys and values if `keep` is true."""
        k, v = packing.unpack(k, by_row), packing.unpack(v, by_row)
        prefixes = KeyValues(*layer_cache, prefix_mask)
        out = prefix_attention.attend_with_prefixes(
            q, k, v, texts, prefixes, batch.prefix_indices, by_prefix, by_row, **attention(reach)
        )
        return out, (k, v) if keep else None

    positions = packing.pack(batch.prefix_lengths[:, None] + jnp.arange(t), by_row)
    attention = functools.partial(_how, cfg, positions)
    x = packing.pack(model.embeddings(batch.tokens, cfg), by_row)
    return model.layers(x, positions, attend, cfg, cache, length=prefix_mask.shape[1] + t)


def run_slots(
    model: decoder.Decoder,
    cfg: decoder.Config,
    cache: PrefixCache,
    prefix_mask: Bool[Array, "prefixes s"],
    batch: SlotArrays,
    capacity: int,
) -> Float[Array, "streams a d"]:
    """Hidden states of suffixes in slots, packed; arguments as of `run_suffixes`."""
    plan = packing.plan_packing(batch.texts > 0, capacity)

    def attend(
        q: Float[Array, "streams a n h"],
        k: Float[Array, "streams a k h"],
        v: Float[Array, "streams a k h"],
        layer_cache: tuple[Array, Array],
        reach: Int[Array, ""] | None,
    ) -> tuple[Array, None]:
        prefixes = KeyValues(*layer_cache, prefix_mask)
        out = prefix_attention.attend_in_slots(
            q, k, v, prefixes, batch.prefix_indices, batch.texts, plan, **attention(reach)
        )
        return out, None

    positions = packing.pack(batch.positions, plan)
    attention = functools.partial(_how, cfg, positions)
    x = packing.pack(model.embeddings(batch.tokens, cfg), plan)
    length = prefix_mask.shape[1] + batch.texts.shape[1]
    return model.layers(x, positions, attend, cfg, cache, length=length)[0]


def _how(cfg: decoder.Config, positions: Array, reach: Array | None) -> dict[str, Any]:
    """Kernel and windows of a layer whose tokens have these positions."""
    return {"kernel": cfg.attention, "near": None if reach is None else (reach, positions)}
