"""The one place that computes attention, local to each (batch, head) shard.

Kernels run inside `jax.shard_map`, so they need no sharding rules of their own; a GPU or TPU kernel is
added here and nowhere else.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ark_jax.layout import activation_spec

# Finite, so that a row without a single key gives a mean instead of NaN.
MASKED = -1e30


def attend(
    q: Float[Array, "b t n h"],
    k: Float[Array, "b s k h"],
    v: Float[Array, "b s k h"],
    mask: Bool[Array, "b t s"],
) -> Float[Array, "b t n h"]:
    """Softmax attention; query heads share key/value heads in groups of n/k. Softmax in float32."""
    specs = [activation_spec(side) for side in ("b t n h", "b s k h", "b s k h", "b t s")]
    return jax.shard_map(_attend, in_specs=tuple(specs), out_specs=specs[0])(q, k, v, mask)


def attend_shared(
    q: Float[Array, "b t n h"],
    k: Float[Array, "b t k h"],
    v: Float[Array, "b t k h"],
    mask: Bool[Array, "b t t"],
    prefix_k: Float[Array, "g s k h"],
    prefix_v: Float[Array, "g s k h"],
    prefix_mask: Bool[Array, "g s"],
) -> Float[Array, "b t n h"]:
    """Suffixes that continue shared prefixes: rows `[g·m, ...]` are m suffixes of each of g prefixes.

    A prefix's keys and values are read in place by all its suffixes, never copied per suffix; the two
    partial softmaxes are joined by their log-sum-exps.
    """
    row, cache = activation_spec("b t n h"), activation_spec("b s k h")
    specs = (row, cache, cache, activation_spec("b t s"), cache, cache, activation_spec("b s"))
    return jax.shard_map(_attend_shared, in_specs=specs, out_specs=row)(
        q, k, v, mask, prefix_k, prefix_v, prefix_mask)


def _attend(q, k, v, mask):
    total, weight, _ = _partial(q, k, v, mask)
    return (total / weight[..., None]).astype(q.dtype)


def _attend_shared(q, k, v, mask, prefix_k, prefix_v, prefix_mask):
    b, t, n, h = q.shape
    g, s = prefix_mask.shape
    own = _partial(q, k, v, mask)
    folded = q.reshape(g, (b // g) * t, n, h)
    seen = jnp.broadcast_to(prefix_mask[:, None, :], (g, folded.shape[1], s))
    shared = [x.reshape(b, t, *x.shape[2:]) for x in _partial(folded, prefix_k, prefix_v, seen)]
    top = jnp.maximum(own[2], shared[2])
    a, c = jnp.exp(own[2] - top), jnp.exp(shared[2] - top)
    total = own[0] * a[..., None] + shared[0] * c[..., None]
    return (total / (own[1] * a + shared[1] * c)[..., None]).astype(q.dtype)


def _partial(q, k, v, mask):
    """Unnormalised attention: (sum of exp(score)·value [b t n h], sum of exp(score) [b t n], max score)."""
    b, t, n, h = q.shape
    heads = k.shape[2]
    dot = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
    grouped = (q * h**-0.5).reshape(b, t, heads, n // heads, h)
    scores = dot("btkgh,bskh->bkgts", grouped, k)
    scores = jnp.where(mask[:, None, None], scores, MASKED)
    top = scores.max(-1, keepdims=True)
    weights = jnp.exp(scores - top)
    total = dot("bkgts,bskh->btkgh", weights.astype(v.dtype), v).reshape(b, t, n, h)
    flat = lambda x: jnp.moveaxis(x, -1, 1).reshape(b, t, n)
    return total, flat(weights.sum(-1)), flat(top[..., 0])
