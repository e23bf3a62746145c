"""What a run of GPR asks, computes and stores, for `ark-jax plan`."""

import math
import statistics

import numpy as np

from ark_jax.estimate.work import Work, measure, pending_calls
from ark_jax.llm.triple_questions import SIDES
from ark_jax.pipeline.recipe import Forecast
from ark_jax.pipeline.stage import Context
from ark_jax.recipes.core.ask import llm_settings
from ark_jax.recipes.gpr.data import load_test
from ark_jax.recipes.gpr.questions import wanted_wordings, writing_calls
from ark_jax.recipes.graphs.graph_data import load_graph, texts_of

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
