"""The reader's answers from facts of a graph: lists of answers, and their scores."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ark_jax.evaluate import answer_lists
from ark_jax.pipeline import own_functions
from ark_jax.pipeline.stage import Context
from ark_jax.recipes.core import own_parts
from ark_jax.recipes.core.models import load_generator
from ark_jax.recipes.documents import reader
from ark_jax.text import prompts

Scores = dict[tuple[str, str], dict]  # (system, question) -> reply and its scores
# Scores of a list of answers -> columns; publications call either hit "Hit".
LISTS = {
    "accuracy": "answer_accuracy",
    "precision": "list_precision",
    "recall": "list_recall",
    "f1": "list_f1",
    "hit": "any_hit",
    "hit@1": "first_hit",
}
SHOWN = ("f1", "hit", "hit@1")
ALONE = "reader alone"  # the row of a reader that gets no facts


def read_facts(
    context: Context, systems: Sequence[str], questions: Sequence, facts_of: Callable, folder: Path
) -> tuple[Scores, dict]:
    """The reader's replies with their scores, and counts for the manifest; both may be empty.

    A model is asked without facts, too: the system `ALONE`.

    Args:
        questions: all; `evaluate.read` of them are answered.
        facts_of: `facts_of(system, question)` gives facts, best first. A local reader gets as many
            of them as it can read.
        folder: of the stage; answers of a reader of the user's own are stored there.
    """
    sample = reader.questions_to_answer(questions, context.config.evaluate.read)
    if not sample:
        return {}, {}
    if own_functions.is_own(backend := context.config.reader.backend):
        pairs = [(system, question) for system in systems for question in sample]
        facts = {(system, question.id): facts_of(system, question) for system, question in pairs}
        answers = own_parts.answer_all(backend, facts, sample, folder)
        unanswered = sum(not answer for answer in answers.values())
        return _score_answers(answers, sample), {"unanswered": unanswered}
    template = prompts.load_template("triple_reader", context.config.prompts.triple_reader)
    filled, cut = {}, set()
    for system in (*systems, ALONE):
        for question in sample:
            facts = [] if system == ALONE else facts_of(system, question)
            prompt, fitting = _fitting_prompt(context, template, question.question, facts)
            filled[system, question.id] = prompt
            if fitting < len(facts):
                cut.add(question.id)
    replies, counts = reader.answer_prompts(context, filled.values())
    answers = {key: replies[prompt] for key, prompt in filled.items()}
    cut_counts = {"cut_to_fit_the_reader": len(cut)} if cut else {}
    return _score_answers(answers, sample), counts | cut_counts


def _score_answers(answers: Mapping[tuple[str, str], str], questions: Sequence) -> Scores:
    """The answers, (system, question) -> text, with their `answer_lists.list_scores`."""
    references = {question.id: question.answers for question in questions}
    return {
        (system, id): {"answer": answer} | answer_lists.list_scores(answer, references[id])
        for (system, id), answer in answers.items()
    }


def reply_columns(reply: Mapping | None) -> dict:
    """A reply and its scores by column; all None if the question was not answered."""
    scores = reply or {}
    return {"answer": scores.get("answer")} | {
        column: scores.get(name) for name, column in LISTS.items()
    }


def with_reader_alone(rows: Sequence[dict], replies: Scores) -> list[dict]:
    """The rows of systems, and after the first system those of `ALONE`, if it was asked.

    It retrieves nothing, so it has no figures of retrieval.
    """
    if all(system != ALONE for system, _ in replies):
        return list(rows)
    first = [row for row in rows if row["system"] == rows[0]["system"]]
    alone = [
        {name: [] if isinstance(value, list | tuple) else None for name, value in row.items()}
        | {"system": ALONE, "question": row["question"], "group": row["group"]}
        | reply_columns(replies.get((ALONE, row["question"])))
        for row in first
    ]
    return [*first, *alone, *rows[len(first) :]]


def _fitting_prompt(
    context: Context, template: str, question: str, facts: Sequence[str]
) -> tuple[str, int]:
    """A prompt with as many of the first facts as the reader can read, and their number."""
    prompt = answer_lists.facts_prompt(template, question, facts)
    # An endpoint reports a prompt that is too long.
    if context.config.reader.backend != "local":
        return prompt, len(facts)
    lm = load_generator(context, context.config.reader.path)
    count, room = len(facts), lm.max_length - context.config.evaluate.max_new_tokens
    while len(lm.prompt_ids([lm.chat(prompt)])[0]) > room:
        if not count:
            raise ValueError(
                f"question {question[:60]!r}: with it and prompt triple_reader, no fact fits the "
                f"{lm.max_length} tokens that the reader takes; set config.evaluate.max_new_tokens "
                "lower or shorten the prompt"
            )
        count -= 1
        prompt = answer_lists.facts_prompt(template, question, facts[:count])
    return prompt, count
