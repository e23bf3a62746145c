"""Whole words in a text."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ark_jax.text.word_boundaries import contains_words, whole_word_pattern


@pytest.mark.parametrize(
    "text, words, inside",
    [
        ("Ada built it.", "ada", True),
        ("Adamant rock", "Ada", False),
        ("the Tidal\n Board sat", "Tidal Board", True),
        ("it cost £4,300 then", "£4,300", True),
        ("it cost £4,3001", "£4,300", False),
        ("in 1790s", "1790", False),
        ("東京都に住む", "東京", True),
        ("Straße", "STRASSE", True),
        ("anything", "", False),
        ("anything", " ", False),
        ("a (b", "(b", True),
    ],
)
def test_only_whole_words_are_found(text, words, inside):
    assert contains_words(text, words) is inside


LETTERS = st.text("ab1_ -.東京ก가é", max_size=8)


@given(LETTERS, LETTERS)
def test_the_whole_word_pattern_agrees_with_contains_words(text, words):
    wanted = " ".join(words.split())
    match = wanted and re.search(whole_word_pattern(wanted), " ".join(text.split()))
    assert contains_words(text, words) is bool(match)
