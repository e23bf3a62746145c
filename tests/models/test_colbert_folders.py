"""Folders of PyLate and ColBERT v2: vectors by numpy and by the libraries, training, export."""

import contextlib
import json
import string
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file
from starlette.testclient import TestClient
from support import colbert, serving, tiny, training
from support.colbert import DOCUMENT, QUERY

from ark_jax import layout
from ark_jax.data.records import Document
from ark_jax.index.index import Index
from ark_jax.models.late_settings import read_late_settings
from ark_jax.models.multi_vector import MultiVectorRetriever, open_retriever
from ark_jax.models.retriever import Retriever
from ark_jax.retrieval.late import maxsim
from ark_jax.serve.app import make_app
from ark_jax.train import contrastive, fit, losses

TEXTS = [
    "The Tidal Board was founded in 1784.",
    "",
    "a",
    "one of the clerks, " * 20,
    "both ends [MASK] and more [MASK]",
]
LIBRARIES = {"pylate": "1.6", "sentence_transformers": "6.0"}  # PyLate 1.6 needs version 5 of it
EXPANSION = {"strategy": "fixed", "attend": False, "token": None, "length": 24}
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
    "encoder": (
        "encoder",
        {"limits": {"max_seq_length": 60}, "mask": {}},
        {"marker": QUERY, "length": 60},
        {"marker": DOCUMENT, "length": 60},
    ),
    "encoder, residuals, filled": (
        "encoder",
        {
            "limits": {"document_length": 40, "query_expansion": EXPANSION},
            "mask": {"skiplist_words": [",", "the", "☃"], "skiplist_tasks": ["query", "document"]},
            "dense": 3,
        },
        {"marker": QUERY, "length": 24, "filled": True, "skipped": (",", "the")},
        {"marker": DOCUMENT, "length": 40, "skipped": (",", "the")},
    ),
    "encoder, seen": (
        "encoder",
        {
            "limits": {"query_expansion": EXPANSION | {"attend": True}, "query_length": 30},
            "mask": {"skiplist_words": ["the"]},
            "dense": 2,
        },
        {"marker": QUERY, "length": 24, "filled": True, "seen": True},
        {"marker": DOCUMENT, "length": 640, "skipped": ("the",)},
    ),
    "encoder, limits": (
        "encoder",
        {"limits": {"query_length": 12, "document_length": 30}, "mask": {}},
        {"marker": QUERY, "length": 12},
        {"marker": DOCUMENT, "length": 30},
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
    if layout == "encoder":
        return colbert.write_encoder(folder, **settings)
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
        places = folder, tmp_path / "export"
        modules, exported = (json.loads((x / "modules.json").read_text()) for x in places)
        assert exported == modules
    for weights in folder.rglob("*.safetensors"):
        stored, before = (
            load_file(root / weights.relative_to(folder)) for root in (tmp_path / "export", folder)
        )
        assert stored.keys() == before.keys()
        for key, value in before.items():
            np.testing.assert_array_equal(stored[key], value)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("name", CASES)
def test_vectors_equal_those_of_the_libraries(name, library, tmp_path, mesh):
    module = pytest.importorskip(library, LIBRARIES[library], reason="a reference implementation")
    folder = write_case(tmp_path / "base", name)
    if library == "pylate" and CASES[name][0] == "encoder":
        return
    retriever = open_retriever(folder)
    retriever.save_pretrained(tmp_path / "export")
    for place in (folder, tmp_path / "export"):
        if library == "pylate":
            from pylate.models import ColBERT

            # It overlooks mask_punctuation.
            words = {"skiplist_words": []} if "without punctuation" in name else {}
            model = ColBERT(str(place), device="cpu", **words)
            theirs = {
                kind: model.encode(TEXTS, is_query=kind == "query")
                for kind in ("query", "document")
            }
        else:
            model = module.MultiVectorEncoder(str(place), device="cpu")
            theirs = {"query": model.encode_query(TEXTS), "document": model.encode_document(TEXTS)}
            theirs = {kind: [np.asarray(x) for x in texts] for kind, texts in theirs.items()}
        assert_equal(vectors(retriever), theirs, 1e-5)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("family", ["modernbert", "distilbert", "mpnet", "xlm-roberta"])
def test_other_encoders_equal_the_libraries(family, library, tmp_path, mesh):
    """GTE-ModernColBERT's body; its mask tokens may see no visible token within their windows."""
    module = pytest.importorskip(library, LIBRARIES[library], reason="a reference implementation")
    import torch
    import transformers

    folder = colbert.write(tmp_path, "pylate", query_length=40, document_length=40)
    sizes = {"hidden_size": tiny.WIDTH, "num_hidden_layers": 3, "num_attention_heads": 4}
    sizes |= {"intermediate_size": 48, "pad_token_id": 0, "vocab_size": tiny.VOCAB}
    cfg = transformers.AutoConfig.for_model(family, **sizes, local_attention=8, dtype="float32")
    torch.manual_seed(0)
    transformers.AutoModel.from_config(cfg).save_pretrained(folder)
    retriever = open_retriever(folder)
    if library == "pylate":
        model = module.models.ColBERT(str(folder), device="cpu")
        theirs = [model.encode(TEXTS, is_query=True), model.encode(TEXTS, is_query=False)]
    else:
        model = module.MultiVectorEncoder(str(folder), device="cpu")
        theirs = [map(np.asarray, model.encode_query(TEXTS)), model.encode_document(TEXTS)]
    assert_equal(vectors(retriever), dict(zip(("query", "document"), theirs, strict=True)), 1e-5)


def test_a_skipped_word_that_is_no_token_is_the_unknown_one(tmp_path, mesh):
    """As in PyLate, which trains so, too; MultiVectorEncoder of sentence-transformers differs."""
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


@pytest.mark.parametrize("name", ["pylate, seen", "colbert", "encoder, residuals, filled"])
def test_a_trained_model_keeps_its_layout(name, tmp_path, mesh):
    base = write_case(tmp_path / "base", name)
    (tmp_path / "run").mkdir()
    before = open_retriever(base)
    tuned, _, _ = contrastive.train(
        before,
        training.PAIRS,
        training.QUESTIONS,
        training.PASSAGES,
        training.CONFIG,
        fit.Run(tmp_path / "run", "train", lambda row: None),
        **training.TRAINING,
        loss=losses.info_nce,
    )
    tuned.save_pretrained(tmp_path / "export")
    again = open_retriever(tmp_path / "export")
    assert again.late == before.late
    assert_equal(vectors(again), vectors(tuned), 1e-6)
    names = [x.relative_to(base) for x in base.rglob("*") if x.is_file()]
    assert all((tmp_path / "export" / x).is_file() for x in names)
    first, last = (
        model.model.dense[0].dense_weight[...] for model in (open_retriever(base), again)
    )
    assert np.abs(last - first).max() > 1e-4  # the projection is trained, too


def test_it_is_indexed_searched_and_served(tmp_path):
    """With vectors of the kept tokens only, and queries with their mask tokens."""
    with jax.set_mesh(layout.make_mesh((1, 1, 1))):
        folder = write_case(tmp_path / "tuned", "pylate")
        retriever = open_retriever(folder)
        documents = [Document(name, "", text) for name, text in serving.TEXTS.items()]
        index = Index.build(tmp_path / "index", folder, documents, bits=32)
        hits = index.search(["the tide, and salt?"], k=3, by="dense")[0]
        passages = {hit.chunk: hit.text for hit in hits}
        asked = retriever.encode(["the tide, and salt?"], kind="query")
        scores = maxsim(asked, retriever.encode([*passages.values()], kind="document"))[0]
        np.testing.assert_allclose([hit.score for hit in hits], scores, atol=1e-5)
    service = serving.open_tiny(tmp_path)
    with contextlib.closing(service.work):
        asks = TestClient(make_app(service), base_url="http://localhost")
        body = {"question": "the tide, and salt?", "k": 3, "by": "dense"}
        found = asks.post("/search", json=body).json()["passages"]
        assert [x["chunk"] for x in found] == [*passages]
        assert [x["score"] for x in found] == pytest.approx([*scores], abs=2e-5)


@pytest.mark.parametrize(
    ("layout_name", "settings", "message"),
    [
        ("pylate", {"query_length": "32"}, "query_length must be a number of tokens above 3"),
        ("pylate", {"query_length": 9000}, "query_length must be at most 640, the positions"),
        ("pylate", {"document_length": 3}, "document_length must be a number of tokens above 3"),
        ("pylate", {"do_query_expansion": 1}, "do_query_expansion must be true or false"),
        ("pylate", {"skiplist_words": "the"}, "skiplist_words must be a list of words"),
        ("pylate", {"query_prefix": "[X] "}, r"query_prefix must be a token of tokenizer\.json"),
        ("pylate", {"query_expansion": {"length": 9}}, "query_expansion must be absent: queries"),
        ("pylate", {"similarity_fn_name": "xtr"}, "similarity_fn_name must be cosine or dot"),
        ("colbert", {"similarity": "l2"}, "similarity must be cosine: texts would be ranked"),
        ("colbert", {"interaction": "flipr"}, "interaction must be colbert: texts would be rank"),
        ("colbert", {"query_maxlen": 0}, "query_maxlen must be a number of tokens above 3"),
        ("colbert", {"doc_token_id": "[X]"}, "document_prefix must be a token of tokenizer"),
    ],
)
def test_an_unsupported_field_is_refused_by_name(layout_name, settings, message, tmp_path, mesh):
    folder = colbert.write(tmp_path, layout_name, **settings)
    with pytest.raises(ValueError, match=rf"^{tmp_path}/.*: {message}"):
        open_retriever(folder)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"limits": {"query_expansion": EXPANSION | {"strategy": "min"}}}, "query_expansion must"),
        (
            {"limits": {"query_expansion": EXPANSION | {"token": "x"}}},
            "query_expansion must be null",
        ),
        ({"limits": {"query_length": 9000}}, "query_length must be at most 640, the positions"),
        (
            {"limits": {"document_length": "9"}},
            "document_length must be a number of tokens above 3",
        ),
        ({"mask": {"skiplist_words": 1}}, "skiplist_words must be a list of words"),
        ({"mask": {"skiplist_tasks": ["x"]}}, "skiplist_tasks must be of query, document"),
        ({"mask": {"keep_only_token_ids": [7]}}, "keep_only_token_ids must be absent: other"),
        ({"normalize": "sentence_embedding"}, "module_input_name must be token_embeddings"),
    ],
)
def test_an_unsupported_field_of_an_encoder_is_refused_by_name(fields, message, tmp_path, mesh):
    folder = colbert.write_encoder(tmp_path, **{"limits": {}, "mask": {}} | fields)
    with pytest.raises(ValueError, match=rf"^{tmp_path}/.*: {message}"):
        open_retriever(folder)


