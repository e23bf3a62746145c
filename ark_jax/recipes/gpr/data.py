"""The data stage: the graph and the test questions are read, linked, and stored."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from ark_jax.evaluate.significance import what_can_be_told
from ark_jax.graph.answer_rows import answer_rows
from ark_jax.graph.linked_questions import Linked, link
from ark_jax.graph.triple_questions import read_questions
from ark_jax.graph.triples import Triples
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_rows, save_rows
from ark_jax.recipes.graphs.graph_data import (
    first_of_groups,
    read_graph,
    report_findings,
    store_graph,
    topic_draw,
)
from ark_jax.runtime.log import say

TEST_FILE = "questions_test.parquet"
HEADLINE = "answer triple@10"  # the metric that messages speak of


@dataclasses.dataclass(frozen=True)
class TestQuestion:
    """A question to measure with.

    Attributes:
        group: what results are broken down by.
        topics, answer_nodes: nodes of the graph.
        answer_rows: the triples that bear an answer; see `graph.answer_rows`.
        absent: answers that the graph lacks; each counts as a miss.
    """

    id: str
    question: str
    group: str
    answers: tuple[str, ...]
    topics: tuple[int, ...]
    answer_nodes: tuple[int, ...]
    answer_rows: tuple[int, ...]
    absent: int


def ingest(context: Context, folder: Path) -> dict:
    """Stores the graph, and the questions to measure with.

    Raises:
        BadInput: files have problems that `data.tolerate` does not cover.
        ValueError: one triple, or questions of which none is left to measure with.
    """
    settings = context.config.data
    graph = read_graph(settings)
    if len(graph) < 2:
        raise ValueError(
            f"{settings.path}: {len(graph)} triple: there is no other one to tell it from; give a "
            "larger graph"
        )
    counts = store_graph(graph, folder)
    tested = _test_questions(context, graph)
    save_rows(tested, folder / TEST_FILE, TestQuestion)
    return {**counts, "test_questions": len(tested), **_misses(tested)}


def _test_questions(context: Context, graph: Triples) -> list[TestQuestion]:
    settings = context.config.data
    if not settings.questions:
        say("  data.questions is empty: nothing will be measured")
        return []
    questions, findings = read_questions(settings.questions, settings.encoding)
    report_findings(findings, settings.tolerate)
    linked = link(_measured(questions, context.config), graph)
    for remark in linked.remarks:
        say(f"  {remark}")
    tested = _tested(linked, graph, context.config.evaluate.hops)
    if not any(question.answers for question in tested):
        raise ValueError(
            f"{settings.questions}: none of {len(questions):,} questions with answers is left to "
            "measure with; see data.held_out and evaluate.part, or name no questions"
        )
    tested = [question for question in tested if question.answers]
    say(f"  {len(tested):,} questions to measure with: {what_can_be_told(len(tested), HEADLINE)}")
    return tested


def _measured(questions: Sequence, config) -> list:
    """The part of the questions that is measured with, at most so many of each group."""
    share, is_rest = config.data.held_out, config.evaluate.part == "rest"
    part = [x for x in questions if (topic_draw(x) >= share) == is_rest]
    return first_of_groups(part, config.evaluate.questions)


def _tested(linked: Linked, graph: Triples, hops: int) -> list[TestQuestion]:
    nodes = [linked.answer_nodes(number).tolist() for number in range(len(linked.questions))]
    bearing = answer_rows(graph, linked.topics, nodes, hops)
    return [
        TestQuestion(
            question.id,
            question.question,
            question.group,
            question.answers,
            tuple(linked.topics[number]),
            tuple(nodes[number]),
            tuple(bearing[number].tolist()),
            sum(not nodes_of_answer for nodes_of_answer in linked.answers[number]),
        )
        for number, question in enumerate(linked.questions)
    ]


def _misses(tested: Sequence[TestQuestion]) -> dict[str, int]:
    """How many questions can never be a hit, by what the graph lacks."""
    if not tested:
        return {}
    return {
        "without_topic": sum(not question.topics for question in tested),
        "without_answer_in_graph": sum(not question.answer_nodes for question in tested),
        "out_of_reach": sum(
            bool(question.answer_nodes) and not question.answer_rows for question in tested
        ),
    }


def load_test(context: Context) -> list[TestQuestion]:
    return load_rows(context / "data" / TEST_FILE, TestQuestion)
