"""What an ARK config must fulfil before any work is spent on it."""

from ark_jax import schema
from ark_jax.recipes.ark.config import Ark
from ark_jax.recipes.ark.curriculum import systems
from ark_jax.recipes.ark.scored_prompts import TARGETS
from ark_jax.recipes.common.checks import check_shared_sections
from ark_jax.text import prompts


def check_ark(config) -> None:
    """Refuses a config on which some stage would fail, maybe hours from now.

    Raises:
        ValueError: the field, its value and what it may be.
        RuntimeError: a setting needs a library that is not installed.
    """
    schema.check(config, Ark)
    _check_prompts(config.prompts)
    _check_graph(config.graph)
    _check_stages(config.train)
    _check_teacher(config)
    _check_reranker(config)
    _check_reader(config)
    check_shared_sections(config)
    systems(config).check()


def _check_prompts(paths) -> None:
    for name, path in paths.items():
        prompts.load_template(name, path, target=TARGETS.get(name, ""))


def _check_graph(graph) -> None:
    for name in ("large", "small"):
        smallest, largest = graph[name]
        if smallest > largest:
            raise ValueError(
                f"config.graph.{name}={tuple(graph[name])}: must be the smallest and the largest "
                "size of a community, as in (3, 10)"
            )
    if graph.openie and graph.gleanings:
        raise ValueError(
            "config.graph.gleanings asks the language model for more records, but "
            "config.graph.openie replaces the language model: set one of them"
        )


def _check_teacher(config) -> None:
    for name, value in (("kind", "cross"), ("loss", "distil")):
        if config.train[name] == value and config.score.supervision == "gold":
            raise ValueError(
                f"config.train.{name}={value} learns alignment scores, and "
                "config.score.supervision=gold learns from marked evidence instead: change one of "
                "them"
            )


def _check_reranker(config) -> None:
    if config.train.kind != "cross":
        return
    if not config.reranker.path:
        raise ValueError(
            "config.train.kind=cross begins as a cross-encoder: name one in config.reranker.path, "
            "such as cross-encoder/ms-marco-MiniLM-L6-v2"
        )
    if config.evaluate.rerank:
        raise ValueError(
            f"config.evaluate.rerank={config.evaluate.rerank!r}: config.train.kind=cross trains a "
            "reranker of its own, for which the table has one row; leave this empty, or kind=bi"
        )


def _check_reader(config) -> None:
    if config.reader.warm and config.reader.backend != "local":
        raise ValueError(
            f"config.reader.warm=True trains a local reader, and config.reader.backend="
            f"{config.reader.backend} is none: change one of them"
        )


def _check_stages(train) -> None:
    """Stages are trained once each, for at least one epoch."""
    stages = tuple(train.stages)
    repeats = len(set(stages)) < len(stages)
    if not stages or repeats or (0 in stages and len(stages) > 1):
        raise ValueError(
            f"config.train.stages={stages}: must hold each of 1, 2 and 3 at most once, or be (0,), "
            "which trains on all negatives in one stage"
        )
    for stage in stages:
        epochs = train.epochs[stage - 1] if stage else sum(train.epochs)
        if not epochs:
            raise ValueError(
                f"config.train.epochs={tuple(train.epochs)}: stage {stage} has no epoch; remove it "
                "from config.train.stages"
            )