def test_other_models_and_modules_are_refused_by_name(tmp_path, mesh):
    folder = colbert.write(tmp_path / "a", "pylate")
    with pytest.raises(ValueError, match=r"for each token; .*MultiVectorRetriever"):
        Retriever.from_pretrained(folder)
    place = folder / "1_Dense" / "config.json"
    plain = json.loads(place.read_text())
    place.write_text(json.dumps(plain | {"use_residual": True}))
    with pytest.raises(ValueError, match=r"tensor residual\.weight is missing"):
        open_retriever(folder)
    place.write_text(json.dumps(plain))
    modules = json.loads((folder / "modules.json").read_text())
    modules.append({"idx": 2, "path": "2", "type": "sentence_transformers.models.Pooling"})
    modules[1:] = modules[:0:-1]
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ValueError, match="Transformer, Pooling, Dense and the settings of a ColB"):
        open_retriever(folder)
    (folder / "modules.json").write_text(json.dumps([modules[0], modules[2]]))
    tiny.write(folder, "qwen3")
    with pytest.raises(ValueError, match="a decoder as ColBERT is not implemented"):
        open_retriever(folder)
    folder = colbert.write(tmp_path / "b", "colbert")
    retriever = MultiVectorRetriever.from_pretrained(folder, prompts={"query": "Find: "})
    with pytest.raises(ValueError, match=r"artifact\.metadata has no place for prompts"):
        retriever.save_pretrained(tmp_path / "c")
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"mask_token": None}))
    with pytest.raises(ValueError, match=r"do_query_expansion must be false: no mask token"):
        open_retriever(folder)


def test_missing_settings_are_pylates_and_colberts_defaults(tmp_path):
    for name, fields in (("pylate", ("query_prefix", "query_length")), ("colbert", ())):
        settings = dict.fromkeys(fields)
        late = read_late_settings(colbert.write(tmp_path / name, name, **settings))
        markers = ("[Q] ", "[D] ") if name == "pylate" else ("[unused0]", "[unused1]")
        assert (late.query_prefix, late.document_prefix) == markers
        assert (late.query_length, late.document_length) == (32, 180)
        assert late.fills_unseen and late.skiplist_words == tuple(string.punctuation)
