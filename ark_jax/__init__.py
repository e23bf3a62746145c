"""Retrieval-augmented generation in JAX: ARK, GPR, STAR and BAR-RAG, and the models they tune."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what type checkers and editors see of `_PUBLIC`
    from ark_jax.comparison.comparison import compare
    from ark_jax.graph.pagerank import personalized_pagerank
    from ark_jax.graph.path_retriever import PathRetriever
    from ark_jax.graph.store import KnowledgeGraph
    from ark_jax.graph.triple_retriever import TripleRetriever
    from ark_jax.graph.triples import Triples
    from ark_jax.index.index import Index
    from ark_jax.index.reader import Reader
    from ark_jax.models.language import LanguageModel
    from ark_jax.models.multi_vector import MultiVectorRetriever
    from ark_jax.models.pairs import CrossEncoder
    from ark_jax.models.retriever import Retriever
    from ark_jax.models.towers import DualEncoder
    from ark_jax.run import tune
    from ark_jax.select.scorer import Selector

__version__ = "0.5.0"

# name -> module; imported on first use, so that `ark-jax --help` does not wait for jax.
_PUBLIC = {
    "Index": "ark_jax.index.index",
    "Reader": "ark_jax.index.reader",
    "Retriever": "ark_jax.models.retriever",
    "Selector": "ark_jax.select.scorer",
    "LanguageModel": "ark_jax.models.language",
    "MultiVectorRetriever": "ark_jax.models.multi_vector",
    "KnowledgeGraph": "ark_jax.graph.store",
    "CrossEncoder": "ark_jax.models.pairs",
    "PathRetriever": "ark_jax.graph.path_retriever",
    "DualEncoder": "ark_jax.models.towers",
    "TripleRetriever": "ark_jax.graph.triple_retriever",
    "Triples": "ark_jax.graph.triples",
    "compare": "ark_jax.comparison.comparison",
    "personalized_pagerank": "ark_jax.graph.pagerank",
    "tune": "ark_jax.run",
}
__all__ = [
    "CrossEncoder",
    "DualEncoder",
    "Index",
    "KnowledgeGraph",
    "LanguageModel",
    "MultiVectorRetriever",
    "PathRetriever",
    "Reader",
    "Retriever",
    "Selector",
    "TripleRetriever",
    "Triples",
    "__version__",
    "compare",
    "personalized_pagerank",
    "tune",
]


if not TYPE_CHECKING:  # or type checkers would believe in any name

    def __getattr__(name: str):
        if name in _PUBLIC:
            return getattr(importlib.import_module(_PUBLIC[name]), name)
        raise AttributeError(f"module 'ark_jax' has no attribute {name!r}")


def __dir__():
    return sorted(__all__)
