"""Table 2 of STAR: paths and answers on WebQSP, CWQ and GrailQA: a packaged config.

    ark-jax sweep --config=papers/star_table2 --workdir=DIR

ark_jax/recipes/papers/star_table2.py describes the words that may follow a colon.
"""

from ark_jax.recipes.papers.star_table2 import TABLE, get_config

__all__ = ["TABLE", "get_config"]
