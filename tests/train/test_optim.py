"""The learning rate and AdamW against their definitions."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from support.training import BERT

from ark_jax.models import decoder, encoder
from ark_jax.models.rotary import Rotary
from ark_jax.train import optim

QWEN = decoder.Config(
    vocab=32,
    width=16,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=4,
    ffn=8,
    rotaries=(Rotary(1e4),),
    norm_eps=1e-6,
    qk_norm=True,
    biases=("q", "k", "v"),
    tied=False,
    dtype="float32",
    compute="float32",
)


@pytest.mark.parametrize(
    "steps, warmup, expected",
    [
        (10, 0.2, [0.5, 0.75, 1, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125, 0]),
        (4, 0.0, [1, 0.75, 0.5, 0.25, 0]),
        (1, 0.1, [1, 0]),
        (3, 1.0, [0.5, 0.75, 1, 0]),
    ],
)
def test_the_learning_rate_warms_up_and_decays_to_zero(steps, warmup, expected):
    rate = optim.schedule(8e-6, steps, warmup)
    assert [float(rate(i)) / 8e-6 for i in range(steps + 1)] == pytest.approx(expected, abs=1e-6)
    assert (
        max(float(rate(i)) for i in range(steps)) == pytest.approx(8e-6)
        and float(rate(steps - 1)) > 0
    )


def test_the_learning_rate_decays_to_its_floor():
    """2e-3 at its peak after two of ten steps, an eighth of it at the end."""
    rates = lambda decay: [
        float(optim.schedule(2e-3, 10, 0.2, decay=decay, floor=0.125)(i)) / 2e-3
        for i in (0, 2, 4, 6, 10, 12)
    ]
    half = 0.125 + 0.875 * 0.5
    assert rates("linear") == pytest.approx([0.5, 1, 0.78125, half, 0.125, 0.125], abs=1e-6)
    quarter = 0.125 + 0.875 * (1 + 0.5**0.5) / 2
    assert rates("cosine") == pytest.approx([0.5, 1, quarter, half, 0.125, 0.125], abs=1e-6)


@pytest.mark.parametrize(("decay", "floor"), [("step", 0.0), ("cosine", 1.5), ("linear", -0.1)])
def test_an_invalid_decay_is_refused(decay, floor):
    with pytest.raises(ValueError, match=f"decay='{decay}', floor={floor}: must be one of linear"):
        optim.schedule(1e-3, 10, 0.1, decay=decay, floor=floor)


@pytest.mark.parametrize(
    "kind, cfg, matrices, vectors",
    [
        (
            encoder.Encoder,
            BERT,
            "embed position segment q k v o up down",
            "embed_norm embed_norm_bias q_bias k_bias v_bias o_bias up_bias down_bias "
            "attn_norm attn_norm_bias ffn_norm ffn_norm_bias",
        ),
        (
            decoder.Decoder,
            QWEN,
            "embed head q k v o gate up down",
            "norm q_norm k_norm attn_norm ffn_norm q_bias k_bias v_bias",
        ),
    ],
)
def test_weight_decay_applies_to_matrices_only(kind, cfg, matrices, vectors, mesh):
    """Layers are stacked, so a bias has two axes as well: axes do not tell them apart."""
    shapes = jax.eval_shape(lambda: kind(cfg, rngs=nnx.Rngs(0)))
    filled = lambda value: jax.tree.map(lambda x: np.full(x.shape, value, np.float32), shapes)
    optimizer = optim.adamw(weight_decay=0.25, clip=1.0)

    @jax.jit
    def first_update(gradient, model):
        return optimizer.update(gradient, optimizer.init(model), model)[0]

    # With gradients of zero, an update is the decay alone: 0.25 of weights of one.
    updates = first_update(filled(0), filled(1))
    decay_by_name = {}
    for path, x in jax.tree_util.tree_leaves_with_path(updates):
        full_name = jax.tree_util.keystr(path, simple=True, separator=".").removesuffix(".value")
        decay_by_name[full_name.rsplit(".", 1)[-1]] = tuple(np.unique(x).tolist())
    assert decay_by_name == {
        **dict.fromkeys(matrices.split(), (0.25,)),
        **dict.fromkeys(vectors.split(), (0.0,)),
    }


def test_adamw_equals_the_published_recursion(mesh):
    """Two steps of Loshchilov and Hutter's AdamW on one matrix, the second gradient clipped."""
    x, m, v = np.array([[1.0, -2.0]]), 0.0, 0.0
    optimizer = optim.adamw(weight_decay=0.01, clip=1.0)
    params = {"w": jnp.asarray(x, jnp.float32)}
    state = optimizer.init(params)
    for t, gradient in enumerate((np.array([[0.3, -0.4]]), np.array([[6.0, 8.0]])), 1):
        updates, state = optimizer.update({"w": jnp.asarray(gradient, jnp.float32)}, state, params)
        params = optax.apply_updates(params, {"w": -0.1 * updates["w"]})
        clipped = gradient / max(np.linalg.norm(gradient), 1.0)
        m, v = 0.9 * m + 0.1 * clipped, 0.999 * v + 0.001 * clipped**2
        x = x - 0.1 * (m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8) + 0.01 * x)
    np.testing.assert_allclose(params["w"], x, rtol=1e-5)
