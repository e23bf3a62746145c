"""The config of `ark-jax demo`: a packaged preset.

    ark-jax run --config=configs/demo.py --workdir=DIR

`--config=demo` is the same where there is no checkout. ark_jax/recipes/demo.py
describes the words that may follow a colon.
"""

from ark_jax.recipes.demo import SWEEPS, get_config

__all__ = ["SWEEPS", "get_config"]
