"""Table 1 of GPR: answers from triples on WebQSP and CWQ: a packaged config.

    ark-jax sweep --config=papers/gpr_table1 --workdir=DIR

ark_jax/recipes/papers/gpr_table1.py describes the words that may follow a colon.
"""

from ark_jax.recipes.papers.gpr_table1 import TABLE, get_config

__all__ = ["TABLE", "get_config"]
