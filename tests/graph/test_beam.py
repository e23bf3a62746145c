"""Beam search against its definition written as loops over triples, and its edges."""

import collections
import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fact_graphs import random_graph

from ark_jax.graph.beam import BeamRules, FoundPath, search
from ark_jax.graph.steps import END, Steps, path_text
from ark_jax.graph.triples import Triples


class HashScorer:
    """Scores that a digest of both texts gives, on few levels, so that many are equal.

    They differ in the fifth digit with the number of pairs, as products of floats do.
    """

    def __init__(self, levels: int = 7) -> None:
        self.levels, self.calls = levels, []

    def score(self, pairs) -> np.ndarray:
        self.calls.append(list(pairs))
        scores = [self.of(*pair) for pair in pairs]
        return np.array(scores, np.float32) + np.float32(1e-5 * (len(pairs) % 7))

    def of(self, question: str, path: str) -> int:
        return hashlib.sha256(f"{question}|{path}".encode()).digest()[0] % self.levels


class WordScorer(HashScorer):
    """How many words the path and the question share, less what else the path has."""

    def of(self, question: str, path: str) -> float:
        words = collections.Counter(path.replace(",", "").split()[1:])
        shared = (words & collections.Counter(question.split())).total()
        return shared - 0.5 * (words.total() - shared)


def search_by_loops(question, topics, steps, score, rules):
    """One question, one path at a time, with sets of nodes from lists of triples."""
    graph, size = steps.graph, len(steps.graph.relations)
    edges = [(h, r, t) for h, r, t in zip(graph.head, graph.relation, graph.tail, strict=True)]
    if steps.inverse:
        edges += [(t, r + size, h) for h, r, t in edges]

    def nodes_of(topic, path):
        nodes = {topic}
        for step in path:
            nodes = {t for h, s, t in edges if h in nodes and s == step}
        return nodes

    done = []
    for place, topic in enumerate(dict.fromkeys(topics)):
        live = [()]
        for hop in range(rules.hops + 1):
            scored = []
            for path in live:
                nodes = nodes_of(topic, path)
                further = sorted({s for h, s, _ in edges if h in nodes}) if hop < rules.hops else []
                for step in ([END] if path and nodes - {topic} else []) + further:
                    names = [steps.names[s] for s in (*path, step) if s != END]
                    text = path_text(graph.nodes.name(topic), names, step == END)
                    scored.append((-score(question, text), (*path, step)))
            scored = sorted(scored)[: rules.beam]
            done += [(s, place, path[:-1], topic) for s, path in scored if path[-1] == END]
            if not scored or scored[0][1][-1] == END:
                break
            live = [path for _, path in scored if path[-1] != END]
    return [FoundPath(topic, path, -s) for s, _, path, topic in sorted(done)]


@given(st.integers(0, 10_000), st.integers(2, 10), st.integers(1, 30), st.booleans(), st.data())
def test_beam_search_equals_plain_loops(seed, nodes, triples, inverse, data):
    graph = random_graph(seed, nodes=nodes, triples=triples)
    steps = Steps(graph, inverse=inverse, by="last", hub=0)
    rules = BeamRules(data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3)))
    node = st.integers(0, len(graph.nodes) - 1)
    topics = data.draw(st.lists(st.lists(node, max_size=3), min_size=1, max_size=3))
    questions = [f"question {i}" for i in range(len(topics))]
    scorer = HashScorer()
    result = search(questions, topics, steps, scorer, rules)
    for question, listed, paths in zip(questions, topics, result.paths, strict=True):
        assert paths == search_by_loops(question, listed, steps, scorer.of, rules)
        assert search([question], [listed], steps, scorer, rules).paths == [paths]
        for path in paths:
            assert len(steps.reach(path.topic, path.steps)) and len(path.steps) <= rules.hops


FILMS = [
    ("Kismet", "directed_by", "Dieterle"),
    ("Kismet", "written_by", "Meehan"),
    ("Kismet", "starred", "Colman"),
    ("The Searching Wind", "directed_by", "Dieterle"),
    ("The Searching Wind", "starred", "Sidney"),
    ("Alone", "alike", "Alone"),
]


