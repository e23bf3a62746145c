"""The recipe GPR: a retriever of triples, trained on a graph alone, without a labelled question.

Graded-relevance pretraining: questions about masked triples, three levels of relevance, two towers.
"""

import functools

from ark_jax import schema
from ark_jax.pipeline.recipe import Recipe
from ark_jax.pipeline.stage import Stage
from ark_jax.recipes.core import own_parts
from ark_jax.recipes.core.baselines import STAGE, stored_doubts
from ark_jax.recipes.core.checks import check_basics
from ark_jax.recipes.core.closing import ending, retrieve_command
from ark_jax.recipes.core.report import with_report
from ark_jax.recipes.core.tables import read_outcome
from ark_jax.recipes.documents.written_questions import writes_by_rules
from ark_jax.recipes.gpr import data, evaluate, plan, report
from ark_jax.recipes.gpr.config import Gpr
from ark_jax.recipes.gpr.data import HEADLINE
from ark_jax.recipes.gpr.evaluate import CURVES
from ark_jax.recipes.gpr.questions import write_questions
from ark_jax.recipes.gpr.train import train_towers
from ark_jax.recipes.graphs import graph_data
from ark_jax.recipes.graphs.fact_reader import LISTS
from ark_jax.report.results import metric_heading
from ark_jax.text import prompts


def check_gpr(config) -> None:
    """Refuses a config on which some stage would fail, maybe hours from now."""
    schema.check(config, Gpr)
    check_basics(config)
    _check_writer(config)
    for name, path in config.prompts.items():
        prompts.load_template(name, path)
    evaluate.Systems(config).check()


def _check_writer(config) -> None:
    """Refuses questions about single triples, as in the publication, without a language model."""
    if config.questions.by == "triples" and writes_by_rules(config):
        raise ValueError(
            "config.questions.by=triples, as in the preset paper, has a language model word each "
            "question, and config.llm.backend is none: set --config.llm.backend=openai, local or "
            "replay, or take --config=gpr:default"
        )


def check_all(config) -> None:
    """As `check_gpr`, and imports the functions of the user's own that the config names."""
    check_gpr(config)
    own_parts.check_miner("train.negatives", config.train.negatives)
    own_parts.check_reader(config)
    own_parts.load_loss(config)


def stages(config) -> list[Stage]:
    """The stages of a config, in order."""
    check_gpr(config)
    working_stages = [
        Stage("data", data.ingest, alone=True),
        Stage(STAGE, evaluate.measure_baselines, doubts=stored_doubts),
        Stage("questions", write_questions, alone=config.llm.backend != "local"),
        Stage("train", train_towers),
        Stage("index", evaluate.build_index),
        Stage("evaluate", evaluate.evaluate),
        Stage("export", evaluate.export_towers, alone=True),
    ]
    return with_report(working_stages, title="GPR run", describe=report.describe)


MEASURED = (*CURVES, *LISTS.values())  # the latter where a reader answers
RECIPE = Recipe(
    name="gpr",
    stages=stages,
    schema=Gpr,
    check=check_all,
    unread=graph_data.unused_sections,
    look=graph_data.describe_graph,
    metrics={name: metric_heading(name) for name in MEASURED},
    headline=HEADLINE,
    outcome=functools.partial(read_outcome, metrics=MEASURED),
    prepared=("data",),
    forecast=plan.forecast,
    conclusion=evaluate.conclusion,
    ending=functools.partial(
        ending,
        headline=HEADLINE,
        questions=data.load_test,
        first=evaluate.first_triple,
        command=retrieve_command,
    ),
)
