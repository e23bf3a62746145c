"""The learning rate and AdamW against their definitions."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P
from support.training import BERT

from ark_jax import layout
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


# Bytes of a state of 192 numbers in rows of 48, and what of a second moment may be wrong.
STORED = {"float32": (8 * 192, 1e-6), "bfloat16": (4 * 192, 0.02), "int8": (2 * 192 + 8 * 4, 0.06)}


@pytest.mark.parametrize("moments", STORED)
@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 2, 2)], ids=str)
def test_moments_in_few_bits_stay_right_in_the_mean(moments, shape):
    """Gradients of three magnitudes in a row; steps of a thousandth add up, though 16 bits cannot
    hold one. The scale of a scalar is its size.
    """
    sizes = 10.0 ** -np.tile(np.arange(3), 16).astype(np.float32)
    optimizer = optim.adamw(weight_decay=0.0, clip=1e9, moments=moments)
    expected, wrong = STORED[moments]
    exact = optim.adamw(weight_decay=0.0, clip=1e9)

    def follow(optimizer, params):
        def step(state, key):
            gradient = {"w": sizes * jax.random.normal(key, (4, 48)), "x": jnp.float32(3)}
            gradient = jax.tree.map(
                lambda g, p: jax.sharding.reshard(g, jax.typeof(p).sharding.spec), gradient, params
            )
            updates, state = optimizer.update(gradient, state, params)
            return state, updates["x"]

        return jax.lax.scan(step, optimizer.init(params), jax.random.split(jax.random.key(0), 2000))

    with jax.set_mesh(layout.make_mesh(shape)):
        params = {
            "w": layout.put(np.zeros((4, 48), np.float32), P("fsdp", "tensor")),
            "x": jnp.float32(0),
        }
        (_, state, _), scalar = jax.jit(functools.partial(follow, optimizer))(params)
        (_, wanted, _), _ = jax.jit(functools.partial(follow, exact))(params)
    stored = jax.tree.leaves((state.mu, state.nu))
    assert sum(x.nbytes for x in stored if x.ndim) == expected
    second = state.nu if moments == "float32" else optim._read(state.nu)
    for i in range(3):
        ours, theirs = (np.asarray(x["w"])[:, i::3].mean() for x in (second, wanted.nu))
        assert ours == pytest.approx(theirs, rel=wrong)
    np.testing.assert_allclose(scalar[-100:], 1, rtol=2 * wrong + 1e-3)
