"""ARK on your own documents and questions: a packaged preset.

    ark-jax run --config=configs/ark.py --config.data.path=FILE --workdir=DIR

`--config=ark` is the same where there is no checkout. ark_jax/recipes/ark/config.py
describes the words that may follow a colon.
"""

from ark_jax.recipes.ark.config import SWEEPS, VARIANTS, get_config

__all__ = ["SWEEPS", "VARIANTS", "get_config"]
