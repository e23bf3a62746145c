"""What the reports of recipes over triples share: the size of a graph, and drawings of it."""

from collections.abc import Collection, Iterable, Mapping

from ark_jax.graph.triples import Triples
from ark_jax.report import graph_drawing

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
