"""Texts laid end to end, so that no product with a weight sees padding; attention alone spreads them to rows again.

Every device holds one stream, `[b a d]` with b the batch devices, of the texts that are its own in `[b t d]`. Both
directions are gathers, and each is the other's gradient: nothing is ever scattered.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from ark_jax.layout import activation_spec


def price(model, cfg) -> dict[str, int]:
    """Multiply-adds: `parameters` of a token, `attention` of a pair of tokens, which weigh padding against programs."""
    # Softmax and the narrow heads make it three times as dear as its multiply-adds.
    return {"parameters": sum(x.size for x in jax.tree.leaves(model.blocks)),
            "attention": 6 * cfg.layers * cfg.heads * cfg.dims["h"]}


@functools.partial(jax.tree_util.register_dataclass, data_fields=["at", "back"], meta_fields=["room"])
@dataclasses.dataclass(frozen=True)
class Plan:
    """Where tokens stand; what stands nowhere points past the end, and is read as zeros."""

    at: Int[Array, "b t"]  # row's token -> its place in the stream of the row's device
    back: Int[Array, "g a"]  # place -> the token, counted through all rows of the device
    room: int  # places in a stream


def plan(mask: Bool[Array, "b t"], room: int) -> Plan:
    """`room` is what the caller promises to be enough: no device has more visible tokens. Surplus ones would be lost."""
    def local(mask):
        seen = mask.reshape(-1)
        at = jnp.where(seen, jnp.cumsum(seen) - 1, room).reshape(mask.shape)
        return at, jnp.flatnonzero(seen, size=room, fill_value=seen.size)[None]

    spec = activation_spec("b t")
    return Plan(*jax.shard_map(local, in_specs=spec, out_specs=(spec, spec))(mask), room)


def join(x: Array, where: Plan) -> Array:
    """`[b t ...]` -> `[g a ...]`."""
    return _local(to_stream, x, where)


def spread(x: Array, where: Plan) -> Array:
    """`[g a ...]` -> `[b t ...]`, zeros for padding."""
    return _local(to_rows, x, where)


def _local(move, x: Array, where: Plan) -> Array:
    index, own = activation_spec("b t"), jax.typeof(x).sharding.spec  # axes after the tokens stay cut as they are
    return jax.shard_map(move, in_specs=(own, index, index), out_specs=own)(x, where.at, where.back)


def to_stream(x: Array, at: Array, back: Array) -> Array:
    """`join` on one device, which has one stream: `[b t ...]` -> `[1 a ...]`."""
    return _fetch(x.reshape(-1, *x.shape[2:]), back.reshape(-1), at.reshape(-1)).reshape(*back.shape, *x.shape[2:])


def to_rows(x: Array, at: Array, back: Array) -> Array:
    """`spread` on one device: `[1 a ...]` -> `[b t ...]`."""
    return _fetch(x.reshape(x.shape[1:]), at.reshape(-1), back.reshape(-1)).reshape(*at.shape, *x.shape[2:])


@jax.custom_vjp
def _fetch(x, index, inverse):
    """Rows of x; JAX would scatter their gradient, which is a gather by the inverse."""
    return x.at[index].get(mode="fill", fill_value=0)


_fetch.defvjp(lambda x, index, inverse: (_fetch(x, index, inverse), (index, inverse)),
              lambda indices, g: (_fetch(g, *reversed(indices)), None, None))

