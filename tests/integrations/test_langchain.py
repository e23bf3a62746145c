"""LangChain embeds and retrieves by our models."""

import asyncio
from typing import ClassVar

import pytest

pytest.importorskip("langchain_core", reason="pip install 'ark-jax[integrations]'")

from langchain_core import structured_query
from langchain_core.vectorstores import InMemoryVectorStore

from ark_jax.integrations.langchain import IndexRetriever, RetrieverEmbeddings

QUESTION = "Who founded the Tidal Board?"


def test_a_langchain_vector_store_ranks_like_the_index(index, retriever):
    embeddings = RetrieverEmbeddings(retriever)
    store = InMemoryVectorStore(embeddings)
    passages = [chunk.passage for chunk in index.chunks]
    store.add_texts(passages, ids=[chunk.id for chunk in index.chunks])
    expected = index.search([QUESTION], k=3, by="dense")[0]
    scored = store.similarity_search_with_score(QUESTION, k=3)
    assert [document.id for document, _ in scored] == [hit.chunk for hit in expected]
    assert [score for _, score in scored] == pytest.approx([x.score for x in expected], abs=1e-5)
    # LangChain's asynchronous calls come from threads.
    assert asyncio.run(embeddings.aembed_query(QUESTION)) == embeddings.embed_query(QUESTION)


@pytest.mark.parametrize("by", ["hybrid", "bm25"])
def test_a_langchain_retriever_returns_documents_with_metadata(by, index):
    retriever = IndexRetriever(index=index, k=2, by=by)
    expected = index.search([QUESTION], k=2, by=by)[0]
    documents = retriever.invoke(QUESTION)
    assert [document.page_content for document in documents] == [hit.text for hit in expected]
    best = documents[0]
    assert (best.id, best.metadata["document"]) == (expected[0].chunk, "tide")
    assert best.metadata["score"] == expected[0].score and best.metadata["title"] == "Tide"
    assert asyncio.run(retriever.ainvoke(QUESTION)) == documents


C = structured_query.Comparator
COMPARISON = structured_query.Comparison(comparator=C.GTE, attribute="year", value=1790)
TAGGED = structured_query.Comparison(comparator=C.CONTAIN, attribute="tags", value="board")


@pytest.mark.parametrize(
    ("filter", "expected"),
    [
        ("year >= 1790", {"salt", "glocke"}),
        (COMPARISON, {"salt", "glocke"}),
        (
            structured_query.Operation(
                operator=structured_query.Operator.OR, arguments=[COMPARISON, TAGGED]
            ),
            {"tide", "salt", "glocke"},
        ),
        (
            structured_query.Operation(
                operator=structured_query.Operator.NOT, arguments=[COMPARISON]
            ),
            {"tide"},
        ),
        ({"lang": "it's"}, {"lamp"}),
        ({"year": {"$gt": 1784, "$lt": 1811}, "lang": {"$in": ["en", "de"]}}, {"salt"}),
        ({"$or": [{"year": 1811}, {"$not": {"lang": {"$ne": "it's"}}}]}, {"glocke", "lamp"}),
        (None, {"tide", "salt", "glocke", "lamp"}),
    ],
)
def test_a_langchain_retriever_takes_filters(filter, expected, index):
    retriever = IndexRetriever(index=index, k=99, by="dense", filter="year = 0")
    found = IndexRetriever(index=index, k=99, by="dense", filter=filter).invoke(QUESTION)
    assert {document.metadata["document"] for document in found} == expected
    assert {document.metadata["lang"] for document in found} <= {"en", "de", "it's"}
    assert retriever.invoke(QUESTION) == []
    assert retriever.invoke(QUESTION, filter=filter) == ([] if filter is None else found)


def test_langchains_own_suite_of_retrievers_passes(index):
    suites = pytest.importorskip("langchain_tests.integration_tests", reason="langchain-tests")

    class Suite(suites.RetrieversIntegrationTests):
        retriever_constructor = IndexRetriever
        retriever_constructor_params: ClassVar = {"index": index}
        retriever_query_example = QUESTION

    suite = Suite()
    retriever = IndexRetriever(index=index)
    suite.test_k_constructor_param()
    suite.test_invoke_with_k_kwarg(retriever)
    suite.test_invoke_returns_documents(retriever)
    asyncio.run(suite.test_ainvoke_returns_documents(retriever))
