"""A retriever as LlamaIndex's `BaseEmbedding`, and an index as its retriever."""

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.core.vector_stores import FilterCondition, MetadataFilters

from ark_jax.index.index import Index
from ark_jax.integrations import compared, joined
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


class IndexRetriever(BaseRetriever):
    """The passages of an index; see `Index.search` for `k` and `by`.

    Args:
        filters: on the metadata of documents.
    """

    def __init__(
        self,
        index: Index,
        k: int = 10,
        by: str = "hybrid",
        filters: MetadataFilters | None = None,
        **settings,
    ):
        super().__init__(**settings)
        self.index, self.k, self.by, self.filters = index, k, by, filters

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        where = where_of(self.filters) if self.filters else ""
        hits = self.index.search([query_bundle.query_str], k=self.k, by=self.by, where=where)[0]
        node = lambda hit: TextNode(id_=hit.chunk, text=hit.text, metadata=hit.place)
        return [NodeWithScore(node=node(hit), score=hit.score) for hit in hits]


def where_of(filters: MetadataFilters) -> str:
    """LlamaIndex's filters as that of `Index.search`."""
    parts = []
    for part in filters.filters:
        if isinstance(part, MetadataFilters):
            parts.append(where_of(part))
        elif part.operator.value in ("any", "all"):
            tests = (compared(part.key, "contains", value) for value in part.value)
            parts.append(joined("or" if part.operator.value == "any" else "and", tests))
        elif part.operator.value == "is_empty":
            parts.append(compared(part.key, "=", None))
        else:
            parts.append(compared(part.key, part.operator.value, part.value))
    if filters.condition == FilterCondition.NOT:
        return f"not ({joined('or', parts)})"
    return joined(filters.condition.value if filters.condition else "and", parts)
