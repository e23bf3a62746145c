"""What each system retrieves for the held-out questions, and what the reader is given of it."""

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from ark_jax.data.records import Chunk, Question
from ark_jax.evaluate.reading import ReadingPrompt
from ark_jax.pipeline.parts import stored_rows
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_rows
from ark_jax.recipes.common.corpus import (
    candidate_chunks,
    chunks_by_document,
    load_documents,
    load_questions,
    searches_corpus,
)
from ark_jax.recipes.common.corpus_vectors import encode_passages
from ark_jax.recipes.common.models import encode, load_generator, load_reranker, reader_path
from ark_jax.recipes.common.systems import Systems
from ark_jax.retrieval.bm25 import bm25
from ark_jax.retrieval.fusion import fuse
from ark_jax.runtime import distributed
from ark_jax.runtime.log import say

RETRIEVAL_SETTINGS = tuple(
    f"evaluate.{name}" for name in ("scope", "baselines", "retrievers", "metrics", "passages")
)
Rankings = dict[str, list[str]]  # question -> chunk ids, best first


def retrieve_baselines(context: Context, folder: Path, *, systems: Systems) -> dict:
    """The baselines stage: what systems that no training changes retrieve for each question."""
    questions, chunks = load_questions(context, "held_out"), chunks_by_document(context)
    _retrieve(context, systems, systems.untuned, questions, chunks, folder)
    return {"systems": len(systems.untuned)}


def retrieve_all(
    context: Context,
    systems: Systems,
    questions: list[Question],
    chunks: dict[str, list[Chunk]],
    folder: Path,
) -> dict[str, Rankings]:
    """system -> question -> the ids of its first `systems.depth` chunks; "full" has none."""
    rankings = {"full": {question.id: [] for question in questions}}
    for name in systems.untuned:
        rankings[name] = _as_rankings(load_rows(_file(context / "baselines", name)))
    rankings |= _retrieve(context, systems, systems.tuned, questions, chunks, folder)
    for name, names in systems.hybrids.items():
        parts = [rankings[part] for part in names]
        rankings[name] = {
            question.id: fuse([part[question.id] for part in parts], systems.depth)
            for question in questions
        }
    for name, part in systems.reranked.items():
        rows = functools.partial(
            _rerank, context, systems.reranker, questions, chunks, rankings[part]
        )
        rankings[name] = _stored(_file(folder, name), rows)
    return {name: rankings[name] for name in systems.names}


def _retrieve(
    context: Context,
    systems: Systems,
    names: Sequence[str],
    questions: list[Question],
    chunks: dict[str, list[Chunk]],
    folder: Path,
) -> dict[str, Rankings]:
    """The rankings of `names`. Each is stored in `folder`, so that a killed run goes on."""
    searched, scopes = searched_chunks(context, questions, chunks)

    def rows(name: str) -> list[dict]:
        search = _search_words if name == "bm25" else _search_vectors
        matches = search(context, name, questions, searched, scopes, systems.depth)
        return [
            {"question": question.id, "ranked": [searched[i].id for i in best]}
            for question, best in zip(questions, matches, strict=True)
        ]

    return {name: _stored(_file(folder, name), lambda name=name: rows(name)) for name in names}


def _rerank(
    context: Context,
    stage: str,
    questions: list[Question],
    chunks: dict[str, list[Chunk]],
    rankings: Rankings,
) -> list[dict]:
    """The same chunks in the order of the reranker's scores; equal ones keep theirs."""
    passages = {chunk.id: chunk.passage for group in chunks.values() for chunk in group}
    pairs = [(x.question, passages[chunk]) for x in questions for chunk in rankings[x.id]]
    scores = iter(load_reranker(context, stage).score(pairs, label="rerank").tolist())
    rows = []
    for question in questions:
        scored = [(-next(scores), place, x) for place, x in enumerate(rankings[question.id])]
        rows.append({"question": question.id, "ranked": [chunk for _, _, chunk in sorted(scored)]})
    return rows


def searched_chunks(
    context: Context, questions: list[Question], chunks: dict[str, list[Chunk]]
) -> tuple[list[Chunk], list[Sequence[int]]]:
    """The chunks that any question searches, and for each question its own among them."""
    scope = context.config.evaluate.scope
    if scope == "auto":
        scope = "corpus" if searches_corpus(context) else "document"
    return chunks_in_scope(scope, questions, chunks)


def chunks_in_scope(
    scope: str, questions: Sequence[Question], chunks: Mapping[str, list[Chunk]]
) -> tuple[list[Chunk], list[Sequence[int]]]:
    """As `searched_chunks`.

    Args:
        scope: as `evaluate.scope`, but for "auto".
        chunks: document id -> its chunks.
    """
    named = {document for question in questions for document in question.documents}
    documents = chunks.keys() if scope == "corpus" else chunks.keys() & named
    searched = [x for document, group in chunks.items() if document in documents for x in group]
    everything = range(len(searched))
    if scope != "document":
        return searched, [everything] * len(questions)
    positions = {chunk.id: i for i, chunk in enumerate(searched)}
    return searched, [
        tuple(positions[chunk.id] for chunk in candidate_chunks(question, chunks))
        if question.documents
        else everything
        for question in questions
    ]


