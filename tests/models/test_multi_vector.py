"""A vector for each token: any batch and mesh, MaxSim, the same in sentence-transformers."""

import functools
import json

import jax
import numpy as np
import pytest
from support import tiny

from ark_jax import layout
from ark_jax.models.multi_vector import LexicalRetriever, MultiVectorRetriever, is_multi_vector
from ark_jax.models.pooling import pool
from ark_jax.models.retriever import Retriever
from ark_jax.retrieval.bm25_index import count_weights
from ark_jax.retrieval.fusion import Fusion
from ark_jax.retrieval.late import maxsim
from ark_jax.retrieval.searcher import Dense, named_searcher
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


def write_bge_m3(folder):
    """A tiny BGE-M3 with its heads; (hidden states of a text, weights of the heads) by torch."""
    torch = pytest.importorskip("torch", reason="the format's own writer, and the reference")
    import transformers

    tiny.write(folder, "xlm-roberta", tokenizer="both")
    tiny.sentence_transformer(folder, pooling="cls", max_seq_length=48)
    path = folder / "tokenizer_config.json"
    names = {"cls_token": tiny.BEGIN, "eos_token": tiny.STOP, "pad_token": tiny.PAD}
    names["unk_token"] = tiny.END
    path.write_text(json.dumps(json.loads(path.read_text()) | names))
    torch.manual_seed(0)
    heads = {"colbert_linear.pt": tiny.WIDTH, "sparse_linear.pt": 1}
    heads = {name: torch.nn.Linear(tiny.WIDTH, width) for name, width in heads.items()}
    for name, head in heads.items():
        torch.nn.init.normal_(head.weight)
        torch.save(head.state_dict(), folder / name)
    body = transformers.XLMRobertaModel.from_pretrained(folder, dtype=torch.float32).eval()

    def apply(name, ids):
        with torch.no_grad():
            states = body(torch.tensor([ids], dtype=torch.long)).last_hidden_state[0]
            return heads[name](states).numpy()

    return apply


def test_bge_m3s_vectors_of_tokens_and_lexical_weights(tmp_path, mesh, monkeypatch):
    """By the formulas of Chen et al. 2024."""
    monkeypatch.setenv("ARK_CACHE", str(tmp_path / "cache"))
    apply = write_bge_m3(tmp_path / "base")
    assert not is_multi_vector(tmp_path / "base")
    retriever = MultiVectorRetriever.from_pretrained(tmp_path / "base")
    ids = [row.tolist() for row in retriever.tokenize(TEXTS, kind="document")]
    expected = [apply("colbert_linear.pt", x)[1:] for x in ids]
    expected = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in expected]
    retriever.save_pretrained(tmp_path / "export")
    for model in (retriever, MultiVectorRetriever.from_pretrained(tmp_path / "export")):
        for kind in ("query", "document"):
            for ours, theirs in zip(model.encode(TEXTS, kind=kind), expected, strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)
    lexical = LexicalRetriever.from_pretrained(tmp_path / "base")
    weights = np.zeros((len(TEXTS), tiny.VOCAB), np.float32)
    for row, text in zip(weights, ids, strict=True):
        np.maximum.at(row, text, apply("sparse_linear.pt", text)[:, 0])
    special = [
        retriever.tokenizer.convert_tokens_to_ids(x) for x in (tiny.BEGIN, tiny.STOP, tiny.END)
    ]
    weights[:, [*special, 3]] = 0
    assert (weights > 0).sum() > 20
    np.testing.assert_allclose(
        lexical.encode(TEXTS, kind="document").toarray(), weights, rtol=0, atol=1e-5
    )
    words = count_weights(lexical.encode, TEXTS)
    vectors = Dense(
        retriever.encode(TEXTS, kind="document"), lambda x: retriever.encode(x, kind="query")
    )
    for scope in (range(len(TEXTS)), range(1, 6), [5, 0, 3]):
        found = words.search(TEXTS, 3, [scope] * len(TEXTS))
        for ranking, scores in zip(found, weights @ weights.T, strict=True):
            best = [i for i in sorted(scope, key=lambda i: -scores[i]) if scores[i] > 0][:3]
            assert list(ranking.ids) == best
            np.testing.assert_allclose(ranking.scores, scores[best], rtol=1e-4)
    fused = named_searcher("hybrid", words, vectors, Fusion(), 3).search(TEXTS[3:4], 1)
    assert fused[0].ids == (3,)
    with pytest.raises(FileNotFoundError, match=r"no sparse_linear\.pt; give a folder of BGE-M3"):
        LexicalRetriever.from_pretrained(tmp_path / "export")
