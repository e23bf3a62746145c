"""Searchers against loops over all texts, alone and made of each other."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.brute_force import bm25, fuse

from ark_jax.retrieval import late
from ark_jax.retrieval.bm25_index import count_bm25
from ark_jax.retrieval.fusion import Fusion
from ark_jax.retrieval.searcher import (
    Dense,
    Fused,
    Known,
    OnFirstProcess,
    Ranking,
    Reranked,
    named_searcher,
)
from ark_jax.text.token_vectors import TokenVectors

WORDS = ("tide", "lamp", "salt", "wool", "pilot", "bell")  # their own stems
TEXTS = st.lists(st.lists(st.sampled_from(WORDS), max_size=4).map(" ".join), min_size=1, max_size=9)


def embed(texts) -> np.ndarray:
    """Unit vectors of few different values, so that many cosines are equal."""
    counts = (
        np.array([[text.count(word) for word in WORDS] for text in texts]).reshape(-1, 6) + 0.25
    )
    return (counts / np.linalg.norm(counts, axis=1, keepdims=True)).astype(np.float32)


def embed_tokens(texts) -> TokenVectors:
    """A direction for each word, whose cosines are added up without an error."""
    of_words = [np.eye(6, dtype=np.float32)[[WORDS.index(x) for x in t.split()]] for t in texts]
    return TokenVectors.from_texts(of_words, len(WORDS))


def nearest_one_by_one(questions, texts, scopes, k: int, tokens: bool) -> list[list[int]]:
    """Each question and text compared alone."""
    found = []
    for question, scope in zip(questions, scopes, strict=True):
        if tokens:
            score = lambda i, q=question: late.maxsim(embed_tokens([q]), embed_tokens([texts[i]]))[
                0, 0
            ]
        else:
            score = lambda i, q=question: np.vecdot(
                *(embed([x])[0].astype(np.float64) for x in (q, texts[i]))
            )
        found.append(sorted(scope, key=lambda i: -score(i))[:k])
    return found


def ids_of(rankings) -> list[list]:
    return [[id for id, _ in ranking.pairs()] for ranking in rankings]


@settings(max_examples=60)
@given(TEXTS, TEXTS, st.integers(1, 5), st.booleans(), st.data())
def test_every_searcher_equals_a_loop_over_all_texts(questions, texts, k, tokens, data):
    everything = range(len(texts))
    subset = st.lists(st.sampled_from(everything), unique=True).map(tuple)
    ranges = st.builds(range, st.integers(0, len(texts)), st.just(len(texts)), st.integers(1, 2))
    scopes = [data.draw(subset | ranges | st.just(everything)) for _ in questions]
    words = count_bm25(texts)
    embedding = embed_tokens if tokens else embed
    dense = Dense(embedding(texts), embedding)
    near = lambda k, scopes: nearest_one_by_one(questions, texts, scopes, k, tokens)
    assert ids_of(dense.search(questions, k, scopes)) == near(k, scopes)
    assert ids_of(dense.search(questions, k)) == near(k, [everything] * len(questions))
    by_words = bm25(questions, texts, scopes, k + 2)
    fused = Fused([words, dense], k + 2)
    wanted = [fuse([*pair], k) for pair in zip(by_words, near(k + 2, scopes), strict=True)]
    assert ids_of(fused.search(questions, k, scopes)) == wanted
    fusion = Fusion(by="scores", depth=k + 2, bm25=0.5)
    parts = (part.search(questions, k + 2, scopes) for part in (words, dense))
    joined = [fusion.join(*(x.pairs() for x in pair))[:k] for pair in zip(*parts, strict=True)]
    hybrid = named_searcher("hybrid", words, dense, fusion, k)
    assert [x.pairs() for x in hybrid.search(questions, k, scopes)] == joined
    score = lambda pairs: np.array([len(text) % 3 for _, text in pairs], np.float32)
    reranked = Reranked(dense, texts, score).search(questions, k, scopes)
    wanted = [sorted(ids, key=lambda i: -(len(texts[i]) % 3)) for ids in near(k, scopes)]
    assert ids_of(reranked) == wanted
    shared = OnFirstProcess(lambda: words).search(questions, k, scopes)
    assert [x.pairs() for x in shared] == [x.pairs() for x in words.search(questions, k, scopes)]


def test_known_rankings_are_cut_and_fused():
    known = Known([Ranking(["c", "a", "b"], [3.0, 2.0, 1.0])])
    assert known.search(["?"], 2) == [Ranking(["c", "a"], [3.0, 2.0])]
    other = Known([Ranking(["b"], [1.0])])
    assert ids_of(Fused([known, other], 9).search(["?"], 3)) == [fuse([["c", "a", "b"], ["b"]], 3)]


def test_known_rankings_of_another_number_of_questions_are_refused():
    with pytest.raises(ValueError, match="zip"):
        Known([Ranking(["c"], [3.0])]).search(["?", "another?"], 2)


def test_a_part_of_weight_zero_is_left_out_of_a_hybrid():
    words = Known([Ranking(["b"], [1.0])])
    assert named_searcher("hybrid", words, None, Fusion(dense=0.0), 3) is words
    assert named_searcher("hybrid", None, words, Fusion(bm25=0.0), 3) is words


def test_a_search_over_all_texts_copies_no_vectors(monkeypatch, tmp_path):
    texts = [f"{word} {other}" for word in WORDS for other in WORDS]
    np.save(tmp_path / "vectors.npy", embed(texts))
    vectors, searched = np.load(tmp_path / "vectors.npy", mmap_mode="r"), []
    nearest = late.nearest
    monkeypatch.setattr(late, "nearest", lambda *of: searched.append(of[1]) or nearest(*of))
    Dense(vectors, embed).search(["tide", "lamp"], 2, [range(len(texts))] * 2)
    assert len(searched) == 1 and np.shares_memory(searched[0], vectors)
