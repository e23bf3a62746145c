"""Triples that bear an answer, against networkx's shortest paths."""

import networkx as nx
import numpy as np
from support.fact_graphs import random_graph

from ark_jax.graph.answer_rows import UNREACHED, answer_rows, distances


def test_distances_are_networkx():
    for seed in range(20):
        graph = random_graph(seed, nodes=25, triples=30)
        plain = graph.to_networkx().to_undirected()
        ids = graph.nodes.ids.to_pylist()
        for limit in (1, 2, 9):
            wanted = nx.multi_source_dijkstra_path_length(plain, {ids[0], ids[1]}, cutoff=limit)
            expected = [int(wanted.get(id, UNREACHED)) for id in ids]
            assert distances(graph, [0, 1], limit).tolist() == expected


def test_answer_rows_end_the_shortest_paths():
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
        assert answer_rows(graph, [topic], answers, 3).tolist() == sorted(wanted)


def test_without_a_topic_all_triples_of_an_answer_count():
    graph = random_graph(1)
    rows = answer_rows(graph, [], [2], 3)
    assert rows.tolist() == graph.rows(2).tolist() and len(rows)


def test_a_topic_is_no_answer_and_no_answer_gives_no_row():
    graph = random_graph(1)
    assert not len(answer_rows(graph, [2], [2], 3))
    assert not len(answer_rows(graph, [2], [], 3))
    assert np.issubdtype(answer_rows(graph, [], [], 3).dtype, np.integer)
