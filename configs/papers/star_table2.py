"""Table 2 of STAR, packaged as `papers/star_table2`: see ark_jax/recipes/papers."""

from ark_jax.recipes.papers.star_table2 import TABLE, get_config

__all__ = ["TABLE", "get_config"]
