r"""GPR on your own graph: a retriever of triples, trained without a labelled question.

    ark-jax run --config=gpr --config.data.path=GRAPH --workdir=DIR

With questions to measure with:

    ark-jax run --config=gpr --config.data.path=GRAPH \
        --config.data.questions=QUESTIONS --workdir=DIR

Rules word the training questions unless a language model does: --config.llm.backend=openai. Words
after the colon: `paper` follows the publication, which asks a model twice for each triple.

    ark-jax retrieve --model=DIR/export --graph=GRAPH --questions=QUESTIONS > triples.jsonl
"""

from ark_jax.config import named
from ark_jax.recipes.gpr import config

SWEEPS = {"study": config.study(config.gpr())}


def get_config(words: str = ""):
    """`words` after the colon, separated by commas: a preset, and the sweep that runs."""
    names = named(words)
    if len(names) > 1:
        raise ValueError(f"{words!r}: one preset of {', '.join(config.PRESETS)}, and sweep=study")
    return config.gpr(*names)
