"""Table 1 of BAR-RAG, packaged as `papers/bar_rag_table1`: see ark_jax/recipes/papers."""

from ark_jax.recipes.papers.bar_rag_table1 import TABLE, get_config

__all__ = ["TABLE", "get_config"]
