"""A retriever as LangChain's `Embeddings`, and an index as its retriever."""

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import BaseRetriever
from pydantic import InstanceOf

from ark_jax.index.index import Index
from ark_jax.models.retriever import Retriever


class RetrieverEmbeddings(Embeddings):
    """The vectors of a `Retriever`, for LangChain's vector stores."""

    def __init__(self, retriever: Retriever):
        self.retriever = retriever

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return self.retriever.encode(texts, kind="document").tolist()

    def embed_query(self, text: str) -> list[float]:
        return self.retriever.encode([text], kind="query")[0].tolist()


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
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        hits = self.index.search([query], k=self.k, by=self.by)[0]
        return [
            Document(
                page_content=hit.text,
                id=hit.chunk,
                metadata={
                    "document": hit.document,
                    "title": hit.title,
                    "start": hit.start,
                    "end": hit.end,
                    "score": hit.score,
                },
            )
            for hit in hits
        ]
