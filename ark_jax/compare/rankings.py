"""What each system of a comparison retrieves for each question."""

import dataclasses
import functools
from collections.abc import Sequence

from ark_jax.compare.questions import Task
from ark_jax.compare.systems import System
from ark_jax.index.index import Index, absolute_model
from ark_jax.retrieval.bm25_index import count_bm25
from ark_jax.retrieval.fusion import fusion_of
from ark_jax.retrieval.hyde import NAME, Hyde, Write
from ark_jax.retrieval.searcher import Dense, by_name
from ark_jax.text import prompts


def rank(
    task: Task, systems: Sequence[System], depth: int, write: Write | None = None
) -> dict[str, list[list[str]]]:
    """system -> the ids of the first `depth` chunks of each question, in the questions' order.

    Where the whole index is searched, they are those of `Index.search`. Memory holds one retriever
    at a time.

    Args:
        write: the language model of systems that expand questions.
    """
    write = write and functools.cache(write)  # once for all retrievers
    texts = [question.question for question in task.questions]
    is_whole, index, rankings = task.scope == "corpus", task.index, {}
    ids = index.chunks.ids if is_whole else [chunk.id for chunk in task.searched]
    by_words = any(system.by != "dense" for system in systems)
    counted = not is_whole and by_words
    words = count_bm25([x.passage for x in task.searched]) if counted else index.words
    for model in dict.fromkeys(system.model for system in systems):
        opened = with_vectors(index, model)
        vectors = opened.vectors if is_whole or not model else opened.vectors[task.positions]
        embed = lambda texts, kind, opened=opened: opened.retriever.encode(texts, kind=kind)
        for system in (system for system in systems if system.model == model):
            asked = functools.partial(embed, kind="query")
            if system.expands:
                asked = Hyde(write, embed, prompts.load_template(NAME))
            dense = Dense(vectors, asked)
            searcher = by_name(system.by, words, dense, opened.manifest.fusion, depth)
            found = searcher.search(texts, depth, None if is_whole else task.scopes)
            rankings[system.name] = [[ids[i] for i in ranking.ids] for ranking in found]
    return {system.name: rankings[system.name] for system in systems}


def with_vectors(index: Index, model: str) -> Index:
    """The index with the vectors of a model, and the fusion that the model asks for.

    Args:
        model: the index itself, its own model, another one, or "" for BM25 alone.
    """
    if not model or absolute_model(model) in (str(index.folder), index.model):
        return index
    opened = index.with_model(model)
    manifest = dataclasses.replace(opened.manifest, fusion=fusion_of(opened.model))
    return dataclasses.replace(opened, manifest=manifest)
