"""The attention kernels agree in values and gradients.

They agree on every mesh, with padding, with groups of query heads, and with later tokens hidden or
not.
"""

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ark_jax import layout
from ark_jax.models import attention, packing

TEXTS, TOKENS, HEADS, KEY_HEADS, SIZE = 8, 40, 4, 2, 16
LENGTHS = np.array([40, 1, 17, 33, 8, 25, 2, 39])
VISIBLE = np.arange(TOKENS) < LENGTHS[:, None]


def inputs(dtype: str = "float32") -> list[jax.Array]:
    random = np.random.default_rng(0)
    draw = lambda heads: jnp.asarray(random.standard_normal((TEXTS, TOKENS, heads, SIZE)), dtype)
    return [
        jax.device_put(draw(heads), attention.activation_spec("b t n h"))
        for heads in (HEADS, KEY_HEADS, KEY_HEADS)
    ]


def rows(q, k, v, *, causal: bool, kernel: str):
    """Of padded rows; padding gives nothing."""
    mask = np.broadcast_to(VISIBLE[:, None], (TEXTS, TOKENS, TOKENS)) & (
        np.tri(TOKENS, dtype=bool) if causal else True
    )
    out = attention.attend(q, k, v, layout.rows(mask), causal=causal, kernel=kernel)
    return jnp.where(layout.rows(VISIBLE)[:, :, None, None], out, 0)


def stream(q, k, v, *, causal: bool, kernel: str):
    """Of texts that lie end to end."""
    plan = packing.plan_packing(layout.rows(VISIBLE), 168)
    q, k, v = (packing.pack(x, plan) for x in (q, k, v))
    return packing.unpack(
        attention.attend_packed(q, k, v, plan, causal=causal, kernel=kernel), plan
    )


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def outcome(how, causal: bool, kernel: str, *qkv):
    """A value of all outputs, the outputs and the gradients."""

    def loss(*qkv):
        out = how(*qkv, causal=causal, kernel=kernel).astype(jnp.float32)
        return jnp.sum(jnp.sin(out)), out

    (_, out), gradients = jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)(*qkv)
    return out, gradients


def agree(how, causal: bool, kernel: str, dtype: str, tolerance: float) -> None:
    wanted, found = (outcome(how, causal, which, *inputs(dtype)) for which in ("xla", kernel))
    assert float(jnp.abs(wanted[0]).max()) > 1
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(
            np.asarray(x, np.float32), np.asarray(y, np.float32), rtol=tolerance, atol=tolerance
        )


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 2, 2)], ids=str)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("how", [rows, stream])
def test_tokamax_is_ours(how, causal, shape):
    pytest.importorskip("tokamax", reason="extra [reference] is not installed")
    with jax.set_mesh(layout.make_mesh(shape)):
        agree(how, causal, "tokamax", "float32", 1e-5)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("how", [rows, stream])
def test_cudnn_is_asked_for_what_ours_computes(how, causal, mesh, monkeypatch):
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


def test_a_kernel_that_cannot_be_is_refused(mesh, monkeypatch):
    with pytest.raises(
        ValueError, match="attention='cudnn' does not support float32: set compute to 'bfloat16'"
    ):
        rows(*inputs(), causal=True, kernel="cudnn")
    with pytest.raises(ValueError, match="attention='flash': must be one of xla, cudnn, tokamax"):
        rows(*inputs(), causal=True, kernel="flash")
    monkeypatch.setitem(sys.modules, "tokamax", None)
    with pytest.raises(
        ValueError, match="attention='tokamax' needs the package: pip install tokamax"
    ):
        rows(*inputs(), causal=True, kernel="tokamax")
