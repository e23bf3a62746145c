"""Shortest relation paths against networkx, on random graphs and MetaQA, and their limits."""

import functools
import itertools

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fact_graphs import random_graph
from support.paths import DATA

from ark_jax.graph.linked_questions import link
from ark_jax.graph.steps import GoldPath, PathLimits, Steps, shortest_paths
from ark_jax.graph.triple_questions import read_questions
from ark_jax.graph.triples import Triples

NO_LIMIT = PathLimits(hops=3, seconds=0, paths=0)
METAQA = DATA / "kg" / "metaqa"


def multigraph(steps: Steps) -> nx.MultiDiGraph:
    """The graph with an edge for each step, whose number is its key."""
    graph, size = nx.MultiDiGraph(), len(steps.graph.relations)
    graph.add_nodes_from(range(len(steps.graph.nodes)))
    triples = steps.graph.head, steps.graph.relation, steps.graph.tail
    for head, relation, tail in zip(*(column.tolist() for column in triples), strict=True):
        graph.add_edge(head, tail, relation)
        if steps.inverse:
            graph.add_edge(tail, head, relation + size)
    return graph


def peer_paths(graph: nx.MultiDiGraph, topics, answers, hops: int) -> set[tuple]:
    """(topic, steps) of all shortest paths of networkx."""
    paths = set()
    for topic, answer in itertools.product(topics, answers):
        if topic == answer or not nx.has_path(graph, topic, answer):
            continue
        for nodes in nx.all_shortest_paths(graph, topic, answer):
            if len(nodes) - 1 <= hops:
                keys = [list(graph[a][b]) for a, b in itertools.pairwise(nodes)]
                paths |= {(topic, path) for path in itertools.product(*keys)}
    return paths


def check_counts(steps: Steps, path: GoldPath, answers) -> None:
    reached = set(steps.reach(path.topic, path.steps).tolist())
    assert path.reached == len(reached) and path.correct == len(reached & set(answers))
    assert path.correct and path.precision == path.correct / path.reached


@given(
    st.integers(0, 10_000),
    st.integers(2, 14),
    st.integers(1, 40),
    st.booleans(),
    st.integers(1, 5),
    st.data(),
)
def test_shortest_paths_match_networkx_on_random_graphs(seed, nodes, triples, inverse, hops, data):
    graph = random_graph(seed, nodes=nodes, triples=triples)
    steps = Steps(graph, inverse=inverse, by="last", hub=0)
    some_nodes = st.lists(st.integers(0, len(graph.nodes) - 1), max_size=4)
    topics, answers = data.draw(some_nodes), data.draw(some_nodes)
    paths, cut = shortest_paths(steps, topics, answers, PathLimits(hops, 0, 0))
    keys = [(path.topic, path.steps) for path in paths]
    assert len(keys) == len(set(keys)) and cut == ""
    assert set(keys) == peer_paths(multigraph(steps), topics, answers, hops)
    for path in paths:
        check_counts(steps, path, answers)
    order = list(dict.fromkeys(topics))
    ranks = [(order.index(topic), len(path), path) for topic, path in keys]
    assert ranks == sorted(ranks)


@functools.cache
def metaqa() -> Steps:
    files = [METAQA / f"kb_{part}.tsv" for part in ("train", "dev", "test", "test_old")]
    graph = Triples.read(*files, names=METAQA / "kb_entity2text.txt")
    return Steps(graph, inverse=True, by="last", hub=0)


@pytest.mark.skipif(not METAQA.is_dir(), reason="needs MetaQA")
def test_shortest_paths_match_networkx_on_metaqa():
    steps, asked = metaqa(), []
    for hops in (1, 2, 3):
        questions, _ = read_questions(METAQA / f"{hops}hop_dev.txt")
        asked += questions[5::4000]
    linked = link(asked, steps.graph)
    assert len(linked.topics) == len(asked) > 3
    peer = multigraph(steps)
    for i, topics in enumerate(linked.topics):
        answers = linked.answer_nodes(i)[:2].tolist()
        paths, cut = shortest_paths(steps, topics, answers, NO_LIMIT)
        assert cut == "" and paths
        wanted = peer_paths(peer, topics, answers, 3)
        assert {(path.topic, path.steps) for path in paths} == wanted
        for path in paths:
            check_counts(steps, path, answers)


