"""Table 1 of GPR, packaged as `papers/gpr_table1`: see ark_jax/recipes/papers."""

from ark_jax.recipes.papers.gpr_table1 import TABLE, get_config

__all__ = ["TABLE", "get_config"]
