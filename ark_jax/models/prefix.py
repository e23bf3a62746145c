"""Keys and values of shared prefixes, computed once, and texts that go on from them."""

import functools

import jax
import jax.numpy as jnp

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
