"""ARK on your own documents and questions.

    ark-jax run --config=configs/ark.py --config.data.path=FILE --workdir=DIR

What follows a colon is a preset, or a variant of one, or both: `configs/ark.py:paper` follows the publication,
`configs/ark.py:official` the released code, `configs/ark.py:official,no_curriculum` trains that in one stage. A later stage
by itself starts from what an earlier run left:

    ark-jax run --config=configs/ark.py:stage=2 --config.retriever.path=EARLIER/export --config.data.path=FILE --workdir=DIR
"""

from ark_jax import config

VARIANTS = {
    # As many epochs, on the negatives that the base model finds for the rewritten questions of both sizes.
    "no_curriculum": lambda c: c.train.update(stages=(0,)),
    **{f"stage={stage}": lambda c, stage=stage: c.train.update(stages=(stage,)) for stage in (1, 2, 3)},
}


def get_config(words: str = ""):
    """`words` are a preset, variants, or a preset and variants, separated by commas."""
    named = words.split(",") if words else []
    c = config.ark(named.pop(0) if named and named[0] in config.PRESETS else "best")
    for word in named:
        if word not in VARIANTS:
            raise ValueError(f"preset {word!r}: must be one of {', '.join((*config.PRESETS, *VARIANTS))}")
        VARIANTS[word](c)
    return c
