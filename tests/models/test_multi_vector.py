"""A vector for each token: any batch and mesh, MaxSim, the same in sentence-transformers."""

import functools
import json

import jax
import numpy as np
import pytest
from support import tiny

from ark_jax import layout
from ark_jax.models.multi_vector import MultiVectorRetriever, is_multi_vector
from ark_jax.models.pooling import pool
from ark_jax.models.retriever import Retriever
from ark_jax.retrieval.late import maxsim
from ark_jax.text.token_vectors import TokenVectors

TEXTS = [
    "The Tidal Board was founded in 1784.",
    "",
    "x",
    "one of the clerks " * 200,
    "both ends \n\t",
    "[SEP] <|end|> </s> [PAD]",
]
PROMPTS = {"query": "Find: ", "document": ""}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An ordinary folder, whose texts have one vector: the mean of at most 48 tokens."""
    path = tiny.write(tmp_path_factory.mktemp("mean"), "bert", tokenizer="cls")
    return tiny.sentence_transformer(path, pooling="mean", max_seq_length=48, prompts=PROMPTS)


@functools.cache
def on_one_device(folder) -> TokenVectors:
    with jax.set_mesh(layout.make_mesh((1, 1, 1))):
        return MultiVectorRetriever.from_pretrained(str(folder)).encode(TEXTS, kind="query")


def test_each_token_has_a_unit_vector_on_any_mesh(folder, any_mesh):
    retriever = MultiVectorRetriever.from_pretrained(str(folder))
    vectors = retriever.encode(TEXTS, kind="query")
    assert vectors.lengths.tolist() == [*map(len, retriever.tokenize(TEXTS, kind="query"))]
    assert vectors.lengths.max() == 48 and vectors.values.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors.values, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(vectors.values, on_one_device(folder).values, rtol=0, atol=1e-5)


def test_token_vectors_do_not_depend_on_the_batch(folder, mesh):
    retriever = MultiVectorRetriever.from_pretrained(str(folder))
    backwards = retriever.encode(TEXTS[::-1], kind="query", batch_tokens=60)
    for ours, expected in zip(reversed(list(backwards)), on_one_device(folder), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-5)
    assert len(retriever.encode([], kind="query")) == 0


def test_the_mean_of_the_token_states_is_the_mean_pooled_vector(folder, mesh):
    """Before they get unit length: only the pooling differs from an ordinary retriever."""
    tokens = np.array([[2, 7, 8, 3], [2, 9, 3, 0]], np.int32)
    mask = tokens > 0
    retriever = Retriever.from_pretrained(str(folder))
    hidden = retriever.model(layout.rows(tokens), layout.rows(mask), retriever.cfg, None)
    every, mean = (pool(hidden, layout.rows(mask), how) for how in ("none", "mean"))
    assert not np.asarray(every)[1, 3].any()
    np.testing.assert_allclose(every.sum(1) / mask.sum(1)[:, None], mean, rtol=1e-5)


def test_a_saved_folder_declares_token_vectors(folder, tmp_path, mesh):
    retriever = MultiVectorRetriever.from_pretrained(str(folder))
    retriever.save_pretrained(tmp_path)
    assert is_multi_vector(tmp_path) and not is_multi_vector(folder)
    again = MultiVectorRetriever.from_pretrained(str(tmp_path))
    assert (again.prompts, again.max_length) == (PROMPTS, 48)
    np.testing.assert_array_equal(
        again.encode(TEXTS, kind="query").values, retriever.encode(TEXTS, kind="query").values
    )
    with pytest.raises(ValueError, match=r"for each token; .*MultiVectorRetriever"):
        Retriever.from_pretrained(str(tmp_path))
    card = (tmp_path / "README.md").read_text()
    assert "MultiVectorEncoder" in card and "a vector for each token" in card


def test_a_mask_that_skips_tokens_is_refused(folder, tmp_path, mesh):
    MultiVectorRetriever.from_pretrained(str(folder)).save_pretrained(tmp_path)
    path = tmp_path / "1_MultiVectorMask" / "config.json"
    path.write_text(json.dumps({"skiplist_words": ["!", "?"]}))
    with pytest.raises(ValueError, match=r"skiplist_words must be empty: .*, it is \['!', '\?'\]"):
        MultiVectorRetriever.from_pretrained(str(tmp_path))


def test_token_vectors_and_scores_match_sentence_transformers(folder, tmp_path, mesh):
    library = pytest.importorskip("sentence_transformers", reason="the reference implementation")
    retriever = MultiVectorRetriever.from_pretrained(str(folder))
    retriever.save_pretrained(tmp_path)
    reference = library.MultiVectorEncoder(str(tmp_path), device="cpu")
    theirs = reference.encode_query(TEXTS), reference.encode_document(TEXTS)
    ours = [retriever.encode(TEXTS, kind=kind) for kind in ("query", "document")]
    for vectors, expected in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(vectors.values, np.concatenate(expected), rtol=0, atol=1e-5)
    sums = np.asarray(reference.similarity(*theirs))
    np.testing.assert_allclose(maxsim(*ours) * ours[0].lengths[:, None], sums, atol=2e-3)
