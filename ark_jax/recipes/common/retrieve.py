"""What each system retrieves for the held-out questions, and what the reader is given of it."""

import functools
import glob
import operator
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ark_jax.data.records import Chunk, Question
from ark_jax.pipeline.parts import store_part, whole_parts
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_rows, save_rows
from ark_jax.recipes.common.corpus import (
    candidate_chunks,
    chunks_by_document,
    load_documents,
    load_questions,
)
from ark_jax.recipes.common.models import encode, load_generator
from ark_jax.recipes.common.systems import Systems
from ark_jax.retrieval.bm25 import bm25
from ark_jax.retrieval.fusion import fuse
from ark_jax.runtime import distributed
from ark_jax.runtime.log import say
from ark_jax.text import prompts

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
        rankings[name] = _load_rankings(_file(context / "baselines", name))
    rankings |= _retrieve(context, systems, systems.tuned, questions, chunks, folder)
    for name in systems.settings.hybrids:
        parts = [rankings[part] for part in name.split("+")]
        rankings[name] = {
            question.id: fuse([part[question.id] for part in parts], systems.depth)
            for question in questions
        }
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
    documents = {document for question in questions for document in question.documents}
    searched = [x for document, group in chunks.items() if document in documents for x in group]
    positions = {chunk.id: i for i, chunk in enumerate(searched)}
    everything = tuple(range(len(searched)))
    corpus = context.config.evaluate.scope == "corpus"
    own_chunks = lambda q: tuple(positions[chunk.id] for chunk in candidate_chunks(q, chunks))
    scopes = [everything if corpus else own_chunks(question) for question in questions]

    def rows(name: str) -> list[dict]:
        search = _search_words if name == "bm25" else _search_vectors
        matches = search(context, name, questions, searched, scopes, systems.depth)
        return [
            {"question": question.id, "ranked": [searched[i].id for i in best]}
            for question, best in zip(questions, matches, strict=True)
        ]

    return {name: _stored(_file(folder, name), lambda name=name: rows(name)) for name in names}


def _stored(path: Path, make_rows: Callable[[], list[dict]]) -> Rankings:
    """The rankings in a file, which is made if it is missing or damaged."""
    is_there = lambda: bool(whole_parts(path.parent, glob.escape(path.name)))
    if not distributed.on_first_process(is_there):
        rows = make_rows()
        distributed.on_first_process(lambda: store_part(path, functools.partial(save_rows, rows)))
    return _load_rankings(path)


def _file(folder: Path, name: str) -> Path:
    return folder / f"ranked-{name}.parquet"


def _load_rankings(path: Path) -> Rankings:
    return {row["question"]: row["ranked"] for row in load_rows(path)}


def _search_words(
    context: Context,
    name: str,
    questions: list[Question],
    chunks: list[Chunk],
    scopes: list[tuple[int, ...]],
    depth: int,
) -> list[list[int]]:
    queries = [question.question for question in questions]
    return distributed.on_first_process(
        lambda: bm25(queries, [x.text for x in chunks], scopes, depth)
    )


def _search_vectors(
    context: Context,
    name: str,
    questions: list[Question],
    chunks: list[Chunk],
    scopes: list[tuple[int, ...]],
    depth: int,
) -> list[list[int]]:
    from ark_jax.retrieval.dense import top_k

    texts = distributed.LazySequence(operator.attrgetter("text"), chunks)
    vectors = encode(context, name, texts, "document", f"embed chunks, {name}")
    asked = [question.question for question in questions]
    queries = encode(context, name, asked, "query", f"embed questions, {name}")
    questions_by_scope: dict[tuple[int, ...], list[int]] = {}
    for i, scope in enumerate(scopes):
        questions_by_scope.setdefault(scope, []).append(i)
    matches: list[list[int]] = [[]] * len(questions)
    for scope, rows in questions_by_scope.items():
        best, _ = top_k(queries[rows], vectors[list(scope)], depth)
        for i, indices in zip(rows, best, strict=True):
            matches[i] = [scope[j] for j in indices]
    return matches


def passages_for_reader(
    context: Context,
    rankings: dict[str, Rankings],
    questions: list[Question],
    texts: Mapping[str, str],
) -> tuple[Callable[[str, Question], list[str]], int]:
    """`passages(system, question)` that the reader is given.

    For "full" these are the whole documents, cut at their end to fit the reader.

    Returns:
        the function, and of how many questions the documents were cut.
    """
    limit = context.config.evaluate.passages
    documents, cut = _documents_for_reader(context, questions) if "full" in rankings else ({}, 0)

    def passages(system: str, question: Question) -> list[str]:
        if system == "full":
            return [documents[question.id]]
        return [texts[chunk_id] for chunk_id in rankings[system][question.id][:limit]]

    return passages, cut


def _documents_for_reader(
    context: Context, questions: list[Question]
) -> tuple[dict[str, str], int]:
    """question -> its documents as one text that fits the reader; how many were cut."""
    config = context.config
    template = prompts.load_template("read", config.prompts.read)
    texts = {document.id: document.text for document in load_documents(context)}
    # A reader behind an endpoint says itself if a text is too long.
    local = config.reader.backend == "local"
    lm = load_generator(context, config.reader.path) if local else None
    joined, cut = {}, 0
    for question in questions:
        text = "\n\n".join(texts[document] for document in question.documents)
        joined[question.id] = text
        if lm:
            new_tokens = config.evaluate.max_new_tokens
            joined[question.id] = fit_to_reader(lm, template, question.question, text, new_tokens)
        cut += joined[question.id] != text
    if cut:
        say(
            f"  full: the documents of {cut:,} of {len(questions):,} questions do not fit the "
            "reader and are cut"
        )
    return joined, cut


def fit_to_reader(lm, template: str, question: str, text: str, max_new_tokens: int) -> str:
    """As much of the text, from its start, as fits the reader beside its prompt and the answer.

    Raises:
        ValueError: the prompt leaves no room for a text.
    """
    from ark_jax.text.tokens import token_chunks

    def excess() -> int:
        prompt = lm.chat(prompts.fill(template, question=question, passages=text))
        return len(lm.prompt_ids([prompt])[0]) + max_new_tokens - lm.max_length + 1

    size = sum(span.tokens for span in token_chunks(text, lm.tokenizer, size=1 << 30, overlap=0))
    while (over := excess()) > 0:
        size -= over  # more than once if the rest is tokenised into more tokens
        if size < 1:
            raise ValueError(
                f"prompt read and {max_new_tokens} new tokens leave no room in the "
                f"{lm.max_length} that the reader takes; shorten the prompt or set "
                "config.evaluate.max_new_tokens lower"
            )
        text = text[: token_chunks(text, lm.tokenizer, size=size, overlap=0)[0].end]
    return text
