"""Batches in few shapes: they hold their texts, cost little, and change no vector."""

import itertools

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from support import pairs, tiny

from ark_jax.models import pairs as scorers
from ark_jax.models import retriever as retrievers
from ark_jax.models.pairs import CrossEncoder
from ark_jax.models.retriever import Retriever
from ark_jax.serve import ladder
from ark_jax.serve.ladder import Ladder, _shapes
from ark_jax.serve.models import Pairs, Reranker

LIMIT = 512
LADDER = Ladder(_shapes(LIMIT, [1024, 256, 64]), 1024, 256, parameters=10**7, attention=10**4)


def test_a_decoder_reranks_in_shapes_that_hold_its_prompt(tmp_path, monkeypatch, mesh):
    """The prompt alone is longer than the shortest shape, which is not compiled."""
    monkeypatch.setattr(ladder, "LENGTHS", (64, 512))
    monkeypatch.setattr(ladder, "ROOMS", 1)
    scorer = CrossEncoder.from_pretrained(pairs.write_yes_no(tmp_path))
    reranker = Reranker(scorer, "r")
    reranker.warm_up()
    compiled = scorers._head_logits_jit._cache_size()
    asked = reranker.prepare(Pairs("Who?", ["a board", "the tide " * 5, ""], cut=True))
    logits = reranker.run(asked)
    assert scorers._head_logits_jit._cache_size() == compiled
    asked = [asked_pair[:2] for asked_pair in asked]
    assert len(scorer.tokenize(asked).ids[0]) > 64
    np.testing.assert_allclose(logits, scorer.score(asked), atol=1e-5)


@given(st.lists(st.integers(1, LIMIT), max_size=60))
def test_each_text_is_in_one_batch_that_fits_it(lengths):
    batches = list(LADDER.batches(lengths))
    texts = [batch.texts_by_device[0] for batch in batches]
    assert sorted(itertools.chain(*texts)) == list(range(len(lengths)))
    shapes = {(shape.rows, shape.length, shape.room) for shape in LADDER.shapes}
    for batch, numbers in zip(batches, texts, strict=True):
        assert (batch.rows, batch.length, batch.room) in shapes
        assert len(numbers) <= batch.rows
        assert max(lengths[i] for i in numbers) <= batch.length
        assert sum(lengths[i] for i in numbers) <= batch.room


def cheapest(lengths: list[int]) -> float:
    """The least cost of all ways to cut texts, the longest first, into batches."""
    if not lengths:
        return 0.0
    costs = []
    for end in range(1, len(lengths) + 1):
        fitting = [
            LADDER._cost(shape)
            for shape in LADDER._shapes_for(lengths[0])
            if shape.rows >= end and shape.room >= sum(lengths[:end])
        ]
        costs += [min(fitting) + cheapest(lengths[end:])] if fitting else []
    return min(costs)


@given(st.lists(st.integers(1, LIMIT), max_size=7))
def test_texts_are_cut_into_batches_at_the_lowest_cost(lengths):
    lengths = sorted(lengths, reverse=True)
    cost = sum(LADDER._cost(shape) for *_, shape in LADDER._cut_batches(lengths))
    assert cost == pytest.approx(cheapest(lengths))


def test_a_text_longer_than_a_full_batch_goes_alone():
    ladder = Ladder(_shapes(5000, [1024, 256]), 1024, 256, 10**7, 10**4)
    batches = list(ladder.batches([4000, 3, 1500, 4096]))
    # Longer texts than the batch of 1024 tokens get a room of the next power of two.
    assert [(batch.texts_by_device[0], batch.room) for batch in batches] == [
        ([3], 4096),
        ([0], 4096),
        ([2], 2048),
        ([1], 256),
    ]
    assert {shape.room for shape in ladder.common_shapes} == {1024, 256}
    assert max(shape.length for shape in ladder.shapes) == 8192


def test_ladder_batches_give_the_same_vectors_with_few_compilations(mesh, tmp_path):
    retriever = Retriever.from_pretrained(tiny.retrievers(tmp_path, "a") / "a")
    ladder = Ladder.for_model(retriever.model, retriever.cfg, retriever.max_length)
    assert len(ladder.shapes) == 9 and ladder.shapes == ladder.common_shapes
    words = tiny.DOCUMENTS.read_text(encoding="utf-8").split()
    rng = np.random.default_rng(0)
    draw = lambda: [
        " ".join(words[start : start + size])
        for start, size in zip(rng.integers(0, 900, 40), rng.integers(1, 40, 40), strict=True)
    ]
    texts = draw()
    expected = retriever.encode(texts, kind="query")
    before = retrievers._embed_jit._cache_size()
    vectors = retriever.encode(texts, kind="query", batching=ladder.batches)
    np.testing.assert_allclose(vectors, expected, atol=1e-6)
    for _ in range(2):
        retriever.encode(draw(), kind="query", batching=ladder.batches)
    assert retrievers._embed_jit._cache_size() - before <= len(ladder.shapes)
