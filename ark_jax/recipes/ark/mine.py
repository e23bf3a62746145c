"""The mine stages: hard negatives for a training stage, and how hard they are."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ark_jax.data.records import Question
from ark_jax.pipeline import own_functions
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_rows, save_rows
from ark_jax.recipes.ark import own_parts
from ark_jax.recipes.ark.curriculum import MINING_SIZES, miner_of
from ark_jax.recipes.ark.score import load_next_best, load_positives
from ark_jax.recipes.common.corpus import (
    Passages,
    candidate_chunks,
    candidate_ids,
    chunks_by_document,
    load_questions,
    searches_corpus,
)
from ark_jax.recipes.common.corpus_vectors import encode_passages
from ark_jax.recipes.common.models import encode
from ark_jax.runtime import distributed
from ark_jax.text.token_vectors import Vectors

Mined = dict[str, list[tuple[str, float]]]  # question -> (chunk, cosine to what mined it)


def mine(context: Context, folder: Path, *, stage: int) -> dict:
    """Stores hard negatives for one training stage.

    The model of the stage before finds them, or the base model for the first.

    The difficulty of a negative is the gap between its cosine to the question and that of the most
    similar positive.
    """
    from ark_jax.retrieval.late import similarity

    chunks, system = chunks_by_document(context), miner_of(context.config, stage)
    positives = load_positives(context)
    questions = [q for q in load_questions(context, "train") if q.id in positives]
    corpus, texts = searches_corpus(context), Passages(chunks)
    chunk_ids = list(texts) if corpus else candidate_ids(questions, chunks)
    positions = {chunk_id: i for i, chunk_id in enumerate(chunk_ids)}
    lookup = texts.lookup(chunk_ids)
    vectors, _ = encode_passages(context, system, lookup, "embed chunks")
    asked = [question.question for question in questions]
    encoded = encode(context, system, asked, "query", "embed questions")
    rows = {question.id: encoded[[i]] for i, question in enumerate(questions)}
    everything = range(len(chunk_ids))
    own_chunks = lambda q: [positions[chunk.id] for chunk in candidate_chunks(q, chunks)]
    pools = {q.id: everything if corpus else own_chunks(q) for q in questions}
    mined = _search(context, system, stage, questions, rows, pools, vectors, chunk_ids, lookup)
    cosines = {}
    for question in questions:
        found_ids = [chunk for chunk, _ in mined[question.id]]
        cosines[question.id] = {
            chunk: similarity(rows[question.id][0], vectors[positions[chunk]])
            for chunk in (*positives[question.id], *found_ids)
        }
    choose = lambda: _choose(context, folder, questions, positives, mined, cosines, texts)
    return {"model": system} | distributed.on_first_process(choose)


def _search(
    context: Context,
    system: str,
    stage: int,
    questions: list[Question],
    rows: Mapping[str, Vectors],
    pools: Mapping[str, Sequence[int]],
    vectors: Vectors,
    chunk_ids: list[str],
    texts: Sequence[str],
) -> Mined:
    """What `mine.by` finds for each question: by vectors, words, chance or a user's function.

    Args:
        rows: question -> its vector, as an array of one row or the `TokenVectors` of one text.
    """
    from ark_jax.retrieval import mining
    from ark_jax.retrieval.late import similarity

    settings = context.config.mine
    if settings.by == "rewritten":
        rewritten = _encode_rewritten(context, system, stage, set(rows))
        return mining.dense_candidates(rewritten, pools, vectors, chunk_ids, top=settings.top)
    if settings.by == "question":
        return mining.dense_candidates(rows, pools, vectors, chunk_ids, top=settings.top)
    queries = {question: row[0] for question, row in rows.items()}
    words = {question.id: question.question for question in questions}
    if own_functions.is_own(settings.by):
        task = mining.MiningTask(words, pools, texts, queries, vectors, settings.top)
        ranked = distributed.on_first_process(lambda: own_parts.mine(context.config, task))
    else:
        ranked = mining.baseline_candidates(settings.by, words, pools, texts, top=settings.top)
    return {
        question: [(chunk_ids[i], similarity(query, vectors[i])) for i in ranked[question]]
        for question, query in queries.items()
    }


def _encode_rewritten(
    context: Context, system: str, stage: int, question_ids: set[str]
) -> dict[str, Vectors]:
    """question -> vectors `[r e]`, or those of tokens, of its rewritten versions for a stage."""
    rows = [
        row
        for row in load_rows(context / "rewrite" / "rewritten.parquet")
        if row["size"] in MINING_SIZES[stage] and row["question"] in question_ids
    ]
    texts = [row["text"] for row in rows]
    vectors = encode(context, system, texts, "query", "embed rewritten questions")
    positions: dict[str, list[int]] = {}
    for i, row in enumerate(rows):
        positions.setdefault(row["question"], []).append(i)
    return {question: vectors[rows] for question, rows in positions.items()}


def _choose(
    context: Context,
    folder: Path,
    questions: list[Question],
    positives: dict[str, list[str]],
    mined: Mined,
    cosines: dict[str, dict[str, float]],
    texts: Passages,
) -> dict:
    """Stores the negatives among the mined chunks, and the positives, each with its cosine."""
    from ark_jax.retrieval import mining

    settings = context.config.mine
    known = sorted({chunk for by_chunk in cosines.values() for chunk in by_chunk})
    first_copy = mining.first_copies({chunk: texts[chunk] for chunk in known})
    spared = load_next_best(context, settings.spare)
    negative_rows, positive_rows, gaps = [], [], []
    dropped, without, holding = Counter(), 0, 0
    for question in questions:
        cosine = cosines[question.id]
        holds = lambda chunk, question=question: mining.contains_answer(
            texts[chunk], question.answers
        )
        negatives, dropped_here = mining.choose_negatives(
            mined[question.id],
            positives[question.id],
            cosine=cosine,
            first_copy=first_copy,
            margin=settings.margin,
            spared=spared.get(question.id, ()),
            keep=settings.negatives,
        )
        row = lambda chunk, question=question, cosine=cosine, **more: {
            "question": question.id,
            "chunk": chunk,
            **more,
            "cosine": cosine[chunk],
        }
        negative_rows += [row(chunk, mined_by=score) for chunk, score in negatives]
        positive_rows += [row(chunk) for chunk in positives[question.id]]
        nearest = max(cosine[chunk] for chunk in positives[question.id])
        gaps.append([nearest - cosine[chunk] for chunk, _ in negatives])
        dropped.update(dropped_here)
        without += not negatives
        holding += sum(holds(chunk) for chunk, _ in negatives)
    save_rows(negative_rows, folder / "negatives.parquet")
    save_rows(positive_rows, folder / "positives.parquet")
    return {
        "negatives": len(negative_rows),
        "questions_without": without,
        "holding_the_answer": holding,
        "dropped": dict(dropped),
        **_difficulty([gap for gap in gaps if gap]),
    }


def _difficulty(gaps: list[list[float]]) -> dict:
    """How hard the negatives are, over the questions that have any.

    The gap from the most similar positive to the hardest negative, and the share of all negatives
    that are more similar than that positive.
    """
    if not gaps:
        return {}
    hardest = [min(question_gaps) for question_gaps in gaps]
    quantiles = {f"p{p}": round(float(np.percentile(hardest, p)), 4) for p in (10, 50, 90)}
    above = [gap < 0 for question_gaps in gaps for gap in question_gaps]
    return {
        "mean_gap_to_hardest": round(float(np.mean(hardest)), 4),
        "gap_to_hardest": quantiles,
        "share_above_the_positive": round(float(np.mean(above)), 4),
    }
