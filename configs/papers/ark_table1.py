"""Table 1 of ARK: F1 of answers on ten test sets: a packaged config.

    ark-jax sweep --config=papers/ark_table1 --workdir=DIR

ark_jax/recipes/papers/ark_table1.py describes the words that may follow a colon.
"""

from ark_jax.recipes.papers.ark_table1 import TABLE, get_config

__all__ = ["TABLE", "get_config"]
