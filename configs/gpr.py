"""GPR on your own graph: a packaged preset.

    ark-jax run --config=configs/gpr.py --config.data.path=GRAPH --workdir=DIR

`--config=gpr` is the same where there is no checkout. ark_jax/recipes/gpr/config.py
describes the words that may follow a colon.
"""

from ark_jax.recipes.gpr.config import SWEEPS, get_config

__all__ = ["SWEEPS", "get_config"]
