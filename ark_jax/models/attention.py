"""The one place that computes attention, local to each (batch, head) shard.

Kernels run inside `jax.shard_map`, so they need no sharding rules of their own; a GPU or TPU kernel is
added here and nowhere else.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ark_jax.layout import activation_spec
from ark_jax.models import unpad

# Finite, so that a row without a single key gives a mean instead of NaN.
MASKED = -1e30


def attend(
    q: Float[Array, "b t n h"],
    k: Float[Array, "b s k h"],
    v: Float[Array, "b s k h"],
    mask: Bool[Array, "b t s"],
    *,
    causal: bool,
) -> Float[Array, "b t n h"]:
    """Softmax attention; query heads share key/value heads in groups of n/k. Softmax in float32.

    `causal` promises a mask that hides every later token, whose scores are then not computed.
    """
    specs = [activation_spec(side) for side in ("b t n h", "b s k h", "b s k h", "b t s")]
    local = _causal if causal else _attend
    return jax.shard_map(local, in_specs=tuple(specs), out_specs=specs[0])(q, k, v, mask)


def attend_unpadded(
    q: Float[Array, "b a n h"],
    k: Float[Array, "b a k h"],
    v: Float[Array, "b a k h"],
    where: unpad.Plan,
    *,
    causal: bool,
) -> Float[Array, "b a n h"]:
    """`attend` for the texts of a stream, each by itself."""
    row, cache, index = activation_spec("b t n h"), activation_spec("b s k h"), activation_spec("b t")

    def local(q, k, v, at, back):
        q, k, v = (unpad.to_rows(x[0], at, back[0]) for x in (q, k, v))
        t = at.shape[1]
        mask = jnp.broadcast_to((at < where.room)[:, None, :], (len(at), t, t))
        out = _causal(q, k, v, mask & jnp.tril(jnp.ones((t, t), bool))) if causal else _attend(q, k, v, mask)
        return unpad.to_stream(out, at, back[0])[None]

    return jax.shard_map(local, in_specs=(row, cache, cache, index, index), out_specs=row)(q, k, v, where.at, where.back)


def _causal(q, k, v, mask):
    """In blocks of queries, each with the keys up to its end: half the scores, and tiles that fit a cache."""
    size = max(64, -(-q.shape[1] // 8))
    blocks = [_attend(q[:, at : at + size], k[:, : at + size], v[:, : at + size], mask[:, at : at + size, : at + size])
              for at in range(0, q.shape[1], size)]
    return jnp.concatenate(blocks, axis=1)


def attend_shared(
    q: Float[Array, "b t n h"],
    k: Float[Array, "b u k h"],
    v: Float[Array, "b u k h"],
    mask: Bool[Array, "b t u"],
    prefix_k: Float[Array, "g s k h"],
    prefix_v: Float[Array, "g s k h"],
    prefix_mask: Bool[Array, "g s"],
    owner: Int[Array, " b"],
) -> Float[Array, "b t n h"]:
    """Rows that go on from shared prefixes: row i sees prefix `owner[i]`, then its own u keys.

    `owner` counts within the prefixes of the row's own device: who shards rows and prefixes keeps them together.
    """
    row, cache = activation_spec("b t n h"), activation_spec("b s k h")
    specs = (row, cache, cache, activation_spec("b t s"), cache, cache, activation_spec("b s"), activation_spec("b"))

    def local(q, k, v, mask, prefix_k, prefix_v, prefix_mask, owner):
        seen = jnp.broadcast_to(prefix_mask[owner][:, None, :], (*mask.shape[:2], prefix_mask.shape[1]))
        join = lambda prefix, own: jnp.concatenate([prefix[owner], own], axis=1)
        return _attend(q, join(prefix_k, k), join(prefix_v, v), jnp.concatenate([seen, mask], axis=2))

    return jax.shard_map(local, in_specs=specs, out_specs=row)(q, k, v, mask, prefix_k, prefix_v, prefix_mask, owner)


def _attend(q, k, v, mask):
    """Heads first, the query heads of one key head folded into its rows; divided after the product with v."""
    b, t, n, h = q.shape
    heads, group = k.shape[2], n // k.shape[2]
    dot = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
    rows = (q * h**-0.5).reshape(b, t, heads, group, h).transpose(0, 2, 3, 1, 4).reshape(b, heads, group * t, h)
    k, v = k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3)
    scores = dot("bkrh,bksh->bkrs", rows, k)
    mask = jnp.broadcast_to(mask[:, None, None], (b, 1, group, *mask.shape[1:])).reshape(b, 1, group * t, -1)
    scores = jnp.where(mask, scores, MASKED)
    # The maximum cancels; left in the gradient it would double the cost of the backward pass.
    weights = jnp.exp(scores - jax.lax.stop_gradient(scores.max(-1, keepdims=True)))
    out = dot("bkrs,bksh->bkrh", weights.astype(v.dtype), v) / weights.sum(-1, keepdims=True)
    return out.astype(q.dtype).reshape(b, heads, group, t, h).transpose(0, 3, 1, 2, 4).reshape(b, t, n, h)
