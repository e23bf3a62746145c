"""Sizes, FLOPs and speed of models, without their weights."""

import math

import jax
import numpy as np
import pytest
from support import tiny
from support.plans import RATE, model

from ark_jax import LanguageModel, Retriever
from ark_jax.estimate import device_work


def test_sizes_are_those_of_the_loaded_models(world, mesh):
    d, f, n = tiny.WIDTH, tiny.FFN, tiny.LAYERS
    base, judge = model(world, "retriever"), model(world, "generator")
    layers = n * (4 * (d * d + d) + 2 * d * f + f + d + 4 * d)
    assert base.parameters == layers + (tiny.VOCAB + tiny.POSITIONS + tiny.SEGMENTS) * d + 2 * d
    count = lambda model: sum(x.size for x in jax.tree.leaves(model))
    assert base.parameters == count(Retriever.from_pretrained(str(world / "retriever")).model)
    assert judge.parameters == count(LanguageModel.from_pretrained(str(world / "generator")).model)
    assert base.bytes == sum(x.nbytes for x in tiny.tensors("bert").values())


def test_flops_by_hand(world, mesh):
    base, judge = model(world, "retriever"), model(world, "generator")
    d, f, q, kv = tiny.WIDTH, tiny.FFN, tiny.HEADS * tiny.HEAD_DIM, tiny.KV_HEADS * tiny.HEAD_DIM
    layers, heads = (
        tiny.LAYERS * d * (4 * d + 2 * f),
        4 * tiny.LAYERS * d,
    )  # twice two products of all heads, of a pair of tokens
    np.testing.assert_array_equal(base.text_flops([3, 5]), [2 * layers * 8, heads * (9 + 25)])
    layers, heads = tiny.LAYERS * d * (2 * (q + kv) + 3 * f), 4 * tiny.LAYERS * q
    logits = 2 * tiny.VOCAB * d
    np.testing.assert_array_equal(
        judge.text_flops([3, 5], 2), [2 * layers * 8 + 2 * logits, heads * (6 + 15)]
    )
    assert judge.seconds(np.array([5e9, 1e9])) == 5 + device_work.ATTENTION_COST
    begun = judge.generation("x", 10, 7, 4, 2)
    assert begun.tokens == 2 + 90
    made = judge.generation("x", 10, 7, 4)
    assert made.tokens == 110 and made.flops - begun.flops == pytest.approx(
        9 * judge.text_flops([2]).sum()
    )
    assert made.flops == 10 * (2 * layers * 11 + 5 * logits + heads * (28 + 4 * (7 + 2)))


def test_speed_counts_the_devices_of_the_mesh(world, any_mesh):
    assert model(world, "retriever").speed() == RATE * math.prod(
        jax.sharding.get_mesh().shape.values()
    )


def test_speed_is_measured(monkeypatch):
    monkeypatch.undo()
    found = device_work.product_speed(64, 128, 256, "bfloat16")
    assert 1e7 < found < 1e15 and device_work.product_speed(64, 128, 256, "bfloat16") == found
