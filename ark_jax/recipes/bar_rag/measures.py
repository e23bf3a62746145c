"""What a reader makes of held-out questions: p, answers and their scores, set by set of passages.

A row of `sets.parquet` is a reader on one set of chunks of one question. The column `set` says how
the chunks were chosen.
"""

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ark_jax.data.records import Chunk
from ark_jax.evaluate.answers import exact_match, f1
from ark_jax.evaluate.reading import ReadingPrompt
from ark_jax.pipeline.parts import stored_rows
from ark_jax.pipeline.stage import Context
from ark_jax.recipes.bar_rag.pool import load_pools
from ark_jax.recipes.bar_rag.readers import OWN, load_reader
from ark_jax.recipes.bar_rag.reading import best_answers, reading_prompt
from ark_jax.recipes.bar_rag.success import EvidenceSet, Success
from ark_jax.recipes.bar_rag.updates import stage_seed
from ark_jax.recipes.common import own_reader
from ark_jax.recipes.common.corpus import stored_chunks
from ark_jax.recipes.common.reader import questions_to_answer
from ark_jax.recipes.common.reader_training import PooledQuestion, reading_prompts
from ark_jax.text.cited import CitedAnswer
from ark_jax.train.rewards import usable_references

if TYPE_CHECKING:  # its module starts jax
    from ark_jax.models.language import LanguageModel

METRICS = ("p", "answer_f1", "exact_match")
RETRIEVED = "retrieved"  # the set that results are of
NEEDED = "needed"  # the chunks that hold the answer, wherever the retriever ranks them
WITHOUT_CITED, CITED_ALONE = "without cited", "cited alone"


def size_name(size: int) -> str:
    """The `set` of so many retrieved chunks."""
    return f"top {size}"


def passages_read(config) -> int:
    """How many retrieved chunks a reader gets."""
    return config.evaluate.passages or config.select.passages


def measured_questions(context: Context) -> list[PooledQuestion]:
    """The held-out questions to measure with, `evaluate.questions` of those that have a pool."""
    pools = load_pools(context, "held_out")
    limit = context.config.evaluate.questions
    drawn = questions_to_answer([pooled.question for pooled in pools], limit or -1)
    ids = {question.id for question in drawn}
    return [pooled for pooled in pools if pooled.id in ids]


def measure_reader(context: Context, name: str, folder: Path) -> list[dict]:
    """The rows of a reader on what the retriever finds.

    They are stored as soon as they are there, so that a killed run goes on with the next reader.

    Args:
        name: OWN; else as of `load_reader`.
    """
    return stored_rows(folder / f"sets-{name}.parquet", lambda: _measure(context, name))


def _measure(context: Context, name: str) -> list[dict]:
    config, questions = context.config, measured_questions(context)
    form = reading_prompt(config)
    if name == OWN:
        success, reply, cites = None, functools.partial(_reply_by_own, config), False
    else:
        success, cites = Success(context, name), form.cite
        reply = functools.partial(
            _reply,
            load_reader(context, name),
            form,
            max_new_tokens=config.evaluate.max_new_tokens,
            temperature=config.evaluate.temperature,
            seed=stage_seed(config, f"measure {name}"),
            batch_tokens=config.generator.batch_tokens,
        )
    nearest = lambda size: [(pooled, pooled.chunk_ids[:size]) for pooled in questions]
    size = passages_read(config)
    sets = {RETRIEVED: nearest(size)} | {size_name(n): nearest(n) for n in config.evaluate.sizes}
    sets[NEEDED] = [(pooled, needed) for pooled in questions if (needed := pooled.needed(size))]
    read = functools.partial(answer_sets, reply, chunks=stored_chunks(context).by_id, cites=cites)
    # What a question's sets begin with is computed once if they are asked for together.
    all_sets = [evidence_set for of_kind in sets.values() for evidence_set in of_kind]
    if success:
        success.p(all_sets, f"{name}: p")
    answered = iter(read(all_sets, label=f"{name}: read"))
    rows = []
    for kind, of_kind in sets.items():
        replies = list(itertools.islice(answered, len(of_kind)))
        rows += set_rows(name, kind, of_kind, success, replies)
    if config.evaluate.removal:
        citing = [row["cited"] for row in rows[: len(questions)]]  # of the retrieved sets
        for kind, keeps_cited in ((WITHOUT_CITED, False), (CITED_ALONE, True)):
            changed = [
                (pooled, [chunk for chunk in ids if (chunk in cited) == keeps_cited])
                for (pooled, ids), cited in zip(sets[RETRIEVED], citing, strict=True)
                if cited
            ]
            rows += set_rows(name, kind, changed, success, read(changed, label=f"{name}: {kind}"))
    return rows


