"""Haystack components: embedders of queries and documents, and an index as a retriever."""

import dataclasses
import functools

from haystack import Document, component

from ark_jax.index.index import Index
from ark_jax.integrations import compared, joined
from ark_jax.models.retriever import Retriever

load_retriever = functools.cache(Retriever.from_pretrained)  # both embedders of a pipeline share it


@component
class TextEmbedder:
    """The vector of a query. `model` is the folder or hub name of a retriever."""

    def __init__(self, model: str):
        self.model = model

    @component.output_types(embedding=list[float])
    def run(self, text: str):
        return {"embedding": load_retriever(self.model).encode([text], kind="query")[0].tolist()}


@component
class DocumentEmbedder:
    """The vectors of documents, for a document store."""

    def __init__(self, model: str):
        self.model = model

    @component.output_types(documents=list[Document])
    def run(self, documents: list[Document]):
        texts = [document.content or "" for document in documents]
        vectors = load_retriever(self.model).encode(texts, kind="document").tolist()
        pairs = zip(documents, vectors, strict=True)
        return {"documents": [dataclasses.replace(x, embedding=vector) for x, vector in pairs]}


@component
class IndexRetriever:
    """The passages of an index; see `Index.search` for `k` and `by`.

    Args:
        filters: Haystack's, on the metadata of documents, such as {"field": "meta.year",
            "operator": ">=", "value": 2020}; those of a call take their place.
    """

    def __init__(self, folder: str, k: int = 10, by: str = "hybrid", filters: dict | None = None):
        self.folder, self.k, self.by, self.filters = folder, k, by, filters
        self._index = Index.open(folder)

    @component.output_types(documents=list[Document])
    def run(self, query: str, filters: dict | None = None):
        where = where_of(self.filters if filters is None else filters)
        hits = self._index.search([query], k=self.k, by=self.by, where=where)[0]
        make = lambda hit: Document(hit.chunk, hit.text, meta=hit.place, score=hit.score)
        return {"documents": list(map(make, hits))}


def where_of(filters: dict | None) -> str:
    """Haystack's filters as that of `Index.search`."""
    if not filters:
        return ""
    if "conditions" not in filters:
        name = filters["field"].removeprefix("meta.")
        return compared(name, filters["operator"], filters["value"])
    parts, word = map(where_of, filters["conditions"]), filters["operator"].lower()
    return f"not ({joined('and', parts)})" if word == "not" else joined(word, parts)
