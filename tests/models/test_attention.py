"""The attention kernels agree in values and gradients.

They agree on every mesh, with padding, with groups of query heads, and with later tokens hidden or
not.
"""

import functools
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.cudnn import fused_attention_stablehlo

from ark_jax import layout
from ark_jax.models import attention, decoder, kernels, packing
from ark_jax.runtime.accelerator import Device, device_in_use

TEXTS, TOKENS, HEADS, KEY_HEADS, SIZE = 8, 41, 4, 2, 16
LENGTHS = np.array([41, 1, 17, 33, 8, 25, 2, 39])
VISIBLE = np.arange(TOKENS) < LENGTHS[:, None]
# Padding on the left, and a row without a text; and a hole.
AT_RIGHT = VISIBLE[:, ::-1] & (LENGTHS != 1)[:, None]
SCATTERED = AT_RIGHT & (np.arange(TOKENS) != 37)
WINDOW = {"reach": jnp.int32(9), "window": 9}


def inputs(dtype: str = "float32") -> list[jax.Array]:
    random = np.random.default_rng(0)
    draw = lambda heads: jnp.asarray(random.standard_normal((TEXTS, TOKENS, heads, SIZE)), dtype)
    return [
        jax.device_put(draw(heads), attention.activation_spec("b t n h"))
        for heads in (HEADS, KEY_HEADS, KEY_HEADS)
    ]


def rows(q, k, v, *, causal: bool, kernel: str, visible=VISIBLE, **near):
    """Of padded rows; padding gives nothing."""
    visible = layout.rows(visible)
    out = attention.attend(q, k, v, visible, causal=causal, kernel=kernel, **near)
    return jnp.where(visible[:, :, None, None], out, 0)


def stream(q, k, v, *, causal: bool, kernel: str, visible=VISIBLE, **near):
    """Of texts that lie end to end."""
    plan = packing.plan_packing(layout.rows(visible), 168)
    q, k, v = (packing.pack(x, plan) for x in (q, k, v))
    out = attention.attend_packed(q, k, v, plan, causal=causal, kernel=kernel, **near)
    return packing.unpack(out, plan)


local = functools.partial(stream, **WINDOW)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def outcome(how, causal: bool, kernel: str, *qkv):
    """A value of all outputs, the outputs and the gradients."""

    def loss(*qkv):
        out = how(*qkv, causal=causal, kernel=kernel).astype(jnp.float32)
        return jnp.sum(jnp.sin(out)), out

    (_, out), gradients = jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)(*qkv)
    return out, gradients


def agree(how, causal: bool, kernel: str, dtype: str, tolerance: float) -> None:
    wanted, ours = (outcome(how, causal, which, *inputs(dtype)) for which in ("xla", kernel))
    assert float(jnp.abs(wanted[0]).max()) > 1
    for x, y in zip(jax.tree.leaves(ours), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(
            np.asarray(x, np.float32), np.asarray(y, np.float32), rtol=tolerance, atol=tolerance
        )


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 2, 2)], ids=str)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("how", [rows, stream])
def test_tokamax_attention_matches_ours(how, causal, shape):
    pytest.importorskip("tokamax", reason="extra [reference] is not installed")
    with jax.set_mesh(layout.make_mesh(shape)):
        agree(how, causal, "tokamax", "float32", 1e-5)


@pytest.mark.parametrize(
    ("how", "causal"), [(rows, False), (rows, True), (stream, False), (stream, True), (local, True)]
)
def test_the_cudnn_call_computes_the_same_attention(how, causal, mesh, monkeypatch):
    """No such device exists here: JAX's own implementation of the same call answers instead."""
    asked, library = [], jax.nn.dot_product_attention

    def call(*args, implementation, **options):
        asked.append(implementation)
        return library(*args, implementation="xla", **options)

    monkeypatch.setattr(jax.nn, "dot_product_attention", call)
    outcome.clear_cache()
    agree(how, causal, "cudnn", "bfloat16", 0.03)
    assert set(asked) == {"cudnn"}
    outcome.clear_cache()


@pytest.mark.parametrize(
    ("how", "causal", "near"),
    [
        (rows, True, {}),
        (stream, False, {}),
        (stream, True, {}),
        (rows, False, WINDOW),
        (stream, True, WINDOW),
        (stream, True, WINDOW | {"reach": jnp.int32(attention.FAR)}),
    ],
)
def test_splash_attention_matches_ours(how, causal, near):
    """As the interpreter runs it, with texts that do not begin at the left of their rows."""
    with jax.set_mesh(layout.make_mesh((2, 2, 2))):
        how = functools.partial(how, visible=AT_RIGHT if near else SCATTERED, **near)
        agree(how, causal, "splash", "float32", 1e-5)


