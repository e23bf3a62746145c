"""The recipe BAR-RAG: a reader that learns from evidence at the edge of what it can answer.

A selector draws sets of passages from what the retriever finds, and is rewarded where the reader is
right about half of the time. The reader then learns from its own answers to the selector's sets.
Both alternate. At the end the selector is thrown away: the reader reads what the retriever finds.
There are no negatives to mine, so it takes no miner of one's own.
"""

import functools
import urllib.parse

from ark_jax import schema
from ark_jax.pipeline.recipe import Recipe
from ark_jax.pipeline.stage import Stage
from ark_jax.recipes.bar_rag import evaluate, plan, read, report, select, selectors
from ark_jax.recipes.bar_rag.config import BarRag
from ark_jax.recipes.bar_rag.evaluate import METRICS
from ark_jax.recipes.bar_rag.rollouts import stage_of
from ark_jax.recipes.core import own_parts
from ark_jax.recipes.core.checks import check_core, check_documents
from ark_jax.recipes.core.report import with_report
from ark_jax.recipes.core.tables import read_outcome
from ark_jax.recipes.documents import ingest
from ark_jax.report.results import metric_heading
from ark_jax.text import prompts


def check_bar_rag(config) -> None:
    """Refuses a config on which some stage would fail, maybe hours from now.

    Raises:
        ValueError: the field, its value and what it may be.
    """
    schema.check(config, BarRag)
    check_core(config)
    check_documents(config)
    for name, path in config.prompts.items():
        prompts.load_template(name, path)
    for section in ("generator", "selector"):
        path = config[section].path
        if urllib.parse.urlsplit(path).scheme in ("http", "https"):
            raise ValueError(
                f"config.{section}.path={path!r}: an endpoint's weights cannot be trained; name "
                "the folder of a model, or its Hub name"
            )
    if config.filter.low > config.filter.high:
        raise ValueError(
            f"config.filter.low={config.filter.low} is above config.filter.high="
            f"{config.filter.high}; swap them"
        )
    if config.select.passages > config.pool.size:
        raise ValueError(
            f"config.select.passages={config.select.passages}: a pool has only "
            f"config.pool.size={config.pool.size} passages; change one of them"
        )
    if config.read.cite and not (config.read.chat and config.success.by == "samples"):
        raise ValueError(
            "config.read.cite=True: a reply in tags is a turn of a chat and has a thought whose "
            "likelihood nobody knows; set config.read.chat=True and config.success.by=samples"
        )
    evaluate.check_evaluation(config)


def check_all(config) -> None:
    """As `check_bar_rag`, and imports the functions of the user's own that the config names."""
    check_bar_rag(config)
    own_parts.load_token_loss(config)
    own_parts.check_reader(config)


def stages(config) -> list[Stage]:
    """The stages of a config, in order.

    Raises:
        ValueError: a setting that a stage would fail on.
    """
    check_bar_rag(config)
    ordered = [
        Stage("data", ingest.ingest, alone=True),
        Stage("pool", selectors.find_pools),
        Stage("warm", read.train_warm),
    ]
    for iteration in range(1, config.iterations + 1):
        ordered += _iteration_stages(config, iteration)
    ordered += [
        Stage("baselines", evaluate.measure_baselines),
        Stage("evaluate", evaluate.evaluate),
        Stage("export", evaluate.export_reader, alone=True),
    ]
    return with_report(ordered, "BAR-RAG run", report.describe)


def _iteration_stages(config, iteration: int) -> list[Stage]:
    """The stages of an iteration: filter and selector if it has them, evidence, reader."""
    works = {"evidence": read.choose_evidence, "read": read.train_reader}
    if config.read.evidence == "selected":
        works = {"select": select.train_selector} | works
    if select.filter_of(config, iteration) == stage_of("filter", iteration):
        works = {"filter": select.filter_questions} | works
    return [
        Stage(stage_of(kind, iteration), functools.partial(work, iteration=iteration))
        for kind, work in works.items()
    ]


RECIPE = Recipe(
    name="bar_rag",
    stages=stages,
    schema=BarRag,
    check=check_all,
    look=ingest.describe_input,
    metrics={name: metric_heading(name) for name in METRICS},
    headline="p",
    outcome=functools.partial(read_outcome, metrics=METRICS),
    prepared=("data",),
    forecast=plan.forecast,
)
