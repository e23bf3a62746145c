"""Columns of texts are read like lists."""

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ark_jax.data import text_columns
from ark_jax.data.text_columns import TextColumn, TextListColumn, runs

TEXT = st.text(st.characters(codec="utf-8"), max_size=3)
LISTS = st.lists(st.lists(TEXT, max_size=3), max_size=7)


@given(values=st.lists(TEXT, max_size=7), block=st.integers(1, 8))
def test_a_text_column_behaves_like_a_list(values, block):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_columns, "BLOCK", block)
        column = TextColumn(iter(values))
    assert len(column) == len(values) and list(column) == values and column == values
    assert [column[i] for i in range(len(values))] == values and column[1:3] == values[1:3]
    assert column != [*values, ""] and column != "".join(values) and TextColumn(values) == column


@given(values=LISTS, block=st.integers(1, 8), size=st.integers(0, 9))
def test_lists_of_texts_are_built_from_codes(values, block, size):
    texts = sorted({text for row in values for text in row})
    codes = np.array([texts.index(text) for row in values for text in row], np.int64)
    ends = np.cumsum([len(row) for row in values], dtype=np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_columns, "BLOCK", block)
        patch.setattr(text_columns, "BLOCK_BYTES", size)
        column = TextListColumn.from_codes(ends, codes, pa.array(texts, pa.large_string()))
    assert column == values
    for array in column.arrow.chunks:
        text = "".join(itertools.chain.from_iterable(array.to_pylist()))
        assert len(array) <= block and (len(text.encode()) <= size or len(array) == 1)
    assert [column.first(i) for i in range(len(values))] == [[*row, ""][0] for row in values]
    flat_ends, flat = column.flat()
    assert flat_ends.tolist() == ends.tolist()
    assert flat.to_pylist() == [text for row in values for text in row]


@given(values=st.lists(st.sampled_from("ab"), max_size=9), block=st.integers(1, 4))
def test_runs_start_where_the_text_changes(values, block):
    blocks = [values[i : i + block] for i in range(0, len(values), block)]
    starts, texts = runs(pa.chunked_array(blocks, pa.string()))
    changes = [i for i, text in enumerate(values) if values[i - 1 : i] != [text]]
    assert starts.tolist() == changes and texts.to_pylist() == [values[i] for i in changes]


def test_a_column_shows_its_first_rows():
    assert repr(TextColumn("abcde")) == "<5 rows: 'a', 'b', 'c', ...>"
