"""Retrieves triples or relation paths for questions, as the rows that `ark-jax retrieve` writes.

A retriever of vectors gives triples. A pair scorer gives relation paths.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from ark_jax.graph.beam import BeamRules
from ark_jax.graph.linked_questions import link
from ark_jax.graph.path_retriever import PathRetriever
from ark_jax.graph.triple_questions import TripleQuestion
from ark_jax.graph.triple_retriever import TripleRetriever, WalkRules
from ark_jax.graph.triples import By, Triples
from ark_jax.runtime import log

BATCH = 1024  # questions that are searched at once


def triple_rows(
    model: str,
    graph: Triples,
    questions: Sequence[TripleQuestion],
    *,
    folder: Path,
    k: int,
    rules: WalkRules,
    by: By,
) -> Iterator[list[dict]]:
    """Yields batches of rows: a question and its `k` best triples.

    Args:
        folder: keeps the vectors of the graph.
        by: how a relation is written.
    """
    retriever = TripleRetriever.from_pretrained(model, graph, folder, by=by)
    for batch in _batches(questions):
        results = retriever.search([q.question for q in batch], k=k, rules=rules)
        yield [
            {
                "id": question.id,
                "question": question.question,
                "triples": [[*triple[:3], round(triple.score, 6)] for triple in triples],
            }
            for question, triples in zip(batch, results, strict=True)
        ]


def path_rows(
    model: str,
    graph: Triples,
    questions: Sequence[TripleQuestion],
    *,
    k: int,
    rules: BeamRules,
    inverse: bool | None,
    by: By | None,
) -> Iterator[list[dict]]:
    """Yields batches of rows: a question, its topics, and its `k` best relation paths.

    Args:
        model: folder or hub name of the pair scorer.
        inverse: whether paths also go from tail to head; None: as the model was trained.
        by: how a relation is written; None: as the model was trained.
    """
    retriever = PathRetriever.from_pretrained(model, graph, inverse=inverse, by=by)
    topics, cuts = iter(_topics(questions, graph)), 0
    for batch in _batches(questions):
        nodes = [next(topics) for _ in batch]
        result = retriever.search_paths([q.question for q in batch], nodes, rules=rules)
        cuts += result.cuts
        yield [
            {
                "id": question.id,
                "question": question.question,
                "entities": list(map(graph.nodes.name, topic_nodes)),
                "paths": [retriever.path(path)._asdict() for path in paths[:k]],
            }
            for question, topic_nodes, paths in zip(batch, nodes, result.paths, strict=True)
        ]
    if cuts:
        log.say(
            f"  {cuts:,} paths reach more than {retriever.steps.hub:,} nodes; they were continued "
            "from the first of these only"
        )


def _batches(questions: Sequence[TripleQuestion]) -> Iterator[Sequence[TripleQuestion]]:
    """Yields the questions in batches, and shows how many are done."""
    with log.Progress("search", len(questions), "questions") as bar:
        for start in range(0, len(questions), BATCH):
            batch = questions[start : start + BATCH]
            yield batch
            bar.add(len(batch))


def _topics(questions: Sequence[TripleQuestion], graph: Triples) -> list[tuple[int, ...]]:
    """The topics of each question. Logs how many are found in the texts, and which are absent."""
    # Without answers, whose remarks would not matter here.
    linked = link(
        [dataclasses.replace(q, answers=(), answer_entities=()) for q in questions], graph
    )
    for remark in linked.remarks:
        log.say(f"  {remark}")
    without_names = sum(not question.entities for question in questions)
    if without_names:
        log.say(
            f"  {without_names:,} questions name no topic: the text of "
            f"{linked.counts['topics_from_text']:,} has names of the graph, which are taken"
        )
    if without := linked.counts["without_topic"]:
        log.say(f"  {without:,} questions have no topic in the graph and get no path")
    return linked.topics
