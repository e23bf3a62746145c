"""Answers from retrieved triples, by the reader: lists, and their scores."""

from collections.abc import Mapping, Sequence

import numpy as np

from ark_jax.evaluate import answer_lists
from ark_jax.graph.triples import Triples
from ark_jax.pipeline.stage import Context
from ark_jax.recipes.common import reader
from ark_jax.recipes.common.graph_data import texts_of
from ark_jax.recipes.common.models import load_generator
from ark_jax.recipes.gpr.data import TestQuestion
from ark_jax.text import prompts

Scores = dict[tuple[str, str], dict]  # (system, question) -> reply and its scores


def read_triples(
    context: Context,
    graph: Triples,
    rankings: Mapping[str, Mapping[str, Sequence[int]]],
    questions: Sequence[TestQuestion],
) -> tuple[Scores, dict]:
    """The reader's replies with `answer_lists.list_scores`, and its counts.

    The first `evaluate.triples` of each system are read; of these as many as fit a local reader.
    """
    settings = context.config.evaluate
    asked = reader.questions_to_answer(questions, settings.read)
    if not asked:
        return {}, {}
    template = prompts.load_template("triple_reader", context.config.prompts.triple_reader)
    filled, cut = {}, set()
    for system, ranking in rankings.items():
        for question in asked:
            rows = np.asarray(ranking[question.id][: settings.triples], np.int64)
            facts = texts_of(graph, context.config, rows)
            prompt, fitting = _fit(context, template, question.question, facts)
            filled[system, question.id] = prompt
            if fitting < len(facts):
                cut.add(question.id)
    replies, counts = reader.answer_prompts(context, filled.values(), lists=True)
    answers = {question.id: question.answers for question in asked}
    scores = {
        (system, id): {"answer": replies[prompt]}
        | answer_lists.list_scores(replies[prompt], answers[id])
        for (system, id), prompt in filled.items()
    }
    return scores, {**counts, **({"cut_to_fit_the_reader": len(cut)} if cut else {})}


def _fit(context: Context, template: str, question: str, facts: Sequence[str]) -> tuple[str, int]:
    """A prompt with as many of the first facts as fit the reader, and how many these are."""
    prompt = answer_lists.facts_prompt(template, question, facts)
    # A reader behind an endpoint says itself if a prompt is too long.
    if context.config.reader.backend != "local":
        return prompt, len(facts)
    lm = load_generator(context, context.config.reader.path)
    count, room = len(facts), lm.max_length - context.config.evaluate.max_new_tokens
    while len(lm.prompt_ids([lm.chat(prompt)])[0]) > room:
        if not count:
            raise ValueError(
                f"question {question[:60]!r}: with it and prompt triple_reader, no triple fits the "
                f"{lm.max_length} tokens that the reader takes; set config.evaluate.max_new_tokens "
                "lower or shorten the prompt"
            )
        count -= 1
        prompt = answer_lists.facts_prompt(template, question, facts[:count])
    return prompt, count
