"""Vectors of tokens behave as a list with the array of each text."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ark_jax.text.token_vectors import TokenVectors, check_one_each, join, stack

WIDTH = 3
LENGTHS = st.lists(st.integers(0, 4), max_size=7)


def texts_of(lengths: list[int]) -> list[np.ndarray]:
    """Arrays of these lengths, no two of which share a number."""
    numbers = np.arange(sum(lengths) * WIDTH, dtype=np.float32).reshape(-1, WIDTH)
    return np.split(numbers, np.cumsum(lengths)[:-1]) if lengths else []


def assert_texts(vectors: TokenVectors, texts: list[np.ndarray]) -> None:
    assert isinstance(vectors, TokenVectors) and len(vectors) == len(texts)
    assert vectors.values.shape == (sum(map(len, texts)), WIDTH)
    assert vectors.offsets[0] == 0 and vectors.offsets.dtype == np.int64
    assert vectors.lengths.tolist() == list(map(len, texts))
    for vector, text in zip(vectors, texts, strict=True):
        np.testing.assert_array_equal(vector, text)


@given(LENGTHS, st.data())
def test_token_vectors_are_indexed_like_a_list(lengths, data):
    texts = texts_of(lengths)
    vectors = TokenVectors.from_texts(texts, WIDTH)
    assert_texts(vectors, texts)
    ends = st.none() | st.integers(-9, 9)
    part = slice(data.draw(ends), data.draw(ends), data.draw(st.sampled_from([None, 1, 2, -1])))
    assert_texts(vectors[part], texts[part])
    assert_texts(vectors[part][1:], texts[part][1:])
    for number in range(-len(texts), len(texts)):
        np.testing.assert_array_equal(vectors[number], texts[number])
        np.testing.assert_array_equal(vectors[np.int64(number)], texts[number])
    for number in (len(texts), -len(texts) - 1):
        with pytest.raises(IndexError):
            vectors[number]
    places = st.integers(-len(texts), len(texts) - 1) if texts else st.nothing()
    numbers = data.draw(st.lists(places, max_size=5 * bool(texts)))
    assert_texts(vectors[numbers], [texts[i] for i in numbers])
    assert_texts(vectors[np.array(numbers, np.int64)], [texts[i] for i in numbers])


@given(st.lists(LENGTHS, min_size=1, max_size=4))
def test_joining_split_token_vectors_restores_them(parts):
    everything = texts_of(list(itertools.chain(*parts)))
    ends = np.cumsum(list(map(len, parts)))[:-1].tolist()
    bounds = zip([0, *ends], [*ends, len(everything)], strict=True)
    split = [TokenVectors.from_texts(everything[start:end], WIDTH) for start, end in bounds]
    assert_texts(join(split), everything)


def test_slices_of_a_memory_map_share_its_memory(tmp_path):
    texts = texts_of([2, 0, 3, 1])
    whole = TokenVectors.from_texts(texts)
    np.save(tmp_path / "values.npy", whole.values)
    mapped = TokenVectors(np.load(tmp_path / "values.npy", mmap_mode="r"), whole.offsets)
    assert_texts(mapped, texts)
    assert_texts(mapped[[3, 0]], [texts[3], texts[0]])
    for view in (mapped[1:].values, mapped[1:3][1:].values, mapped[2]):
        assert np.shares_memory(view, mapped.values)


def test_one_vector_for_each_text_stays_an_array():
    texts = list(np.eye(3, dtype=np.float32))
    np.testing.assert_array_equal(stack(texts), np.eye(3))
    np.testing.assert_array_equal(join([np.eye(3)[:1], np.eye(3)[1:]]), np.eye(3))


def test_stacked_token_arrays_become_token_vectors():
    assert_texts(stack(texts_of([2, 1])), texts_of([2, 1]))


def test_token_vectors_are_refused_where_a_text_has_one_vector():
    assert check_one_each(np.eye(3), "there").shape == (3, 3)
    with pytest.raises(ValueError, match=r"^there: a text has one vector here.*`ark-jax search`"):
        check_one_each(stack(texts_of([2, 1])), "there")
