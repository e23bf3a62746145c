"""Table 1 of BAR-RAG: exact match on seven test sets: a packaged config.

    ark-jax sweep --config=papers/bar_rag_table1 --workdir=DIR

ark_jax/recipes/papers/bar_rag_table1.py describes the words that may follow a colon.
"""

from ark_jax.recipes.papers.bar_rag_table1 import TABLE, get_config

__all__ = ["TABLE", "get_config"]
