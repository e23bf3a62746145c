"""Table 1 of ARK, packaged as `papers/ark_table1`: see ark_jax/recipes/papers."""

from ark_jax.recipes.papers.ark_table1 import TABLE, get_config

__all__ = ["TABLE", "get_config"]
