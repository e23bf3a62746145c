"""Haystack's pipelines embed and retrieve by our models."""

import os

import pytest

os.environ.setdefault("HAYSTACK_TELEMETRY_ENABLED", "false")  # it is read on import

pytest.importorskip("haystack", reason="pip install 'ark-jax[integrations]'")

from haystack import Document, Pipeline
from haystack.components.retrievers.in_memory import InMemoryEmbeddingRetriever
from haystack.document_stores.in_memory import InMemoryDocumentStore

from ark_jax.integrations.haystack import DocumentEmbedder, IndexRetriever, TextEmbedder

QUESTION = "Who founded the Tidal Board?"


def test_a_haystack_pipeline_ranks_like_the_index(index, place):
    model = str(place / "model")
    store = InMemoryDocumentStore(embedding_similarity_function="dot_product")
    chunks = [Document(id=chunk.id, content=chunk.passage) for chunk in index.chunks]
    store.write_documents(DocumentEmbedder(model).run(chunks)["documents"])
    pipeline = Pipeline()
    pipeline.add_component("query", TextEmbedder(model))
    pipeline.add_component("search", InMemoryEmbeddingRetriever(store, top_k=3))
    pipeline.connect("query.embedding", "search.query_embedding")
    documents = pipeline.run({"query": {"text": QUESTION}})["search"]["documents"]
    expected = index.search([QUESTION], k=3, by="dense")[0]
    assert [document.id for document in documents] == [hit.chunk for hit in expected]
    assert [x.score for x in documents] == pytest.approx([hit.score for hit in expected], abs=1e-5)


def test_a_haystack_retriever_survives_a_round_trip_through_yaml(index, place):
    pipeline = Pipeline()
    pipeline.add_component("search", IndexRetriever(str(place / "index"), k=2, by="bm25"))
    again = Pipeline.loads(pipeline.dumps(), allowed_modules=[IndexRetriever.__module__])
    documents = again.run({"search": {"query": QUESTION}})["search"]["documents"]
    expected = index.search([QUESTION], k=2, by="bm25")[0]
    assert [document.content for document in documents] == [hit.text for hit in expected]
    assert documents[0].meta["document"] == "tide" and documents[0].score == expected[0].score


YEAR = {"field": "meta.year", "operator": ">=", "value": 1790}
LANG = {"field": "lang", "operator": "in", "value": ["en", "it's"]}


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (YEAR, {"salt", "glocke"}),
        ({"operator": "AND", "conditions": [YEAR, LANG]}, {"salt"}),
        ({"operator": "OR", "conditions": [YEAR, LANG]}, {"tide", "salt", "glocke", "lamp"}),
        ({"operator": "NOT", "conditions": [YEAR]}, {"tide"}),
        (None, {"tide", "salt", "glocke", "lamp"}),
    ],
)
def test_a_haystack_retriever_takes_filters(filters, expected, index, place):
    retriever = IndexRetriever(str(place / "index"), k=99, by="dense", filters=filters)
    found = retriever.run(QUESTION)["documents"]
    assert {document.meta["document"] for document in found} == expected
    assert retriever.run(QUESTION, YEAR) == IndexRetriever(
        str(place / "index"), k=99, by="dense", filters=YEAR
    ).run(QUESTION)