def _stored(path: Path, make_rows: Callable[[], list[dict]]) -> Rankings:
    return _as_rankings(stored_rows(path, make_rows))


def _file(folder: Path, name: str) -> Path:
    return folder / f"ranked-{name}.parquet"


def _as_rankings(rows: list[dict]) -> Rankings:
    return {row["question"]: row["ranked"] for row in rows}


def _search_words(
    context: Context,
    name: str,
    questions: list[Question],
    chunks: list[Chunk],
    scopes: list[Sequence[int]],
    depth: int,
) -> list[list[int]]:
    queries = [question.question for question in questions]
    return distributed.on_first_process(
        lambda: bm25(queries, [x.passage for x in chunks], scopes, depth)
    )


def _search_vectors(
    context: Context,
    name: str,
    questions: list[Question],
    chunks: list[Chunk],
    scopes: list[Sequence[int]],
    depth: int,
) -> list[list[int]]:
    texts = distributed.LazySequence(operator.attrgetter("passage"), chunks)
    vectors, _ = encode_passages(context, name, texts, f"embed chunks, {name}")
    asked = [question.question for question in questions]
    queries = encode(context, name, asked, "query", f"embed questions, {name}")
    matches, _ = search_scopes(queries, vectors, scopes, depth)
    return matches


def search_scopes(
    queries: np.ndarray, vectors: np.ndarray, scopes: Sequence[Sequence[int]], depth: int
) -> tuple[list[list[int]], list[list[float]]]:
    """The nearest vectors of each query among those of its scope, and their cosines, best first.

    Args:
        queries: unit vectors `[q e]`.
        vectors: unit vectors `[n e]`.
        scopes: numbers of vectors, for each query.
    """
    from ark_jax.retrieval.dense import top_k

    queries_by_scope: dict[Sequence[int], list[int]] = {}
    for i, scope in enumerate(scopes):
        queries_by_scope.setdefault(scope, []).append(i)
    matches: list[list[int]] = [[]] * len(queries)
    cosines: list[list[float]] = [[]] * len(queries)
    for scope, rows in queries_by_scope.items():
        keys = vectors if len(scope) == len(vectors) else vectors[list(scope)]
        best, scores = top_k(queries[rows], keys, depth)
        for i, indices, values in zip(rows, best, scores.tolist(), strict=True):
            matches[i], cosines[i] = [scope[j] for j in indices], values
    return matches, cosines


def passages_for_reader(
    context: Context,
    rankings: dict[str, Rankings],
    questions: list[Question],
    texts: Mapping[str, str],
    form: ReadingPrompt,
) -> tuple[dict[tuple[str, str], str], int]:
    """(system, question) -> the passages that the reader is given, cut at their end to fit it.

    For "full" they are the whole documents.

    Args:
        form: how the reader is asked.

    Returns:
        the passages, joined as the prompt shows them, and for how many questions some were cut.
    """
    config = context.config
    documents = {x.id: x.text for x in load_documents(context)} if "full" in rankings else {}

    def passages(system: str, question: Question) -> str:
        if system == "full":
            return form.join([documents[document] for document in question.documents])
        ranked = rankings[system][question.id]
        return form.join([texts[chunk_id] for chunk_id in ranked[: config.evaluate.passages]])

    given = {
        (name, question.id): passages(name, question) for name in rankings for question in questions
    }
    # A reader behind an endpoint says itself if a text is too long.
    if not given or config.reader.backend != "local":
        return given, 0
    lm = load_generator(context, reader_path(context))
    asked = {question.id: question.question for question in questions}
    cut = set()
    for (name, question), whole in given.items():
        fitting = fit_to_reader(lm, form, asked[question], whole, config.evaluate.max_new_tokens)
        if fitting != whole:
            given[name, question] = fitting
            cut.add(question)
    if cut:
        say(
            f"  read answers: what is read for {len(cut):,} of {len(questions):,} questions does "
            "not fit the reader and is cut"
        )
    return given, len(cut)


def fit_to_reader(lm, form: ReadingPrompt, question: str, text: str, max_new_tokens: int) -> str:
    """As much of the text, from its start, as fits the reader beside its prompt and the answer.

    Raises:
        ValueError: the prompt leaves no room for a text.
    """
    from ark_jax.text.tokens import token_chunks

    def excess() -> int:
        prompt = form.for_model(lm, form.fill(question, text))
        return len(lm.prompt_ids([prompt])[0]) + max_new_tokens - lm.max_length + 1

    if excess() <= 0:
        return text
    size = sum(span.tokens for span in token_chunks(text, lm.tokenizer, size=1 << 30, overlap=0))
    while (over := excess()) > 0:
        size -= over  # more than once if the rest is tokenised into more tokens
        if size < 1:
            raise ValueError(
                f"question {question[:60]!r}: with it, the prompt and {max_new_tokens} new tokens "
                f"leave no room in the {lm.max_length} that the reader takes; shorten the prompt "
                "or set max_new_tokens lower"
            )
        text = text[: token_chunks(text, lm.tokenizer, size=size, overlap=0)[0].end]
    return text
