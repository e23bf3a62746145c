"""While tokens are generated, weights stay where they are, as near together as they fit."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import tiny
from support.decoders import PROMPTS, open_model

from ark_jax import layout
from ark_jax.models import decoding, generate
from ark_jax.models.decoding import decoding_copy, decoding_mesh, parts_of
from ark_jax.models.language import LanguageModel


def weights(lm) -> float:
    return sum(x.nbytes for x in jax.tree.leaves(lm.model))


@pytest.mark.parametrize(
    ("shape", "copies_that_fit", "wanted"),
    [
        ((1, 8, 1), 1, (8, 1, 1)),
        ((1, 8, 1), 1 / 2, (4, 1, 2)),
        ((1, 8, 1), 1 / 100, (4, 1, 2)),  # two heads of keys cannot be cut further
        ((2, 2, 2), 1, (4, 1, 2)),  # the user's cut stays
        ((1, 1, 1), 1 / 2, (1, 1, 1)),
    ],
)
def test_weights_are_cut_as_little_as_memory_allows(
    shape, copies_that_fit, wanted, folder, monkeypatch
):
    with jax.set_mesh(layout.make_mesh(shape)):
        lm = open_model(folder("plain"))
        # The stack and its layers are counted.
        memory = 2 * weights(lm) * copies_that_fit / decoding.FILL
        monkeypatch.setattr(decoding, "device_memory", lambda: memory)
        mesh = decoding_mesh(lm.model, lm.cfg)
        assert tuple(mesh.shape.values()) == wanted
        assert list(mesh.devices.flat) == list(jax.sharding.get_mesh().devices.flat)


@pytest.fixture
def generated(folder):
    """What a tiny model generates on a mesh."""

    @functools.cache
    def run(shape: tuple, **settings) -> list[str]:
        with jax.set_mesh(layout.make_mesh(shape)):
            lm = open_model(folder("plain"))
            return lm.generate(PROMPTS, max_new_tokens=20, batch_tokens=100, **settings)

    return run


@pytest.mark.parametrize("shape", [(1, 8, 1), pytest.param((4, 1, 2), marks=pytest.mark.slow)])
@pytest.mark.parametrize("tensor", [1, 2])
def test_texts_do_not_depend_on_how_weights_are_cut(tensor, shape, generated, monkeypatch):
    wanted = generated((1, 1, 1))
    monkeypatch.setattr(decoding, "device_memory", lambda: np.inf if tensor == 1 else 0)
    assert generated(shape) == wanted


def test_replies_do_not_depend_on_how_layers_are_held(folder, mesh, monkeypatch):
    def draw() -> list[str]:
        lm = open_model(folder("plain"))
        settings = {"max_new_tokens": 12, "seed": 1, "top_p": 0.9, "log_probs": False}
        return lm.sample(PROMPTS, n=3, **settings).texts

    wanted = draw()
    for module in (decoding, generate):
        monkeypatch.setattr(module, "layers_stay_stacked", lambda: True)  # as on a TPU
    assert draw() == wanted and len(set(wanted)) > len(PROMPTS)


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 2, 2)], ids=str)
def test_layers_share_the_memory_of_the_stacked_weights(shape, folder):
    with jax.set_mesh(layout.make_mesh(shape)):
        lm = open_model(folder("plain"))
        stacked, layers = lm.model.blocks, parts_of(lm.model.blocks, lm.cfg.layers)
        assert len(layers) == lm.cfg.layers > 1
        for i, layer in enumerate(layers):
            for stack, array in zip(jax.tree.leaves(stacked), jax.tree.leaves(layer), strict=True):
                np.testing.assert_array_equal(stack[i], array)
                assert array.sharding.is_equivalent_to(stack[i].sharding, array.ndim)
        shards = zip(*(x.down[...].addressable_shards for x in (stacked, *layers[:2])), strict=True)
        for stack, *of_layers in shards:
            start = stack.data.unsafe_buffer_pointer()
            places = [shard.data.unsafe_buffer_pointer() - start for shard in of_layers]
            assert places == [0, stack.data.nbytes // len(layers)]


def test_a_copy_holds_matrices_in_the_type_of_products(folder):
    with jax.set_mesh(layout.make_mesh((1, 8, 1))):
        lm = LanguageModel.from_pretrained(str(folder("plain")), compute="bfloat16")
        mesh = decoding_mesh(lm.model, lm.cfg)
        copy = decoding_copy(lm.model, lm.cfg, mesh)
    for name, x in (("q", copy.blocks.q[...]), ("embed", copy.embed[...])):
        assert x.dtype == jnp.bfloat16 and x.sharding.mesh == mesh, name
        assert x.sharding.is_fully_replicated
    assert copy.blocks.attn_norm[...].dtype == copy.norm[...].dtype == jnp.float32


def test_a_copy_keeps_biases_as_they_are(tmp_path, mesh):
    folder = tiny.write(tmp_path, "qwen2")
    lm = LanguageModel.from_pretrained(str(folder), compute="bfloat16")
    blocks = decoding_copy(lm.model, lm.cfg, decoding_mesh(lm.model, lm.cfg)).blocks
    assert blocks.q_bias[...].dtype == blocks.k_bias[...].dtype == jnp.float32
    assert blocks.k[...].dtype == jnp.bfloat16


def test_a_model_that_needs_no_copy_is_not_copied(folder, mesh):
    lm = open_model(folder("plain"))
    copy = decoding_copy(lm.model, lm.cfg, decoding_mesh(lm.model, lm.cfg))
    for old, new in zip(jax.tree.leaves(lm.model), jax.tree.leaves(copy), strict=True):
        assert old.unsafe_buffer_pointer() == new.unsafe_buffer_pointer()
