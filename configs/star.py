r"""STAR on your own graph and questions: a packaged preset.

    ark-jax run --config=configs/star.py --config.data.path=GRAPH \
        --config.data.questions=QUESTIONS --workdir=DIR

`--config=star` is the same where there is no checkout. ark_jax/recipes/star/config.py
describes the words that may follow a colon.
"""

from ark_jax.recipes.star.config import SWEEPS, get_config

__all__ = ["SWEEPS", "get_config"]