def films(**settings) -> tuple[Steps, dict[str, int]]:
    graph = Triples.from_triples(FILMS)
    settings = {"inverse": True, "by": "last", "hub": 0} | settings
    places = {id: i for i, id in enumerate(graph.nodes.ids.to_pylist())}
    return Steps(graph, **settings), places


def test_the_best_path_follows_the_relations_in_the_question():
    steps, index_of = films()
    questions = [
        "who starred in films inverse of directed by the one that directed by Kismet",
        "written by whom",
    ]
    scorer = WordScorer()
    result = search(questions, [[index_of["Kismet"]]] * 2, steps, scorer, BeamRules(beam=3))
    assert [steps.names[step] for step in result.paths[1][0].steps] == ["written by"]
    best = [steps.names[step] for step in result.paths[0][0].steps]
    assert best == ["directed by", "inverse of directed by", "starred"]
    reached = steps.reach(index_of["Kismet"], result.paths[0][0].steps)
    assert reached.tolist() == sorted([index_of["Colman"], index_of["Sidney"]])
    # One call a hop for both questions, but none for the first: Kismet has three relations.
    assert len(scorer.calls) == 3 and result.pairs == sum(map(len, scorer.calls))
    assert {question for question, _ in scorer.calls[0]} == set(questions)


def test_end_is_offered_from_the_second_step_on():
    steps, index_of = films()
    scorer = HashScorer()
    search(["q"], [[index_of["Kismet"]]], steps, scorer, BeamRules(beam=2, hops=2))
    first, second, *after_the_last_hop = (
        [text.endswith(", end") for _, text in call] for call in scorer.calls
    )
    assert not any(first)
    assert any(second) and not all(second)
    assert all(all(call) for call in after_the_last_hop)


def test_a_path_that_reaches_only_its_topic_cannot_end():
    """From Alone, there is nothing but a loop to itself."""
    steps, index_of = films()
    result = search(["q"], [[index_of["Alone"]]], steps, HashScorer(), BeamRules())
    assert result.paths == [[]] and result.pairs > 0


def test_no_path_ends_at_its_own_topic():
    steps, index_of = films()
    kismet = index_of["Kismet"]
    (paths,) = search(["q"], [[kismet]], steps, HashScorer(), BeamRules(beam=99)).paths
    assert paths
    for path in paths:
        assert kismet not in steps.reach(path.topic, path.steps).tolist()


def test_without_topics_or_edges_there_are_no_paths():
    graph = Triples.from_triples([("a", "r", "b")], {"a": "a", "b": "b", "alone": "alone"})
    steps = Steps(graph, inverse=True, by="last", hub=0)
    scorer = HashScorer()
    alone, a = graph.nodes.index("alone"), graph.nodes.index("a")
    result = search(["q", "q", "q"], [[alone], [], [alone, a]], steps, scorer, BeamRules())
    assert result.paths[:2] == [[], []]
    assert {path.topic for path in result.paths[2]} == {a}
    scorer.calls.clear()
    assert search([], [], steps, scorer, BeamRules()).paths == []
    assert search(["q"], [[alone]], steps, scorer, BeamRules()).paths == [[]]
    assert scorer.calls == []


def test_equal_scores_are_ordered_by_topic_and_steps():
    steps, index_of = films()
    topics = [index_of["The Searching Wind"], index_of["Kismet"]]
    result = search(["q"], [topics], steps, HashScorer(levels=1), BeamRules(beam=99, hops=1))
    keys = [(topics.index(path.topic), path.steps) for path in result.paths[0]]
    assert keys == sorted(keys) and len(keys) == 5


