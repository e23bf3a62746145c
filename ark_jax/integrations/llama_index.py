"""A retriever as LlamaIndex's `BaseEmbedding`."""

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import PrivateAttr

from ark_jax.models.retriever import Retriever
from ark_jax.text.token_vectors import check_one_each


class RetrieverEmbedding(BaseEmbedding):
    """The vectors of a `Retriever`, for LlamaIndex's indices.

    Args:
        settings: of `BaseEmbedding`, such as `embed_batch_size`, the texts of one call.
    """

    _retriever: Retriever = PrivateAttr()

    def __init__(self, retriever: Retriever, **settings):
        super().__init__(**{"model_name": str(retriever.base), "embed_batch_size": 256, **settings})
        self._retriever = retriever

    @classmethod
    def class_name(cls) -> str:
        return "RetrieverEmbedding"

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._vectors([query], "query")[0]

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return self._vectors(texts, "document")

    def _vectors(self, texts: list[str], kind: str) -> list[list[float]]:
        """Unit vectors `[n e]`. Raises ValueError if the retriever has vectors of tokens."""
        vectors = self._retriever.encode(texts, kind=kind)
        return check_one_each(vectors, "LlamaIndex").tolist()

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_query_embedding(query)
