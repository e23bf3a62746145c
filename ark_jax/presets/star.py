r"""STAR on your own graph: relation paths from the topic of a question to its answers.

    ark-jax run --config=star --config.data.path=GRAPH \
        --config.data.questions=QUESTIONS --workdir=DIR

QUESTIONS have answers and, if possible, topics: {"question", "answers", "entities"}. A share of
them, --config.data.held_out, measures what training on the others gives. Words after the colon:
`paper` follows the publication.

    ark-jax retrieve --model=DIR/export --graph=GRAPH --questions=QUESTIONS > paths.jsonl
"""

from ark_jax.config import named
from ark_jax.recipes.star import config

SWEEPS = {"study": config.study(config.star()), "switches": config.switches(config.star())}


def get_config(words: str = ""):
    """`words` after the colon, separated by commas: a preset, and the sweep that runs."""
    names = named(words)
    if len(names) > 1:
        raise ValueError(f"{words!r}: one preset of {', '.join(config.PRESETS)}, and sweep=study")
    return config.star(*names)
