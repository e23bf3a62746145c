"""BAR-RAG on your own documents and questions: a packaged preset.

    ark-jax run --config=configs/bar_rag.py --config.data.path=FILE --workdir=DIR

`--config=bar_rag` is the same where there is no checkout. ark_jax/recipes/bar_rag/config.py
describes the words that may follow a colon.
"""

from ark_jax.recipes.bar_rag.config import SWEEPS, get_config

__all__ = ["SWEEPS", "get_config"]
