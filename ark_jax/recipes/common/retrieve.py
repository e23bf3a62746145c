"""What each system retrieves for the held-out questions."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ark_jax.data.chunk_files import StoredChunks
from ark_jax.data.records import Chunk, Question
from ark_jax.pipeline.parts import stored_rows
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_rows
from ark_jax.recipes.common import hyde
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
from ark_jax.recipes.common.systems import HYDE, WORDS, Systems
from ark_jax.retrieval.bm25_index import count_bm25
from ark_jax.retrieval.fusion import Fusion
from ark_jax.retrieval.searcher import (
    Dense,
    Fused,
    Known,
    OnFirstProcess,
    Ranking,
    Reranked,
    Scopes,
    Searcher,
)

Rankings = dict[str, list[str]]  # question -> chunk ids, best first


def retrieve_baselines(context: Context, folder: Path) -> dict:
    """The baselines stage: what systems that no training changes retrieve for each question."""
    questions, chunks = load_questions(context, "held_out"), stored_chunks(context)
    systems = Systems(context.config.evaluate, expand=context.config.search.expand)
    searched, scopes = searched_chunks(context, questions, chunks)

    def make(name: str) -> Searcher:
        base = "base" if name == HYDE else name
        searcher = searcher_of(context, base, passages_of(searched), name)
        if name == HYDE:
            searcher = dataclasses.replace(searcher, embed=hyde.embedding(context, questions))
        return searcher

    for name in systems.untuned:
        path, of_system = ranked_file(folder, name), functools.partial(make, name)
        kept(path, questions, of_system, systems.depth, scopes, searched)
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
    fusion, depth = fusion or Fusion(), systems.depth
    load = lambda name: load_kept(ranked_file(context / "baselines", name), questions)
    searchers: dict[str, Searcher] = {name: load(name) for name in systems.untuned}
    searched, scopes = searched_chunks(context, questions, chunks)
    for name in systems.tuned:
        make = functools.partial(dense_searcher, context, name, passages_of(searched), name)
        searchers[name] = kept(ranked_file(folder, name), questions, make, depth, scopes, searched)
    searchers["full"] = Known([Ranking((), ())] * len(questions))
    for name, names in systems.hybrids.items():
        searchers[name] = Fused([searchers[part] for part in names], depth)
    if name := systems.shipped_hybrid:
        parts = (searchers[WORDS], searchers[systems.last])
        searchers[name] = Fused(parts, depth, fusion.join)
    for name, part in systems.reranked.items():
        score = lambda pairs: load_reranker(context, systems.reranker).score(pairs, label="rerank")
        make = functools.partial(Reranked, searchers[part], Passages(chunks), score)
        searchers[name] = kept(ranked_file(folder, name), questions, make, depth)
    return ids_found(searchers, systems.names, questions, depth)


def searcher_of(context: Context, system: str, texts: Sequence[str], label: str) -> Searcher:
    """BM25, or a retriever by the name of its system, over texts; every process must search."""
    if system == WORDS:
        return OnFirstProcess(lambda: count_bm25(texts))
    return dense_searcher(context, system, texts, label)


def dense_searcher(context: Context, system: str, texts: Sequence[str], label: str) -> Dense:
    """A retriever by the name of its system, over texts; every process must search."""
    vectors, _ = encode_passages(context, system, texts, f"embed chunks, {label}")
    embed = lambda asked: encode(context, system, asked, "query", f"embed questions, {label}")
    return Dense(vectors, embed)


def kept(
    path: Path,
    questions: Sequence,
    make: Callable[[], Searcher],
    k: int,
    scopes: Scopes = None,
    chunks: Sequence[Chunk] | None = None,
) -> Known:
    """What a searcher finds for questions: stored in a file, and read where that is whole.

    Every process must call this.

    Args:
        chunks: that the searcher finds by their positions: ids are stored, and scores. None: what
            it finds is stored as it is, without scores, as fusions by ranks need none.
    """

    def rows() -> list[dict]:
        found = make().search([question.question for question in questions], k, scopes)
        rows = []
        for question, pairs in zip(questions, map(Ranking.pairs, found), strict=True):
            ids, scores = [id for id, _ in pairs], [score for _, score in pairs]
            row = {"ranked": ids}
            if chunks is not None:
                row = {"ranked": [chunks[i].id for i in ids], "scores": scores}
            rows.append({"question": question.id, **row})
        return rows

    return _known(stored_rows(path, rows), questions)


def load_kept(path: Path, questions: Sequence) -> Known:
    """What `kept` has stored."""
    return _known(load_rows(path), questions)


def _known(rows: Sequence[dict], questions: Sequence) -> Known:
    by_id = {row["question"]: row for row in rows}
    found = [by_id[question.id] for question in questions]
    scores = lambda row: row.get("scores", [0.0] * len(row["ranked"]))
    return Known([Ranking(row["ranked"], scores(row)) for row in found])


def ids_found(
    searchers: Mapping[str, Searcher], names: Sequence[str], questions: Sequence, k: int
) -> dict[str, dict]:
    """system -> question -> the ids of the first k that its searcher finds."""
    texts = [question.question for question in questions]
    pairs = lambda name: zip(questions, searchers[name].search(texts, k), strict=True)
    return {name: {x.id: list(ranking.ids) for x, ranking in pairs(name)} for name in names}


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


def ranked_file(folder: Path, name: str) -> Path:
    """Where what a system finds is stored."""
    return folder / f"ranked-{name}.parquet"
