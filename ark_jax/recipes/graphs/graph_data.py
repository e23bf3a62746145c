"""The graph of a recipe over triples, the draw of questions about it, and drawings of it."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from ark_jax.data import readers
from ark_jax.graph.triple_questions import TripleQuestion
from ark_jax.graph.triples import Triples, triple_texts
from ark_jax.pipeline.stage import Context
from ark_jax.recipes.core.split import uniform
from ark_jax.report import graph_drawing
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


DRAWING_CAPTION = "Diamonds: topics. Discs: answers."


def graph_size(data: Mapping[str, int]) -> str:
    """The size of a graph in words.

    Args:
        data: the counts of the data stage.
    """
    nodes, relations = data["nodes"], data["relations"]
    return f"{data['triples']:,} triples, {nodes:,} entities, {relations:,} relations"


def draw_triples(
    name: str,
    title: str,
    nodes: Iterable[int],
    edges: Iterable[tuple[int, int]],
    graph: Triples,
    *,
    topics: Collection[int],
    answers: Collection[int],
) -> str:
    """An SVG drawing of a part of a graph; topics and answers have marks of their own.

    Args:
        name: the prefix of the ids in the drawing.
        nodes: those to draw.
        edges: (node, node) pairs among them; loops are left out.
    """
    nodes = list(nodes)
    described = [
        {
            "name": graph.nodes.name(node),
            "type": "topic" if node in topics else "answer" if node in answers else "entity",
            "rank": 2.0 if node in topics or node in answers else 1.0,
            "seed": node in topics,
            "small": node in answers,
        }
        for node in nodes
    ]
    places = {node: place for place, node in enumerate(nodes)}
    drawn = [{"a": places[a], "b": places[b], "similarity": False} for a, b in edges if a != b]
    names = ", ".join(str(node["name"]) for node in described if node["seed"]) or "none"
    desc = (
        f"{len(nodes)} entities. Topics, as diamonds: {names}. Answers are discs, other entities "
        "rings."
    )
    return graph_drawing.graph(name, title, described, drawn, desc=desc)
