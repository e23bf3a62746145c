"""Chunks of tokens and batches by length."""

import importlib.resources
import itertools
import json

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from support import tiny
from tokenizers import decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from ark_jax.text.tokens import balance, batch_by_tokens, load_tokenizer, token_chunks

EMBEDDED = importlib.resources.files("ark_jax.demo")
DOCUMENTS = [
    json.loads(line)
    for line in (EMBEDDED / "documents.jsonl").read_text(encoding="utf-8").splitlines()
]


# --- chunks --------------------------------------------------------------


def byte_pairs() -> tokenizers.Tokenizer:
    """A tiny byte-level BPE whose special tokens and truncation must not affect chunks."""
    raw = tokenizers.Tokenizer(models.BPE())
    raw.pre_tokenizer, raw.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["[CLS]", "[SEP]"],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    raw.train_from_iterator([document["text"] for document in DOCUMENTS[:2]], trainer)
    raw.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 0), ("[SEP]", 1)]
    )
    raw.enable_truncation(8)
    return raw


RAW = byte_pairs()
FAST = PreTrainedTokenizerFast(tokenizer_object=RAW)


@settings(deadline=None)
@given(st.text(max_size=60) | st.text("ab ,.\n東🙂", max_size=200), st.integers(1, 12), st.data())
def test_chunks_cover_every_token_with_the_exact_overlap(text, size, data):
    overlap = data.draw(st.integers(0, size - 1))
    spans = token_chunks(text, FAST, size=size, overlap=overlap)
    plain = tokenizers.Tokenizer.from_str(RAW.to_str())
    plain.no_truncation()
    offsets = plain.encode(text, add_special_tokens=False).offsets
    first_token = 0  # the first token of the span
    for i, span in enumerate(spans):
        last = first_token + span.tokens
        assert (span.start, span.end) == (offsets[first_token][0], offsets[last - 1][1])
        assert span.tokens == size or (i == len(spans) - 1 and span.tokens < size)
        assert span.tokens > overlap or i == 0, "a tail that the window before holds already"
        first_token = last - overlap
    assert (first_token + overlap if spans else 0) == len(offsets)
    covered = {i for span in spans for i in range(span.start, span.end)}
    assert [c for i, c in enumerate(text) if not c.isspace() and i not in covered] == []


def test_a_real_document_is_cut_into_full_overlapping_chunks():
    text = DOCUMENTS[0]["text"]
    spans = token_chunks(text, FAST, size=64, overlap=8)
    assert len(spans) > 20 and {span.tokens for span in spans[:-1]} == {64}
    assert text[spans[0].start : spans[0].end].startswith("The Tidal Board was founded in 1784")
    assert all(a.start < b.start < a.end < b.end for a, b in itertools.pairwise(spans))
    assert token_chunks("", FAST, size=64, overlap=8) == []


@pytest.mark.parametrize("overlap", [-1, 4, 5])
def test_an_overlap_outside_its_bounds_is_refused(overlap):
    with pytest.raises(
        ValueError, match=f"overlap {overlap} must be at least 0 and below the chunk size 4"
    ):
        token_chunks("a text", FAST, size=4, overlap=overlap)


# --- batches --------------------------------------------------------------


@given(
    st.lists(st.integers(0, 9000), max_size=120),
    st.sampled_from([1, 64, 1000, 4096, 100_000]),
    st.sampled_from([1_000, 30_000_000, 10**12]),
    st.sampled_from([1, 2, 8]),
    st.booleans(),
)
def test_every_text_is_in_one_batch_within_the_budget(lengths, budget, parameters, devices, coarse):
    seen, before = [], float("inf")
    for batch in batch_by_tokens(
        lengths,
        budget=budget,
        parameters=parameters,
        attention=9_000,
        compilation=1e15 if coarse else 5e10,
        coarse=coarse,
        devices=devices,
    ):
        assert len(batch.texts_by_device) == devices and batch.room <= max(budget, *lengths, 1)
        assert max(lengths[i] for i in batch.texts_by_device[0]) <= batch.length <= before, (
            "longest first"
        )
        for texts in batch.texts_by_device:
            assert len(texts) <= batch.rows and sum(lengths[i] for i in texts) <= batch.room
            seen += texts
        before = batch.length
    assert sorted(seen) == list(range(len(lengths)))


