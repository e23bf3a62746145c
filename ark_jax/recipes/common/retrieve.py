"""What each system retrieves for the held-out questions."""

import functools
from collections.abc import Sequence
from pathlib import Path

from ark_jax.data.chunk_files import StoredChunks
from ark_jax.data.records import Chunk, Question
from ark_jax.pipeline.parts import stored_rows
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_rows
from ark_jax.recipes.common.corpus import (
    Passages,
    candidate_chunks,
    load_questions,
    passages_of,
    searches_corpus,
    stored_chunks,
    views_of,
)
from ark_jax.recipes.common.corpus_vectors import encode_passages
from ark_jax.recipes.common.models import encode, load_reranker
from ark_jax.recipes.common.systems import WORDS, Systems
from ark_jax.retrieval.bm25 import scored_bm25
from ark_jax.retrieval.fusion import Fusion, Ranking, fuse
from ark_jax.runtime import distributed
from ark_jax.text.token_vectors import Vectors

Rankings = dict[str, list[str]]  # question -> chunk ids, best first


def retrieve_baselines(context: Context, folder: Path) -> dict:
    """The baselines stage: what systems that no training changes retrieve for each question."""
    questions, chunks = load_questions(context, "held_out"), stored_chunks(context)
    systems = Systems(context.config.evaluate)
    _retrieve(context, systems, systems.untuned, questions, chunks, folder)
    return {"systems": len(systems.untuned)}


def retrieve_all(
    context: Context,
    systems: Systems,
    questions: list[Question],
    chunks: StoredChunks,
    folder: Path,
    fusion: Fusion | None = None,
) -> dict[str, Rankings]:
    """system -> question -> the ids of its first `systems.depth` chunks; "full" has none.

    Args:
        fusion: of BM25 and the last tuned retriever; None: reciprocal ranks, as all hybrids.
    """
    fusion = fusion or Fusion()
    rankings = {"full": {question.id: [] for question in questions}}
    scored = {name: load_rows(_file(context / "baselines", name)) for name in systems.untuned}
    scored |= _retrieve(context, systems, systems.tuned, questions, chunks, folder)
    rankings |= {name: _as_rankings(rows) for name, rows in scored.items()}
    for name, names in systems.hybrids.items():
        if name == systems.shipped_hybrid:
            words, vectors = (_as_scored(scored[part]) for part in (WORDS, systems.last))
            fused = {id: fusion.join(ranking, vectors[id]) for id, ranking in words.items()}
            rankings[name] = {
                id: [chunk for chunk, _ in ranking[: systems.depth]]
                for id, ranking in fused.items()
            }
        else:
            parts = [rankings[part] for part in names]
            rankings[name] = {
                question.id: fuse([part[question.id] for part in parts], systems.depth)
                for question in questions
            }
    for name, part in systems.reranked.items():
        rows = functools.partial(
            _rerank, context, systems.reranker, questions, chunks, rankings[part]
        )
        rankings[name] = _as_rankings(stored_rows(_file(folder, name), rows))
    return {name: rankings[name] for name in systems.names}


def _retrieve(
    context: Context,
    systems: Systems,
    names: Sequence[str],
    questions: list[Question],
    chunks: StoredChunks,
    folder: Path,
) -> dict[str, list[dict]]:
    """The rows of `names`. Each is stored in `folder`, so that a killed run goes on."""
    searched, scopes = searched_chunks(context, questions, chunks)

    def rows(name: str) -> list[dict]:
        search = _search_words if name == WORDS else _search_vectors
        matches = search(context, name, questions, searched, scopes, systems.depth)
        return [
            {
                "question": question.id,
                "ranked": [searched[i].id for i, _ in ranking],
                "scores": [score for _, score in ranking],
            }
            for question, ranking in zip(questions, matches, strict=True)
        ]

    return {name: stored_rows(_file(folder, name), lambda name=name: rows(name)) for name in names}


def scored_rankings(
    context: Context,
    systems: Systems,
    names: Sequence[str],
    questions: list[Question],
    chunks: StoredChunks,
    folder: Path,
) -> list[dict[str, Ranking]]:
    """For each of `names`: question -> its chunks with their scores, best first."""
    rows = _retrieve(context, systems, names, questions, chunks, folder)
    return [_as_scored(rows[name]) for name in names]


