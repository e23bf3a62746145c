"""A model with a vector for each token: Qdrant searches them; others say that they cannot."""

import dataclasses
import functools

import jax
import pytest
from support import tiny

import ark_jax as ark
from ark_jax import integrations, layout
from ark_jax.data.records import Document
from ark_jax.models.multi_vector import MultiVectorRetriever
from ark_jax.models.pairs import CrossEncoder
from ark_jax.models.towers import DualEncoder
from ark_jax.retrieval.chunks import ChunkRules

REASON = "pip install 'ark-jax[integrations]'"
REFUSAL = "this model keeps one for each token; search with `ark-jax search` or ark_jax.Index"
TEXTS = {
    "tide": "Josiah Penhallow founded the Tidal Board in 1784. It measured every tide.",
    "salt": "The Pellin Salt Company boiled brine. Horses worked its pumps, day and night.",
    "lamp": "The lamp office lit forty lamps. A strike put them out in the winter of 1893.",
}
QUESTIONS = ["Who founded the Tidal Board?", "brine"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny.multi_vector(tmp_path_factory.mktemp("models"), "m") / "m"


@pytest.fixture(scope="module")
def index(model, tmp_path_factory):
    documents = [Document(id, id.title(), text) for id, text in TEXTS.items()]
    with jax.set_mesh(layout.make_mesh((1, 1, 1))):
        folder, rules = tmp_path_factory.mktemp("index"), ChunkRules(tokens=24)
        return ark.Index.build(folder, model, documents, rules=rules)


@pytest.mark.parametrize("by", ["dense", "hybrid"])
def test_qdrant_gives_the_results_of_a_token_index(by, index, tmp_path):
    pytest.importorskip("qdrant_client", reason=REASON)
    database, url = integrations.load("qdrant"), str(tmp_path / "database")
    database.write(index, url)
    nearest = functools.partial(database.nearest, url, index.manifest.folder)
    from_database = dataclasses.replace(index, nearest=nearest).search(QUESTIONS, k=3, by=by)
    for hits, expected in zip(from_database, index.search(QUESTIONS, k=3, by=by), strict=True):
        assert [hit.chunk for hit in hits] == [hit.chunk for hit in expected]
        scores = [hit.score for hit in expected]
        assert [hit.score for hit in hits] == pytest.approx(scores, abs=1e-4)


@pytest.mark.parametrize("name", ["faiss", "usearch", "lancedb"])
def test_databases_with_one_vector_per_text_refuse_token_vectors(name, index, tmp_path):
    pytest.importorskip(name, reason=REASON)
    database = integrations.load(name)
    with pytest.raises(ValueError, match=REFUSAL):
        database.write(index, str(tmp_path / "d"))
    assert not (tmp_path / "d").exists()
    if name == "lancedb":
        queries = index.retriever.encode(QUESTIONS, kind="query")
        with pytest.raises(ValueError, match=REFUSAL):
            database.nearest(str(tmp_path / "d"), "n", queries, 3)


def test_langchain_and_llama_index_refuse_token_vectors(model):
    retriever = MultiVectorRetriever.from_pretrained(model)
    pytest.importorskip("langchain_core", reason=REASON)
    embeddings = integrations.load("langchain").RetrieverEmbeddings(retriever)
    with pytest.raises(ValueError, match=REFUSAL):
        embeddings.embed_query("a")
    with pytest.raises(ValueError, match=REFUSAL):
        embeddings.embed_documents(["a"])
    pytest.importorskip("llama_index.core", reason=REASON)
    embedding = integrations.load("llama_index").RetrieverEmbedding(retriever)
    with pytest.raises(ValueError, match=REFUSAL):
        embedding.get_query_embedding("a")
    with pytest.raises(ValueError, match=REFUSAL):
        embedding.get_text_embedding_batch(["a"])


def test_onnx_and_scorers_refuse_token_vectors(model, tmp_path):
    retriever = MultiVectorRetriever.from_pretrained(model)
    with pytest.raises(ValueError, match=REFUSAL):
        CrossEncoder.from_retriever(retriever)
    message = r"open it with ark_jax\.MultiVectorRetriever"
    with pytest.raises(ValueError, match=message):
        DualEncoder.from_pretrained(model)
    with pytest.raises(ValueError, match=message):
        CrossEncoder.from_pretrained(model, head="cosine")
    pytest.importorskip("onnx", reason=REASON)
    with pytest.raises(ValueError, match=REFUSAL):
        integrations.load("onnx").save_onnx(retriever, tmp_path / "o")
    assert not (tmp_path / "o").exists()


def test_mteb_refuses_token_vectors(model):
    mteb = pytest.importorskip("mteb", reason="pip install mteb (extra [reference])")
    from ark_jax.evaluate.mteb import Encoder

    encoder = Encoder(MultiVectorRetriever.from_pretrained(model), name="me/m")
    metadata = mteb.get_task("STS12").metadata
    with pytest.raises(ValueError, match=REFUSAL):
        encoder.encode([{"text": ["a"]}], task_metadata=metadata, hf_split="test", hf_subset="x")
