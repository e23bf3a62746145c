"""The data stage: the graph and the test questions are read, linked, and stored."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from ark_jax.graph.answer_rows import answer_rows
from ark_jax.graph.linked_questions import Linked, link
from ark_jax.graph.triple_questions import read_questions
from ark_jax.graph.triples import Triples
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_rows, save_rows
from ark_jax.recipes import graphs
from ark_jax.runtime.log import say

TEST_FILE = "questions_test.parquet"
HOPS = 3  # triples of the longest path from a topic to an answer that counts
HEADLINE = "answer_triple@10"  # the metric that messages speak of


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
    """Reads the graph and the questions to measure with."""
    settings = context.config.data
    graph = graphs.read_graph(settings)
    if len(graph) < 2:
        raise ValueError(
            f"{settings.path}: the graph has only {len(graph)} triple, and training compares "
            "triples; give a larger graph"
        )
    counts = graphs.store_graph(graph, folder)
    tested = _read_test_questions(context, graph)
    save_rows(tested, folder / TEST_FILE, TestQuestion)
    return {**counts, "test_questions": len(tested), **_count_sure_misses(tested)}


def _read_test_questions(context: Context, graph: Triples) -> list[TestQuestion]:
    """The questions to measure with; none if the config names no file of questions."""
    settings = context.config.data
    if not settings.questions:
        say("  data.questions is empty: nothing will be measured")
        return []
    questions, findings = read_questions(settings.questions, settings.encoding)
    graphs.report_findings(findings, settings.tolerate)
    linked = link(_questions_to_measure(questions, context.config), graph)
    for remark in linked.remarks:
        say(f"  {remark}")
    tested = _linked_test_questions(linked, graph, HOPS)
    if not any(question.answers for question in tested):
        raise ValueError(
            f"{settings.questions}: none of {len(questions):,} questions with answers is left to "
            "measure with; see data.held_out and evaluate.part, or name no questions"
        )
    tested = [question for question in tested if question.answers]
    say(f"  {len(tested):,} questions to measure with")
    return tested


def _questions_to_measure(questions: Sequence, config) -> list:
    """The part of the questions to measure with, at most `evaluate.questions` of each group."""
    share, is_rest = config.data.held_out, config.evaluate.part == "rest"
    part = [x for x in questions if (graphs.topic_draw(x) >= share) == is_rest]
    return graphs.first_of_groups(part, config.evaluate.questions)


def _linked_test_questions(linked: Linked, graph: Triples, hops: int) -> list[TestQuestion]:
    """The questions with their nodes, and the triples within `hops` that bear an answer."""
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


def _count_sure_misses(tested: Sequence[TestQuestion]) -> dict[str, int]:
    """The number of questions that no system can answer, by reason; empty without questions."""
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
    """The stored questions to measure with."""
    return load_rows(context / "data" / TEST_FILE, TestQuestion)
