"""The recipe GPR: a retriever of triples, trained on a graph alone, without a labelled question.

Graded-relevance pretraining: questions about masked triples, three levels of relevance, two towers.
"""

import functools

from ark_jax import schema
from ark_jax.pipeline.recipe import Forecast, Needs, Recipe
from ark_jax.pipeline.stage import Context, Stage
from ark_jax.recipes.common import dependencies, graph_data
from ark_jax.recipes.common.checks import check_basics
from ark_jax.recipes.common.dependencies import COMPUTE
from ark_jax.recipes.common.report import with_report
from ark_jax.recipes.gpr import data, estimate, evaluate, export, outcome, report, retrieve
from ark_jax.recipes.gpr.config import Gpr
from ark_jax.recipes.gpr.train import TRAIN_SETTINGS, train_towers
from ark_jax.recipes.gpr.write_questions import WRITING_SETTINGS, write_questions
from ark_jax.text import prompts


def check_gpr(config) -> None:
    """Refuses a config on which some stage would fail, maybe hours from now.

    Raises:
        ValueError: the field, its value and what it may be.
    """
    schema.check(config, Gpr)
    check_basics(config)
    for name, path in config.prompts.items():
        prompts.load_template(name, path)
    retrieve.Systems(config).check()


def stages(config) -> list[Stage]:
    """The stages of a config, in order.

    Raises:
        ValueError: a setting that a stage would fail on.
    """
    check_gpr(config)
    base, systems = dependencies.models("retriever"), retrieve.Systems(config)
    texts = ("data.relations",)
    working_stages = [
        Stage("data", (), data.DATA_SETTINGS, data.ingest, graph_data.input_files, alone=True),
        Stage(
            "questions",
            after=("data",),
            settings=(*dependencies.writer_settings(config), *WRITING_SETTINGS),
            run=write_questions,
            external=dependencies.all_of(
                dependencies.prompt_texts("triple_questions", "relation_wordings"),
                dependencies.language_model("questions"),
            ),
            alone=config.llm.backend != "local",
        ),
        Stage(
            "train",
            after=("data", "questions"),
            settings=(*TRAIN_SETTINGS, *texts, *COMPUTE, "seed"),
            run=train_towers,
            external=base,
        ),
        Stage(
            "index", after=("data", "train"), settings=(*texts, *COMPUTE), run=retrieve.build_index
        ),
        Stage(
            "baselines",
            after=("data",),
            settings=(
                "evaluate.baselines",
                "evaluate.metrics",
                "evaluate.triples",
                *retrieve.SEARCH_SETTINGS,
                *texts,
                *COMPUTE,
            ),
            run=functools.partial(retrieve.retrieve_untrained, systems=systems),
            external=base,
        ),
        Stage(
            "evaluate",
            after=("data", "train", "index", "baselines"),
            settings=(*evaluate.EVALUATION_SETTINGS, *texts, *COMPUTE),
            run=functools.partial(evaluate.evaluate, systems=systems),
            external=dependencies.all_of(
                dependencies.prompt_texts("triple_reader"), dependencies.language_model("reader")
            ),
        ),
        Stage(
            "export",
            ("data", "questions", "train", "evaluate"),
            (),
            export.export_towers,
            alone=True,
        ),
    ]
    return with_report(
        working_stages, title="GPR run", gather=report.gather, sections=report.SECTIONS
    )


def needs(config) -> Needs:
    """The graph, models, recordings and endpoints that a config names."""
    recording = {"questions.replies": config.questions.replies}
    return graph_data.needs(config, roles=("llm",), files=recording)


def forecast(context: Context, done: set[str]) -> Forecast:
    """What `ark-jax plan` shows of devices and disk."""
    from ark_jax.recipes.gpr import forecast  # starts jax, which looking up what is done must not

    return forecast.forecast(context, done)


RECIPE = Recipe(
    name="gpr",
    stages=stages,
    check=check_gpr,
    needs=needs,
    metrics=outcome.METRIC_HEADINGS,
    headline="answer_triple@10",
    outcome=outcome.read_outcome,
    prepared=("data",),
    llm_calls=estimate.llm_calls,
    forecast=forecast,
)
