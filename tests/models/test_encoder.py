"""Encoders: positions of tokens, norms, GELU; `test_hf.py` compares outputs with transformers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from support import tiny

from ark_jax import layout
from ark_jax.models import decoder, encoder


@functools.partial(jax.jit, static_argnums=2)
def positions(tokens, mask, cfg):
    return encoder.positions(tokens, mask, cfg)


def test_position_ids_skip_padding(mesh):
    """RoBERTa's begin after the pad token's id, here 3, and stay there where a text spells that
    token out.
    """
    tokens = np.array([[0, 9, 3, 8, 1, 0], [0, 7, 1, 3, 3, 3]], np.int32)
    mask = np.array([[1, 1, 1, 1, 1, 0], [1, 1, 1, 0, 0, 0]], bool)
    read = lambda family: encoder.Config.from_hf(tiny.config(family))
    ours = positions(tokens, mask, read("roberta"))
    np.testing.assert_array_equal(ours, [[4, 5, 3, 6, 7, 3], [4, 5, 6, 3, 3, 3]])
    for family in ("bert", "distilbert"):
        np.testing.assert_array_equal(
            positions(tokens, mask, read(family)), [[0, 1, 2, 3, 4, 5]] * 2
        )
    assert [read(family).max_length for family in tiny.ENCODERS] == [640, 636, 634, 640]


def test_norms_of_sharded_texts_equal_norms_of_single_tokens(any_mesh):
    """Values, gradients and shardings; without texts, a norm is a formula over the last axis."""
    random = np.random.default_rng(0)
    x, g = random.standard_normal((2, 8, 5, 6)).astype(np.float32)
    scale, bias = random.standard_normal((2, 6)).astype(np.float32)

    @jax.jit
    def norms(x, g, scale, bias):
        layer = functools.partial(encoder.layer_norm, eps=1e-12)
        root = functools.partial(decoder.rms_norm, eps=1e-6)
        pulled = jax.vjp(layer, x, scale, bias), jax.vjp(root, x, scale)
        return [(y, *pull(g)) for y, pull in pulled]

    texts = norms(layout.rows(x), layout.rows(g), scale, bias)
    assert all(result[i].sharding.spec[0] == layout.BATCH for result in texts for i in (0, 1))
    tokens = norms(x.reshape(40, 6), g.reshape(40, 6), scale, bias)
    for ours, expected in zip(jax.tree.leaves(texts), jax.tree.leaves(tokens), strict=True):
        expected = np.asarray(expected).reshape(ours.shape)
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-5)


def test_gelu_and_its_gradient_match_jax(mesh):
    x = jnp.linspace(-12, 12, 4001)
    theirs = functools.partial(jax.nn.gelu, approximate=False)
    for form in (lambda f: f, lambda f: jax.grad(lambda x: f(x).sum())):
        np.testing.assert_allclose(form(encoder.gelu)(x), form(theirs)(x), atol=1e-6)
