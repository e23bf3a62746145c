"""What a step is predicted to hold, against JAX and XLA; the choice that follows from it."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P
from support import pod, tiny
from support.training import BERT, PAIRS, PASSAGES, QUESTIONS, TRAINING, contrastive_config

from ark_jax import layout
from ark_jax.estimate import targets
from ark_jax.models.retriever import Retriever
from ark_jax.runtime import device_memory
from ark_jax.train import contrastive, fit, memory
from ark_jax.train.memory import Texts

ENCODER = dataclasses.replace(BERT, vocab=200, width=32, heads=4, ffn=64, positions=128)
DECODER = dataclasses.replace(
    pod.config("0.6B"),
    vocab=200,
    width=32,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=8,
    ffn=64,
    compute="float32",
)
MODELS = {"encoder": ENCODER, "decoder": DECODER}
BATCH = pod.Batch(queries=32, short=16, passages=64, long=128, pieces=1)


def residual_bytes(cfg, rows: int, layers: int) -> int:
    """Bytes that JAX keeps between the passes for rows of 16 tokens."""
    cfg = dataclasses.replace(cfg, layers=layers)
    model = jax.eval_shape(lambda: pod.model_class(cfg)(cfg, rngs=nnx.Rngs(0)))
    shape = lambda dtype: pod.on(jax.sharding.get_mesh(), (rows, 16), dtype, P(layout.BATCH))
    backward = lambda model, *texts: jax.vjp(lambda model: model(*texts, cfg, 16 * rows), model)[1]
    tree = jax.eval_shape(backward, model, shape(jnp.int32), shape(bool))
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree))


@pytest.mark.parametrize("remat", memory.REMATS)
@pytest.mark.parametrize("model", MODELS)
def test_predicted_saved_bytes_of_a_layer_equal_those_of_jax(model, remat, mesh):
    """What a further layer keeps for two further rows, so without weights and embeddings."""
    cfg = dataclasses.replace(MODELS[model], remat=remat)
    of = functools.partial(residual_bytes, cfg)
    token, place = memory.saved_numbers(cfg, remat)
    assert of(6, 3) - of(6, 2) - of(4, 3) + of(4, 2) == 4 * 2 * 16 * (token + place)


@pytest.mark.parametrize(
    ("model", "remat", "pieces"),
    [
        ("encoder", "products", 1),
        ("decoder", "all", 1),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [
                *[("encoder", "products", n) for n in (2, 4)],
                *[("encoder", "all", n) for n in (1, 2, 4)],
                *[("decoder", "products", n) for n in (1, 2, 4)],
                *[("decoder", "all", n) for n in (2, 4)],
            ]
        ),
    ],
)
def test_predicted_memory_is_within_30_percent_of_xla(model, remat, pieces, mesh):
    """Within 30 % at this size, which attention and small arrays fill."""
    cfg = dataclasses.replace(MODELS[model], remat=remat)
    held = pod.compiled_on(cfg, BATCH._replace(pieces=pieces))
    predicted = pod.predicted(cfg, BATCH._replace(pieces=pieces)).total
    assert predicted == pytest.approx(held["arguments"] + held["temporary"], rel=0.3)


def texts_of(pieces: int) -> list[Texts]:
    return [Texts(8, 16, 100), Texts(64 // pieces, 128, 6400 // pieces)]


def chosen(available: float, remat: str = "auto", pieces: int = 0) -> memory.Choice:
    return memory.choose(
        ENCODER, remat, pieces, texts_of, trained=1e6, most_pieces=8, available=available
    )


# MB of a device -> what is chosen for it.
GOLDEN = {
    150: ("products", 1),
    60: ("all", 1),
    45: ("products", 2),
    30: ("products", 4),
    18: ("products", 8),
    13: ("all", 8),
    1: ("all", 8),
}


def test_the_fastest_setting_that_fits_is_chosen(mesh):
    choices = {size: chosen(size * 1e6) for size in GOLDEN}
    assert {size: (x.remat, x.pieces) for size, x in choices.items()} == GOLDEN
    assert [size for size, x in choices.items() if not x.fits] == [1]
    described = {size: x.describe() for size, x in choices.items()}
    assert described[150].endswith("0.1 GiB, of which 80% may be filled: the fastest, and it fits")
    assert described[13].endswith(": the fastest that fits")
    assert described[1].endswith(": nothing fits, and this takes least")
    assert described[1].startswith(
        "remat=all, 8 pieces, 5 forward passes, nothing over links: about 0.0 GiB "
    )


def chosen_elsewhere(name: str, batch: pod.Batch) -> memory.Choice:
    """How 0.6B computes a step on devices that are not here."""
    cfg = pod.config("0.6B")
    with targets.assumed(targets.target(name)):
        return memory.choose(
            cfg,
            "auto",
            0,
            functools.partial(pod.texts, batch),
            trained=4 * pod.parameters("0.6B") / layout.batch_multiple(),
            most_pieces=batch.passages // layout.batch_multiple(),
        )


def test_products_outweigh_fast_links_and_slow_links_outweigh_products(monkeypatch):
    """Of 983,040 tokens a device, 16 pieces take one pass less than two that save nothing."""
    batch = pod.Batch(256, 64, 256 * 60, 512, 1)
    fast = chosen_elsewhere("h100x8", batch)
    assert (fast.remat, fast.pieces) == ("products", 16) and fast.fits
    assert "4 forward passes, 60.3 GiB over links: about " in fast.describe()
    monkeypatch.setattr(memory, "LINKS", {"NVIDIA.*": 1e9})
    slow = chosen_elsewhere("h100x8", batch)
    assert (slow.remat, slow.pieces) == ("all", 2) and slow.links < fast.links / 2


def test_weights_travel_once_per_pass_and_gradients_once_per_piece():
    """0.6B's layers have 440 M weights in 16 bits, of which 7/8 are on other devices."""
    cfg, layers = pod.config("0.6B"), 28 * 1024 * (2 * 16 * 128 + 2 * 8 * 128 + 3 * 3072)
    with targets.assumed(targets.target("h100x8")):
        one, four = (memory.links_bytes(cfg, 2, pieces) for pieces in (1, 4))
    assert one == pytest.approx(7 / 8 * layers * (4 * 2 + 2 * 4))
    assert four == pytest.approx(7 / 8 * layers * ((2 + 4 * 3) * 2 + 5 * 4))
    with targets.assumed(targets.target("h100")):
        assert memory.links_bytes(cfg, 2, 4) == 0


