"""Attention to shared prefixes: every kernel against plain loops, on every mesh."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.cudnn import fused_attention_stablehlo as cudnn

from ark_jax import layout
from ark_jax.models import kernels, packing, prefix_attention
from ark_jax.runtime.accelerator import Device

HEADS, KEY_HEADS, SIZE, TOKENS, KEYS = 4, 2, 16, 24, 264
# Two prefixes on each of eight devices; one prefix is empty.
PREFIX_LENGTHS = np.array([264, 1, 130, 0, 257, 128, 7, 200] * 2)
PREFIX_INDICES = np.array([0, 1] * 8)
# A row may hold two texts; it may hold none.
TEXT_LENGTHS = np.array([[24, 0], [7, 17], [0, 0], [1, 2], [5, 0], [9, 9], [24, 0], [12, 12]] * 2)


def texts() -> np.ndarray:
    """Number of each token's text in its row."""
    ends = TEXT_LENGTHS.cumsum(1)
    column = np.arange(TOKENS)
    return np.select([column < ends[:, :1], column < ends[:, 1:]], [1, 2], 0).astype(np.int32)


@functools.cache
def draw(dtype: str) -> list[np.ndarray]:
    """Queries, keys and values of the texts in rows, keys and values of the prefixes."""
    random = np.random.default_rng(0)
    new = lambda *shape: np.asarray(random.standard_normal(shape), jnp.dtype(dtype))
    rows, prefixes = (len(TEXT_LENGTHS), TOKENS), (len(PREFIX_LENGTHS), KEY_HEADS, KEYS, SIZE)
    return [
        new(*rows, HEADS, SIZE),
        new(*rows, KEY_HEADS, SIZE),
        new(*rows, KEY_HEADS, SIZE),
        new(*prefixes),
        new(*prefixes),
    ]


@functools.cache
def plain(dtype: str, one_text: bool) -> np.ndarray:
    """The attention of each token, one after another, in float64; padding gets zeros."""
    q, k, v, prefix_k, prefix_v = (x.astype(np.float64) for x in draw(dtype))
    out, numbers = np.zeros(q.shape), np.minimum(texts(), 1) if one_text else texts()
    for row, t in np.argwhere(numbers):
        prefix = row  # as many prefixes as rows, in order
        seen = slice(PREFIX_LENGTHS[prefix])
        own = np.flatnonzero(numbers[row, : t + 1] == numbers[row, t])
        for head in range(HEADS):
            group = head * KEY_HEADS // HEADS
            keys = np.concatenate([prefix_k[prefix, group, seen], k[row, own, group]])
            values = np.concatenate([prefix_v[prefix, group, seen], v[row, own, group]])
            weights = np.exp(keys @ q[row, t, head] * SIZE**-0.5)
            out[row, t, head] = weights @ values / weights.sum()
    return out


def attend(how: str, kernel: str, *arrays: jax.Array) -> jax.Array:
    """Of tokens in rows; padding gets zeros."""
    q, k, v, prefix_k, prefix_v = arrays
    numbers = layout.rows(texts())
    plan = packing.plan_packing(numbers > 0, TOKENS * len(TEXT_LENGTHS) // layout.batch_multiple())
    mask = layout.rows(np.arange(KEYS) < PREFIX_LENGTHS[:, None])
    prefixes = prefix_attention.KeyValues(prefix_k, prefix_v, mask)
    of_device = len(TEXT_LENGTHS) // layout.batch_multiple()
    indices = layout.rows(np.tile(np.arange(of_device, dtype=np.int32), layout.batch_multiple()))
    q = packing.pack(q, plan)
    if how == "slots":
        k, v = packing.pack(k, plan), packing.pack(v, plan)
        out = prefix_attention.attend_in_slots(
            q, k, v, prefixes, indices, numbers, plan, kernel=kernel
        )
    else:
        out = prefix_attention.attend_with_prefixes(
            q, k, v, jnp.minimum(numbers, 1), prefixes, indices, plan, plan, kernel=kernel
        )
    return packing.unpack(out, plan)


def placed(dtype: str) -> list[jax.Array]:
    rows, prefixes = layout.activation_spec("b s k h"), layout.activation_spec("b k s h")
    specs = [layout.activation_spec("b t n h"), rows, rows, prefixes, prefixes]
    return [jax.device_put(x, spec) for x, spec in zip(draw(dtype), specs, strict=True)]


@functools.partial(jax.jit, static_argnums=(0, 1))
def outcome(how, kernel, *arrays):
    """The outputs, and the gradients of a value of them all."""

    def loss(*arrays):
        out = attend(how, kernel, *arrays)
        return jnp.sum(jnp.sin(out.astype(jnp.float32))), out

    (_, out), gradients = jax.value_and_grad(loss, range(5), has_aux=True)(*arrays)
    return out, gradients


def close(ours, wanted, tolerance: float) -> None:
    ours = np.asarray(layout.fetch(ours), np.float64)
    np.testing.assert_allclose(ours, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("how", ["slots", "rows"])
@pytest.mark.parametrize(("kernel", "dtype", "tolerance"), [("xla", "float32", 1e-5), ("splash", "float32", 1e-5), ("splash", "bfloat16", 0.02)])
def test_a(how, kernel, dtype, tolerance, any_mesh):
    out, gradients = outcome(how, kernel, *placed(dtype))
    close(out, plain(dtype, how == "rows"), tolerance)
    if kernel != "xla":
        _, wanted = outcome(how, "xla", *placed(dtype))
        for x,y in zip(gradients,wanted): close(x,np.asarray(layout.fetch(y), np.float64),tolerance*3)
