"""BM25 against its formula, on words that are their own stems."""

import collections
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.brute_force import bm25

from ark_jax.retrieval.bm25_index import stems

WORDS = ("tide", "lamp", "salt", "wool", "pilot", "bell")  # their own stems


TEXTS = st.lists(st.lists(st.sampled_from(WORDS), max_size=8).map(" ".join), min_size=1, max_size=9)


def scores(query: str, texts: list[str]) -> np.ndarray:
    """Lucene's BM25 with k1 1.5 and b 0.75, as written."""
    bags = [collections.Counter(text.split()) for text in texts]
    mean = sum(map(collections.Counter.total, bags)) / len(bags)
    out = np.zeros(len(texts))
    for word in query.split():
        holding = sum(word in bag for bag in bags)
        for i, bag in enumerate(bags):
            weight = math.log(1 + (len(bags) - holding + 0.5) / (holding + 0.5))
            out[i] += (
                weight * bag[word] / (bag[word] + 1.5 * (0.25 + 0.75 * bag.total() / mean))
                if bag[word]
                else 0
            )
    return out


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.sampled_from(WORDS), max_size=4).map(" ".join), TEXTS, st.integers(1, 9), st.data()
)
def test_bm25_rankings_equal_the_formula(query, texts, k, data):
    scope = data.draw(st.lists(st.sampled_from(range(len(texts))), unique=True))
    (ranking,), wanted = bm25([query], texts, [scope], k), scores(query, texts)
    assert set(ranking) <= set(scope) and len(ranking) == min(k, sum(wanted[i] > 0 for i in scope))
    best = sorted((wanted[i] for i in scope if wanted[i] > 0), reverse=True)[:k]
    assert [wanted[i] for i in ranking] == pytest.approx(best, abs=1e-6)


def test_bm25_uses_stems_and_ignores_stop_words():
    texts = ["The clerks lighted all the lamps.", "A lamp", "the of and", "the tide"]
    assert bm25(["lighting of the lamp", "the and of", "", "zinc"], texts, [range(4)] * 4, 3) == [
        [0, 1],
        [],
        [],
        [],
    ]
    assert bm25(["lamp"], ["the of", ""], [[0, 1]], 3) == [[]]  # no word at all
    assert bm25(["lamp"], ["lamp", "lamp", "tide"], [[2, 1, 0]], 3) == [
        [1, 0]
    ]  # in the scope's order


@pytest.mark.parametrize(
    "text, words",
    [
        ("Vitamin C, model X-5", "vitamin c model x 5"),
        ("It's 5 o'clock; don’t ask _ or __init__", "5 o clock don ask __init__"),
        ("日本の首都", "日 本 の 首 都 日本 本の の首 首都"),
        ("C言語を 茶", "c 言 語 を 言語 語を 茶"),
        ("ＡＢ ﾃﾞｰﾀ", "ab デ ー タ デー ータ"),  # of other widths
        ("हिन्दी भाषा", "हिन्दी भाषा"),  # marks are parts of words
        ("ไทย", "ไ ท ย ไท ทย"),
        ("москве cafe\u0301 naïve m²", "москве café naïv m²"),
        ("서울은", "서 울 은 서울 울은"),
    ],
)
def test_words_of_any_script_and_of_one_character_are_words(text, words):
    assert stems([text]) == [words.split()]


def test_english_words_of_two_characters_are_those_of_the_older_tokenizer():
    texts = ["The clerks' lamps, lit at 10 p.m., weren't ours; \"half-lit\" – he said. naïve_1"]
    (older,) = stems(texts, "english")
    assert older and [word for word in stems(texts)[0] if len(word) > 1] == older


def test_short_words_and_those_of_other_scripts_are_found():
    texts = ["Vitamin C prevents scurvy.", "Vitamin D prevents rickets.", "東京は日本の首都です。"]
    assert bm25(["vitamin D", "首都", "京"], texts, [range(3)] * 3, 1) == [[1], [2], [2]]
