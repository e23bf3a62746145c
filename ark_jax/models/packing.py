"""Packs the texts of a batch end to end, so that products with weights see no padding.

Every device holds one stream of the texts that are its own: rows `[b t ...]` become streams
`[streams a ...]`, one per batch device. Attention alone unpacks them to rows again. Both directions
are gathers and each is the other's gradient, so nothing is ever scattered.
"""

import dataclasses
import functools
import typing
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Shaped

from ark_jax.layout import activation_spec
from ark_jax.runtime.accelerator import device_in_use

# Multiply-adds that a device could compute while one more program is compiled: a second of a small
# CPU, 4 seconds of an H100 (measured), 40 of a TPU (measured by its compiler on a CPU).
COMPILATION = {"cpu": 5e10, "gpu": 1e15, "tpu": 4e15}


def multiply_adds(model: typing.Any, cfg: typing.Any) -> dict[str, typing.Any]:
    """The cost of a token (`parameters`), of a pair of tokens (`attention`) and of a `compilation`.

    Planners weigh padding against compilations with them.
    """
    # Softmax and narrow heads make attention three times as slow as its multiply-adds suggest.
    return {
        "parameters": sum(x.size for x in jax.tree.leaves(model.blocks)),
        "attention": 6 * cfg.layers * cfg.heads * cfg.dims["h"],
        "compilation": COMPILATION[device_in_use().platform],
    }


@typing.no_type_check  # tree operations put other leaves into it
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PackingPlan:
    """Maps tokens of rows to places of streams and back. An index past the end reads zeros."""

    places: Int[Array, "b t"]  # token of a row -> its place in the stream of the row's device
    sources: Int[Array, "streams a"]  # place -> token, counted through all rows of the device
    capacity: int = dataclasses.field(metadata={"static": True})  # places in a stream


def plan_packing(mask: Bool[Array, "b t"], capacity: int) -> PackingPlan:
    """Packs the visible tokens of each device in row order.

    Args:
        capacity: the places of a stream. No device may have more visible tokens: the plan is made
            inside a compiled program, which cannot check this, and surplus tokens are dropped.
    """
    spec = activation_spec("b t")
    local = functools.partial(plan_shard, capacity=capacity)
    places, sources = jax.shard_map(local, in_specs=spec, out_specs=(spec, spec))(mask)
    return PackingPlan(places, sources, capacity)


def plan_shard(
    mask: Bool[Array, "b t"], capacity: int
) -> tuple[Int[Array, "b t"], Int[Array, "1 a"]]:
    """(places, sources) of `plan_packing` on one device."""
    visible = mask.reshape(-1)
    places = jnp.where(visible, jnp.cumsum(visible) - 1, capacity).reshape(mask.shape)
    return places, jnp.flatnonzero(visible, size=capacity, fill_value=visible.size)[None]


def align_shard(
    places: Int[Array, "b t"], sources: Int[Array, "1 a"]
) -> tuple[Int[Array, "b t"], Int[Array, "1 a"], Int[Array, " b"]]:
    """(places, sources, lengths) on one device, as if each text began at the left of its row.

    The tokens of a row are side by side in the stream, so its first place and its length suffice.
    """
    (b, t), capacity = places.shape, sources.shape[1]
    lengths = jnp.sum(places < capacity, axis=1, dtype=jnp.int32)
    starts = jnp.min(places, axis=1)
    column = jnp.arange(t)
    aligned = jnp.where(column < lengths[:, None], starts[:, None] + column, capacity)
    row = jnp.minimum(sources // t, b - 1)
    moved = row * t + jnp.arange(capacity) - starts[row]
    return aligned, jnp.where(sources < b * t, moved, b * t), lengths


def pack(x: Shaped[Array, "b t *rest"], plan: PackingPlan) -> Shaped[Array, "streams a *rest"]:
    """Packs rows into streams."""
    return _run_on_shards(pack_shard, x, plan)


def unpack(x: Shaped[Array, "streams a *rest"], plan: PackingPlan) -> Shaped[Array, "b t *rest"]:
    """Unpacks streams into rows, with zeros for padding."""
    return _run_on_shards(unpack_shard, x, plan)


def _run_on_shards(local: Callable, x: Array, plan: PackingPlan) -> Array:
    """Runs `local`, `pack_shard` or `unpack_shard`, on each device."""
    index = activation_spec("b t")
    spec = jax.typeof(x).sharding.spec  # later axes keep their sharding
    move = jax.shard_map(local, in_specs=(spec, index, index), out_specs=spec)
    return move(x, plan.places, plan.sources)


def pack_shard(
    x: Shaped[Array, "b t *rest"], places: Int[Array, "b t"], sources: Int[Array, "1 a"]
) -> Shaped[Array, "1 a *rest"]:
    """`pack` on one device, which has one stream."""
    stream = _gather(x.reshape(-1, *x.shape[2:]), sources.reshape(-1), places.reshape(-1))
    return stream.reshape(*sources.shape, *x.shape[2:])


def unpack_shard(
    x: Shaped[Array, "1 a *rest"], places: Int[Array, "b t"], sources: Int[Array, "1 a"]
) -> Shaped[Array, "b t *rest"]:
    """`unpack` on one device."""
    rows = _gather(x.reshape(x.shape[1:]), places.reshape(-1), sources.reshape(-1))
    return rows.reshape(*places.shape, *x.shape[2:])


@jax.custom_vjp
def _gather(x: Array, index: Int[Array, " i"], inverse: Int[Array, " j"]) -> Array:
    """`x[index]`, with zeros for an index past the end.

    JAX would compute its gradient by a scatter. Here it is a gather by `inverse`.
    """
    return x.at[index].get(mode="fill", fill_value=0)


def _gather_forward(x: Array, index: Array, inverse: Array) -> tuple[Array, tuple[Array, Array]]:
    """The output, and the indices that `_gather_backward` needs."""
    return _gather(x, index, inverse), (index, inverse)


def _gather_backward(indices: tuple[Array, Array], gradient: Array) -> tuple[Array, None, None]:
    """The gradient of `x`, which is gathered by `inverse`."""
    index, inverse = indices
    return _gather(gradient, inverse, index), None, None


_gather.defvjp(_gather_forward, _gather_backward)