def _rerank(
    context: Context,
    stage: str,
    questions: list[Question],
    chunks: StoredChunks,
    rankings: Rankings,
) -> list[dict]:
    """The same chunks in the order of the reranker's scores; equal ones keep theirs."""
    passages = Passages(chunks)
    pairs = [(x.question, passages[chunk]) for x in questions for chunk in rankings[x.id]]
    scores = iter(load_reranker(context, stage).score(pairs, label="rerank").tolist())
    rows = []
    for question in questions:
        scored = [(-next(scores), place, x) for place, x in enumerate(rankings[question.id])]
        rows.append({"question": question.id, "ranked": [chunk for _, _, chunk in sorted(scored)]})
    return rows


def searched_chunks(
    context: Context, questions: list[Question], chunks: StoredChunks
) -> tuple[Sequence[Chunk], list[Sequence[int]]]:
    """The chunks that any question searches, and for each question its own among them."""
    scope = context.config.evaluate.scope
    if scope == "auto":
        scope = "corpus" if searches_corpus(context) else "document"
    return chunks_in_scope(scope, questions, chunks)


def chunks_in_scope(
    scope: str, questions: Sequence[Question], chunks: StoredChunks
) -> tuple[Sequence[Chunk], list[Sequence[int]]]:
    """As `searched_chunks`.

    Args:
        scope: as `evaluate.scope`, but for "auto".
    """
    searched, groups = views_of(chunks), chunks.by_document
    if scope != "corpus":
        named = {document for question in questions for document in question.documents}
        searched = [x for document in groups if document in named for x in groups[document]]
    everything = range(len(searched))
    if scope != "document":
        return searched, [everything] * len(questions)
    positions = {chunk.id: i for i, chunk in enumerate(searched)}
    return searched, [
        tuple(positions[chunk.id] for chunk in candidate_chunks(question, groups))
        if question.documents
        else everything
        for question in questions
    ]


def _file(folder: Path, name: str) -> Path:
    return folder / f"ranked-{name}.parquet"


def _as_rankings(rows: list[dict]) -> Rankings:
    return {row["question"]: row["ranked"] for row in rows}


def _as_scored(rows: list[dict]) -> dict[str, Ranking]:
    return {row["question"]: list(zip(row["ranked"], row["scores"], strict=True)) for row in rows}


def _search_words(
    context: Context,
    name: str,
    questions: list[Question],
    chunks: Sequence[Chunk],
    scopes: list[Sequence[int]],
    depth: int,
) -> list[Sequence[tuple[int, float]]]:
    queries = [question.question for question in questions]
    return distributed.on_first_process(
        lambda: scored_bm25(queries, passages_of(chunks), scopes, depth)
    )


def _search_vectors(
    context: Context,
    name: str,
    questions: list[Question],
    chunks: Sequence[Chunk],
    scopes: list[Sequence[int]],
    depth: int,
) -> list[Sequence[tuple[int, float]]]:
    vectors, _ = encode_passages(context, name, passages_of(chunks), f"embed chunks, {name}")
    question_texts = [question.question for question in questions]
    queries = encode(context, name, question_texts, "query", f"embed questions, {name}")
    pairs = zip(*search_scopes(queries, vectors, scopes, depth), strict=True)
    return [list(zip(*pair, strict=True)) for pair in pairs]


def search_scopes(
    queries: Vectors, vectors: Vectors, scopes: Sequence[Sequence[int]], depth: int
) -> tuple[list[list[int]], list[list[float]]]:
    """The nearest vectors of each query among those of its scope, and their cosines, best first.

    Args:
        queries: unit vectors `[q e]`, or `TokenVectors`.
        vectors: unit vectors `[n e]`, or `TokenVectors`.
        scopes: numbers of vectors, for each query.
    """
    from ark_jax.retrieval.late import nearest

    queries_by_scope: dict[Sequence[int], list[int]] = {}
    for i, scope in enumerate(scopes):
        queries_by_scope.setdefault(scope, []).append(i)
    matches: list[list[int]] = [[]] * len(queries)
    cosines: list[list[float]] = [[]] * len(queries)
    for scope, rows in queries_by_scope.items():
        keys = vectors if len(scope) == len(vectors) else vectors[list(scope)]
        best, scores = nearest(queries[rows], keys, depth)
        for i, indices, values in zip(rows, best, scores.tolist(), strict=True):
            matches[i], cosines[i] = [scope[j] for j in indices], values
    return matches, cosines
