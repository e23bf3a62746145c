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
PREFIX_OF_ROW = np.array([1, 0, 2, 3, 4, 4, 7, 6, *range(8, 16)])
# A row may hold two texts; it may hold none.
TEXT_LENGTHS = np.array([[24, 0], [7, 17], [0, 0], [1, 2], [5, 0], [9, 9], [24, 0], [12, 12]] * 2)


def texts(how: str) -> np.ndarray:
    """Number of each token's text in its row; rows that are no slots have one text."""
    ends = TEXT_LENGTHS.cumsum(1)
    column = np.arange(TOKENS)
    second = 2 if how == "slots" else 1
    return np.select([column < ends[:, :1], column < ends[:, 1:]], [1, second], 0).astype(np.int32)


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
def plain(dtype: str, how: str) -> np.ndarray:
    """The attention of each token, one after another, in float64; padding gets zeros."""
    q, k, v, prefix_k, prefix_v = (x.astype(np.float64) for x in draw(dtype))
    out, numbers = np.zeros(q.shape), texts(how)
    for row, t in np.argwhere(numbers):
        prefix = PREFIX_OF_ROW[row]
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
    of_device = len(TEXT_LENGTHS) // layout.batch_multiple()
    numbers = layout.rows(texts(how))
    plan = packing.plan_packing(numbers > 0, TOKENS * of_device)
    mask = layout.rows(np.arange(KEYS) < PREFIX_LENGTHS[:, None])
    prefixes = prefix_attention.KeyValues(prefix_k, prefix_v, mask)
    indices = layout.rows((PREFIX_OF_ROW % of_device).astype(np.int32))
    q = packing.pack(q, plan)
    if how == "slots":
        k, v = packing.pack(k, plan), packing.pack(v, plan)
        out = prefix_attention.attend_in_slots(
            q, k, v, prefixes, indices, numbers, plan, kernel=kernel
        )
    else:
        out = prefix_attention.attend_with_prefixes(
            q, k, v, numbers, prefixes, indices, plan, plan, kernel=kernel
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
def test_our_kernel_computes_the_attention_of_each_token(how, any_mesh):
    out, _ = outcome(how, "xla", *placed("float32"))
    close(out, plain("float32", how), 1e-5)


def agree(how: str, kernel: str, dtype: str, tolerance: float) -> None:
    """In values with plain loops, in gradients with our kernel."""
    out, gradients = outcome(how, kernel, *placed(dtype))
    close(out, plain(dtype, how), tolerance)
    for ours, wanted in zip(gradients, outcome(how, "xla", *placed(dtype))[1], strict=True):
        close(ours, layout.fetch(wanted), 3 * tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 0.02)])
@pytest.mark.parametrize("how", ["slots", "rows"])
def test_splash_attention_matches_ours(how, dtype, tolerance, any_mesh):
    agree(how, "splash", dtype, tolerance)


def test_long_prefixes_have_lists_of_blocks_and_long_lists_are_split(monkeypatch, mesh):
    monkeypatch.setattr(kernels, "SPLASH_KEYS", kernels.LANES)
    monkeypatch.setattr(kernels, "SPLASH_LIST", kernels.LANES)
    outcome.clear_cache()
    agree("slots", "splash", "float32", 1e-5)
    outcome.clear_cache()


@pytest.mark.parametrize("how", ["slots", "rows"])
def test_the_cudnn_call_computes_the_same_attention(how, two_meshes, monkeypatch):
    """No such device exists here: plain products answer the same call."""
    asked = []

    def call(q, k, v, *, q_seqlen, kv_seqlen, scale, mask_type, qkv_layout, return_residual):
        assert qkv_layout == "BNTH" and return_residual
        asked.append(mask_type)
        t, s = q.shape[2], k.shape[2]
        seen = jnp.arange(s) < kv_seqlen[:, None, None]
        if mask_type == cudnn.MaskType.PADDING_CAUSAL:
            seen = seen & jnp.tril(jnp.ones((t, s), bool))
        k, v = (jnp.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
        scores = scale * jnp.einsum("bnth,bnsh->bnts", q, k, preferred_element_type=jnp.float32)
        scores = jnp.where(seen[:, None], scores, -jnp.inf)
        out = jnp.einsum("bnts,bnsh->bnth", jax.nn.softmax(scores), v).astype(q.dtype)
        valid = (jnp.arange(t) < q_seqlen[:, None])[:, None, :, None]
        return jnp.where(valid, out, 7), jax.nn.logsumexp(scores, axis=-1)

    monkeypatch.setattr(cudnn, "dot_product_attention", call)
    outcome.clear_cache()
    agree(how, "cudnn", "bfloat16", 0.02)
    whole, causal = cudnn.MaskType.PADDING, cudnn.MaskType.PADDING_CAUSAL
    assert set(asked) == ({whole} if how == "slots" else {whole, causal})
    outcome.clear_cache()


H100, TPU, CPU = Device("gpu", 9.0), Device("tpu"), Device("cpu")


@pytest.mark.parametrize(
    ("kernel", "device", "dtype", "queries", "keys", "chosen"),
    [
        ("auto", TPU, "bfloat16", 128, 512, "splash"),
        ("auto", TPU, "bfloat16", 32, 512, "xla"),
        ("auto", TPU, "bfloat16", 512, 248, "xla"),
        ("auto", H100, "bfloat16", 128, 256, "cudnn"),
        ("auto", H100, "bfloat16", 128, 248, "xla"),
        ("auto", H100, "float32", 128, 512, "xla"),
        ("auto", CPU, "bfloat16", 512, 512, "xla"),
        ("splash", CPU, "float32", 8, 8, "splash"),
        ("tokamax", H100, "bfloat16", 512, 512, "xla"),
    ],
)
def test_a_part_of_few_keys_is_left_to_xla(kernel, device, dtype, queries, keys, chosen):
    assert kernels.choose_for_part(kernel, device, dtype, 128, queries, keys) == chosen