def test_a_prefilter_reduces_the_candidates_that_are_scored():
    relations = [f"relation_{i:03}" for i in range(300)]
    graph = Triples.from_triples([("topic", name, f"end {name}") for name in relations])
    steps = Steps(graph, inverse=False, by="last", hub=0)
    topic, wanted = graph.nodes.index("topic"), "relation 222"
    plain = search([wanted], [[topic]], steps, WordScorer(), BeamRules(hops=1, keep=10))
    scorer, prefilter = WordScorer(), WordScorer()
    rules = BeamRules(hops=1, keep=10)
    result = search([wanted], [[topic]], steps, scorer, rules, prefilter)
    assert result.paths == plain.paths and steps.names[result.paths[0][0].steps[0]] == wanted
    assert plain.pairs == 300 + 5 and plain.prefiltered == 0
    assert result.pairs == 10 + 5 and result.prefiltered == 300
    assert [len(call) for call in prefilter.calls] == [300]


def test_a_prefilter_never_drops_end():
    facts = [("topic", "first", "middle")]
    facts += [("middle", f"relation {i}", "far") for i in range(30)]
    graph = Triples.from_triples(facts)
    steps = Steps(graph, inverse=False, by="last", hub=0)

    class EndIsWorst(WordScorer):
        def of(self, question: str, path: str) -> float:
            assert not path.endswith(", end")
            return 1.0

    rules = BeamRules(beam=1, hops=2, keep=3)
    topics = [[graph.nodes.index("topic")]]
    result = search(["first end"], topics, steps, WordScorer(), rules, EndIsWorst())
    assert [path.steps for path in result.paths[0]] == [(0,)]
    assert result.prefiltered == 30 and result.pairs == 4


def test_a_hub_is_one_candidate_per_relation():
    facts = [("topic", "lists", f"n{i:06}") for i in range(100_000)]
    graph = Triples.from_triples([*facts, ("topic", "names", "n000003")])
    topic = graph.nodes.index("topic")
    for hub, cuts in ((0, 0), (1000, 1)):
        steps, scorer = Steps(graph, inverse=True, by="last", hub=hub), HashScorer(levels=1)
        result = search(["q"], [[topic]], steps, scorer, BeamRules(beam=99, hops=2))
        # Two relations go on, each with END and both of their inverses.
        assert len(scorer.calls[0]) == 6 and result.cuts == cuts
        lists = graph.relations.index("lists")
        ends = {path.steps: len(steps.reach(topic, path.steps)) for path in result.paths[0]}
        assert ends[(lists,)] == 100_000


def test_the_best_of_ten_thousand_relations_is_found():
    graph = Triples.from_triples([("topic", f"relation_{i:05}", f"n{i}") for i in range(10_000)])
    steps = Steps(graph, inverse=True, by="last", hub=0)
    topics = [[graph.nodes.index("topic")]]
    result = search(
        ["relation 01234"], topics, steps, WordScorer(), BeamRules(hops=1), WordScorer()
    )
    assert steps.names[result.paths[0][0].steps[0]] == "relation 01234"
    assert (result.prefiltered, result.pairs) == (10_000, 64 + 5)


def test_nodes_with_the_same_name_are_scored_once():
    facts = [("m.1", "written_by", "m.3"), ("m.2", "written_by", "m.4")]
    names = {"m.1": "Kismet", "m.2": "Kismet", "m.3": "Lederer", "m.4": "Meehan"}
    steps = Steps(Triples.from_triples(facts, names), inverse=False, by="last", hub=0)
    result = search(["q"], [[0, 1]], steps, HashScorer(), BeamRules())
    assert [path.topic for path in result.paths[0]] == [0, 1] and result.pairs == 1


def test_invalid_search_arguments_are_refused():
    steps, _ = films()
    with pytest.raises(IndexError, match="node 99: this graph has 7"):
        search(["q"], [[99]], steps, HashScorer(), BeamRules())
    with pytest.raises(ValueError, match="2 questions and 1 lists of topics: give one each"):
        search(["q", "q"], [[0]], steps, HashScorer(), BeamRules())
    for name in ("beam", "hops", "keep"):
        with pytest.raises(ValueError, match=f"{name}=0: must be at least 1"):
            BeamRules(**{name: 0})
