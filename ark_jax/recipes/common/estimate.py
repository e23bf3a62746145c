"""What reading and judging will ask and compute, for `ark-jax plan`."""

import itertools
import random
import statistics
from collections.abc import Sequence

from ark_jax.data.chunk_files import StoredChunks
from ark_jax.data.records import Chunk, Question
from ark_jax.estimate.llm_calls import (
    ENDPOINT_SPEED,
    Calls,
    TokenCounter,
    cost_of,
    price_for,
    waiting_seconds,
)
from ark_jax.pipeline.stage import Context
from ark_jax.recipes.common.answer_likelihood import reference_replies, scored_references
from ark_jax.recipes.common.ask import llm_settings
from ark_jax.recipes.common.corpus import (
    candidate_chunks,
    load_documents,
    load_questions,
    searches_corpus,
    stored_chunks,
)
from ark_jax.recipes.common.reader import questions_to_answer, reading_prompt
from ark_jax.recipes.common.systems import Systems
from ark_jax.text import prompts

SAMPLE = 8192  # texts that are looked at one by one; of more, an even sample stands for all
VERDICT = 80  # tokens of a judge's reply


def count_inputs(context: Context) -> dict[str, int]:
    return {
        "documents": sum(1 for _ in load_documents(context)),
        "chunks": len(stored_chunks(context)),
        "training questions": len(load_questions(context, "train")),
        "held-out questions": len(load_questions(context, "held_out")),
    }


def training_pools(context: Context, questions: Sequence[Question]) -> dict[str, list[Chunk]]:
    """question -> chunks in place of its candidates, which only a model can choose.

    They are those of its documents or, if the whole corpus is searched, as many at random as there
    will be candidates.
    """
    chunks = stored_chunks(context)
    if not searches_corpus(context):
        return {q.id: candidate_chunks(q, chunks.by_document) for q in questions}
    count = min(context.config.data.candidates, len(chunks))
    draw = lambda question: random.Random(question.id).sample(chunks, count)
    return {question.id: draw(question) for question in questions}


def answer_calls(
    config, context: Context, systems: Systems, done: set[str], count: TokenCounter
) -> list[Calls]:
    """The calls of a reader that is not local, and of a judge."""
    passages = config.evaluate.passages
    # A local reader is the device's work, and what a function of the user's own asks is unknown.
    asks = config.reader.backend in ("openai", "replay")
    readings = len(systems.retrieving) if asks else 0
    verdicts = 2 * config.judge.repeats * len(config.judge.against)
    if not (readings or verdicts):
        return []
    new_tokens = config.evaluate.max_new_tokens
    size = _passage_tokens(context, count)
    calls = []
    if readings:
        shape = ("reading", "evaluate", "reader", "read", readings, passages * size, new_tokens)
        calls.append(_calls(config, context, done, count, *shape))
    if verdicts:
        shape = ("judge", "judge", "judge", "judge", verdicts, 2 * passages * size, VERDICT)
        calls.append(_calls(config, context, done, count, *shape))
    return calls


def _passage_tokens(context: Context, count: TokenCounter) -> float:
    """The mean tokens of a chunk, over a sample."""
    chunks = stored_chunks(context)
    return statistics.fmean(count([x.passage for x in chunks[:: -(-len(chunks) // 1024)]]))


def _calls(
    config,
    context: Context,
    done: set[str],
    count: TokenCounter,
    label: str,
    stage: str,
    role: str,
    prompt: str,
    times: int,
    filled_tokens: float,
    written: int,
) -> Calls:
    """Calls of one prompt, `times` for each question that is answered."""
    settings = llm_settings(config, role)
    questions = questions_to_answer(load_questions(context, "held_out"), config.evaluate.read)
    total = times * len(questions)
    pending = 0 if stage in done else total
    prompt_tokens = (
        count([prompts.load_template(prompt, config.prompts[prompt])])[0] + filled_tokens
    )
    cost = cost_of(price_for(settings), pending * prompt_tokens, pending * written)
    tokens = pending * (prompt_tokens + written)
    seconds = waiting_seconds(settings, pending, tokens, written / ENDPOINT_SPEED)
    read, wrote = round(pending * prompt_tokens), pending * written
    return Calls(label, stage, total, pending, read, wrote, cost, seconds, role)


def reader_prompts(
    context: Context, lm, questions: Sequence[Question], chunks: StoredChunks
) -> tuple[float, int]:
    """The mean tokens of a reader's prompt, and how many tokens all prompts begin with."""
    ids = list(_prompts_of_reader(context, lm, questions, chunks).values())
    # What the least and the greatest row have in common, all rows between have too.
    pairs = zip(min(ids), max(ids), strict=False)
    shared = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    return statistics.fmean(map(len, ids)), shared


def replies_to_score(
    context: Context, lm, questions: Sequence[Question], chunks: StoredChunks
) -> tuple[int, list[tuple[list[int], int]]]:
    """How many prompts a sample has, and a row for each reference answer after its prompt.

    Rows are those of `device_time.shared_prefix_work`.
    """
    form, by_id = reading_prompt(context.config), {question.id: question for question in questions}
    ids = _prompts_of_reader(context, lm, questions, chunks)
    return len(ids), [
        ([*prompt, *reply], len(reply))
        for id, prompt in ids.items()
        for reply in reference_replies(lm, form, scored_references(by_id[id]))
    ]


def _prompts_of_reader(
    context: Context, lm, questions: Sequence[Question], chunks: StoredChunks
) -> dict[str, list[int]]:
    """A sample of questions -> the tokens of their prompts, with passages drawn at random."""
    config = context.config
    form = reading_prompt(config)
    filled = {}
    for question in questions[:: -(-len(questions) // SAMPLE)]:
        candidates = candidate_chunks(question, chunks.by_document) or chunks
        drawn = random.Random(question.id).sample(
            candidates, min(config.evaluate.passages, len(candidates))
        )
        passages = form.join([chunk.passage for chunk in drawn])
        filled[question.id] = form.for_model(lm, form.fill(question.question, passages))
    return dict(zip(filled, lm.prompt_ids(list(filled.values())).tolist(), strict=True))
