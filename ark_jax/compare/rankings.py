"""What each system of a comparison retrieves for each question."""

import dataclasses
import functools
from collections.abc import Callable, Sequence

from ark_jax.compare.questions import Task
from ark_jax.compare.systems import System
from ark_jax.index.index import Index, absolute_model
from ark_jax.recipes.common.retrieve import search_scopes
from ark_jax.retrieval.bm25 import scored_bm25
from ark_jax.retrieval.fusion import fusion_of

Ranking = list[str]  # chunk ids, best first
Search = Callable[[str, int], list[Ranking]]  # by what, and how many: a ranking of each question


def rank(task: Task, systems: Sequence[System], depth: int) -> dict[str, list[Ranking]]:
    """system -> the first `depth` chunks of each question, in the order of the questions.

    Where the whole index is searched, they are those of `Index.search`. Memory holds one retriever
    at a time.
    """
    rankings = {}
    for model in dict.fromkeys(system.model for system in systems):
        opened = with_vectors(task.index, model)
        search = (_whole_index if task.scope == "corpus" else _in_scopes)(task, opened)
        for system in (system for system in systems if system.model == model):
            rankings[system.name] = search(system.by, depth)
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


def _whole_index(task: Task, opened: Index) -> Search:
    def search(by: str, depth: int) -> list[Ranking]:
        texts = [question.question for question in task.questions]
        return [[hit.chunk for hit in hits] for hits in opened.search(texts, k=depth, by=by)]

    return search


def _in_scopes(task: Task, opened: Index) -> Search:
    """As `Index.search`, among the chunks of each question's scope."""
    texts = [question.question for question in task.questions]

    @functools.cache
    def by_words(depth: int) -> list[Sequence[tuple[int, float]]]:
        return scored_bm25(texts, [chunk.passage for chunk in task.searched], task.scopes, depth)

    @functools.cache
    def by_vectors(depth: int) -> list[Sequence[tuple[int, float]]]:
        queries = opened.retriever.encode(texts, kind="query")
        matches = search_scopes(queries, opened.vectors[task.positions], task.scopes, depth)
        return [list(zip(*pair, strict=True)) for pair in zip(*matches, strict=True)]

    def search(by: str, depth: int) -> list[Ranking]:
        if by == "hybrid":
            fusion = opened.manifest.fusion
            parts = (part(max(depth, fusion.depth)) for part in (by_words, by_vectors))
            rankings = [fusion.join(*pair)[:depth] for pair in zip(*parts, strict=True)]
        else:
            rankings = by_words(depth) if by == "bm25" else by_vectors(depth)
        return [[task.searched[place].id for place, _ in ranking] for ranking in rankings]

    return search
