"""HyDE: the vector of a question is the mean of its own and that of what is written for it."""

import numpy as np
import pytest

from ark_jax.retrieval.hyde import Hyde
from ark_jax.retrieval.searcher import Dense
from ark_jax.text.prompts import load_template
from ark_jax.text.token_vectors import TokenVectors

PASSAGES = ["the salt of the sea", "a lamp in the tower"]


def embed(texts, kind: str) -> np.ndarray:
    """Unit vectors of how often letters come; questions lie elsewhere than passages."""
    counts = np.array([[text.count(letter) for letter in "aelst"] for text in texts], np.float32)
    counts[:, 0] += 3 * (kind == "query")
    return counts / np.linalg.norm(counts, axis=1, keepdims=True)


def test_a_written_passage_moves_the_question_vector_towards_it():
    asked = []
    replies = ["<think>a lamp?</think>\n a lamp in a tower \n", " "]
    hyde = Hyde(lambda filled: asked.extend(filled) or replies, embed, load_template("hyde"))
    questions = ["which salt?", "which salt is it?"]
    vectors = hyde(questions)
    both = embed(["which salt?"], "query") + embed(["a lamp in a tower"], "document")
    np.testing.assert_allclose(vectors[:1], both / np.linalg.norm(both), atol=1e-6)
    # Nothing was written for the other.
    np.testing.assert_allclose(vectors[1:], embed(questions[1:], "query"), atol=1e-6)
    assert [prompt.rpartition("Question: ")[2] for prompt in asked] == questions
    texts = embed(PASSAGES, "document")
    plain, expanded = (
        Dense(texts, how).search(questions[:1], 2)[0]
        for how in (lambda texts: embed(texts, "query"), hyde)
    )
    gap = lambda ranking: dict(ranking.pairs())[1] - dict(ranking.pairs())[0]
    assert gap(expanded) > gap(plain)


def test_a_retriever_with_token_vectors_is_refused():
    tokens = lambda texts, kind: TokenVectors.from_texts([embed(list(x), kind) for x in texts])
    written = []
    with pytest.raises(ValueError, match="HyDE: a text has one vector here"):
        Hyde(written.append, tokens, "{question}")(["which salt?"])
    assert written == []  # no language model was paid
