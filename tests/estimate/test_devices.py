"""Sizes, FLOPs, speed and memory of models, without their weights."""

import math

import jax
import numpy as np
import pytest
from support import tiny
from support.plans import RATE, model

from ark_jax import LanguageModel, Retriever
from ark_jax.estimate import devices
from ark_jax.estimate.work import Texts, Work
from ark_jax.recipes.ark import config
from ark_jax.train import memory
from ark_jax.train.placement import TextGrid


def test_estimated_sizes_equal_those_of_loaded_models(world, mesh):
    d, f, n = tiny.WIDTH, tiny.FFN, tiny.LAYERS
    base, judge = model(world, "retriever"), model(world, "generator")
    layers = n * (4 * (d * d + d) + 2 * d * f + f + d + 4 * d)
    assert base.parameters == layers + (tiny.VOCAB + tiny.POSITIONS + tiny.SEGMENTS) * d + 2 * d
    count = lambda model: sum(x.size for x in jax.tree.leaves(model))
    assert base.parameters == count(Retriever.from_pretrained(str(world / "retriever")).model)
    assert judge.parameters == count(LanguageModel.from_pretrained(str(world / "generator")).model)
    train = config.ark().train
    assert base.trainable(train) == base.parameters and base.bytes == 4 * base.parameters
    train.lora_rank, train.lora_targets = 2, ("q", "down")
    assert base.trainable(train) == n * 2 * ((d + d) + (f + d))


def test_estimated_flops_equal_a_count_by_hand(world, mesh):
    base, judge = model(world, "retriever"), model(world, "generator")
    d, f, q, kv = tiny.WIDTH, tiny.FFN, tiny.HEADS * tiny.HEAD_DIM, tiny.KV_HEADS * tiny.HEAD_DIM
    # Twice the entries of all matrices for a token, and twice two products for a pair of tokens.
    layers, heads = tiny.LAYERS * d * (4 * d + 2 * f) * 2, 4 * tiny.LAYERS * d
    flops, seconds = base.inference(Work("x", "retriever", "embedding", 3, 5))
    assert flops == layers * 15 + heads * 75
    assert seconds == (layers * 15 + devices.ATTENTION_COST * heads * 75) / RATE
    layers, heads = 2 * tiny.LAYERS * d * (2 * (q + kv) + 3 * f), 4 * tiny.LAYERS * q
    logits = 2 * tiny.VOCAB * d
    # Six tokens after four that were computed before, of which two are scored.
    scored, _ = judge.inference(Work("x", "generator", "likelihoods", 10, 6, 2, 4))
    assert scored == 10 * (6 * layers + 2 * logits + heads * (6 * 4 + 21))
    made, _ = judge.inference(Work("x", "generator", "reading", 10, 7, 4))
    assert made == 10 * (11 * layers + 5 * logits + heads * (28 + 4 * 7 + 10))


def test_training_flops_include_rematerialisation(world, mesh):
    """A question of 10 tokens and two passages of 40, in two steps."""
    base, train = model(world, "retriever"), config.ark().train
    step = Texts(1, 10, 12), Texts(2, 40, 64)
    work = Work("stage1", "retriever", "training", 2, step=step)
    flops = lambda passes: sum(
        float(base.flops(x.count, x.mean) @ np.array([n, n + 0.5]))
        for x, n in zip(step, passes, strict=True)
    )
    choice = base.choose(train, work)
    assert (choice.remat, choice.pieces) == ("products", 1) and work.tokens == 2 * 90
    assert base.training(work, choice)[0] == pytest.approx(2 * flops((3, 3)))
    train.remat, train.chunks = "all", 2
    choice = base.choose(train, work)
    assert (choice.remat, choice.pieces) == ("all", 2)
    assert base.training(work, choice)[0] == pytest.approx(2 * flops((4, 5)))


@pytest.mark.parametrize("pieces", [1, 2])
def test_planned_memory_is_near_that_predicted_by_a_run(world, mesh, pieces):
    base, train = model(world, "retriever"), config.ark().train
    train.remat, train.chunks = "products", pieces
    counts = (4, 10), (16, 60)
    step = tuple(Texts(count, length, length) for count, length in counts)
    planned = base.choose(train, Work("stage1", "retriever", "training", 1, step=step))
    grids = [
        TextGrid.from_lengths([[length] * count], n)
        for (count, length), n in zip(counts, (1, pieces), strict=True)
    ]
    texts = list(map(memory.Texts.from_grid, grids))
    sizes = {"trained": 4 * base.parameters, "in_pieces": pieces > 1}
    run = memory.step_memory(base.cfg, "products", texts, **sizes)
    assert planned.memory.weights == run.weights
    assert planned.memory.total == pytest.approx(run.total, rel=0.1)


def test_the_speed_is_proportional_to_the_number_of_devices(world, any_mesh):
    count = math.prod(jax.sharding.get_mesh().shape.values())
    assert model(world, "retriever").speed() == RATE * count


def test_the_measured_speed_is_plausible_and_cached(monkeypatch):
    monkeypatch.undo()
    found = devices.product_speed(64, 128, 256, "bfloat16")
    assert 1e7 < found < 1e15 and devices.product_speed(64, 128, 256, "bfloat16") == found
