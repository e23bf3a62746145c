"""Encoders: positions of tokens, norms, GELU; `test_hf.py` compares outputs with transformers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import tiny

from ark_jax import layout
from ark_jax.models import decoder, encoder


@functools.partial(jax.jit, static_argnums=2)
def positions(tokens, mask, cfg):
    return encoder.positions(tokens, mask, cfg)


TOKENS = np.array([[0, 9, 3, 8, 1, 0], [0, 7, 1, 3, 3, 3]], np.int32)
MASK = np.array([[1, 1, 1, 1, 1, 0], [1, 1, 1, 0, 0, 0]], bool)


def test_position_ids_of_roberta_begin_after_the_pad_token(mesh):
    """Here the pad token is number 3. Where a text itself has that token, its position is 3."""
    cfg = encoder.Config.from_hf(tiny.config("roberta"))
    expected = [[4, 5, 3, 6, 7, 3], [4, 5, 6, 3, 3, 3]]
    np.testing.assert_array_equal(positions(TOKENS, MASK, cfg), expected)


@pytest.mark.parametrize("family", ["bert", "distilbert"])
def test_position_ids_of_other_encoders_count_from_0(family, mesh):
    cfg = encoder.Config.from_hf(tiny.config(family))
    np.testing.assert_array_equal(positions(TOKENS, MASK, cfg), [[0, 1, 2, 3, 4, 5]] * 2)


def test_the_longest_text_excludes_the_positions_before_the_first_token():
    # RoBERTa's pad token is number 3 of 640 positions, XLM-R's number 5.
    lengths = [encoder.Config.from_hf(tiny.config(name)).max_length for name in tiny.ENCODERS]
    assert lengths == [640, 636, 634, 640]


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


def test_gelu_matches_jax(mesh):
    x = jnp.linspace(-12, 12, 4001)
    np.testing.assert_allclose(decoder.gelu(x), jax.nn.gelu(x, approximate=False), atol=1e-6)


def test_the_gradient_of_gelu_matches_jax(mesh):
    x = jnp.linspace(-12, 12, 4001)
    ours = jax.grad(lambda x: decoder.gelu(x).sum())(x)
    theirs = jax.grad(lambda x: jax.nn.gelu(x, approximate=False).sum())(x)
    np.testing.assert_allclose(ours, theirs, atol=1e-6)
