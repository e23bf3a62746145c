"""One alphabet for einsum strings, array shapes, shardings and weight conversion.

b batch   a all tokens of a batch (b·t)   t query token   s key token   d model width   e embedding width
(d's size, sharded the other way)   n query heads   k key/value heads   h head dim   f ffn width
v vocabulary   p position   y segment type   l layer   r rank of an adapter

A letter means one thing everywhere, so the letters of an einsum's output say how it is sharded and the
letters of a weight say how it is stored. Library code never mentions a mesh; the entrance sets it once.
"""

import math
import re

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

AXES = ("data", "fsdp", "tensor")
BATCH = ("data", "fsdp")
WEIGHTS = {"d": "fsdp", "n": "tensor", "k": "tensor", "f": "tensor", "v": "fsdp", "e": "tensor"}
ACTIVATIONS = {"b": BATCH, "a": BATCH, "n": "tensor", "k": "tensor", "f": "tensor"}


def make_mesh(shape: tuple[int, int, int] | None = None) -> jax.sharding.Mesh:
    """An explicit `data × fsdp × tensor` mesh; -1 in `shape` takes what is left, None is `(1, -1, 1)`."""
    shape = tuple(shape or (1, -1, 1))
    fixed = math.prod(n for n in shape if n != -1)
    left = jax.device_count() // fixed
    shape = tuple(left if n == -1 else n for n in shape)
    if math.prod(shape) > jax.device_count() or len(shape) != 3:
        raise ValueError(f"mesh {shape} wants {math.prod(shape)} devices, {jax.device_count()} are present: "
                         "change config.mesh, whose product must not exceed the device count")
    devices = jax.devices()[: math.prod(shape)]
    return jax.make_mesh(shape, AXES, axis_types=(AxisType.Explicit,) * 3, devices=devices)


def enter_mesh(shape: tuple[int, int, int] | None = None) -> None:
    """Sets the process-wide mesh unless one is set already."""
    if jax.sharding.get_mesh().empty:
        jax.set_mesh(make_mesh(shape))


def batch_multiple() -> int:
    """How many rows a global batch must be divisible by: the size of the batch axes of the mesh."""
    mesh = jax.sharding.get_mesh()
    return 1 if mesh.empty else math.prod(mesh.shape[axis] for axis in BATCH)


def groups(side: str) -> list[list[str]]:
    """`"(n h) d"` -> `[["n", "h"], ["d"]]`."""
    return [group.strip("()").split() for group in re.findall(r"\([^)]*\)|\S+", side)]


def weight_spec(side: str, dims: dict[str, int]) -> P:
    """How a weight is stored. Vectors stay replicated: a scaled activation must not take on their layout. So does a
    vocabulary that does not divide by its axis: BERT's has 30,522 entries."""
    parts = groups(side)
    whole = dims["v"] % jax.sharding.get_abstract_mesh().shape.get(WEIGHTS["v"], 1) != 0
    axes = [None if part == ["v"] and whole else WEIGHTS.get(part[0]) for part in parts]
    return P(*axes) if len(parts) > 1 else P()


def activation_spec(side: str) -> P:
    """How an activation with these letters is laid out."""
    return P(*(ACTIVATIONS.get(part[0]) for part in groups(side)))


def shape_of(side: str, dims: dict[str, int]) -> tuple[int, ...]:
    """Sizes of a side's groups: `"(n h) d"` with n=2, h=3, d=5 -> `(6, 5)`."""
    return tuple(math.prod(dims[letter] for letter in part) for part in groups(side))


def param(side: str, dims: dict[str, int], dtype: str, rngs: nnx.Rngs, init=None) -> nnx.Param:
    """A parameter with these letters, sharded as they say; normal(0.02) unless `init` is given."""
    init = init or jax.nn.initializers.normal(0.02)
    value = init(rngs.params(), shape_of(side, dims), jnp.dtype(dtype), out_sharding=weight_spec(side, dims))
    return nnx.Param(value)


def einsum(equation: str, x: jax.Array, w: jax.Array) -> jax.Array:
    """A product of activations and one weight; output letters decide the output's sharding.

    The tokens `b t` are one axis `a` while multiplying: XLA:CPU transposes a three-dimensional activation
    physically for the weight gradient (27 % of a training step). Products accumulate in float32 whatever
    the compute type, which is also what lets XLA:CPU use its bfloat16 kernels.
    """
    inputs, output = equation.split("->")
    left, right = inputs.split(",")
    tokens = left[:2] if left[0] == "b" and left[1] in "ts" and output[:2] == left[:2] else ""
    if tokens:
        b, t = x.shape[:2]
        flat = (b * t, *x.shape[2:])
        x = x.reshape(flat, out_sharding=activation_spec(" ".join("a" + left[2:])))
        left, output = "a" + left[2:], "a" + output[2:]
    y = jnp.einsum(f"{left},{right}->{output}", x, w.astype(x.dtype),
                   out_sharding=activation_spec(" ".join(output)), preferred_element_type=jnp.float32)
    y = y.astype(x.dtype)
    if tokens:
        y = y.reshape((b, t, *y.shape[1:]), out_sharding=activation_spec(" ".join(tokens + output[1:])))
    return y


def rows(x) -> jax.Array:
    """Host array -> device array sharded over the batch axes by its first dimension."""
    return jax.device_put(x, P(BATCH))


def pick(x: jax.Array, index: jax.Array) -> jax.Array:
    """`x[i, index[i]]` for every row i: `[b t ...]`, `[b]` or `[b j]` -> `[b ...]` or `[b j ...]`. Stays on each
    row's device, which `take_along_axis` cannot promise."""
    return jax.vmap(lambda row, i: row[i])(x, index)
