"""The data stage: the graph and the test questions are read, linked, and stored."""

import dataclasses
import glob
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ark_jax.data import readers
from ark_jax.evaluate.significance import what_can_be_told
from ark_jax.graph import triple_files
from ark_jax.graph.answer_rows import answer_rows
from ark_jax.graph.triple_questions import Linked, link, read_questions
from ark_jax.graph.triple_texts import triple_texts
from ark_jax.graph.triples import Triples
from ark_jax.pipeline.fingerprints import file_digest, fingerprint
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_rows, save_rows
from ark_jax.recipes.common.split import uniform
from ark_jax.runtime import storage
from ark_jax.runtime.log import say

DATA_SETTINGS = (
    "data.held_out",
    "data.tolerate",
    "evaluate.part",
    "evaluate.questions",
    "evaluate.hops",
)
GRAPH, TEST_FILE = "graph", "questions_test.parquet"
HEADLINE = "answer triple@10"  # the metric that messages speak of
SAMPLE = 5000  # triples whose texts show how long they are


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
    graph.save(folder / GRAPH)
    counts = graph.summary()
    counts.pop("hubs")
    tested = _test_questions(context, graph)
    save_rows(tested, folder / TEST_FILE, TestQuestion)
    return {**counts, "test_questions": len(tested), **_misses(tested)}


def read_graph(settings) -> Triples:
    """The graph that a config's `data` names.

    Raises:
        BadInput: problems that `tolerate` does not cover.
    """
    graph, findings = triple_files.read(
        [settings.path], settings.names or None, settings.relation_names or None
    )
    _report(findings, settings.tolerate)
    return graph


def _report(findings, tolerate: float) -> None:
    """Prints remarks, and problems that are tolerated; raises BadInput for others."""
    for line in readers.tolerated(findings.problems, findings.remarks, tolerate):
        say(f"  {line}")


def _test_questions(context: Context, graph: Triples) -> list[TestQuestion]:
    settings = context.config.data
    if not settings.questions:
        say("  data.questions is empty: nothing will be measured")
        return []
    questions, findings = read_questions(settings.questions)
    _report(findings, settings.tolerate)
    linked = link(_measured(questions, context.config), graph)
    for remark in linked.remarks:
        say(f"  {remark}")
    tested = [_linked(linked, number, graph, context) for number in range(len(linked.questions))]
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
    share, rest = config.data.held_out, config.evaluate.part == "rest"
    topics = lambda x: " ".join(x.entities) or x.question
    part = [x for x in questions if (uniform(f"topic {topics(x)}") >= share) == rest]
    limit = config.evaluate.questions
    if not limit:
        return part
    groups: dict[str, list] = {}
    for question in part:
        groups.setdefault(question.group, []).append(question)
    drawn = {
        question.id
        for group in groups.values()
        for question in sorted(group, key=lambda x: uniform(f"draw {x.id}"))[:limit]
    }
    return [question for question in part if question.id in drawn]


def _linked(linked: Linked, number: int, graph: Triples, context: Context) -> TestQuestion:
    question, topics = linked.questions[number], linked.topics[number]
    nodes = linked.answer_nodes(number).tolist()
    return TestQuestion(
        question.id,
        question.question,
        question.group,
        question.answers,
        tuple(topics),
        tuple(nodes),
        tuple(answer_rows(graph, topics, nodes, context.config.evaluate.hops).tolist()),
        sum(not nodes_of_answer for nodes_of_answer in linked.answers[number]),
    )


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


def load_graph(context: Context) -> Triples:
    return Triples.load(context / "data" / GRAPH)


def load_test(context: Context) -> list[TestQuestion]:
    return load_rows(context / "data" / TEST_FILE, TestQuestion)


def texts_of(graph: Triples, config, rows: np.ndarray | None = None) -> list[str]:
    """The texts of triples, of all or of some rows, as encoders and BM25 read them."""
    rows = np.arange(len(graph)) if rows is None else rows
    return triple_texts(graph, rows, config.data.relations)


def input_files(config) -> dict[str, str]:
    """Digests of what the data stage reads: graph, names, questions."""
    return {
        name: _digest(config.data[name])
        for name in ("path", "names", "relation_names", "questions")
        if config.data[name]
    }


def _digest(path: str) -> str:
    local = storage.local_copy(path)
    if local.is_dir():
        files = sorted(file for file in local.rglob("*") if file.is_file())
    elif local.is_file():
        files = [local]
    else:
        files = [Path(file) for file in sorted(glob.glob(str(local), recursive=True))]
    return fingerprint([[file.name, file_digest(file)] for file in files if file.is_file()])


def look_at(config) -> tuple[str, list[str]]:
    """What the graph holds, in one line, and the texts of some triples.

    Raises:
        BadInput: its problems.
    """
    graph = read_graph(config.data)
    line = f"{len(graph):,} triples, {len(graph.nodes):,} entities"
    return line, texts_of(graph, config, np.arange(min(len(graph), SAMPLE)))
