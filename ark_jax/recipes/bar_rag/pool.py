"""The pool stage: the chunks that the evidence of each question is chosen from."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ark_jax.data.chunk_files import StoredChunks
from ark_jax.data.records import Question
from ark_jax.evaluate.answers import normalise
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_json, load_rows, read_array, save_json, save_rows
from ark_jax.recipes.common.corpus import gold_passages, load_questions, passages_of, stored_chunks
from ark_jax.recipes.common.corpus_vectors import encode_passages
from ark_jax.recipes.common.models import encode
from ark_jax.recipes.common.reader_training import PooledQuestion
from ark_jax.recipes.common.retrieve import searched_chunks
from ark_jax.retrieval.searcher import nearest_texts
from ark_jax.runtime.distributed import is_first_process
from ark_jax.runtime.log import say

if TYPE_CHECKING:  # its module starts jax
    from ark_jax.select.pools import Pool

PARTS = ("train", "held_out")
FILE, GOLD, VECTORS = "pool.parquet", "gold.json", "vectors.json"


def find_pools(context: Context, folder: Path) -> dict:
    """Stores the nearest chunks of every question, and the vectors of chunks and questions.

    A question whose reference answers have no word beside articles and punctuation has no pool,
    since no answer to it can be right.

    Raises:
        ValueError: no training question has a pool.
    """
    chunks, rows, gold = stored_chunks(context), [], {}
    vectors: dict[str, dict[str, np.ndarray]] = {"questions": {}, "chunks": {}}
    counts = {"questions_without_usable_answer": 0}
    for part in PARTS:
        questions = load_questions(context, part)
        usable = [question for question in questions if _is_usable(question)]
        counts["questions_without_usable_answer"] += len(questions) - len(usable)
        gold |= gold_passages(context, usable, chunks.by_document)[0]
        rows += _search(context, usable, chunks, gold, vectors, part)
    if not any(row["part"] == "train" for row in rows):
        raise ValueError(
            f"{context.config.data.path}: no training question has a reference answer with a word "
            "and a chunk to read; add answers, or documents that hold them"
        )
    if counts["questions_without_usable_answer"]:
        say(
            f"  {counts['questions_without_usable_answer']:,} questions have no reference answer "
            "with a word beside articles and punctuation: they are left out"
        )
    save_rows(rows, folder / FILE)
    save_json(gold, folder / GOLD)
    save_json({name: list(values) for name, values in vectors.items()}, folder / VECTORS)
    if is_first_process():
        for name, values in vectors.items():
            np.save(folder / f"{name}.npy", np.stack(list(values.values())), allow_pickle=False)
    pools = {row["question_id"]: False for row in rows}
    pools |= {row["question_id"]: True for row in rows if row["gold"]}
    return {
        "questions": len(pools),
        "candidates": len(rows),
        "share_of_pools_with_gold": round(sum(pools.values()) / len(pools), 4),
        **{name: count for name, count in counts.items() if count},
    }


def _is_usable(question: Question) -> bool:
    """Whether a reference answer has a word beside articles and punctuation."""
    return any(map(normalise, question.answers))


def _search(
    context: Context,
    questions: list[Question],
    chunks: StoredChunks,
    gold: Mapping[str, list[list[str]]],
    vectors: dict[str, dict[str, np.ndarray]],
    part: str,
) -> list[dict]:
    """The pools of a part's questions; adds what they hold to `vectors`."""
    searched, scopes = searched_chunks(context, questions, chunks)
    if not questions or not searched:
        return []
    keys, _ = encode_passages(context, "base", passages_of(searched), f"embed chunks, {part}")
    texts = [question.question for question in questions]
    queries = encode(context, "base", texts, "query", f"embed questions, {part}")
    found = nearest_texts(queries, keys, context.config.pool.size, scopes)
    rows = []
    for question, query, ranking in zip(questions, queries, found, strict=True):
        vectors["questions"][question.id] = query
        vectors["chunks"] |= {searched[place].id: np.asarray(keys[place]) for place in ranking.ids}
        needed = {chunk for holders in gold[question.id] for chunk in holders}
        rows += [
            {
                "question_id": question.id,
                "part": part,
                "chunk_id": searched[place].id,
                "rank": rank,
                "cosine": cosine,
                "gold": searched[place].id in needed,
            }
            for rank, (place, cosine) in enumerate(ranking.pairs())
        ]
    return rows


def load_pools(context: Context, part: str) -> list[PooledQuestion]:
    """The questions of "train" or "held_out" that have a pool."""
    rows: dict[str, list[dict]] = {}
    for row in load_rows(context / "pool" / FILE):
        rows.setdefault(row["question_id"], []).append(row)
    gold = load_json(context / "pool" / GOLD)
    return [
        PooledQuestion(
            number,
            question,
            tuple(row["chunk_id"] for row in rows[question.id]),
            tuple(row["cosine"] for row in rows[question.id]),
            tuple(map(tuple, gold[question.id])),
        )
        for number, question in enumerate(load_questions(context, part))
        if question.id in rows
    ]


class PoolVectors:
    """The retriever's vectors of pooled questions and chunks, as a selector takes them."""

    def __init__(self, context: Context):
        folder = context / "pool"
        ids = load_json(folder / VECTORS)
        self._places = {name: {id: i for i, id in enumerate(ids[name])} for name in ids}
        self._vectors = {name: read_array(folder / f"{name}.npy") for name in ids}

    @property
    def width(self) -> int:
        """Components of a vector."""
        return self._vectors["questions"].shape[1]

    def pools(self, questions: Sequence[PooledQuestion]) -> "list[Pool]":
        """For each question, its vector and those of its chunks."""
        from ark_jax.select.pools import Pool

        return [
            Pool(
                pooled.number,
                self._take("questions", [pooled.id])[0],
                self._take("chunks", pooled.chunk_ids),
            )
            for pooled in questions
        ]

    def _take(self, name: str, ids: Sequence[str]) -> np.ndarray:
        places = self._places[name]
        return self._vectors[name][[places[id] for id in ids]]