@pytest.mark.parametrize("how", [stream, local])
@pytest.mark.parametrize(
    ("kernel", "platform", "calls"),
    [
        ("cudnn", "cuda", {"__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward"}),
        ("splash", "tpu", {"tpu_custom_call"}),
    ],
)
def test_an_accelerator_program_calls_the_kernel_without_a_bias(
    kernel, platform, calls, how, monkeypatch
):
    """A program of another device can be lowered here, though not run."""
    monkeypatch.setattr(fused_attention_stablehlo, "check_cudnn_version", lambda: 92000)
    with jax.set_mesh(layout.make_mesh((1, 1, 1))):
        arrays = inputs("bfloat16")
        monkeypatch.setattr(jax, "default_backend", lambda: platform)
        program = jax.jit(lambda *qkv: outcome.__wrapped__(how, True, kernel, *qkv)).trace(*arrays)
        text = program.lower(lowering_platforms=(platform,)).as_text()
    # With a bias the calls would be `fmhaScaleBiasSoftmax` and so on.
    assert set(re.findall(r"custom_call @([\w$]+)", text)) == calls
    if kernel == "cudnn":  # forward and backward, of local layers and of others
        windows = re.findall(r"sliding_window_length\\22: (\d+)", text)
        assert sorted(windows) == (["0", "0", "9", "9"] if how is local else ["0", "0"])


@pytest.mark.parametrize(("how", "kernels_forward"), [(stream, 1), (local, 2)])
@pytest.mark.parametrize(("kernel", "platform"), [("cudnn", "cuda"), ("splash", "tpu")])
def test_the_backward_pass_does_not_recompute_attention(
    kernel, platform, how, kernels_forward, monkeypatch
):
    """What the kernel's backward pass needs is saved with the products."""
    monkeypatch.setattr(fused_attention_stablehlo, "check_cudnn_version", lambda: 92000)

    def calls(policy: str) -> int:
        attend = lambda q, k, v: (how(q, k, v, causal=True, kernel=kernel), k, v)
        layer = decoder.rematerialised(lambda qkv, _: (attend(*qkv), None), policy)
        loss = lambda *qkv: jnp.sum(jax.lax.scan(layer, qkv, None, length=2)[0][0])
        program = jax.jit(jax.grad(loss)).trace(*arrays)
        text = program.lower(lowering_platforms=(platform,)).as_text()
        return len(re.findall(r"custom_call @(tpu_custom_call|[\w$]+Softmax)\b", text))

    with jax.set_mesh(layout.make_mesh((1, 1, 1))):
        arrays = inputs("bfloat16")
        monkeypatch.setattr(jax, "default_backend", lambda: platform)
        assert calls("products") == calls("all") - kernels_forward


H100, A100, T4 = (Device("gpu", capability) for capability in (9.0, 8.0, 7.5))
AMD, TPU, CPU = Device("gpu"), Device("tpu"), Device("cpu")


@pytest.mark.parametrize(
    ("device", "dtype", "head_size", "tokens", "chosen"),
    [
        (CPU, "float32", 64, 512, "xla"),
        (CPU, "bfloat16", 128, 512, "xla"),
        (H100, "bfloat16", 256, 512, "cudnn"),
        (H100, "float16", 32, 8, "cudnn"),
        (H100, "float32", 128, 512, "xla"),
        (H100, "bfloat16", 100, 512, "xla"),
        (A100, "bfloat16", 128, 512, "cudnn"),
        (A100, "bfloat16", 256, 512, "xla"),
        (T4, "float16", 64, 512, "xla"),
        (AMD, "bfloat16", 64, 512, "xla"),
        (TPU, "bfloat16", 64, 64, "splash"),
        (TPU, "bfloat16", 128, 40, "xla"),
        (TPU, "bfloat16", 32, 512, "xla"),
        (TPU, "float32", 128, 512, "xla"),
    ],
)
def test_auto_chooses_a_kernel_by_device_type_and_shapes(device, dtype, head_size, tokens, chosen):
    assert kernels.choose("auto", device, dtype, head_size, tokens) == chosen
    for named in kernels.KERNELS[1:]:
        assert kernels.choose(named, device, dtype, head_size, tokens) == named
    assert device_in_use() == CPU._replace(kind="cpu")


def trace(kernel: str) -> None:
    jax.eval_shape(functools.partial(rows, causal=True, kernel=kernel), *inputs())


def test_a_kernel_that_does_not_support_the_type_is_refused(mesh):
    message = "attention='cudnn' does not support float32: set compute to 'bfloat16'"
    with pytest.raises(ValueError, match=message):
        trace("cudnn")


def test_a_token_whose_window_is_empty_gets_zeros(mesh):
    """As in torch: a mask token of a ColBERT that sees no other, far behind the text."""
    q, k, v = inputs("float32")
    visible = layout.rows(np.broadcast_to(np.arange(TOKENS) < 5, (TEXTS, TOKENS)))
    out = attention.attend(q, k, v, visible, causal=False, kernel="xla", reach=jnp.array(4))
    empty = np.arange(TOKENS) >= 8
    assert not np.asarray(out)[:, empty].any() and np.asarray(out)[:, ~empty].any(-1).all()


def test_an_unknown_kernel_is_refused(mesh):
    message = "attention='flash': must be one of auto, xla, cudnn, splash"
    with pytest.raises(ValueError, match=message):
        trace("flash")


def test_a_kernel_whose_package_is_missing_is_refused_with_the_fix(mesh, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokamax", None)
    message = "attention='tokamax' needs the package: pip install tokamax"
    with pytest.raises(ValueError, match=message):
        trace("tokamax")
