"""A retriever as LangChain's `Embeddings`, and an index as its retriever."""

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import BaseRetriever
from pydantic import InstanceOf

from ark_jax.index.index import Index
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
    """

    index: InstanceOf[Index]
    k: int = 10
    by: str = "hybrid"

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, k: int | None = None
    ) -> list[Document]:
        hits = self.index.search([query], k=k or self.k, by=self.by)[0]
        facts = lambda hit: hit.place | {"score": hit.score}
        return [Document(page_content=x.text, id=x.chunk, metadata=facts(x)) for x in hits]
