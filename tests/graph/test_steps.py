"""Steps along relations against loops over the triples."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fact_graphs import random_graph

from ark_jax.graph.steps import Steps, path_text, remove_node
from ark_jax.graph.triples import Triples

FACTS = [
    ("Kismet", "film.directed_by", "William Dieterle"),
    ("Kismet", "film.written_by", "William Dieterle"),  # parallel
    ("Ümit", "film.directed_by", "William Dieterle"),
    ("Kismet", "twin_of", "Kismet"),  # a self-loop
]


def edges_by_loops(graph: Triples, *, inverse: bool) -> list[tuple[int, int, int]]:
    rows = zip(graph.head.tolist(), graph.relation.tolist(), graph.tail.tolist(), strict=True)
    edges = list(rows)
    back = [(t, r + len(graph.relations), h) for h, r, t in edges]
    return edges + back if inverse else edges


@given(
    st.integers(0, 1000),
    st.integers(1, 9),
    st.integers(1, 40),
    st.booleans(),
    st.sets(st.integers(0, 8)),
)
def test_steps_equal_plain_loops_over_the_triples(seed, nodes, triples, inverse, asked):
    graph = random_graph(seed, nodes=nodes, triples=triples)
    steps = Steps(graph, inverse=inverse, by="last", hub=0)
    edges = edges_by_loops(graph, inverse=inverse)
    asked = sorted(node for node in asked if node < len(graph.nodes))
    places = np.array(asked, np.int64)
    assert steps.options(places).tolist() == sorted({s for n, s, _ in edges if n in asked})
    for step in range(len(steps)):
        ends = sorted({e for n, s, e in edges if n in asked and s == step})
        assert steps.follow(places, step).tolist() == ends
    leaving = zip(*(column.tolist() for column in steps.edges(places)), strict=True)
    assert sorted(leaving) == sorted(edge for edge in edges if edge[0] in asked)
    arriving = {(node, start) for node, _, start in zip(*steps.edges_back(places), strict=True)}
    assert arriving == {(e, n) for n, _, e in edges if e in asked}


def test_steps_walk_relations_in_both_directions():
    graph = Triples.from_triples(FACTS)
    steps = Steps(graph, inverse=True, by="last", hub=10)
    assert steps.names == [
        "directed by",
        "written by",
        "twin of",
        "inverse of directed by",
        "inverse of written by",
        "inverse of twin of",
    ]
    kismet, director, other = map(graph.nodes.index, ("Kismet", "William Dieterle", "Ümit"))
    assert steps.options(np.array([kismet])).tolist() == [0, 1, 2, 5]
    assert steps.options(np.array([director])).tolist() == [3, 4]
    assert steps.walk(kismet, [0, 3]).tolist() == sorted([kismet, other])
    assert steps.walk(kismet, []).tolist() == [kismet]


def test_reach_leaves_out_the_topic():
    graph = Triples.from_triples(FACTS)
    steps = Steps(graph, inverse=True, by="last", hub=10)
    kismet, other = map(graph.nodes.index, ("Kismet", "Ümit"))
    assert steps.reach(kismet, [0, 3]).tolist() == [other]
    # Kismet is its own twin.
    assert steps.walk(kismet, [2]).tolist() == [kismet] and steps.reach(kismet, [2]).tolist() == []


def test_steps_can_be_limited_to_the_stated_direction():
    graph = Triples.from_triples(FACTS)
    forward = Steps(graph, inverse=False, by="whole", hub=10)
    assert forward.names == ["film.directed_by", "film.written_by", "twin_of"]
    director = graph.nodes.index("William Dieterle")
    assert len(forward) == 3 and forward.options(np.array([director])).tolist() == []


def test_only_the_options_of_a_hub_are_cut():
    facts = [("hub", "r", f"n{i}") for i in range(6)] + [("far", "s", "n5")]
    graph = Triples.from_triples(facts)
    topic = graph.nodes.index("hub")
    whole, cut = (Steps(graph, inverse=True, by="last", hub=hub) for hub in (0, 3))
    nodes = whole.walk(topic, [0])
    assert whole.options(nodes).tolist() == [2, 3] and not whole.is_cut(nodes)
    assert cut.options(nodes).tolist() == [2] and cut.is_cut(nodes)
    assert cut.walk(topic, [0, 3]).tolist() == [graph.nodes.index("far")]


def test_all_neighbours_by_one_relation_are_one_option():
    graph = Triples.from_triples([("hub", "r", f"n{i:06}") for i in range(100_000)])
    steps = Steps(graph, inverse=True, by="last", hub=0)
    topic = np.array([graph.nodes.index("hub")])
    assert steps.options(topic).tolist() == [0]
    nodes = steps.follow(topic, 0)
    assert len(nodes) == 100_000 and (np.diff(nodes) > 0).all()
    assert steps.options(nodes).tolist() == [1]


def test_a_node_with_ten_thousand_relations_has_as_many_options():
    graph = Triples.from_triples([("a", f"r{i:05}", "b") for i in range(10_000)])
    steps = Steps(graph, inverse=True, by="last", hub=0)
    options = steps.options(np.array([graph.nodes.index("b")]))
    assert options.tolist() == list(range(10_000, 20_000))


def test_nodes_without_edges_and_empty_graphs_have_no_options():
    graph = Triples.from_triples([("a", "r", "b")], {"a": "a", "b": "b", "alone": "alone"})
    steps = Steps(graph, inverse=True, by="last", hub=0)
    alone = np.array([graph.nodes.index("alone")])
    assert steps.options(alone).tolist() == [] and steps.follow(alone, 0).tolist() == []
    empty = Steps(Triples.from_triples([]), inverse=True, by="last", hub=0)
    assert len(empty) == 0 and empty.options(np.zeros(0, np.int64)).tolist() == []


@pytest.mark.parametrize(
    ("topic", "path", "message"),
    [(9, [0], "node 9: this graph has 3"), (0, [6], "step 6: this graph has 6"), (0, [-1], "-1")],
)
def test_an_unknown_node_or_step_is_refused(topic, path, message):
    steps = Steps(Triples.from_triples(FACTS), inverse=True, by="last", hub=0)
    with pytest.raises(IndexError, match=message):
        steps.walk(topic, path)


def test_without_removes_a_node_from_a_sorted_set():
    nodes = np.array([1, 4, 7])
    assert [remove_node(nodes, node).tolist() for node in (0, 1, 5, 7, 9)] == [
        [1, 4, 7], [4, 7], [1, 4, 7], [1, 4], [1, 4, 7],
    ]  # fmt: skip
    assert remove_node(np.zeros(0, np.int64), 3).tolist() == []


def test_a_path_is_written_as_its_topic_relations_and_end():
    assert path_text("Kismet", ["directed by"], ended=True) == "Kismet, directed by, end"
    assert path_text("Kismet", ["directed by", "inverse of directed by"], ended=False) == (
        "Kismet, directed by, inverse of directed by"
    )
