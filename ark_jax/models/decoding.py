"""Where weights lie, and how layers run, while tokens are generated.

Training cuts weights over all devices and gathers each when it is used, for thousands of tokens.
A decoding step is for one token a text. So weights stay where they are and activations move: they
are cut over the tensor axis alone, over as few devices as their memory allows.
"""

import functools
import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array

from ark_jax.models import decoder
from ark_jax.runtime.accelerator import device_in_use
from ark_jax.runtime.device_memory import device_memory

# Share of a device's memory for the weights of a generation, beside those that are there already.
FILL = 0.4


def decoding_shape(model: decoder.Decoder, cfg: decoder.Config) -> tuple[int, int, int]:
    """Devices per axis of the mesh that generates, of as many devices as the current one.

    Its tensor axis is at least as long as the current one's, and long enough for weights to fit.
    """
    mesh, dims = jax.sharding.get_abstract_mesh(), cfg.dims
    size = sum(x.size for x in jax.tree.leaves(model)) * jnp.dtype(cfg.compute).itemsize
    size *= 1 if layers_stay_stacked() else 2
    lengths = [
        n
        for n in range(mesh.shape["tensor"], mesh.size + 1)
        if mesh.size % n == 0 and all(dims[letter] % n == 0 for letter in "nkfe")
    ]
    fitting = [n for n in lengths if size / n <= FILL * device_memory()]
    tensor = fitting[0] if fitting else lengths[-1]
    return mesh.size // tensor, 1, tensor


def decoding_mesh(model: decoder.Decoder, cfg: decoder.Config) -> Mesh:
    """The current mesh's devices in a mesh that cuts no weight but over its tensor axis."""
    mesh = jax.sharding.get_mesh()
    devices = mesh.devices.reshape(decoding_shape(model, cfg))
    return Mesh(devices, mesh.axis_names, axis_types=mesh.axis_types)


def decoding_copy(model: decoder.Decoder, cfg: decoder.Config, mesh: Mesh) -> decoder.Decoder:
    """The model on a mesh, its matrices in the type that products are computed in.

    Arrays that need no change are shared.
    """

    def place(path: tuple, x: Array) -> Array:
        name = jax.tree_util.keystr(path)
        is_matrix = x.ndim - ("blocks" in name) > 1 and "bias" not in name
        if is_matrix:  # norms and biases are used in float32
            x = x.astype(cfg.compute)
        return jax.device_put(x, NamedSharding(mesh, jax.typeof(x).sharding.spec))

    return jax.tree_util.tree_map_with_path(place, model)


def parts_of(stacked: Any, layers: int) -> list:
    """What decoding steps take of a tree of arrays `[l ...]`: its layers, or the tree alone.

    XLA's programs for CPUs and GPUs would copy a layer out of its stack at every step. So layers
    are views of the stack on CPUs, and copies on GPUs.
    """
    if layers_stay_stacked():
        return [stacked]
    if device_in_use().platform != "cpu":
        return _copy_layers(stacked, layers)
    return [jax.tree.map(functools.partial(_view_of_layer, i), stacked) for i in range(layers)]


def layers_stay_stacked() -> bool:
    """Whether programs read a layer's weights in their stack; so do those of TPUs."""
    return device_in_use().platform == "tpu"


@functools.partial(jax.jit, static_argnums=1)
def _copy_layers(stacked: Any, layers: int) -> list:
    """A copy of each layer of a tree of arrays `[l ...]`."""
    return [jax.tree.map(operator.itemgetter(i), stacked) for i in range(layers)]


def _view_of_layer(i: int, stack: Array) -> Array:
    """Layer i of an array `[l ...]`; shares the memory of the stack if JAX allows it."""
    assert isinstance(stack.sharding, NamedSharding)
    mesh, spec = stack.sharding.mesh, stack.sharding.spec
    shards = [
        jax.device_put(np.asarray(shard.data)[i], shard.device)
        for shard in stack.addressable_shards
    ]
    return jax.make_array_from_single_device_arrays(
        stack.shape[1:], NamedSharding(mesh, P(*spec[1:])), shards
    )
