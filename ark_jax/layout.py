"""One alphabet for einsum strings, array shapes, shardings and weight conversion.

b  text of a batch (a row)               d  model width
t  token of a row; of a query            e  embedding width: d's size, cut over both weight axes
s  token of a row; of a key              n  query heads
a  tokens laid end to end                k  key/value heads
l  layer                                 h  head dim
v  vocabulary                            f  feed-forward width
p  position                              r  rank of an adapter
u  part of the batch axes                w  part of the tensor axis
y  segment type                          m  marker in a pair of texts
c  label of a classifier                 j  width inside a classifier
g  state that a classifier reads         x  bucket of distances between tokens

A letter means one thing everywhere: the letters of an einsum's output say how the output is
sharded, the letters of a weight say how the weight is stored. Shapes in annotations
(`Float[Array, "b t d"]`) use the same letters; an axis that has no letter is a word, as in
`"prefixes k s h"`. The tests
check every annotated shape at every call (`tests/conftest.py`): within a call, equal names must
have equal sizes. Library code never mentions a mesh; the program's entry point sets it once.
"""

import functools
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import mesh_utils
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from ark_jax.runtime.accelerator import device_in_use

AXES = ("data", "fsdp", "tensor")
DEFAULT = (1, -1, 1)
BATCH = ("data", "fsdp")
WEIGHTS = {"d": "fsdp", "n": "tensor", "k": "tensor", "f": "tensor", "e": ("tensor", "fsdp")}
SAVED = "product"  # checkpoint name of values that rematerialisation saves
ACTIVATIONS = {
    "b": BATCH,
    "a": BATCH,
    "u": BATCH,
    "n": "tensor",
    "k": "tensor",
    "f": "tensor",
    "w": "tensor",
}


def mesh_shape(shape: Sequence[int] | None, count: int, slices: int = 1) -> tuple[int, ...]:
    """Devices per axis of a mesh of at most `count` devices; arguments as of `make_mesh`.

    Raises:
        ValueError: no such mesh can be made of so many devices.
    """
    shape = tuple(shape or DEFAULT)
    shape = (slices, *DEFAULT[1:]) if shape == DEFAULT else shape
    if len(shape) != 3 or shape.count(-1) > 1 or min(shape) < -1 or 0 in shape:
        raise ValueError(
            f"mesh {shape}: config.mesh must be three numbers, for data, fsdp and tensor, each at "
            "least 1; one of them may be -1, which takes all remaining devices"
        )
    fixed = math.prod(n for n in shape if n != -1)
    remaining = count // fixed
    shape = tuple(remaining if n == -1 else n for n in shape)
    if math.prod(shape) > count or not remaining:
        raise ValueError(
            f"mesh {shape} wants {max(fixed, math.prod(shape))} devices, {count} are "
            "present: change config.mesh, whose product must not exceed the device count"
        )
    if shape[0] % slices:
        raise ValueError(
            f"mesh {shape}: its first axis goes over the {slices} slices of TPUs that are present, "
            f"so {slices} must divide it: set config.mesh=({slices},-1,1)"
        )
    return shape


