"""Keys and values of shared prefixes, computed once, and texts that go on from them."""

import functools

import jax
import jax.numpy as jnp

from ark_jax.layout import activation_spec
from ark_jax.models import attention, unpad


@functools.partial(jax.jit, static_argnums=(1, 4))
def compute(model, cfg, tokens, mask, room: int):
    """Keys and values of every layer: [l p k s h] twice."""
    where = unpad.plan(mask, room)

    def attend(q, k, v, _):
        kept = tuple(unpad.spread(x, where).transpose(0, 2, 1, 3) for x in (k, v))
        return attention.attend_unpadded(q, k, v, where, causal=True, kernel=cfg.attention), kept

    positions = jnp.zeros_like(tokens) + jnp.arange(tokens.shape[1])
    return model.layers(tokens, positions, attend, cfg, where=where)[1]


def go_on(model, cfg, memory, seen, batch, room: int, *, keep: bool):
    """What follows the prefixes: a stream of hidden states [b a d], and the rows' own keys and values if they are to be kept."""
    tokens, mask = batch["tokens"], batch["mask"]
    t = tokens.shape[1]
    by_row, by_seat = unpad.plan(mask, room), unpad.plan(batch["tokens_of"], room)
    allowed = jnp.tril(jnp.ones((t, t), bool)) & mask[:, None, :]

    def attend(q, k, v, cache):
        k, v = unpad.spread(k, by_row), unpad.spread(v, by_row)
        return attention.attend_shared(q, k, v, allowed, *cache, seen, batch["seats"], by_seat, by_row), (k, v) if keep else None

    return model.layers(tokens, batch["start"][:, None] + jnp.arange(t), attend, cfg, memory, by_row)


def attend_one(q, keys, values, mask, shared_keys, shared_values, seen):
    """One query a row [b 1 n h]: what it sees of its own keys [b k s h], by `mask` [b s], and of its prefix [1 k s h]."""
    dot = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)

    def local(q, keys, values, mask, shared_keys, shared_values, seen):
        b, _, n, h = q.shape
        q = (q * h**-0.5).reshape(b, keys.shape[1], -1, h)
        # Keys on the left, and it must stay so: with so few queries XLA:CPU is four times faster than the other way round.
        own = jnp.where(mask[:, None, :, None], dot("bksh,bkrh->bksr", keys, q), attention.MASKED)
        shared = jnp.where(seen[0], dot("bkrh,ksh->bkrs", q, shared_keys[0]), attention.MASKED)
        highest = jnp.maximum(own.max(2), shared.max(3))
        own, shared = jnp.exp(own - highest[:, :, None]), jnp.exp(shared - highest[..., None])
        total = (own.sum(2) + shared.sum(3))[..., None]
        out = dot("bksr,bksh->bkrh", own.astype(values.dtype), values)
        out += dot("bkrs,ksh->bkrh", shared.astype(values.dtype), shared_values[0])
        return (out / total).astype(q.dtype).reshape(b, 1, n, h)

    row, cache, pair = (activation_spec(side) for side in ("b t n h", "b k s h", "b t"))
    run = jax.shard_map(local, in_specs=(row, cache, cache, pair, cache, cache, pair), out_specs=row)
    return run(q, keys, values, mask, shared_keys, shared_values, seen)