def set_rows(
    system: str,
    kind: str,
    sets: Sequence[EvidenceSet],
    success: Success | None,
    answered: Sequence[Mapping] | None = None,
) -> list[dict]:
    """A row of each set.

    Args:
        system: the reader, under which `success` has p; None: p is whether its answer is right.
        kind: how the chunks were chosen.
        answered: from `answer_sets`; None: p alone is measured, and the other columns are None.
    """
    if success:
        values = success.p(sets, f"{system}: p, {kind}")
    else:
        values = [row["exact_match"] for row in answered or ()]
    columns = ("answer", "cited", "answer_f1", "exact_match")
    return [
        {
            "system": system,
            "set": kind,
            "question": pooled.id,
            "document": document_of(pooled),
            "chunk_ids": list(chunks),
            "p": p,
            **{column: answered[i][column] if answered else None for column in columns},
        }
        for i, ((pooled, chunks), p) in enumerate(zip(sets, values, strict=True))
    ]


def document_of(pooled: PooledQuestion) -> str:
    """What a question is resampled with: its first document, or itself if it names none."""
    return next(iter(pooled.question.documents), pooled.id)


Readings = Sequence[tuple[str, Sequence[str]]]  # questions with their passages


def _reply(
    lm: "LanguageModel", form: ReadingPrompt, readings: Readings, **generation
) -> list[CitedAnswer]:
    prompts = reading_prompts(lm, form, readings, generation["max_new_tokens"]).texts
    return best_answers(lm, form, prompts, [len(shown) for _, shown in readings], **generation)


def _reply_by_own(config, readings: Readings, *, label: str) -> list[CitedAnswer]:
    answers = own_reader.answer(config.reader.backend, readings)
    return [CitedAnswer(text, "", (), (), "") for text in answers]


def answer_sets(
    reply: Callable[..., list[CitedAnswer]],
    sets: Sequence[EvidenceSet],
    *,
    chunks: Mapping[str, Chunk],
    cites: bool,
    label: str,
) -> list[dict]:
    """What a reader answers from each set: the answer, chunks that it cites, scores.

    Equal sets of a question are read once.

    Args:
        reply: `reply(readings, label=label)` gives a reply to each of the `Readings`.
        chunks: id -> chunk.
        cites: whether replies cite; else they rest on the chunks that contain the answer.
    """
    keys = [(pooled.id, tuple(ids)) for pooled, ids in sets]
    distinct = dict(zip(keys, sets, strict=True))
    readings = [
        (pooled.question.question, [chunks[x].passage for x in ids])
        for pooled, ids in distinct.values()
    ]
    rows = {}
    for (key, (pooled, ids)), said in zip(
        distinct.items(), reply(readings, label=label), strict=True
    ):
        references = usable_references(pooled.question.answers)
        shown = [chunks[x] for x in ids]
        rows[key] = {
            "answer": said.answer,
            "cited": [ids[i - 1] for i in said.citations] if cites else holders(said.answer, shown),
            "answer_f1": f1(said.answer, references),
            "exact_match": exact_match(said.answer, references),
        }
    return [rows[key] for key in keys]


def holders(answer: str, chunks: Sequence[Chunk]) -> list[str]:
    """The ids of the chunks that contain an answer: what a reply without citations rests on."""
    from ark_jax.data.evidence import answer_chunks

    return next(iter(answer_chunks([answer], chunks)), [])
