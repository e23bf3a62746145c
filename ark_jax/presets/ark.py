r"""ARK on your own documents and questions.

    ark-jax run --config=ark --config.data.path=FILE --workdir=DIR

Words after the colon are a preset, variants of it, or both:

    default           what no word means, too
    best              a vector for each token, fused with BM25 as training questions decide: the
                      settings of study 2 with the highest nDCG@10, in a hundred times the space
    paper             follows the publication
    official          follows the released code
    no_curriculum     trains in one stage
    stage=1|2|3       trains one stage only

A later stage by itself can start from the export of an earlier run:

    ark-jax run --config=ark:stage=2 --config.retriever.path=EARLIER/export \
        --config.data.path=FILE --workdir=DIR

SWEEPS are series of runs:

    ark-jax sweep --config=ark:sweep=temperature --config.data.path=FILE --workdir=DIR
    ark-jax sweep --config=ark:paper,sweep=lambda --config.data.path=FILE --workdir=DIR
    ark-jax sweep --config=ark:sweep=folds --config.data.path=FILE --workdir=DIR
"""

from ark_jax import config


def train_stages(c, *stages: int) -> None:
    c.train.stages = stages


VARIANTS = {
    # One stage with the epochs of all three, and negatives for rewritten questions of both sizes.
    "no_curriculum": lambda c: train_stages(c, 0),
    "stage=1": lambda c: train_stages(c, 1),
    "stage=2": lambda c: train_stages(c, 2),
    "stage=3": lambda c: train_stages(c, 3),
}


def scale_learning_rates(factor: float) -> dict[str, object]:
    """Changes of a run whose stages all learn `factor` times as fast."""
    return {"train.learning_rates": (1e-5 * factor, 8e-6 * factor, 4e-6 * factor)}


# sweep -> run -> changed fields. Except in `seeds` and `folds`, all runs of a sweep share the
# language model's replies and the scores.
SWEEPS = {
    # How sharply the loss tells passages apart.
    "temperature": {f"{t:g}": {"train.temperature": t} for t in (0.02, 0.05, 0.1, 0.2)},
    # Table 2's ablation of the alignments: forward, backward, and the retriever's ("parameter").
    "lambda": {
        "without-F": {"score.forward": 0.0},
        "without-B": {"score.backward": 0.0},
        "without-V": {"score.retriever": 0.0},
    },
    # M, the positives of a question; K, its hard negatives.
    "positives": {f"M{m}": {"score.positives": m} for m in (1, 3, 5, 10, 20)},
    "negatives": {f"K{k}": {"mine.negatives": k} for k in (5, 10, 20, 40)},
    "learning_rate": {f"x{x:g}": scale_learning_rates(x) for x in (0.3, 1, 3, 10)},
    # How far results move by chance. The seed also splits the questions: to keep the split, name
    # --config.data.held_out_documents.
    "seeds": {f"seed{seed}": {"seed": seed} for seed in range(1, 5)},
    # Cross-validation: each question is held out once, and the results are pooled.
    "folds": {f"fold{i}": {"data.fold": (i, 5)} for i in range(1, 6)},
    # Table 2's ablation of the stages, and all of them at once.
    "curriculum": {
        "1": {"train.stages": (1,)},
        "1+2": {"train.stages": (1, 2)},
        "1+3": {"train.stages": (1, 3)},
        "0": {"train.stages": (0,)},
    },
}


def get_config(words: str = ""):
    """`words` after the colon, separated by commas: a preset, variants, and the sweep that runs."""
    names = config.named(words)
    preset = names.pop(0) if names and names[0] in config.PRESETS else "default"
    return config.vary(config.ark(preset), names, VARIANTS, also=config.PRESETS)
