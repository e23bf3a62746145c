"""BAR-RAG's configs: presets, the demo, and the runs of a study."""

import importlib.resources

from ml_collections import ConfigDict

from ark_jax import schema
from ark_jax.recipes.bar_rag.settings import BarRag

# What publication and released code share.
PUBLISHED = {
    "iterations": 3,
    "pool.size": 25,
    "warm.steps": 0,
    "success.by": "samples",
    "selector.kind": "writer",
    "selector.max_new_tokens": 1024,
    "selector.kl": "k3",
    "selector.lora_rank": 32,
    "selector.lora_alpha": 16.0,
    "filter.low": 0.25,
    "filter.high": 0.85,
    "filter.variance": 0.02,
    "filter.chance": False,
    "filter.reader": False,
    "select.passages": 5,
    "select.steps": 0,
    "select.learning_rate": 4e-6,
    "select.outcome_decides": False,
    "read.steps": 0,
    "read.outcome_decides": False,
    "read.keep_dead": True,
    "read.max_new_tokens": 1024,
    "read.chat": True,
    "read.cite": True,
    "read.kl": "k3",
    "evaluate.sizes": (1, 3, 5, 10),
    "evaluate.max_new_tokens": 1024,
}
PAPER = PUBLISHED | {
    "filter.each": False,
    "filter.right_at": 0.5,
    "read.prompts": 8,
    "read.samples": 10,
    "read.learning_rate": 4e-6,
    "train.lora_rank": 32,
    "train.lora_alpha": 16.0,
}
OFFICIAL = PUBLISHED | {
    "filter.temperature": 0.7,
    "filter.top_p": 0.95,
    "selector.strict": False,
    "select.centre": 0.6,
    "select.format_bonus": 0.1,
    "select.relevance": 0.1,  # the code halves it
    "select.relevance_form": "saturating",
    "read.prompts": 32,
    "read.learning_rate": 5e-6,
    "read.citable": 31,
    "train.lora_rank": 64,
    "train.lora_alpha": 32.0,
    "evaluate.temperature": 0.3,
}
# preset -> its changes of the defaults
PRESETS = {"small": {}, "paper": PAPER, "official": OFFICIAL}


def bar_rag(preset: str = "small") -> ConfigDict:
    """The config of `ark-jax run --config=bar_rag`.

    Args:
        preset: `small` is the defaults, for models and machines at hand. `paper` follows the
            publication, `official` the released code, both with a language model that selects.

    Raises:
        ValueError: no such preset.
    """
    if preset not in PRESETS:
        raise ValueError(f"preset {preset!r}: must be one of {', '.join(PRESETS)}")
    config = schema.to_config_dict(BarRag)
    config.update_from_flattened_dict(PRESETS[preset])
    return config


# Supervised steps in the time of one step of GRPO, of as many questions: 46 s against 13 s on a
# machine that had other work at the time, for `squad_reader.py`.
SUPERVISED_STEPS = 4


def study(config: ConfigDict) -> dict[str, dict]:
    """Runs that part selection from reinforcement, over three seeds: run -> changed fields.

    The run of `config` itself is reinforcement on selected sets. The arms of a seed begin from one
    warm start, and their readers learn for equal times. Other numbers of passages and cited ones
    are looked at in the run of `config` alone, since they take longer than the training.
    """
    supervised = {"read.train": "supervised", "read.steps": SUPERVISED_STEPS * config.read.steps}
    arms = {
        "supervised-retrieved": supervised | {"read.evidence": "retrieved"},
        "supervised-selected": supervised,
        "grpo-retrieved": {"read.evidence": "retrieved"},
        "grpo-random": {"read.evidence": "random"},
    }
    short = {"evaluate.sizes": (), "evaluate.removal": False}
    seeds = {f"seed{seed}": {"seed": seed} for seed in (1, 2)}
    runs = arms | seeds | {f"{arm}-{s}": arms[arm] | seeds[s] for arm in arms for s in seeds}
    return {name: changes | short for name, changes in runs.items()}


def ablations(config: ConfigDict) -> dict[str, dict]:
    """Runs that leave out one part, as in table 2: run -> changed fields."""
    return {
        "without-boundary": {"select.boundary": 0.0, "select.outcome_decides": False},
        "without-relevance": {"select.relevance": 0.0},
        "without-filter": {
            "filter.low": 0.0,
            "filter.high": 1.0,
            "filter.variance": 0.0,
            "filter.chance": False,
        },
        "without-selector": {"read.evidence": "retrieved"},
        "without-reader": {"iterations": 0},
    }


# The split is that of ARK's demo. Few questions and short passages keep it short on two slow cores.
DEMO = {
    "data.titles": False,
    "data.chunk_tokens": 48,
    "data.chunk_overlap": 0,
    "data.held_out_documents": (
        "salt-company",
        "observatory",
        "lathom-library",
        "dunmere-hospital",
        "marrowgate-courier",
    ),
    "data.pool": "documents",
    "warm.steps": 20,
    "filter.questions": 16,
    "filter.sets": 4,
    "filter.low": 0.001,
    "filter.variance": 0.0,
    "select.steps": 4,
    "select.questions": 4,
    "select.sets": 4,
    "read.steps": 3,
    "read.samples": 6,
    "read.max_new_tokens": 8,
    "evaluate.gold": "answers",
    "evaluate.questions": 16,
    "evaluate.sizes": (),
    "evaluate.removal": False,
    "evaluate.max_new_tokens": 8,
}


def demo() -> ConfigDict:
    """The config of `ark-jax demo --recipe=bar_rag`: a packaged corpus, MiniLM, SmolLM2.

    The first use downloads the two models.
    """
    from ark_jax.demo.models import demo_models

    models = demo_models()
    paths = {
        "data.path": str(importlib.resources.files("ark_jax.demo")),
        "retriever.path": models["retriever"],
        "generator.path": models["generator"],
    }
    config = bar_rag()
    config.update_from_flattened_dict(DEMO | paths)
    return config
