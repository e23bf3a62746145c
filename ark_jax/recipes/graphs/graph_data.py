"""The graph of a recipe over triples, and the draw of questions about it."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ark_jax.data import readers
from ark_jax.graph.triple_questions import TripleQuestion
from ark_jax.graph.triples import Triples, triple_texts
from ark_jax.pipeline.stage import Context
from ark_jax.recipes.core.split import uniform
from ark_jax.runtime.log import say

GRAPH = "graph"  # a folder in that of the data stage


def read_graph(settings) -> Triples:
    """The graph that a config's `data` names."""
    graph, findings = Triples.examine(
        [settings.path], settings.names or None, settings.relation_names or None, settings.encoding
    )
    report_findings(findings, settings.tolerate)
    return graph


def report_findings(findings, tolerate: float) -> None:
    """Prints remarks and tolerated problems; raises BadInput for other problems."""
    for line in readers.tolerated(findings.problems, findings.remarks, tolerate):
        say(f"  {line}")


def store_graph(graph: Triples, folder: Path) -> dict[str, int]:
    """Stores the graph in the folder of the data stage; returns counts for the manifest."""
    graph.save(folder / GRAPH)
    counts = graph.summary()
    counts.pop("hubs")
    return counts


def load_graph(context: Context) -> Triples:
    return Triples.load(context / "data" / GRAPH)


def texts_of(graph: Triples, config, rows: np.ndarray | None = None) -> list[str]:
    """The texts of all triples, or of those at `rows`, as encoders and BM25 read them."""
    rows = np.arange(len(graph)) if rows is None else rows
    return triple_texts(graph, rows, config.data.relations)


def topic_draw(question: TripleQuestion) -> float:
    """A number in [0, 1) from a hash of a question's topics, or of its text if it names none."""
    return uniform(f"topic {' '.join(question.entities) or question.question}")


def first_of_groups(questions: Sequence[TripleQuestion], limit: int) -> list[TripleQuestion]:
    """At most `limit` questions of each group, drawn by a hash; all if it is 0."""
    if not limit:
        return list(questions)
    groups: dict[str, list] = {}
    for question in questions:
        groups.setdefault(question.group, []).append(question)
    drawn = {
        question.id
        for group in groups.values()
        for question in sorted(group, key=lambda x: uniform(f"draw {x.id}"))[:limit]
    }
    return [question for question in questions if question.id in drawn]


def unused_sections(config) -> list[str]:
    """The config sections that a run ignores if it answers no question."""
    if config.evaluate.read:
        return []
    return ["reader"] if config.llm.backend == "local" else ["reader", "generator"]


def describe_graph(config) -> str:
    """The size of the graph that a config names, in one line."""
    graph = read_graph(config.data)
    return f"{len(graph):,} triples, {len(graph.nodes):,} entities"


def graph_size(data: Mapping[str, int]) -> str:
    """The size of a graph in words, from the counts of the data stage."""
    nodes, relations = data["nodes"], data["relations"]
    return f"{data['triples']:,} triples, {nodes:,} entities, {relations:,} relations"
