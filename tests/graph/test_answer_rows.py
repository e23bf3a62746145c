"""Triples that bear an answer, against a search for each question and networkx's shortest paths."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fact_graphs import random_graph

from ark_jax.graph import answer_rows as module
from ark_jax.graph.answer_rows import answer_rows

UNREACHED = -1


def plain_rows(graph, topics, answers, limit):
    """As `answer_rows`, of one question, node by node."""
    rows = {answer: graph.rows(answer).tolist() for answer in answers if answer not in topics}
    away, frontier = dict.fromkeys(topics, 0), set(topics)
    for distance in range(1, limit + 1):
        touching = [row for node in frontier for row in graph.rows(node)]
        reached = {int(end) for row in touching for end in (graph.head[row], graph.tail[row])}
        frontier = reached - away.keys()
        away |= dict.fromkeys(frontier, distance)
    bearing = set()
    for answer, incident in rows.items():
        for row in incident:
            ends = {int(graph.head[row]), int(graph.tail[row])}
            (far,) = ends - {answer} or {answer}
            before = away.get(answer, UNREACHED) - 1
            if not topics or (answer in away and away.get(far, UNREACHED) == before):
                bearing.add(row)
    return sorted(bearing)


@given(
    seed=st.integers(0, 1000),
    triples=st.integers(1, 60),
    questions=st.lists(
        st.tuples(*[st.lists(st.integers(0, 5), max_size=3)] * 2), min_size=1, max_size=9
    ),
    limit=st.integers(0, 4),
    searches=st.sampled_from([1, 2, 64]),
    most_rows=st.sampled_from([1, 7, 1 << 20]),
)
def test_answer_rows_equal_a_plain_search_for_each_question(
    seed, triples, questions, limit, searches, most_rows
):
    graph = random_graph(seed, nodes=25, triples=triples)
    count = len(graph.nodes)
    topics, answers = (
        [[node % count for node in nodes] for nodes in column]
        for column in zip(*questions, strict=True)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SEARCHES", searches)
        patch.setattr(module, "MOST_ROWS", most_rows)
        rows = answer_rows(graph, topics, answers, limit)
    assert all(row.dtype == np.int64 for row in rows)
    wanted = [plain_rows(graph, *question, limit) for question in zip(topics, answers, strict=True)]
    assert [row.tolist() for row in rows] == wanted


def test_more_than_64_topics_are_searched_correctly():
    graph = random_graph(3, nodes=150, triples=400)
    nodes = range(len(graph.nodes))
    topics, answers = [[node] for node in nodes], [[*nodes]] * len(nodes)
    rows = answer_rows(graph, topics, answers, 3)
    assert len(topics) > 2 * module.SEARCHES
    for number in (0, 63, 64, 127, 128, len(topics) - 1):
        assert rows[number].tolist() == plain_rows(graph, topics[number], answers[number], 3)


def test_answer_rows_are_the_last_edges_of_the_shortest_paths():
    for seed in range(20):
        graph = random_graph(seed, nodes=25, triples=40)
        plain = graph.to_networkx().to_undirected()
        ids = graph.nodes.ids.to_pylist()
        topic, answers = 0, [3, 4, 5]
        wanted = set()
        for answer in answers:
            if not nx.has_path(plain, ids[topic], ids[answer]):
                continue
            paths = list(nx.all_shortest_paths(plain, ids[topic], ids[answer]))
            if len(paths[0]) - 1 > 3:
                continue
            last = {(path[-2], path[-1]) for path in paths}
            wanted |= {
                row
                for row, (head, _, tail) in enumerate(graph)
                if {(head, tail), (tail, head)} & last
            }
        assert answer_rows(graph, [[topic]], [answers], 3)[0].tolist() == sorted(wanted)


def test_without_a_topic_all_triples_of_the_answer_are_returned():
    graph = random_graph(1)
    (rows,) = answer_rows(graph, [[]], [[2]], 3)
    assert rows.tolist() == graph.rows(2).tolist() and len(rows)


def test_questions_without_another_answer_than_the_topic_have_no_rows():
    graph = random_graph(1)
    rows = answer_rows(graph, [[2], [2], []], [[2], [], []], 3)
    assert [row.tolist() for row in rows] == [[], [], []]
    assert all(row.dtype == np.int64 for row in rows)
