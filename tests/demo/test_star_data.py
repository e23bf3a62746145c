"""The demo's questions of paths: what they promise is counted here."""

import collections
import json
from pathlib import Path

import pytest

import ark_jax.demo
from ark_jax.graph.steps import PathLimits, Steps, shortest_paths
from ark_jax.graph.triples import Triples

DEMO = Path(ark_jax.demo.__file__).parent


def rows_of(recipe: str) -> list[dict]:
    lines = (DEMO / recipe / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def graph() -> Triples:
    return Triples.read(DEMO / "gpr" / "graph.tsv", names=DEMO / "gpr" / "names.tsv")


@pytest.fixture(scope="module")
def questions() -> list[dict]:
    return rows_of("star")


def test_the_questions_have_the_documented_groups(questions):
    groups = collections.Counter(question["group"] for question in questions)
    assert groups == {"1 hop": 78, "2 hops": 59, "3 hops": 26}
    assert all(len(q["path"]) == int(q["group"][0]) for q in questions)
    for field in ("id", "question"):
        assert len({question[field] for question in questions}) == len(questions)


def test_answers_are_all_nodes_at_the_end_of_a_shortest_path(graph, questions):
    steps = Steps(graph, inverse=True)
    for question in questions:
        (name,) = question["entities"]
        (topic,) = graph.nodes.find(name)
        assert name in question["question"]
        path = tuple(
            graph.relations.index(step.lstrip("^")) + len(graph.relations) * step.startswith("^")
            for step in question["path"]
        )
        reached = steps.reach(topic, path).tolist()
        answers = [node for answer in question["answers"] for node in graph.nodes.find(answer)]
        assert sorted(answers) == reached, question["id"]
        paths, cut = shortest_paths(steps, [topic], answers, PathLimits(hops=3))
        assert path in {gold_path.steps for gold_path in paths} and not cut, question["id"]


def test_questions_cover_every_relation_in_several_wordings(graph, questions):
    wordings = collections.defaultdict(set)
    for question in questions:
        text = question["question"].replace(question["entities"][0], "")
        for step in question["path"]:
            wordings[step.lstrip("^")].add(text)
    assert set(wordings) == set(graph.relations.ids.to_pylist())
    assert min(map(len, wordings.values())) > 2


def test_the_questions_differ_from_those_of_gpr(questions):
    assert {q["question"] for q in questions}.isdisjoint(q["question"] for q in rows_of("gpr"))
