"""A retriever as LangChain's `Embeddings`, and an index as its retriever."""

from typing import Any

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import BaseRetriever
from langchain_core.structured_query import Comparison, FilterDirective, Operation
from pydantic import InstanceOf

from ark_jax.index.index import Index
from ark_jax.integrations import compared, joined
from ark_jax.models.retriever import Retriever
from ark_jax.text.token_vectors import check_one_each


class RetrieverEmbeddings(Embeddings):
    """The vectors of a `Retriever`, for LangChain's vector stores."""

    def __init__(self, retriever: Retriever):
        self.retriever = retriever

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return self._vectors(texts, "document")

    def embed_query(self, text: str) -> list[float]:
        return self._vectors([text], "query")[0]

    def _vectors(self, texts: list[str], kind: str) -> list[list[float]]:
        """Unit vectors `[n e]`. Raises ValueError if the retriever has vectors of tokens."""
        vectors = self.retriever.encode(texts, kind=kind)
        return check_one_each(vectors, "LangChain").tolist()


class IndexRetriever(BaseRetriever):
    """The passages of an `Index`.

    Attributes:
        k: how many.
        by: "hybrid", "dense" or "bm25".
        filter: `Index.search`'s `where`, LangChain's `FilterDirective`, or an object as its vector
            stores take: {"lang": "en", "year": {"$gte": 2020}}, with "$and", "$or" and "$not".
    """

    index: InstanceOf[Index]
    k: int = 10
    by: str = "hybrid"
    filter: Any = ""

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        k: int | None = None,
        filter: Any = None,
    ) -> list[Document]:
        where = where_of(self.filter if filter is None else filter)
        hits = self.index.search([query], k=k or self.k, by=self.by, where=where)[0]
        facts = lambda hit: hit.place | {"score": hit.score}
        return [Document(page_content=x.text, id=x.chunk, metadata=facts(x)) for x in hits]


def where_of(filter: str | dict | FilterDirective | None) -> str:
    """LangChain's filter as that of `Index.search`; see `IndexRetriever.filter`."""
    if isinstance(filter, Comparison):
        return compared(filter.attribute, filter.comparator.value, filter.value)
    if isinstance(filter, Operation):
        parts, word = map(where_of, filter.arguments), filter.operator.value
        return f"not ({joined('and', parts)})" if word == "not" else joined(word, parts)
    if not isinstance(filter, dict):
        return filter or ""
    parts = []
    for name, value in filter.items():
        if name in ("$and", "$or"):
            parts.append(joined(name[1:], map(where_of, value)))
        elif name == "$not":
            parts.append(f"not ({where_of(value)})")
        else:
            tests = value if isinstance(value, dict) else {"$eq": value}
            parts += [compared(name, *test) for test in tests.items()]
    return joined("and", parts)
