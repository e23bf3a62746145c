"""Contrastive training: batches of any size, settings that reach the step, refused settings."""

import functools
import re

import jax
import numpy as np
import pytest
from flax import nnx
from support import tiny
from support.training import (
    BERT,
    CONFIG,
    MESHES,
    PAIRS,
    PASSAGES,
    QUESTIONS,
    TRAINING,
    contrastive_config,
    place_weights,
    toy_encode,
    toy_inputs,
)

from ark_jax import layout
from ark_jax.models import encoder
from ark_jax.models.pooling import VectorForm
from ark_jax.models.retriever import Retriever
from ark_jax.train import contrastive, fit, losses, optim
from ark_jax.train.batches import Example
from ark_jax.train.placement import encode_in_pieces


def ragged_examples(
    questions: int, shares: bool = False
) -> tuple[list[Example], contrastive.TokensById, contrastive.TokensById]:
    """Examples with one to three positives and up to four negatives, partly shared.

    And the token ids of questions and chunks, one to eight each.
    """
    rng = np.random.default_rng(questions)
    name = lambda k: f"c{k % (2 * questions + 1)}"
    examples = [
        Example(
            f"q{i}",
            "d",
            tuple(name(2 * i + k) for k in range(i % 3 + 1)),
            tuple(name(2 * i + 7 + k) for k in range((i + 2) % 5)),
            (1.0, 0.5, 0.25)[: i % 3 + 1] if shares else (),
        )
        for i in range(questions)
    ]
    draw_tokens = lambda: rng.integers(0, 32, rng.integers(1, 9)).tolist()
    question_tokens = {e.question: draw_tokens() for e in examples}
    return examples, question_tokens, {name(k): draw_tokens() for k in range(2 * questions + 1)}


def value_and_gradient(
    questions: int, chunks: int, shape: tuple[int, int, int], loss=losses.info_nce
):
    """Loss over one batch, placed as a training step has it, and its gradient."""
    with jax.set_mesh(layout.make_mesh(shape)):
        examples, *tokens = ragged_examples(questions, loss is losses.distil)
        config = contrastive_config(batch=questions, chunks=chunks)
        make_batch = contrastive.ContrastiveBatches.from_examples([examples], *tokens, config)
        batch = make_batch(0).arrays

        def value(weights):
            encode = functools.partial(toy_encode, weights)
            queries = encode(*batch["queries"])
            passages = encode_in_pieces(encode, chunks)(*batch["passages"])
            masks = batch["positive"], batch["negative"]
            return loss(queries, passages, *masks, temperature=0.5)

        weights = place_weights(toy_inputs(0)[0])
        return jax.tree.map(np.asarray, jax.jit(jax.value_and_grad(value))(weights))


whole_batch = functools.cache(functools.partial(value_and_gradient, chunks=1, shape=(1, 1, 1)))


@pytest.mark.parametrize(
    "questions", [5, *[pytest.param(n, marks=pytest.mark.slow) for n in (1, 13)]]
)
@pytest.mark.parametrize("chunks", [1, 2, 8])
@pytest.mark.parametrize("shape", MESHES, ids=str)
def test_gradients_do_not_depend_on_pieces_or_devices(questions, chunks, shape):
    """Neither questions nor passages divide by devices or pieces."""
    assert_equal(value_and_gradient(questions, chunks, shape), whole_batch(questions))


def test_distillation_gradients_do_not_depend_on_pieces_or_devices():
    ours, expected = (
        value_and_gradient(5, chunks, shape, losses.distil)
        for chunks, shape in ((2, (2, 2, 2)), (1, (1, 1, 1)))
    )
    assert_equal(ours, expected)
    assert abs(expected[0] - whole_batch(5)[0]) > 0.01


def assert_equal(ours: tuple, wanted: tuple) -> None:
    """Compares losses and gradients."""
    (value, gradient), (expected, exact) = ours, wanted
    assert value == pytest.approx(expected, abs=1e-5) and expected > 0.1
    for name in exact:
        np.testing.assert_allclose(gradient[name], exact[name], atol=1e-5)
        assert np.abs(exact[name]).max() > 1e-3


def test_the_training_loss_is_the_mean_over_matryoshka_widths(mesh):
    """Its loss is the mean over models with fewer components."""
    examples, *tokens = ragged_examples(5)
    make_batch = contrastive.ContrastiveBatches.from_examples([examples], *tokens, CONFIG)
    batch, model = make_batch(0).arrays, encoder.Encoder(BERT, rngs=nnx.Rngs(0))

    def value(width: int, matryoshka: tuple[int, ...]) -> float:
        objective = contrastive.ContrastiveObjective(
            BERT, (VectorForm(("mean",), width),) * 2, 1, make_batch.piece_tokens, 0.05, matryoshka
        )
        loss, _ = jax.jit(objective)(model, None, batch)
        return float(loss)

    by_width = [value(width, ()) for width in (BERT.width, 4)]
    assert value(BERT.width, (4,)) == pytest.approx(np.mean(by_width), rel=1e-5)
    assert abs(np.diff(by_width)) > 1e-2


@pytest.fixture(scope="module")
def retriever(tmp_path_factory):
    folder = tiny.write(tmp_path_factory.mktemp("retriever"), "bert", tokenizer="cls")
    with jax.set_mesh(layout.make_mesh((1, 1, 1))):
        return Retriever.from_pretrained(str(tiny.sentence_transformer(folder, pooling="mean")))


def test_the_learning_rate_schedule_covers_all_batches_of_a_stage(retriever, mesh, tmp_path):
    """Two epochs of seven questions, three a step: five steps, the last with two questions."""
    rows = []
    _, _, curve = contrastive.train(
        retriever,
        PAIRS,
        QUESTIONS,
        PASSAGES,
        CONFIG,
        fit.Run(tmp_path, "stage", on_step=rows.append),
        **TRAINING,
    )
    assert rows == curve
    rate = optim.schedule(1e-3, 5, 0.2)
    assert [row["step"] for row in curve] == [1, 2, 3, 4, 5]
    assert [row["learning_rate"] for row in curve] == pytest.approx(
        [float(rate(i)) for i in range(5)]
    )
    assert [row["learning_rate"] for row in curve] == pytest.approx(
        [1e-3, 1e-3, 7.5e-4, 5e-4, 2.5e-4]
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"matryoshka": (16, 32)},
            "config.train.matryoshka: width 32, but vectors of this model have 32 components",
        ),
        ({"matryoshka": (0,)}, "config.train.matryoshka: width 0"),
        ({"denominator": "sum"}, "config.train.denominator='sum': must be one of own, batch, all"),
    ],
)
def test_an_invalid_setting_is_refused_with_its_name(changes, message, retriever, mesh, tmp_path):
    config = contrastive_config(**changes)
    with pytest.raises(ValueError, match=re.escape(message)):
        contrastive.train(
            retriever, PAIRS, QUESTIONS, PASSAGES, config, fit.Run(tmp_path), **TRAINING
        )
