"""The candidates stage: which chunks may answer each training question."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from ark_jax.data.records import Chunk, Question
from ark_jax.data.stored_strings import LookedUp, RowsByText
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import read_table, save_stream
from ark_jax.recipes.common.corpus import (
    SearchedChunks,
    candidate_chunks,
    load_questions,
    searched_in_training,
    searches_corpus,
    stored_chunks,
)
from ark_jax.recipes.common.corpus_vectors import encode_passages
from ark_jax.recipes.common.models import encode
from ark_jax.retrieval.bm25_index import count_bm25
from ark_jax.retrieval.searcher import Fused, Known, OnFirstProcess, nearest_texts
from ark_jax.text.token_vectors import Vectors

SCHEMA = pa.schema([("question", pa.string()), ("chunk", pa.string()), ("cosine", pa.float64())])
Pools = dict[str, np.ndarray]  # question -> positions of chunks among those searched, int32


def find_candidates(context: Context, folder: Path) -> dict:
    """Stores the candidates of every training question with their cosines, nearest first.

    They are the chunks of its documents. If the whole corpus is searched, they are the chunks that
    the base retriever finds by the question, and BM25 by the question with and without its answers,
    fused by reciprocal rank; the first chunks of its documents are among them.
    """
    chunks, questions = stored_chunks(context), load_questions(context, "train")
    whole = searches_corpus(context)
    searched = searched_in_training(questions, chunks, whole=whole)
    vectors, cut = encode_passages(context, "base", searched.texts, "embed chunks")
    texts = [question.question for question in questions]
    queries = encode(context, "base", texts, "query", "embed questions")
    groups = chunks.by_document
    if whole:
        pools = _search(questions, groups, searched, (queries, vectors), context.config.data)
    else:
        pools = {question.id: _own_chunks(question, groups, searched) for question in questions}
    rows = _rows(questions, pools, searched.ids, queries, vectors)
    count = save_stream(rows, folder / "candidates.parquet", SCHEMA)
    return {"candidates": count, "cut_by_the_retriever": cut}


def _search(
    questions: Sequence[Question],
    chunks: Mapping[str, list[Chunk]],
    searched: SearchedChunks,
    vectors: tuple[Vectors, Vectors],
    settings,
) -> Pools:
    """question -> the best chunks of the whole corpus.

    Args:
        vectors: of the questions `[q e]` and of the chunks `[n e]`, or their `TokenVectors`.
    """
    count = settings.candidates
    texts = [question.question for question in questions]
    answered = [" ".join((question.question, *question.answers)) for question in questions]
    by_words = OnFirstProcess(lambda: count_bm25(searched.texts)).search([*texts, *answered], count)
    parts = (nearest_texts(*vectors, count), by_words[: len(texts)], by_words[len(texts) :])
    found = Fused(list(map(Known, parts)), count).search(texts, count)
    pools = {}
    for question, ranking in zip(questions, found, strict=True):
        named = _own_chunks(question, chunks, searched)[: count // 2].tolist()
        pool = list(dict.fromkeys([*named, *ranking.ids]))[:count]
        pools[question.id] = np.array(pool, np.int32)
    return pools


def _own_chunks(
    question: Question, chunks: Mapping[str, list[Chunk]], searched: SearchedChunks
) -> np.ndarray:
    """The positions of the chunks of the question's documents, int32."""
    own = candidate_chunks(question, chunks)
    return np.array([searched.position(chunk.id) for chunk in own], np.int32)


def _rows(
    questions: Sequence[Question],
    pools: Pools,
    chunk_ids: Sequence[str],
    queries: Vectors,
    vectors: Vectors,
) -> Iterator[dict]:
    from ark_jax.retrieval.late import similarities

    for question, query in zip(questions, queries, strict=True):
        pool = pools[question.id]
        values = similarities(query, vectors[pool]).tolist()
        ids = [chunk_ids[position] for position in pool.tolist()]
        # Cosines are rounded to what is equal in all batches: ties must not depend on the order.
        cosines = [(chunk, round(value, 5)) for chunk, value in zip(ids, values, strict=True)]
        cosines.sort(key=lambda pair: (-pair[1], pair[0]))
        for chunk, cosine in cosines:
            yield {"question": question.id, "chunk": chunk, "cosine": cosine}


def distinct_candidates(context: Context) -> set[str]:
    """The candidates of all training questions."""
    table = read_table(context / "candidates" / "candidates.parquet", columns=["chunk"])
    return set(table["chunk"].unique().to_pylist())


class StoredCandidates(LookedUp[list[tuple[str, float]]]):
    """question -> its candidates and their cosines under the base retriever, nearest first.

    Args:
        table: a row for each of them, those of a question in this order.
    """

    def __init__(self, table: pa.Table):
        self._chunks, self._cosines = table["chunk"], table["cosine"]
        self._rows = RowsByText(table["question"])
        super().__init__(self._rows, self._of)

    def _of(self, question: str) -> list[tuple[str, float]]:
        rows = map(int, self._rows[question])
        return [(self._chunks[row].as_py(), self._cosines[row].as_py()) for row in rows]


def load_candidates(context: Context) -> StoredCandidates:
    """What the candidates stage stored."""
    table = read_table(context / "candidates" / "candidates.parquet")
    return StoredCandidates(table if len(table) else SCHEMA.empty_table())
