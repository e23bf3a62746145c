"""ARK's configs: presets, variants, the demo, and the runs of ablation studies.

`recipes/common/settings.py` and `recipes/ark/settings.py` declare the fields.
`recipes/ark/checks.py` refuses bad values.
"""

import functools
import importlib.resources
from collections.abc import Callable, Mapping, Sequence

from ml_collections import ConfigDict

from ark_jax import schema
from ark_jax.recipes.ark.settings import Ark

# The two settings of study 2 (notebooks/README.md) with the highest nDCG@10. Vectors take a hundred
# times the space.
BEST = {"retriever.vectors": "tokens", "evaluate.fusion": "chosen"}
# What the publication and the released code agree on, other than the defaults.
PUBLISHED = {
    "data.titles": False,
    "data.chunking": "tokens",
    "retriever.path": "Qwen/Qwen3-Embedding-0.6B",
    "generator.path": "mistralai/Mistral-7B-Instruct-v0.2",
    "graph.tolerance": 1e-4,
    "score.backward": 0.3,
    "score.positives": 10,
    "score.keep": 1.0,
    "mine.margin": 0.0,
    "train.merge_copies": False,
    "train.order": "question",
}
PAPER = PUBLISHED | {"graph.teleport": 0.85, "train.denominator": "own"}
OFFICIAL = PUBLISHED | {
    "graph.floor": 0.0,
    "score.references": 1,
    "score.answers": "first",
    "score.normalise": "minmax",
    "mine.model": "base",
    "mine.top": 10,
    "train.temperature": 0.1,
}
# preset -> its changes of the defaults
PRESETS = {"default": {}, "best": BEST, "paper": PAPER, "official": OFFICIAL}


def ark(preset: str = "default") -> ConfigDict:
    """The config of `ark-jax run`.

    Args:
        preset: `default` was chosen on a split of FairytaleQA's training stories
            (configs/fairytale.py). Only the length of training was not: it depends on the model.
            `best` has a vector for each token, fused with BM25 as training questions decide.
            `paper` follows the publication.
            `official` follows the released code, without its bugs and without its discount on the
            scores of short chunks, which had no effect in either study.

    Raises:
        ValueError: no such preset.
    """
    if preset not in PRESETS:
        raise ValueError(f"preset {preset!r}: must be one of {', '.join(PRESETS)}")
    return _changed(schema.to_config_dict(Ark), PRESETS[preset])


def _changed(config: ConfigDict, changes: Mapping[str, object]) -> ConfigDict:
    """`config` itself, with the values of dotted fields replaced."""
    config.update_from_flattened_dict(changes)
    return config


METHOD_SECTIONS = ("graph", "score", "mine", "train")
# Fields of these sections that save time or memory, or say where records come from.
INCIDENTAL_FIELDS = (
    "graph.openie",
    "graph.shard",
    "score.candidates",
    "score.references",
    "score.shard",
    "train.save_every",
    "train.chunks",
    "train.remat",
)


def differences(config: ConfigDict, preset: str) -> dict[str, object]:
    """Dotted field -> a preset's value, of the method's fields that differ from `config`."""
    current = _method(config)
    return {
        name: value
        for name, value in _method(ark(preset)).items()
        if name not in INCIDENTAL_FIELDS and value != current[name]
    }


def _method(config: ConfigDict) -> dict[str, object]:
    """Dotted field -> value, of the sections that make up the method."""
    return {
        f"{section}.{name}": value
        for section in METHOD_SECTIONS
        for name, value in config[section].items()
    }


# The baseline for ARK. Positives are the passages that annotators marked. Negatives are three mined
# ones and those of the batch.
GOLD = {
    "score.supervision": "gold",
    "mine.by": "question",
    "mine.negatives": 3,
    "train.stages": (0,),
    "train.epochs": (2, 0, 0),
    "train.learning_rates": (3e-5, 3e-5, 3e-5),
}


def study(config: ConfigDict) -> dict[str, dict]:
    """Runs of a sweep that measures what each part of `config` contributes: run -> changed fields.

    All runs share the scores, and those that rewrite questions the graph and the rewrites.
    """
    return {
        "gold": GOLD,
        "no-curriculum": {"train.stages": (0,)},
        "random": {"mine.by": "random"},
        "bm25": {"mine.by": "bm25"},
        "all-questions": {"score.keep": 1.0},
        "unspared": {"mine.spare": 0},
        "without-F": {"score.forward": 0.0},
        "without-B": {"score.backward": 0.0},
        "without-V": {"score.retriever": 0.0},
        "paper": differences(config, "paper"),
        "official": differences(config, "official"),
        **{f"seed{seed}": {"seed": seed} for seed in (1, 2)},
        **{f"gold-seed{seed}": GOLD | {"seed": seed} for seed in (1, 2)},
    }