def make_mesh(
    shape: Sequence[int] | None = None, devices: Sequence[Any] | None = None
) -> jax.sharding.Mesh:
    """An explicit `data × fsdp × tensor` mesh.

    Slices of TPUs reach each other by the slow network of their hosts, so only the data axis, which
    sums gradients once a step, goes over slices.

    Args:
        shape: devices per axis; -1 takes all that remain. None is `(1, -1, 1)`, which means
            `(slices, -1, 1)` on several slices.
        devices: None takes jax's.

    Raises:
        ValueError: no such mesh can be made of the devices present.
    """
    devices = jax.devices() if devices is None else devices
    slices = _count_slices(devices)
    shape = mesh_shape(shape, len(devices), slices)
    is_divided = jax.process_count() > 1 or slices > 1
    if math.prod(shape) < len(devices) and is_divided:
        raise ValueError(
            f"mesh {shape} takes {math.prod(shape)} of {len(devices)} devices: with several "
            "processes or slices it must take all; set config.mesh=(1,-1,1)"
        )
    axis_types = (AxisType.Explicit,) * 3
    if slices > 1:
        in_slice = (shape[0] // slices, *shape[1:])
        places = mesh_utils.create_hybrid_device_mesh(in_slice, (slices, 1, 1), devices)
        return jax.sharding.Mesh(places, AXES, axis_types=axis_types)
    devices = devices[: math.prod(shape)]
    return jax.make_mesh(shape, AXES, axis_types=axis_types, devices=devices)


def _count_slices(devices: Sequence[Any]) -> int:
    """Slices of TPUs that the devices are in; 1 for other devices."""
    # Those of a topology that is not here may have no number.
    numbers = {getattr(x, "slice_index", 0) for x in devices if x.platform == "tpu"}
    return len(numbers) or 1


def enter_mesh(shape: Sequence[int] | None = None) -> None:
    """Sets the process-wide mesh unless one is set already."""
    if jax.sharding.get_mesh().empty:
        jax.set_mesh(make_mesh(shape))


def enter_mesh_of(arrays) -> None:
    """Sets the mesh of a pytree's arrays in a thread that has none, since threads share no mesh."""
    if jax.sharding.get_mesh().empty:
        jax.set_mesh(jax.tree.leaves(arrays)[0].sharding.mesh)


def check_divides(dims: dict[str, int], model_name: str) -> None:
    """Checks that the mesh cuts a model of these sizes into equal shards.

    Args:
        dims: letter -> size.

    Raises:
        ValueError: it does not; the message proposes a mesh of as many devices that does.
    """
    mesh = jax.sharding.get_abstract_mesh().shape
    cuts = {}
    for letter, axes in WEIGHTS.items():
        if letter in dims:
            cuts[letter] = math.prod(map(mesh_size, [axes] if isinstance(axes, str) else axes))
    wrong = [letter for letter, n in cuts.items() if dims[letter] % n]
    if not wrong:
        return
    tensor = math.gcd(mesh["tensor"], *(dims[letter] for letter in cuts))
    fsdp = math.gcd(mesh["fsdp"], dims["d"] // tensor)
    names = {
        "d": "width",
        "e": "width",
        "n": "heads",
        "k": "key and value heads",
        "f": "feed-forward width",
    }
    fits = (math.prod(mesh.values()) // (fsdp * tensor), fsdp, tensor)
    letter = wrong[0]
    raise ValueError(
        f"{model_name}: {names[letter]} {dims[letter]} cannot be cut into {cuts[letter]} equal "
        f"parts, as the mesh {tuple(mesh.values())} wants: set config.mesh={fits}"
    )


def batch_multiple() -> int:
    """The size of the mesh's batch axes, which must divide the rows of a global batch."""
    return math.prod(jax.sharding.get_abstract_mesh().shape.get(axis, 1) for axis in BATCH)


def mesh_size(axis: str) -> int:
    """Devices along an axis of the mesh."""
    return jax.sharding.get_abstract_mesh().shape.get(axis, 1)


def groups(side: str) -> list[list[str]]:
    """`"(n h) d"` -> `[["n", "h"], ["d"]]`."""
    return [group.strip("()").split() for group in re.findall(r"\([^)]*\)|\S+", side)]


def weight_spec(side: str) -> P:
    """The sharding of a weight.

    Vectors are replicated: otherwise an activation that they scale would take on their sharding.
    """
    parts = groups(side)
    return P(*(WEIGHTS.get(part[0]) for part in parts)) if len(parts) > 1 else P()


def activation_spec(side: str) -> P:
    """The sharding of an activation with these letters."""
    return P(*(ACTIVATIONS.get(part[0]) for part in groups(side)))


def shape_of(side: str, dims: dict[str, int]) -> tuple[int, ...]:
    """Sizes of a side's groups: `"(n h) d"` with n=2, h=3, d=5 -> `(6, 5)`."""
    return tuple(math.prod(dims[letter] for letter in part) for part in groups(side))


def param(side: str, dims: dict[str, int], dtype: str, rngs: nnx.Rngs, init=None) -> nnx.Param:
    """A parameter with these letters, sharded as they say; normal(0.02) unless `init` is given."""
    init = init or jax.nn.initializers.normal(0.02)
    value = init(
        rngs.params(), shape_of(side, dims), jnp.dtype(dtype), out_sharding=weight_spec(side)
    )
    return nnx.Param(value)


def over_tokens(function: Callable[[jax.Array], jax.Array], x: jax.Array) -> jax.Array:
    """`function(x)` for a function that keeps shapes. It gets `[b t d]` as tokens `[a d]`.

    A norm's gradients sum over tokens. XLA:CPU takes ten times as long for that if the tokens are
    one stream `[1 a d]` (a tenth of an encoder's training step).
    """
    if x.ndim != 3:
        return function(x)
    spec = jax.typeof(x).sharding.spec
    flat = x.reshape(-1, x.shape[-1], out_sharding=P(spec[0], spec[2]))
    return function(flat).reshape(x.shape, out_sharding=spec)


def einsum(
    equation: str, x: jax.Array, w: jax.Array, bias: jax.Array | None = None, kind: str = ""
) -> jax.Array:
    """A product of activations and one weight, plus a bias. The output's letters say its sharding.

    While multiplying, the axes `b t` are one axis `a`: for the weight gradient, XLA:CPU would copy
    a transposed three-dimensional activation (27 % of a training step). Products accumulate in
    float32 whatever the compute type, which also lets XLA:CPU use its bfloat16 kernels.

    Args:
        kind: the type of both factors; the output has x's. "": x's.
    """
    inputs, output = equation.split("->")
    left, right = inputs.split(",")
    tokens = left[:2] if left[0] == "b" and left[1] in "ts" and output[:2] == left[:2] else ""
    if tokens:
        b, t = x.shape[:2]
        flat = (b * t, *x.shape[2:])
        x = x.reshape(flat, out_sharding=activation_spec(" ".join("a" + left[2:])))
        left, output = "a" + left[2:], "a" + output[2:]
    if left == "anh":
        # XLA:CPU would transpose the weight in every call, to sum over `h n`.
        x = x.reshape(len(x), -1, out_sharding=activation_spec("a f"))
        w = w.reshape(-1, w.shape[-1], out_sharding=weight_spec("f d"))
        left, right = "af", "fd"
    y = _product(f"{left},{right}->{output}", x.astype(kind or x.dtype), w)
    y = checkpoint_name((y if bias is None else y + bias).astype(x.dtype), SAVED)
    if tokens:
        y = y.reshape(
            (b, t, *y.shape[1:]), out_sharding=activation_spec(" ".join(tokens + output[1:]))
        )
    return y


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _product(equation: str, x: jax.Array, w: jax.Array) -> jax.Array:
    """x times w, both in x's type, accumulated in float32."""
    return jnp.einsum(
        equation,
        x,
        w.astype(x.dtype),
        out_sharding=activation_spec(" ".join(equation.split("->")[1])),
        preferred_element_type=jnp.float32,
    )


def _product_backward(equation: str, inputs: tuple, g: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The gradients of x and w, multiplied in x's type, since float32 (JAX's rule) is slower."""
    x, w = inputs
    left, right, output = equation.replace("->", ",").split(",")
    g = g.astype(x.dtype)
    spec = lambda x: jax.typeof(x).sharding.spec
    dot = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
    dx = dot(f"{output},{right}->{left}", g, w.astype(x.dtype), out_sharding=spec(x))
    if len(output) == 3 and device_in_use().platform == "cpu":
        # XLA:CPU has no bfloat16 kernel for a second factor with two free axes: join them.
        g = g.reshape(len(g), -1, out_sharding=P(*spec(g)[:2]))
        dw = dot(f"{left},{output[:2]}->{right[:2]}", x, g, out_sharding=P(*spec(w)[:2])).reshape(
            w.shape, out_sharding=spec(w)
        )
    else:
        dw = dot(f"{left},{output}->{right}", x, g, out_sharding=spec(w))
    return dx.astype(x.dtype), dw.astype(w.dtype)


_product.defvjp(lambda equation, x, w: (_product(equation, x, w), (x, w)), _product_backward)


def lookup(table: jax.Array, tokens: jax.Array) -> jax.Array:
    """Rows of an embedding table: `[v e]`, `[b t]` -> `[b t d]`.

    Every device holds some columns of all rows. It looks up the tokens of its whole fsdp group, and
    an all-to-all sends each token's columns to its own device. So no device ever holds the whole
    table or its gradient, and the vocabulary need not be divisible by anything.
    """
    mesh = jax.sharding.get_abstract_mesh().shape
    if mesh["fsdp"] * mesh["tensor"] == 1:
        # Every device holds the whole table; a collective over one device would still be a copy.
        return table.at[tokens].get(out_sharding=activation_spec("b t d"))

    def local(table, tokens):
        tokens = jax.lax.all_gather(tokens, "fsdp", axis=0, tiled=True)
        return jax.lax.all_to_all(table[tokens], "fsdp", split_axis=0, concat_axis=2, tiled=True)

    specs = weight_spec("v e"), activation_spec("b t")
    x = jax.shard_map(local, in_specs=specs, out_specs=P(BATCH, None, "tensor"))(table, tokens)
    return jax.sharding.reshard(x, activation_spec("b t d"))


def logits(x: jax.Array, table: jax.Array) -> jax.Array:
    """Products with every row of a table, float32: `[a d]`, `[v e]` -> `[a v]`.

    The table is gathered over fsdp like other weights, and stays cut over tensor.
    """
    table = jax.sharding.reshard(table.astype(x.dtype), P(None, "tensor"))
    return _logits("ad,vd->av", x, table)


def copy_table(table: jax.Array) -> jax.Array:
    """A table `[v e]` as a whole copy for each device, `[u w v d]`, for `logits_of_parts`.

    A loop over parts must get it from outside. Inside, each round would move the whole table, and
    sum its gradient over the devices; so each device adds up its own, which are summed at the end.
    """
    table = jax.sharding.reshard(table, P())
    parts = (batch_multiple(), mesh_size("tensor"))
    return jax.lax.broadcast(table, parts, out_sharding=activation_spec("u w v d"))


def logits_of_parts(x: jax.Array, copies: jax.Array) -> jax.Array:
    """As `logits`, of rows that are cut over all devices: `[u w t d]`, `[u w v d]` -> `[u w t v]`.

    Other activations are the same on all devices of the tensor axis; here each has its own rows.
    """
    return _logits("uwtd,uwvd->uwtv", x, copies.astype(x.dtype))


def _logits(equation: str, x: jax.Array, table: jax.Array) -> jax.Array:
    if x.dtype != jnp.float32:
        # By JAX's own rule the gradient would be a product of float32 and 16 bits, which XLA
        # computes in float32.
        return _product(equation, x, table)
    return jnp.einsum(
        equation,
        x,
        table,
        out_sharding=activation_spec(" ".join(equation.split("->")[1])),
        preferred_element_type=jnp.float32,
    )


def cut_rows(x: jax.Array) -> jax.Array:
    """Rows cut over all devices: `[b t ...]` -> `[u w t ...]`; zeros fill the last parts."""
    parts = (batch_multiple(), mesh_size("tensor"))
    x = x.reshape(parts[0], -1, *x.shape[2:], out_sharding=P(BATCH))
    x = jnp.pad(x, ((0, 0), (0, -x.shape[1] % parts[1]), *[(0, 0)] * (x.ndim - 2)))
    x = x.reshape(*parts, -1, *x.shape[2:], out_sharding=P(BATCH))
    return jax.sharding.reshard(x, P(BATCH, "tensor"))


def join_rows(x: jax.Array, shape: Sequence[int]) -> jax.Array:
    """The inverse of `cut_rows` for arrays `[b t]` of this shape: `[u w t]` -> `[b t]`."""
    x = jax.sharding.reshard(x, P(BATCH)).reshape(len(x), -1, out_sharding=P(BATCH))
    kept = math.prod(shape) // len(x)
    return x[:, :kept].reshape(shape, out_sharding=activation_spec("b t"))


def put(x: np.ndarray, spec: P) -> jax.Array:
    """Host array -> device array. Every process has the same `x` and places its devices' shards."""
    if jax.process_count() == 1:
        return jax.device_put(x, spec)
    return jax.make_array_from_callback(
        x.shape, NamedSharding(jax.sharding.get_mesh(), spec), x.__getitem__
    )


def rows(x: np.ndarray) -> jax.Array:
    """Host array -> device array sharded over the batch axes by its first dimension."""
    return put(x, P(BATCH))


def build_rows(
    count: int, build: Callable[[int, int], tuple[np.ndarray, ...]]
) -> tuple[jax.Array, ...]:
    """Device arrays sharded over the batch axes by their first dimension, which has `count` rows.

    Args:
        build: (start, stop) -> these rows of each array. It is asked for the rows of this process's
            devices only.
    """
    if jax.process_count() == 1:
        return tuple(map(rows, build(0, count)))
    sharding = NamedSharding(jax.sharding.get_mesh(), P(BATCH))
    places = sharding.addressable_devices_indices_map((count,)).items()
    by_device = {device: index.indices(count)[:2] for device, (index,) in places}
    parts = {ends: build(*ends) for ends in set(by_device.values())}
    blocks_of_array = zip(*(parts[ends] for ends in by_device.values()), strict=True)
    join = jax.make_array_from_single_device_arrays
    return tuple(
        join((count, *blocks[0].shape[1:]), sharding, list(map(jax.device_put, blocks, by_device)))
        for blocks in blocks_of_array
    )


def fetch(x: jax.Array) -> np.ndarray:
    """Device array -> whole host array on every process. Every process must call it."""
    return np.asarray(
        x if x.is_fully_addressable or x.is_fully_replicated else jax.sharding.reshard(x, P())
    )


def pick(x: jax.Array, index: jax.Array) -> jax.Array:
    """`x[i, index[i]]` for every row i: `[b t ...]`, `[b]` or `[b j]` -> `[b ...]` or `[b j ...]`.

    Stays on each row's device, which `take_along_axis` does not guarantee.
    """
    return jax.vmap(lambda row, i: row[i])(x, index)
