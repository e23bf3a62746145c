"""Folders of PyLate and ColBERT v2: vectors by numpy and by the libraries, training, export."""

import json
import string
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from support import colbert, tiny, training
from support.colbert import DOCUMENT, QUERY

from ark_jax.index.index import Index
from ark_jax.models.multi_vector import MultiVectorRetriever, open_retriever
from ark_jax.models.pairs import CrossEncoder
from ark_jax.models.retriever import Retriever
from ark_jax.retrieval.late import maxsim
from ark_jax.data.records import Document

TEXTS = [
    "The Tidal Board was founded in 1784.",
    "",
    "a",
    "one of the clerks, " * 20,
    "both ends [MASK] and more [MASK]",
]
# name -> layout, settings, and how `colbert.by_numpy` is asked for queries and documents.
PUNCTUATION = (*string.punctuation, "[UNK]")  # some are no token here; see the test of them
CASES = {
    "pylate": (
        "pylate",
        {"query_length": 16, "document_length": 40, "skiplist_words": [",", "the"]},
        {"marker": QUERY, "length": 16, "filled": True},
        {"marker": DOCUMENT, "length": 40, "skipped": (",", "the")},
    ),
    "pylate, defaults": (
        "pylate",
        {},
        {"marker": QUERY, "length": 32, "filled": True},
        {"marker": DOCUMENT, "length": 180, "skipped": PUNCTUATION},
    ),
    "pylate, seen": (
        "pylate",
        {"query_length": 20, "attend_to_expansion_tokens": True, "bias": True},
        {"marker": QUERY, "length": 20, "filled": True, "seen": True},
        {"marker": DOCUMENT, "length": 180, "skipped": PUNCTUATION},
    ),
    "pylate, plain": (
        "pylate",
        {
            "query_prefix": "",
            "document_prefix": "",
            "do_query_expansion": False,
            "skiplist_words": [],
        },
        {"marker": None, "length": 32},
        {"marker": None, "length": 180},
    ),
    "colbert": (
        "colbert",
        {
            "query_token_id": "[unused0]",
            "doc_token_id": "[unused1]",
            "query_maxlen": 24,
            "doc_maxlen": 50,
            "mask_punctuation": True,
            "attend_to_mask_tokens": False,
            "similarity": "cosine",
        },
        {"marker": QUERY, "length": 24, "filled": True},
        {"marker": DOCUMENT, "length": 50, "skipped": PUNCTUATION},
    ),
    "colbert, without punctuation": (
        "colbert",
        {"mask_punctuation": False, "doc_maxlen": 180},
        {"marker": QUERY, "length": 32, "filled": True},
        {"marker": DOCUMENT, "length": 180},
    ),
}


def write_case(folder: Path, name: str) -> Path:
    layout, settings, _, _ = CASES[name]
    return colbert.write(folder, layout, **settings)


def vectors(retriever: MultiVectorRetriever) -> dict[str, list[np.ndarray]]:
    return {kind: list(retriever.encode(TEXTS, kind=kind)) for kind in ("query", "document")}


def assert_equal(ours: dict, expected: dict, atol: float) -> None:
    for kind, texts in expected.items():
        for mine, theirs in zip(ours[kind], texts, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=0, atol=atol)


@pytest.mark.parametrize("name", CASES)
def test_vectors_equal_those_by_numpy_and_the_export_keeps_the_layout(name, tmp_path, mesh):
    folder = write_case(tmp_path / "base", name)
    _, _, query, document = CASES[name]
    retriever = open_retriever(folder)
    ours = vectors(retriever)
    asked = {"query": query, "document": document}
    expected = {
        kind: [colbert.by_numpy(folder, text, **how) for text in TEXTS]
        for kind, how in asked.items()
    }
    assert_equal(ours, expected, 1e-5)
    sums = [[(q @ d.T).max(1).sum() for d in expected["document"]] for q in expected["query"]]
    scores = maxsim(*(retriever.encode(TEXTS, kind=kind) for kind in asked))
    counts = [[len(q)] for q in expected["query"]]
    np.testing.assert_allclose(scores * counts, sums, atol=1e-3)
    lengths = list(map(len, expected["document"]))
    offsets = retriever.vector_offsets(TEXTS, kind="document")
    assert offsets.tolist() == [0, *np.cumsum(lengths)]
    retriever.save_pretrained(tmp_path / "export")
    again = open_retriever(tmp_path / "export")
    assert again.late == retriever.late
    assert_equal(vectors(again), ours, 0)
    for file in ("artifact.metadata", "config.json"):
        if (folder / file).is_file():
            assert json.loads((tmp_path / "export" / file).read_text()) == json.loads(
                (folder / file).read_text()
            )
    if (folder / "modules.json").is_file():
        types = [
            row["type"] for row in json.loads((tmp_path / "export" / "modules.json").read_text())
        ]
        assert types == ["sentence_transformers.models.Transformer", "pylate.models.Dense.Dense"]
    for weights in folder.rglob("*.safetensors"):
        stored, before = (
            load_file(root / weights.relative_to(folder)) for root in (tmp_path / "export", folder)
        )
        assert stored.keys() == before.keys()
        for key, value in before.items():
            np.testing.assert_array_equal(stored[key], value)


@pytest.mark.parametrize("library", ["pylate", "sentence_transformers"])
@pytest.mark.parametrize("name", CASES)
def test_vectors_equal_those_of_the_libraries(name, library, tmp_path, mesh):
    module = pytest.importorskip(library, reason="a reference implementation")
    folder = write_case(tmp_path / "base", name)
    retriever = open_retriever(folder)
    retriever.save_pretrained(tmp_path / "export")
    for place in (folder, tmp_path / "export"):
        if library == "pylate":
            from pylate.models import ColBERT

            model = ColBERT(str(place), device="cpu")
            theirs = {
                kind: model.encode(TEXTS, is_query=kind == "query")
                for kind in ("query", "document")
            }
        else:
            model = module.MultiVectorEncoder(str(place), device="cpu")
            theirs = {"query": model.encode_query(TEXTS), "document": model.encode_document(TEXTS)}
            theirs = {kind: [np.asarray(x) for x in texts] for kind, texts in theirs.items()}
        assert_equal(vectors(retriever), theirs, 1e-5)


def test_a_skipped_word_that_is_no_token_is_the_unknown_one(tmp_path, mesh):
    """As in PyLate, whose training leaves out unknown tokens then; MultiVectorEncoder keeps them."""
    names = {"pylate, defaults": 3, "pylate, plain": 3}
    for name, tokens in names.items():
        retriever = open_retriever(write_case(tmp_path / name, name))
        (vectors,) = retriever.encode(["☃"], kind="document")
        assert len(vectors) == tokens


def test_vectors_do_not_depend_on_mesh_and_batch(tmp_path, any_mesh):
    retriever = open_retriever(write_case(tmp_path, "pylate"))
    _, _, query, _ = CASES["pylate"]
    wanted = [colbert.by_numpy(tmp_path, text, **query) for text in TEXTS]
    for size in (0, 40):
        ours = retriever.encode(TEXTS, kind="query", batch_tokens=size)
        assert_equal({"query": list(ours)}, {"query": wanted}, 1e-5)
