"""GPR's configs: presets, the demo, and the runs of a study."""

import importlib.resources

from ml_collections import ConfigDict

from ark_jax import schema
from ark_jax.recipes.gpr.settings import Gpr

# The publication: two towers, two margins of one half, one random negative, siblings as neighbours.
PAPER = {
    "questions.by": "triples",
    "questions.triples": 0,
    "train.towers": "two",
    "train.loss": "triplet",
    "train.margins": (0.5, 0.5),
    "train.negatives": "random",
    "train.siblings": "neighbour",
    "train.neighbours": "triple",
    "train.hub": 0,
    "train.epochs": 5,
    "train.learning_rate": 2e-5,
    "train.batch": 512,
    "search.hops": 1,
}
# The plain way to train a retriever on the same questions: each other triple of the batch is a
# negative, and the graph plays no part.
INFO_NCE = {"train.siblings": "neighbour", "train.neighbours": "none"}
PRESETS = {"default": {}, "paper": PAPER}


def gpr(preset: str = "default") -> ConfigDict:
    """The config of `ark-jax run --config=gpr`.

    Args:
        preset: `default` was chosen on a part of MetaQA's questions
            (configs/metaqa.py). `paper` follows the publication, except for its encoder:
            --config.retriever.path=distilbert/distilbert-base-uncased.

    Raises:
        ValueError: no such preset.
    """
    if preset not in PRESETS:
        raise ValueError(f"preset {preset!r}: must be one of {', '.join(PRESETS)}")
    config = schema.to_config_dict(Gpr)
    config.update_from_flattened_dict(PRESETS[preset])
    return config


def study(config: ConfigDict) -> dict[str, dict]:
    """Runs that compare `config` with its competitors, over three seeds: run -> changed fields.

    All runs share the questions, and train for as many steps.
    """
    same = ("questions.", "train.epochs", "train.batch", "search.")
    paper = {name: value for name, value in PAPER.items() if not name.startswith(same)}
    return {
        "infonce": INFO_NCE,
        "paper": paper,
        **{f"seed{seed}": {"seed": seed} for seed in (1, 2)},
        **{f"infonce-seed{seed}": INFO_NCE | {"seed": seed} for seed in (1, 2)},
    }


def switches(config: ConfigDict) -> dict[str, dict]:
    """Runs that change one part each: run -> changed fields."""
    return {
        "siblings": {"train.siblings": "neighbour"},
        "sibling-positives": {"train.siblings": "positive"},
        "no-neighbours": {"train.neighbours": "none"},
        "neighbours-by-triple": {"train.neighbours": "triple", "train.hub": 0},
        "random-negatives": {"train.negatives": "random"},
        "triplet": {"train.loss": "triplet"},
        "two-towers": {"train.towers": "two"},
    }


DEMO = {
    "questions.per_triple": 2,
    "train.batch": 16,
    "train.save_every": 20,
    "llm.backend": "replay",
}


def demo() -> ConfigDict:
    """The config of `ark-jax demo --recipe=gpr`: a packaged graph, MiniLM, recorded wordings.

    The first use downloads the model.
    """
    from ark_jax.demo.models import demo_models

    folder, models = importlib.resources.files("ark_jax.demo") / "gpr", demo_models()
    paths = {
        "data.path": str(folder / "graph.tsv"),
        "data.names": str(folder / "names.tsv"),
        "data.questions": str(folder / "questions.jsonl"),
        "questions.replies": str(folder / "wordings.jsonl"),
        "retriever.path": models["retriever"],
        "generator.path": models["generator"],
    }
    config = gpr()
    config.update_from_flattened_dict(DEMO | paths)
    return config
