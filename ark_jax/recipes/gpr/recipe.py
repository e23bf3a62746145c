"""The recipe GPR: a retriever of triples, trained on a graph alone, without a labelled question.

Graded-relevance pretraining: questions about masked triples, three levels of relevance, two towers.
"""

import functools
import math
import statistics

import numpy as np

from ark_jax import schema
from ark_jax.estimate.work import Work, measure, pending_calls
from ark_jax.llm.triple_questions import SIDES
from ark_jax.pipeline.recipe import Forecast, Recipe
from ark_jax.pipeline.stage import Context, Stage
from ark_jax.recipes import graphs
from ark_jax.recipes.core import own_parts
from ark_jax.recipes.core.ask import llm_settings
from ark_jax.recipes.core.baselines import STAGE, stored_doubts
from ark_jax.recipes.core.checks import check_basics
from ark_jax.recipes.core.report import ending, retrieve_command, with_report
from ark_jax.recipes.core.tables import read_outcome
from ark_jax.recipes.documents.written_questions import writes_by_rules
from ark_jax.recipes.gpr import data, evaluate, report
from ark_jax.recipes.gpr.config import Gpr
from ark_jax.recipes.gpr.data import HEADLINE, load_test
from ark_jax.recipes.gpr.evaluate import CURVES
from ark_jax.recipes.gpr.questions import wanted_wordings, write_questions, writing_calls
from ark_jax.recipes.gpr.train import train_towers
from ark_jax.recipes.graphs import LISTS, load_graph, texts_of
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


SAMPLE = 1000  # triples whose texts show how long they are, and questions about them
TRIPLES_A_QUESTION = 3  # the triple, a neighbour, a negative
# Of the packaged recordings: a wording of a relation; a question with its number and side.
WORDING_CHARACTERS = 47
QUESTION_CHARACTERS = 138


def forecast(context: Context, done: set[str]) -> Forecast:
    """The work of writing, training and embedding; notes say if rules write."""
    config, graph = context.config, load_graph(context)
    rows = np.linspace(0, len(graph) - 1, min(len(graph), SAMPLE)).astype(np.int64)
    triple = measure(config.retriever.path, texts_of(graph, config, rows))
    asked = min(config.questions.triples or len(graph), len(graph))
    questions = asked * len(SIDES) * config.questions.per_triple  # if none is dropped
    batch, tested = min(config.train.batch, questions), len(load_test(context))
    steps = config.train.epochs * math.ceil(questions / config.train.batch)
    step = (triple.with_count(batch), triple.with_count(TRIPLES_A_QUESTION * batch))
    towers = 1 + (config.train.towers == "two")
    embedding = ("retriever", "embedding", len(graph), triple.mean)
    works = [
        *([Work("baselines", *embedding)] if tested else []),
        Work(
            *("train", "retriever", "training", steps),
            step=step,
            towers=towers,
            objective="triplet",
        ),
        Work("index", *embedding, stored=len(graph)),
    ]
    calls = writing_calls(context)
    if calls:
        settings = llm_settings(config, "questions")
        reply = _mean_reply_characters(config, calls)
        works.append(
            pending_calls(context, "questions", settings, calls, config.retriever.path, reply)
        )
    return Forecast(
        inputs={
            "triples": len(graph),
            "entities": len(graph.nodes),
            "training questions": questions,
            "steps": steps,
            "test questions": tested,
        },
        work=tuple(works),
        notes=() if calls else ("questions: rules word them; no language model is asked",),
    )


def _mean_reply_characters(config, calls) -> float:
    """The mean length of a complete reply, in characters.

    A reply about a relation has wordings for both its sides; one about triples has questions for
    each end that is asked for.
    """
    if config.questions.by == "relations":
        return len(SIDES) * wanted_wordings(config) * WORDING_CHARACTERS
    asked_ends = statistics.fmean(len(call.fields["asked"]) for call in calls)
    return asked_ends * config.questions.per_triple * QUESTION_CHARACTERS


MEASURED = (*CURVES, *LISTS.values())  # the latter where a reader answers
RECIPE = Recipe(
    name="gpr",
    stages=stages,
    schema=Gpr,
    check=check_all,
    unread=graphs.unused_sections,
    look=graphs.describe_graph,
    metrics={name: metric_heading(name) for name in MEASURED},
    headline=HEADLINE,
    outcome=functools.partial(read_outcome, metrics=MEASURED),
    prepared=("data",),
    forecast=forecast,
    conclusion=evaluate.conclusion,
    ending=functools.partial(
        ending,
        headline=HEADLINE,
        questions=data.load_test,
        first=evaluate.first_triple,
        command=retrieve_command,
    ),
)
