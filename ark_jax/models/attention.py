"""The one place that computes attention, local to each (batch, head) shard.

Kernels run inside `jax.shard_map`, so they need no sharding rules of their own; a GPU or TPU kernel is
added here and nowhere else.
"""

import functools

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float, Int

from ark_jax.layout import SAVED, activation_spec
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
        q, k, v = (unpad.to_rows(x, at, back) for x in (q, k, v))
        t = at.shape[1]
        mask = jnp.broadcast_to((at < where.room)[:, None, :], (len(at), t, t))
        out = _causal(q, k, v, mask & jnp.tril(jnp.ones((t, t), bool))) if causal else _attend(q, k, v, mask)
        return unpad.to_stream(out, at, back)

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


@jax.custom_vjp
def _attend(q, k, v, mask):
    """Heads first, the query heads of one key head folded into its rows; divided after the product with v."""
    return _forward(q, k, v, mask)[0]


def _forward(q, k, v, mask):
    k_rows, v_rows = k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3)
    scores = _scores(_heads_first(q * q.shape[-1] ** -0.5, k.shape[2]), k_rows, mask)
    weights = jnp.exp(scores - scores.max(-1, keepdims=True))
    out = _dot("bkrs,bksh->bkrh", weights.astype(v.dtype), v_rows) / weights.sum(-1, keepdims=True)
    # Kept by rematerialised layers: without it the backward pass would attend once more than it does anyway.
    out = checkpoint_name(_heads_last(out.astype(q.dtype), q.shape), SAVED)
    return out, (q, k, v, mask, out)


def _backward(kept, gradient):
    """Weights are computed again: to read them from memory costs more, and they are larger than all else."""
    q, k, v, mask, out = kept
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


def _scores(q, k, mask):
    """`[b k r h]`, `[b k s h]`, `[b t s]` -> `[b k r s]`; r counts the tokens of one head after the other."""
    b, t, s = mask.shape
    mask = jnp.broadcast_to(mask[:, None, None], (b, 1, q.shape[2] // t, t, s)).reshape(b, 1, -1, s)
    return jnp.where(mask, _dot("bkrh,bksh->bkrs", q, k), MASKED)


def _heads_first(x, heads: int):
    """`[b t n h]` -> `[b k r h]`, the n/k query heads of a key head one after the other."""
    b, t, n, h = x.shape
    return x.reshape(b, t, heads, n // heads, h).transpose(0, 2, 3, 1, 4).reshape(b, heads, -1, h)


def _heads_last(x, shape: tuple[int, ...]):
    b, t, n, h = shape
    return x.reshape(b, x.shape[1], -1, t, h).transpose(0, 3, 1, 2, 4).reshape(b, t, n, h)