def test_a_batch_is_laid_out_device_by_device():
    ids = [[7], [1, 2, 3], [], [4, 5]]
    (batch,) = batch_by_tokens(
        [1, 3, 0, 2], budget=100, parameters=1, attention=1, compilation=5e10, devices=2
    )
    assert (batch.texts_by_device, batch.rows, batch.length, batch.room) == (
        [[1], [3, 0, 2]],
        3,
        8,
        8,
    )
    tokens, mask = batch.arrays(ids)
    assert tokens[:, :3].tolist() == [
        [1, 2, 3],
        [0, 0, 0],
        [0, 0, 0],
        [4, 5, 0],
        [7, 0, 0],
        [0, 0, 0],
    ]
    assert mask.sum(axis=1).tolist() == [3, 0, 0, 2, 1, 0] and batch.row_numbers() == [0, 3, 4, 5]


def test_texts_are_balanced_over_bins():
    where, fullest = balance([5, 9, 2, 2, 4], bins=2, slots=3)
    assert where.tolist() == [3, 0, 1, 5, 4] and fullest == 11  # 9 and 2; 5, 4 and 2
    where, fullest = balance([5, 9, 2, 2, 2, 2], bins=2, slots=3)
    assert (
        where.tolist() == [3, 0, 4, 5, 1, 2] and fullest == 13
    )  # the second hand is full when the last two come


def balance_naively(lengths: list[int], bins: int, slots: int) -> tuple[list[int], int]:
    """Looks at every bin for every text."""
    places, tokens, used = [0] * len(lengths), [0] * bins, [0] * bins
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        free = (number for number in range(bins) if used[number] < slots)
        emptiest = min(free, key=tokens.__getitem__)
        places[i] = emptiest * slots + used[emptiest]
        tokens[emptiest] += lengths[i]
        used[emptiest] += 1
    return places, max(tokens)


@given(st.lists(st.integers(0, 6), max_size=40), st.integers(1, 9), st.integers(0, 2))
def test_balance_equals_a_naive_search_of_every_bin(lengths, bins, surplus):
    slots = -(-len(lengths) // bins) + surplus
    where, fullest = balance(lengths, bins, slots)
    assert (where.tolist(), fullest) == balance_naively(lengths, bins, slots)


def test_more_texts_than_slots_are_refused():
    with pytest.raises(ValueError, match="5 texts for 2 bins of 2 slots"):
        balance([1] * 5, bins=2, slots=2)


def test_coarse_batches_have_few_shapes_shared_by_other_texts():
    def shapes(seed: int) -> set[tuple[int, int, int]]:
        lengths = np.random.default_rng(seed).lognormal(4, 0.7, 2000).astype(int).clip(3, 256)
        costs = {"parameters": 4e8, "attention": 3e5, "compilation": 1e15}
        batches = list(batch_by_tokens(lengths.tolist(), budget=16384, coarse=True, **costs))
        assert all(batch.rows * batch.length <= 4 * batch.room for batch in batches)
        return {(batch.rows, batch.length, batch.room) for batch in batches}

    assert shapes(0) == shapes(1) and len(shapes(0)) <= 3


def test_batches_of_many_lengths_have_few_shapes_and_little_padding():
    lengths = [i % 400 for i in range(2000)]
    batches = list(
        batch_by_tokens(
            lengths, budget=4096, parameters=20_000_000, attention=14_000, compilation=5e10
        )
    )
    assert len({(batch.rows, batch.length, batch.room) for batch in batches}) <= 12
    assert sum(batch.room for batch in batches) < 1.05 * sum(lengths)


@pytest.mark.parametrize(
    ("family", "kind", "named"),
    [("bert", "cls", "BertTokenizer"), ("llama", "end", "GPT2Tokenizer"), ("llama", "end", "")],
)
def test_a_tokenizer_is_the_one_that_transformers_chooses(family, kind, named, tmp_path):
    tiny.write(tmp_path, family, tokenizer=kind)
    path = tmp_path / "tokenizer_config.json"
    declared = json.loads(path.read_text())
    path.write_text(json.dumps(declared | ({"tokenizer_class": named} if named else {})))
    ours, theirs = load_tokenizer(str(tmp_path)), AutoTokenizer.from_pretrained(tmp_path)
    assert type(ours) is type(theirs)
    assert ours.backend_tokenizer.to_str() == theirs.backend_tokenizer.to_str()
    assert ours("Tide 1784, naïve [SEP]") == theirs("Tide 1784, naïve [SEP]")