CHAIN = [("a", "r", "b"), ("b", "r", "c"), ("c", "r", "d"), ("d", "r", "e"), ("a", "loop", "a")]


def chain(*, inverse: bool = False) -> tuple[Steps, dict[str, int]]:
    graph = Triples.from_triples(CHAIN)
    places = {id: i for i, id in enumerate(graph.nodes.ids.to_pylist())}
    return Steps(graph, inverse=inverse, by="last", hub=0), places


def test_an_unreachable_answer_has_no_path():
    steps, index_of = chain()
    assert shortest_paths(steps, [index_of["a"]], [index_of["e"]], NO_LIMIT) == ([], "")
    paths, _ = shortest_paths(steps, [index_of["a"]], [index_of["d"], index_of["e"]], NO_LIMIT)
    assert paths == [GoldPath(index_of["a"], (0, 0, 0), 1, 1)]
    assert shortest_paths(steps, [index_of["e"]], [index_of["a"]], NO_LIMIT) == ([], "")


def test_a_topic_is_not_its_own_answer():
    steps, index_of = chain(inverse=True)
    assert shortest_paths(steps, [index_of["a"]], [index_of["a"]], NO_LIMIT) == ([], "")
    paths, _ = shortest_paths(steps, [index_of["a"], index_of["b"]], [index_of["a"]], NO_LIMIT)
    assert [(path.topic, len(path.steps)) for path in paths] == [(index_of["b"], 1)]


def test_without_a_topic_or_an_answer_there_is_no_path():
    steps, index_of = chain()
    assert shortest_paths(steps, [], [index_of["a"]], NO_LIMIT) == ([], "")
    assert shortest_paths(steps, [index_of["a"]], [], NO_LIMIT) == ([], "")


def test_the_most_precise_paths_are_kept():
    facts = [("t", "many", f"n{i}") for i in range(9)] + [("t", "two", "n1"), ("t", "two", "n2")]
    graph = Triples.from_triples([*facts, ("t", "one", "n1")])
    steps = Steps(graph, inverse=False, by="last", hub=0)
    ask = lambda paths: shortest_paths(
        steps, [graph.nodes.index("t")], [graph.nodes.index("n1")], PathLimits(2, 0, paths)
    )
    best, cut = ask(2)
    assert [path.precision for path in best] == [0.5, 1.0]
    assert cut == "2 of 3 paths are kept, those of the best precision"
    assert len(ask(3)[0]) == 3 and ask(3)[1] == ""


def test_a_search_beyond_its_time_limit_reports_the_cut():
    relations = [f"r{i}" for i in range(60)]
    facts = [(f"n{i}", relation, f"n{i + 1}") for i in range(3) for relation in relations]
    graph = Triples.from_triples(facts)
    steps = Steps(graph, inverse=False, by="last", hub=0)
    ends = [graph.nodes.index("n0")], [graph.nodes.index("n3")]
    _, cut = shortest_paths(steps, *ends, PathLimits(3, 0.05, 0))
    assert cut.startswith("the search ended after 0.05 s with ")


@pytest.mark.parametrize(
    ("limits", "message"),
    [({"hops": 0}, "hops=0"), ({"seconds": -1.0}, "seconds=-1.0"), ({"paths": -1}, "paths=-1")],
)
def test_invalid_path_limits_are_refused(limits, message):
    with pytest.raises(ValueError, match=message):
        PathLimits(**limits)


def test_an_unknown_node_is_refused():
    steps, _ = chain()
    with pytest.raises(IndexError, match="node 99: this graph has 5"):
        shortest_paths(steps, [0], np.array([99]), NO_LIMIT)
