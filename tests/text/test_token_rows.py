"""Token ids of many texts in one array."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import tiny

from ark_jax.models.retriever import Retriever
from ark_jax.text import token_rows
from ark_jax.text.token_rows import TOKENIZER_TEXTS, RowsByKey, TokenRows, text_blocks

ROWS = st.lists(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=5), max_size=8)


@pytest.mark.parametrize("in_memory", [10, token_rows.IN_MEMORY])
@given(lists=ROWS, part=st.slices(8))
def test_token_rows_behave_like_the_lists_they_were_made_from(lists, part, in_memory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_rows, "IN_MEMORY", in_memory)
        rows = TokenRows.from_rows(iter(lists))
        small = TokenRows.from_rows([[x % 100 for x in row] for row in lists], np.int8)
    assert small.values.dtype == np.int8
    assert small.tolist() == [[x % 100 for x in row] for row in lists]
    assert type(rows.values) is np.ndarray
    assert (rows.values.dtype, rows.offsets.dtype) == (np.int32, np.int64)
    assert rows.tolist() == lists == [row.tolist() for row in rows]
    assert [row.tolist() for row in rows[part]] == lists[part]
    assert rows.lengths.tolist() == list(map(len, lists))
    for number in range(-len(lists), len(lists)):
        assert rows[number].tolist() == lists[number]
    for number in (len(lists), -len(lists) - 1):
        with pytest.raises(IndexError):
            rows[number]
    again = TokenRows.from_rows(rows[::-1])
    assert again.tolist() == lists[::-1]
    named = RowsByKey(map(str, range(len(lists))), rows)
    assert {key: row.tolist() for key, row in named.items()} == {
        str(number): row for number, row in enumerate(lists)
    }


def test_token_rows_are_read_only():
    for rows in (TokenRows.from_rows([[1, 2]]), TokenRows.from_lengths(np.arange(2), [2])):
        with pytest.raises(ValueError, match="read-only"):
            rows[0][0] = 7


def test_texts_are_split_into_blocks_for_the_tokenizer():
    texts = list(map(str, range(2 * TOKENIZER_TEXTS + 1)))
    blocks = list(text_blocks(texts))
    assert [text for block in blocks for text in block] == texts
    assert list(map(len, blocks)) == [TOKENIZER_TEXTS, TOKENIZER_TEXTS, 1]
    assert list(text_blocks([])) == []


def test_tokenized_texts_take_at_most_five_bytes_per_token(tmp_path, mesh, monkeypatch):
    monkeypatch.setattr(token_rows, "TOKENIZER_TEXTS", 256)
    folder = tiny.write(tmp_path, "bert", tokenizer="cls")
    retriever = Retriever.from_pretrained(tiny.sentence_transformer(folder, pooling="mean"))
    words = ["the", "board", "of", "the", "tide", "was", "founded", "by", "clerks", "in", "1784"]
    texts = [" ".join(words[i % 7 :] * 9) for i in range(5_000)]
    retriever.tokenize(texts[:1], kind="document")  # what a tokenizer loads once
    tracemalloc.start()
    try:
        rows = retriever.tokenize(texts, kind="document")
        taken, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    tokens = len(rows.values)
    assert tokens == rows.lengths.sum() > 50 * len(texts)
    assert rows.values.nbytes + rows.offsets.nbytes <= 5 * tokens
    assert taken <= 5 * tokens
    # Beside them, what the tokenizer makes of one call.
    block = 100 * 256 * int(rows.lengths.max())
    assert most <= 5 * tokens + block < 12 * tokens, (most, tokens)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([None], "text 0: None is no string; give strings"),
        (["a", 7], "text 1: 7 is no string"),
        ([("a", "b"), ("a", None)], r"text 1: \('a', None\) is no string"),
    ],
)
def test_what_is_no_text_is_named(texts, message):
    with pytest.raises(ValueError, match=message):
        list(text_blocks(texts))
