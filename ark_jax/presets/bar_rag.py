r"""BAR-RAG on your own documents and questions: a reader that reads noisy evidence well.

    ark-jax run --config=bar_rag --config.data.path=FILE --workdir=DIR

The pool of evidence comes from any retriever, an ARK export among them:

    ark-jax run --config=bar_rag --config.retriever.path=ARK_RUN/export \
        --config.data.path=FILE --workdir=DIR

The tuned reader is in DIR/export; ARK's table may use it: --config.reader.path=DIR/export. A word
after the colon is a preset: `small` (the default), `paper`, or `official` (the released code).

    ark-jax sweep --config=bar_rag:sweep=study --config.data.path=FILE --workdir=DIR
"""

from ark_jax.config import named
from ark_jax.recipes.bar_rag import config

BASE = config.bar_rag()
SWEEPS = {"study": config.study, "ablations": config.ablations(BASE)}


def get_config(words: str = ""):
    """`words` after the colon, separated by commas: a preset, and the sweep that runs."""
    names = named(words)
    if len(names) > 1:
        raise ValueError(f"{words!r}: one preset of {', '.join(config.PRESETS)}, and sweep=study")
    return config.bar_rag(*names)
