"""STAR's configs: presets, the demo, and the runs of a study."""

import importlib.resources

from ml_collections import ConfigDict

from ark_jax import schema
from ark_jax.recipes.star.settings import Star

# The publication: its own head, candidates from all relations, long training, no prefilter.
PAPER = {"mine.pool": "all", "train.head": "star", "train.epochs": 50, "search.keep": 1_000_000}
PRESETS = {"default": {}, "paper": PAPER}
# All shortest paths as positives, drawn negatives, no weights: what hard paths are compared with.
PLAIN = {"mine.positives": "all", "mine.choose": "random", "train.weights": "none"}
# The plain way to train a retriever of paths: RD-P's dual encoder.
DUAL = PLAIN | {"train.head": "cosine"}


def star(preset: str = "default") -> ConfigDict:
    """The config of `ark-jax run --config=star`.

    Args:
        preset: `default`, or `paper`, which follows the publication, except for its encoder:
            --config.retriever.path=princeton-nlp/sup-simcse-roberta-base.

    Raises:
        ValueError: no such preset.
    """
    if preset not in PRESETS:
        raise ValueError(f"preset {preset!r}: must be one of {', '.join(PRESETS)}")
    config = schema.to_config_dict(Star)
    config.update_from_flattened_dict(PRESETS[preset])
    return config


def study(config: ConfigDict) -> dict[str, dict]:
    """Runs that compare `config` with its competitors, over three seeds: run -> changed fields."""
    return {
        "dual": DUAL,
        "cross": PLAIN | {"train.head": "linear"},
        "cross-hard": {"train.head": "linear", "train.weights": "none"},
        "cross-hard-weights": {"train.head": "linear"},
        **{f"seed{seed}": {"seed": seed} for seed in (1, 2)},
        **{f"dual-seed{seed}": DUAL | {"seed": seed} for seed in (1, 2)},
    }


def switches(config: ConfigDict) -> dict[str, dict]:
    """Runs that change one part each: run -> changed fields."""
    return {
        "star-head": {"train.head": "star"},
        "random-negatives": {"mine.choose": "random"},
        "all-relations": {"mine.pool": "all"},
        "all-positives": {"mine.positives": "all"},
        "mined-by-itself": {"mine.by": "previous"},
        "positive-weights": {"train.weights": "positive"},
        "no-weights": {"train.weights": "none"},
    }


DEMO = {
    "mine.negatives": 5,
    "search.beam": 3,
    "train.epochs": 2,
    "train.batch": 8,
    "train.learning_rate": 1e-4,
    "train.save_every": 20,
}


def demo() -> ConfigDict:
    """The config of `ark-jax demo --recipe=star`: a packaged graph and questions, MiniLM.

    The first use downloads the model.
    """
    from ark_jax.demo.models import demo_models

    folder, models = importlib.resources.files("ark_jax.demo"), demo_models()
    paths = {
        "data.path": str(folder / "gpr" / "graph.tsv"),
        "data.names": str(folder / "gpr" / "names.tsv"),
        "data.questions": str(folder / "star" / "questions.jsonl"),
        "retriever.path": models["retriever"],
        "generator.path": models["generator"],
    }
    config = star()
    config.update_from_flattened_dict(DEMO | paths)
    return config