def ablations(config: ConfigDict) -> dict[str, dict]:
    """Runs of `study` that leave out one part, with two further seeds.

    A seed by itself changes a result as much as most parts do.
    """
    parts = ("no-curriculum", "random", "without-F", "without-B", "without-V")
    runs = study(config)
    return {f"{part}-seed{seed}": runs[part] | {"seed": seed} for seed in (1, 2) for part in parts}


def switches(config: ConfigDict) -> dict[str, dict]:
    """Runs of a sweep that takes over each setting of paper and released code by itself."""
    return {
        f"{preset}-{field}": {field: value}
        for preset in ("paper", "official")
        for field, value in differences(config, preset).items()
    }


def _use_preset(config: ConfigDict, preset: str) -> None:
    """Changes the method of `config` to that of a preset. Data, models and evaluation stay."""
    _changed(config, differences(config, preset))


def _use_gold(config: ConfigDict) -> None:
    _changed(config, GOLD)


def _use_local_llm(config: ConfigDict) -> None:
    config.llm.backend = "local"


# Variants of a study's config, by the word that asks for them.
VARIANTS = {
    "paper": functools.partial(_use_preset, preset="paper"),
    "official": functools.partial(_use_preset, preset="official"),
    "gold": _use_gold,
    "local": _use_local_llm,
}


def named(words: str) -> list[str]:
    """The comma-separated words after a config file's colon, except `sweep=`, a sweep's name."""
    return [word for word in words.split(",") if word and not word.startswith("sweep=")]


def vary(
    config: ConfigDict,
    words: Sequence[str],
    variants: Mapping[str, Callable],
    also: Sequence[str] = (),
) -> ConfigDict:
    """Applies the variants that `words` name to `config`, in order, and returns it.

    Args:
        words: names of variants.
        variants: name -> function that changes a config in place.
        also: further words that an error message lists as admissible.

    Raises:
        ValueError: no such variant.
    """
    for word in words:
        if word not in variants:
            raise ValueError(f"preset {word!r}: must be one of {', '.join((*also, *variants))}")
        variants[word](config)
    return config


# The split was drawn before any training. Six training documents and one epoch per stage keep the
# demo short on two slow cores. The number of candidates was chosen on the ignored documents.
DEMO = {
    # The recorded replies answer passages of so many tokens, without titles.
    "data.titles": False,
    "data.chunking": "tokens",
    "data.chunk_tokens": 160,
    "data.chunk_overlap": 16,
    "data.held_out_documents": (
        "salt-company",
        "observatory",
        "lathom-library",
        "dunmere-hospital",
        "marrowgate-courier",
    ),
    "data.ignored_documents": (
        "lamp-office",
        "college-of-pilots",
        "lamp-strike",
        "wool-exchange",
        "quaywick-yard",
    ),
    "data.pool": "documents",
    "llm.backend": "replay",
    "score.candidates": 4,
    "score.references": 1,
    "score.backward": 0.3,
    "score.keep": 1.0,
    "mine.top": 5,
    "mine.negatives": 8,
    "mine.margin": 0.0,
    "train.batch": 12,
    "train.epochs": (1, 1, 1),
    "train.learning_rates": (3e-5, 2e-5, 1e-5),
    "train.save_every": 4,
    "evaluate.scope": "held_out",
    "evaluate.passages": 1,
    "evaluate.max_new_tokens": 8,
}


# The demo without training questions: they are recorded, graph and rewrites are made by rules.
DOCUMENTS_ONLY = {
    "data.ignored_documents": (),
    "llm.backend": "none",
    "questions.source": "written",
    "questions.passages": 40,
}


def demo(*, documents_only: bool = False) -> ConfigDict:
    """The config of `ark-jax demo`: the packaged corpus, MiniLM, SmolLM2, recorded LLM replies.

    The first use downloads the two models.

    Args:
        documents_only: trains on questions that were written from eleven documents, as if the
            corpus had no other training questions. The held-out ones stay the test.
    """
    from ark_jax.demo.models import demo_models

    models, folder = demo_models(), importlib.resources.files("ark_jax.demo")
    paths = {
        "data.path": str(folder),
        "llm.replies": str(folder / "replies.jsonl"),
        "retriever.path": models["retriever"],
        "generator.path": models["generator"],
    }
    if documents_only:
        recorded = {"questions.replies": str(folder / "question_replies.jsonl")}
        return _changed(ark(), DEMO | paths | DOCUMENTS_ONLY | recorded)
    return _changed(ark(), DEMO | paths)
