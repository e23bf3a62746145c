"""Encoders: positions of tokens, norms, GELU; `test_hf.py` compares outputs with transformers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support import tiny
from support.paths import REPOSITORY

from ark_jax import __main__, layout
from ark_jax.models import decoder, encoder, families
from ark_jax.models.rotary import Rotary
from ark_jax.runtime.accelerator import Device, assuming


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


def test_on_a_cpu_bfloat16_is_for_products_alone(mesh):
    """Other devices keep all in bfloat16."""
    hidden = {}
    for compute in ("float32", "bfloat16"):
        cfg = encoder.Config.from_hf(tiny.config("bert"), compute=compute)
        model, arrays = encoder.Encoder(cfg, rngs=nnx.Rngs(0)), map(layout.rows, (TOKENS, MASK))
        hidden[compute] = jax.jit(encoder.Encoder.__call__, static_argnums=3)(model, *arrays, cfg)
        with assuming(Device("gpu")):
            assert cfg.between == compute
    exact, ours = hidden.values()
    assert ours.dtype == jnp.float32
    assert 0 < jnp.abs(ours - exact).max() < 0.002  # .03 with all in bfloat16


def test_gelu_matches_jax(mesh):
    x = jnp.linspace(-12, 12, 4001)
    np.testing.assert_allclose(decoder.gelu(x), jax.nn.gelu(x, approximate=False), atol=1e-6)


def test_the_gradient_of_gelu_matches_jax(mesh):
    x = jnp.linspace(-12, 12, 4001)
    ours = jax.grad(lambda x: decoder.gelu(x).sum())(x)
    theirs = jax.grad(lambda x: jax.nn.gelu(x, approximate=False).sum())(x)
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_both_spellings_of_nomics_config_mean_the_same():
    """Nomic's own has GPT-2's names, that of transformers BERT's."""
    common = {"model_type": "nomic_bert", "vocab_size": 96, "type_vocab_size": 2}
    own = {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_inner": 48, "n_positions": 64}
    own |= {"activation_function": "swiglu", "layer_norm_epsilon": 1e-5, "rotary_emb_base": 700}
    own |= {"rotary_scaling_factor": None, "prenorm": False, "mlp_fc1_bias": False}
    theirs = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
    theirs |= {"intermediate_size": 48, "max_position_embeddings": 64, "layer_norm_eps": 1e-5}
    theirs |= {"hidden_act": "silu", "rope_parameters": {"rope_theta": 700.0}}
    one, other = (encoder.Config.from_hf(common | settings) for settings in (own, theirs))
    assert one == other


def test_rotation_of_gte_is_slowed_by_the_factor_where_it_is_slowest():
    """NTK's scaling hardly changes the fastest pair, and divides the slowest by the factor."""
    plain = Rotary(500.0).frequencies(64)
    scaled = Rotary(500.0, "ntk", 8.0).frequencies(64)
    np.testing.assert_allclose(scaled[-1], plain[-1] / 8, rtol=1e-5)
    np.testing.assert_allclose(scaled[0], plain[0] * 8 ** (-2 / 64), rtol=1e-6)


def test_windows_and_missing_sizes_are_read_as_by_transformers():
    """Of Gemma 3's, Qwen3's and ModernBERT's settings."""
    gemma = {"model_type": "gemma3_text", "rms_norm_eps": 1e-6, "sliding_window": 512}
    sizes = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 7, "intermediate_size": 48}
    sizes |= {"num_attention_heads": 4, "max_position_embeddings": 64}
    cfg = decoder.Config.from_hf(sizes | gemma)
    assert (cfg.window, cfg.local) == (512, (True,) * 5 + (False, True))
    cfg = decoder.Config.from_hf(sizes | gemma | {"use_bidirectional_attention": True})
    assert (cfg.window, cfg.causal) == (257, False)
    qwen = {"model_type": "qwen3", "rms_norm_eps": 1e-6, "num_attention_heads": 64}
    cfg = decoder.Config.from_hf(sizes | qwen)  # transformers' defaults, not 32 / 64
    assert (cfg.window, cfg.local, cfg.head_dim, cfg.kv_heads) == (0, (), 128, 32)
    cfg = encoder.Config.from_hf(sizes | {"model_type": "modernbert"})
    assert (cfg.window, cfg.local) == (65, (False, True, True, False, True, True, False))


def test_every_family_is_listed(capsys):
    assert {*families.FAMILIES} == {*encoder.FAMILIES, *decoder.FAMILIES}
    assert __main__._main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == [*encoder.FAMILIES, *decoder.FAMILIES]
    assert "reader" in lines[-1] and "Gemma 3" in lines[-1]
    readme = " ".join((REPOSITORY / "README.md").read_text().split())
    assert f": {families.listed()} (`ark-jax models` lists them)." in readme
