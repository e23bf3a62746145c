"""The recipe BAR-RAG: a reader that learns from evidence at the edge of what it can answer.

A selector draws sets of passages from what the retriever finds, and is rewarded where the reader is
right about half of the time. The reader then learns from its own answers to the selector's sets.
Both alternate. At the end the selector is thrown away: the reader reads what the retriever finds.
"""

import functools
import urllib.parse

from ark_jax import schema
from ark_jax.pipeline.recipe import Forecast, Needs, Recipe
from ark_jax.pipeline.stage import Context, Stage
from ark_jax.recipes.bar_rag import (
    baselines,
    evaluate,
    evidence,
    export,
    filter,
    measures,
    outcome,
    pool,
    read,
    report,
    select,
    warm,
)
from ark_jax.recipes.bar_rag.config import BarRag
from ark_jax.recipes.bar_rag.readers import WARM, reader_before, stage_of, tuned_readers
from ark_jax.recipes.bar_rag.success import RULE_SETTINGS
from ark_jax.recipes.common import dependencies, ingest
from ark_jax.recipes.common.checks import check_core, check_documents
from ark_jax.recipes.common.dependencies import COMPUTE
from ark_jax.recipes.common.report import with_report
from ark_jax.text import prompts

INGEST_SETTINGS = tuple(name for name in ingest.INGEST_SETTINGS if name != "questions.source")


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
            f"config.pool.size={config.pool.size} passages; set one of them otherwise"
        )
    if config.read.cite and not (config.read.chat and config.success.by == "samples"):
        raise ValueError(
            "config.read.cite=True: a reply in tags is a turn of a chat and has a thought whose "
            "likelihood nobody knows; set config.read.chat=True and config.success.by=samples"
        )
    evaluate.check_evaluation(config)


def stages(config) -> list[Stage]:
    """The stages of a config, in order.

    Raises:
        ValueError: a setting that a stage would fail on.
    """
    check_bar_rag(config)
    ordered = [*_first_stages()]
    for iteration in range(1, config.iterations + 1):
        ordered += _iteration(config, iteration)
    ordered += _closing_stages(config)
    return with_report(ordered, "BAR-RAG run", report.gather, report.SECTIONS)


def _reading(config) -> dependencies.Fingerprints:
    return dependencies.prompt_texts("cite" if config.read.cite else "read")


def _choosing(config) -> dict[str, str]:
    """What a selector of the config is made of: the words that a writer is asked in, its model."""
    if config.selector.kind != "writer":
        return {}
    model = dependencies.models("selector" if config.selector.path else "generator")
    return dependencies.prompt_texts("select")(config) | model(config)


def _first_stages() -> list[Stage]:
    """From documents to the warm reader."""
    base = dependencies.models("retriever")
    return [
        Stage(
            "data",
            after=(),
            settings=INGEST_SETTINGS,
            run=ingest.ingest,
            external=dependencies.all_of(dependencies.input_files, base),
            alone=True,
        ),
        Stage("pool", ("data",), (*pool.POOL_SETTINGS, *COMPUTE), pool.find_pools, base),
        Stage(
            "warm",
            after=("data", "pool"),
            settings=(*warm.WARM_SETTINGS, "seed"),
            run=warm.train_warm,
            external=lambda config: dependencies.all_of(
                dependencies.models("generator"), _reading(config)
            )(config),
        ),
    ]


def _iteration(config, iteration: int) -> list[Stage]:
    """Filter, selector, evidence and reader."""
    stage = functools.partial(stage_of, iteration=iteration)
    before, filtering = reader_before(iteration), filter.filter_of(config, iteration)
    asking = dependencies.all_of(_reading(config), _choosing)
    selects = config.read.evidence == "selected"
    earlier = (stage_of("select", iteration - 1),) if selects and iteration > 1 else ()
    ordered = []
    if filtering == stage("filter"):
        ordered.append(
            Stage(
                filtering,
                after=("data", "pool", before, *earlier),
                settings=(*filter.FILTER_SETTINGS, "seed"),
                run=functools.partial(filter.filter_questions, iteration=iteration),
                external=asking,
            )
        )
    if selects:
        writes = config.selector.kind == "writer"
        ordered.append(
            Stage(
                stage("select"),
                after=("data", "pool", before, filtering, *earlier),
                settings=(
                    *select.SELECT_SETTINGS,
                    *(select.WRITER_SETTINGS if writes else ()),
                    "filter.each",
                    *RULE_SETTINGS,
                    "seed",
                ),
                run=functools.partial(select.train_selector, iteration=iteration),
                external=asking,
            )
        )
    ordered += [
        Stage(
            stage("evidence"),
            after=("data", "pool", filtering, *((stage("select"),) if selects else ())),
            settings=(*evidence.EVIDENCE_SETTINGS, "filter.each", "seed"),
            run=functools.partial(evidence.choose_evidence, iteration=iteration),
            external=_choosing,
        ),
        Stage(
            stage("read"),
            after=("data", "pool", before, stage("evidence")),
            settings=(*read.READ_SETTINGS, "seed"),
            run=functools.partial(read.train_reader, iteration=iteration),
            external=_reading(config),
        ),
    ]
    return ordered


def _closing_stages(config) -> list[Stage]:
    """Baselines, evaluation, export."""
    tuned, reading = tuned_readers(config), _reading(config)
    chosen = (stage_of("select", config.iterations),) if evaluate.compares_ways(config) else ()
    return [
        Stage(
            "baselines",
            after=("data", "pool", WARM),
            settings=(*measures.MEASURE_SETTINGS, "warm.steps"),
            run=baselines.measure_baselines,
            external=dependencies.all_of(dependencies.models("generator"), reading),
        ),
        Stage(
            "evaluate",
            after=("data", "pool", "baselines", *tuned, *chosen),
            settings=evaluate.EVALUATE_SETTINGS,
            run=evaluate.evaluate,
            external=dependencies.all_of(reading, _choosing) if chosen else reading,
        ),
        Stage("export", ("data", tuned[-1], "evaluate"), (), export.export_reader, alone=True),
    ]


def needs(config) -> Needs:
    """The input and models that a config names."""
    return Needs(
        data=config.data.path,
        models={
            f"{section}.path": config[section].path
            for section in ("retriever", "generator", "selector")
            if config[section].path
        },
        read=functools.partial(ingest.look_at, config.data),
    )


def forecast(context: Context, done: set[str]) -> Forecast:
    """What `ark-jax plan` shows of devices and disk."""
    from ark_jax.recipes.bar_rag import forecast  # starts jax, which looking up must not

    return forecast.forecast(context, done)


RECIPE = Recipe(
    name="bar_rag",
    stages=stages,
    check=check_bar_rag,
    needs=needs,
    metrics=outcome.METRIC_HEADINGS,
    headline="p",
    outcome=outcome.read_outcome,
    prepared=("data",),
    forecast=forecast,
)