@pytest.mark.parametrize(("available", "doubt"), [(1e9, ""), (1e6, ", which may not fit")])
def test_explicit_settings_are_used_even_if_they_may_not_fit(available, doubt, mesh):
    choice = chosen(available, "products", 2)
    assert (choice.remat, choice.pieces) == ("products", 2)
    assert choice.describe().endswith(f": as the config says{doubt}")


def test_each_setting_can_be_chosen_automatically_alone(mesh):
    assert chosen(60e6, "products").pieces == 2
    assert chosen(60e6, pieces=1).remat == "all"


@given(st.floats(1e5, 1e9), st.floats(1, 10))
def test_more_memory_never_makes_a_step_slower(available, factor):
    with jax.set_mesh(layout.make_mesh((1, 1, 1))):
        less, more = chosen(available), chosen(available * factor)
    place = lambda x: (memory.forward_passes(x.pieces, x.remat), x.pieces)
    assert place(more) <= place(less) and (not less.fits or more.fits)


@pytest.mark.parametrize("shape", [(2, 2, 2), (1, 8, 1)], ids=str)
def test_a_device_holds_its_shard_of_heads_and_feed_forward(shape):
    texts = [Texts(4, 32, 100)]
    with jax.set_mesh(layout.make_mesh(shape)):
        on_mesh = memory.step_memory(ENCODER, "products", texts, trained=8.0)
    with jax.set_mesh(layout.make_mesh((1, 1, 1))):
        alone = memory.step_memory(ENCODER, "products", texts, trained=8.0)
    assert on_mesh.weights == alone.weights == 32
    assert (on_mesh == alone) == (shape[2] == 1) and on_mesh.saved <= alone.saved


@pytest.fixture(scope="module")
def retriever(tmp_path_factory):
    folder = tiny.write(tmp_path_factory.mktemp("retriever"), "bert", tokenizer="cls")
    with jax.set_mesh(layout.make_mesh((1, 1, 1))):
        return Retriever.from_pretrained(str(tiny.sentence_transformer(folder, pooling="mean")))


def curve(retriever, folder, **changes) -> list[dict]:
    config = contrastive_config(**changes)
    passages = {id: f"{text} " * 10 for id, text in PASSAGES.items()}
    run, settings = fit.Run(folder, "stage"), TRAINING | {"epochs": 1}
    return contrastive.train(retriever, PAIRS, QUESTIONS, passages, config, run, **settings).curve


@pytest.mark.parametrize(
    ("available", "explicit"),
    [(1e9, {"remat": "products", "chunks": 1}), (1.0, {"remat": "all", "chunks": 4})],
)
def test_training_uses_the_automatic_choice(
    available, explicit, retriever, mesh, tmp_path, monkeypatch
):
    """Its curve is that of the setting which it chose."""
    monkeypatch.setattr(memory, "device_memory", lambda: available)
    losses = curve(retriever, tmp_path / "auto", remat="auto", chunks=0)
    assert losses == curve(retriever, tmp_path / "explicit", **explicit)


def test_rematerialisation_and_pieces_do_not_change_losses(retriever, mesh, tmp_path):
    settings = (("products", 1), ("all", 4))
    found = [
        curve(retriever, tmp_path / remat, remat=remat, chunks=pieces) for remat, pieces in settings
    ]
    losses = [[row["loss"] for row in rows] for rows in found]
    np.testing.assert_allclose(*losses, rtol=1e-5)


def test_cpu_devices_share_the_memory_of_the_host(monkeypatch):
    monkeypatch.setattr(device_memory, "host_memory", lambda: 8 * 1000)
    assert device_memory.device_memory() == 8 * 1000 / jax.local_device_count()
