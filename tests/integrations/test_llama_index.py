"""LlamaIndex embeds and retrieves by our models."""

import asyncio

import pytest

pytest.importorskip("llama_index.core", reason="pip install 'ark-jax[integrations]'")

from llama_index.core import VectorStoreIndex
from llama_index.core.schema import TextNode
from llama_index.core.vector_stores import FilterCondition, MetadataFilter, MetadataFilters

from ark_jax.integrations.llama_index import IndexRetriever, RetrieverEmbedding

QUESTION = "Who founded the Tidal Board?"


def test_an_index_of_llama_index_ranks_like_ours(index, retriever):
    embedding = RetrieverEmbedding(retriever)
    nodes = [TextNode(id_=chunk.id, text=chunk.passage) for chunk in index.chunks]
    theirs = VectorStoreIndex(nodes, embed_model=embedding)
    expected = index.search([QUESTION], k=3, by="dense")[0]
    scored_nodes = theirs.as_retriever(similarity_top_k=3).retrieve(QUESTION)
    assert [x.node.node_id for x in scored_nodes] == [hit.chunk for hit in expected]
    assert [x.score for x in scored_nodes] == pytest.approx(
        [hit.score for hit in expected], abs=1e-5
    )


def test_single_batched_and_asynchronous_vectors_are_the_same(retriever):
    embedding = RetrieverEmbedding(retriever, embed_batch_size=2)
    texts = ["The tide rises.", "Brine boils.", "A lamp."]
    batched = embedding.get_text_embedding_batch(texts)
    assert batched[1] == pytest.approx(embedding.get_text_embedding(texts[1]), abs=1e-6)
    query = embedding.get_query_embedding(QUESTION)
    assert asyncio.run(embedding.aget_query_embedding(QUESTION)) == query
    assert embedding.model_name == str(retriever.base) and embedding.embed_batch_size == 2


@pytest.mark.parametrize("by", ["hybrid", "bm25"])
def test_a_llama_index_retriever_returns_scored_nodes(by, index):
    retriever = IndexRetriever(index, k=2, by=by)
    expected = index.search([QUESTION], k=2, by=by)[0]
    nodes = retriever.retrieve(QUESTION)
    assert [(x.node.node_id, x.score, x.text) for x in nodes] == [
        (hit.chunk, hit.score, hit.text) for hit in expected
    ]
    assert nodes[0].metadata["document"] == "tide"
    assert asyncio.run(retriever.aretrieve(QUESTION)) == nodes


def filters(*tests: tuple, condition: FilterCondition = FilterCondition.AND) -> MetadataFilters:
    parts = [
        test
        if isinstance(test, MetadataFilters)
        else MetadataFilter(key=test[0], operator=test[1], value=test[2])
        for test in tests
    ]
    return MetadataFilters(filters=parts, condition=condition)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (filters(("year", ">=", 1790)), {"salt", "glocke"}),
        (filters(("year", "!=", 1790), ("lang", "in", ["en"])), {"tide"}),
        (filters(("lang", "nin", ["en", "de"])), {"lamp"}),
        (filters(("tags", "contains", "board")), {"tide"}),
        (filters(("tags", "any", ["board", "sea"])), {"tide", "salt"}),
        (filters(("tags", "all", ["board", "sea"])), {"tide"}),
        (filters(("year", "is_empty", None)), {"lamp"}),
        (
            filters(
                ("year", "==", 1811), filters(("lang", "==", "it's")), condition=FilterCondition.OR
            ),
            {"glocke", "lamp"},
        ),
        (filters(("year", "<", 1790), condition=FilterCondition.NOT), {"salt", "glocke"}),
    ],
)
def test_a_llama_index_retriever_takes_filters(given, expected, index):
    nodes = IndexRetriever(index, k=99, by="dense", filters=given).retrieve(QUESTION)
    assert {x.node.metadata["document"] for x in nodes} == expected
