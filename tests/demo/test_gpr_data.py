"""The demo's graph of triples and its questions: what they promise is counted here."""

import collections
import json
from pathlib import Path

import networkx as nx
import numpy as np
import pytest

import ark_jax.demo
from ark_jax.graph.triples import Triples

FOLDER = Path(ark_jax.demo.__file__).parent / "gpr"


@pytest.fixture(scope="module")
def graph() -> Triples:
    return Triples.read(FOLDER / "graph.tsv", names=FOLDER / "names.tsv")


@pytest.fixture(scope="module")
def questions() -> list[dict]:
    lines = (FOLDER / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def reached(graph: Triples, start: int, path: list[str]) -> set[int]:
    """The nodes at the end of a path of relations, but for its start; `^` walks one backwards."""
    nodes = {start}
    for step in path:
        relation = graph.relation == graph.relations.index(step.lstrip("^"))
        near, far = graph.head, graph.tail
        if step.startswith("^"):
            near, far = far, near
        nodes = set(far[relation & np.isin(near, list(nodes))].tolist())
    return nodes - {start}


def test_the_graph_files_have_no_problems():
    _, findings = Triples.examine([FOLDER / "graph.tsv"], FOLDER / "names.tsv")
    assert not list(findings.problems)


def test_the_graph_has_the_documented_size_and_hubs(graph):
    summary = graph.summary()
    assert (summary["triples"], summary["nodes"], summary["relations"]) == (363, 202, 15)
    assert not summary["duplicates"] and not summary["without_triple"]
    assert summary["hubs"][:2] == [("Marrowgate", 29), ("pilot", 17)]


def test_one_entity_is_unnamed_and_two_names_are_shared(graph):
    assert graph.nodes.unnamed == 1
    nameless = graph.nodes.index("maker-0417")
    assert not graph.nodes.names[nameless].is_valid
    assert graph.degrees()[nameless] > 2
    assert len(graph.nodes.find("Tamsin Rudge")) == len(graph.nodes.find("Whimbrel")) == 2
    assert graph.nodes.shared_names == 2
    # Only upper and lower case tell the trade from the tug.
    assert graph.nodes.find("pilot") != graph.nodes.find("Pilot")


def test_the_graph_has_a_cycle_but_no_self_loop(graph):
    calls = [(h, t) for h, r, t in graph if r == "next_port_of_call"]
    (cycle,) = nx.simple_cycles(nx.DiGraph(calls))
    assert len(cycle) == len(calls) == 6
    assert not np.any(graph.head == graph.tail)


def test_the_graph_has_parallel_and_many_to_many_relations(graph):
    pairs = collections.Counter((h, t) for h, _, t in graph)
    assert max(pairs.values()) == 3 and sum(n > 1 for n in pairs.values()) > 5
    tails = collections.Counter((h, r) for h, r, _ in graph)
    heads = collections.Counter((r, t) for _, r, t in graph)
    assert {r for (_, r), n in tails.items() if n > 1} >= {"award", "occupation", "founder"}
    assert {r for (r, _), n in heads.items() if n > 5} >= {"place_of_birth", "occupation"}


def test_the_questions_have_the_documented_groups(questions):
    groups = collections.Counter(question["group"] for question in questions)
    assert groups == {"1 hop": 86, "2 hops": 42}
    assert all(len(q["path"]) == int(q["group"][0]) for q in questions)
    for field in ("id", "question"):
        assert len({question[field] for question in questions}) == len(questions)


def test_answers_are_all_nodes_at_the_end_of_the_path(graph, questions):
    for question in questions:
        (name,) = question["entities"]
        (topic,) = graph.nodes.find(name)
        assert name in question["question"]
        answers = [graph.nodes.find(answer) for answer in question["answers"]]
        assert all(len(nodes) == 1 for nodes in answers), question["id"]
        assert {node for (node,) in answers} == reached(graph, topic, question["path"])


def test_questions_cover_every_relation_mostly_in_other_words(graph, questions):
    steps = collections.Counter(s.lstrip("^") for q in questions for s in q["path"])
    assert set(steps) == set(graph.relations.ids.to_pylist())
    named = sum(
        any(step.lstrip("^").replace("_", " ") in q["question"].lower() for step in q["path"])
        for q in questions
    )
    assert named <= len(questions) / 10


def test_some_questions_pass_through_the_unnamed_entity(graph, questions):
    nameless = graph.nodes.index("maker-0417")
    through = [
        q["id"]
        for q in questions
        if nameless in reached(graph, graph.nodes.find(q["entities"][0])[0], q["path"][:1])
    ]
    assert len(through) >= 2
