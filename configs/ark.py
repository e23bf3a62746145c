"""ARK on your own documents and questions.

    ark-jax run --config=configs/ark.py --config.data.path=FILE --workdir=DIR

What follows a colon is a preset, or a variant of one, or both: `configs/ark.py:paper` follows the publication,
`configs/ark.py:official` the released code, `configs/ark.py:official,no_curriculum` trains that in one stage. A later stage
by itself starts from what an earlier run left:

    ark-jax run --config=configs/ark.py:stage=2 --config.retriever.path=EARLIER/export --config.data.path=FILE --workdir=DIR

SWEEPS are series of runs:

    python launch/sweep.py --config=configs/ark.py:sweep=temperature --config.data.path=FILE --workdir=DIR
    python launch/sweep.py --config=configs/ark.py:paper,sweep=lambda --config.data.path=FILE --workdir=DIR
"""

from ark_jax import config

VARIANTS = {
    # As many epochs, on the negatives that the base model finds for the rewritten questions of both sizes.
    "no_curriculum": lambda c: c.train.update(stages=(0,)),
    **{f"stage={stage}": lambda c, stage=stage: c.train.update(stages=(stage,)) for stage in (1, 2, 3)},
}
# sweep -> run -> what it changes. None but `seeds` asks the LLM or scores a passage more than once for all its runs.
SWEEPS = {
    # How sharply the loss tells passages apart.
    "temperature": {f"{t:g}": {"train.temperature": t} for t in (0.02, 0.05, 0.1, 0.2)},
    # Table 2's ablation of the three alignments: forward, backward, and the retriever's own ("parameter").
    "lambda": {"without-F": {"score.forward": 0.0}, "without-B": {"score.backward": 0.0}, "without-V": {"score.retriever": 0.0}},
    # M, how many passages of a question count as positives; K, how many hard negatives it has.
    "positives": {f"M{m}": {"score.positives": m} for m in (1, 3, 5, 10, 20)},
    "negatives": {f"K{k}": {"mine.negatives": k} for k in (5, 10, 20, 40)},
    # Those of the three stages together.
    "learning_rate": {f"x{x:g}": {"train.learning_rates": (1e-5 * x, 8e-6 * x, 4e-6 * x)} for x in (0.3, 1, 3, 10)},
    # How far results move by chance. Questions are split by the seed too: to keep the split, and what hangs on it, name
    # --config.data.held_out_documents.
    "seeds": {f"seed{i}": {"seed": i} for i in range(1, 5)},
    # Table 2's ablation of the stages, and all three at once.
    "curriculum": {"+".join(map(str, stages)): {"train.stages": stages} for stages in ((1,), (1, 2), (1, 3), (0,))},
}


def get_config(words: str = ""):
    """`words` are a preset, variants and what launch/sweep.py is to run, or some of these, separated by commas."""
    named = config.named(words)
    c = config.ark(named.pop(0) if named and named[0] in config.PRESETS else "best")
    return config.vary(c, named, VARIANTS, also=config.PRESETS)
