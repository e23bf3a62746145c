"""From entities and relations to a community: the graph, PageRank against networkx, Algorithm 1, the seeds."""

import dataclasses
import json
import math
import os
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ark_jax.graph.community import SeedFinder, community
from ark_jax.graph.extract import Entity, Relation
from ark_jax.graph.pagerank import personalized_pagerank
from ark_jax.graph.store import KnowledgeGraph, fold

DATA = Path(os.environ.get("ARK_DATA", Path(__file__).parents[1].parent / "shared" / "data"))

# --- the graph -------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", ["Nine Lamps", "the  nine lamps", '"The Nine Lamps"', "NINE\tLAMPS.", "‘nine lamps’",
                                  "Ｎine Lamps", 'The "Nine Lamps"'])
def test_names_that_are_equal(name):
    assert fold(name) == "nine lamps"


def test_names_that_are_not_equal():
    assert len({fold(name) for name in ("Ada", "Adas", "Theatre", "Atre", "The", "New Ada")}) == 6
    assert fold("Strasse") == fold("STRASSE") == fold("Straße")


def records() -> KnowledgeGraph:
    entities = [Entity("The Long Staff", "Object", "An oak post.", "c1"), Entity("Long Staff", "object", "An oak post.", "c2"),
                Entity('"long staff"', "gauge", "Bolted in 1790.", "c2"), Entity("Long Staff", "OBJECT", "", "c1"),
                Entity("Quill", "person", "A chandler.", "c1"), Entity("Müller", "person", "Ein Müller.", "c3"),
                Entity(" . ", "object", "Nameless.", "c1")]
    relations = [Relation("Quill", "Long Staff", "He read it.", 3.0, "c1"),
                 Relation("the long staff", "QUILL", "Read by him.", 4.5, "c2"),
                 Relation("quill", "Ossel Sound", "He sailed it.", 2.0, "c4"),
                 Relation("Long Staff", "the LONG staff", "Itself.", 9.0, "c1"), Relation("Quill", "''", "Nobody.", 9.0, "c1")]
    return KnowledgeGraph.from_records(entities, relations)


def test_records_are_merged():
    graph = records()
    assert graph.names == ["Long Staff", "Quill", "Müller", "Ossel Sound"]
    assert graph.types == ["object", "person", "person", "unknown"]
    assert graph.descriptions == [["An oak post.", "Bolted in 1790."], ["A chandler."], ["Ein Müller."], ["He sailed it."]]
    assert [set(x) for x in graph.chunks] == [{"c1", "c2"}, {"c1", "c2", "c4"}, {"c3"}, {"c4"}]
    assert graph.edges.tolist() == [[0, 1], [1, 3]]
    assert graph.weights.tolist() == [7.5, 2.0]
    assert graph.edge_descriptions == [["He read it.", "Read by him."], ["He sailed it."]]
    assert graph.edge_chunks == [["c1", "c2"], ["c4"]]
    assert graph.texts()[0] == "Long Staff An oak post. Bolted in 1790."


@pytest.mark.parametrize("block", [1, 3, 2048])
def test_similar_nodes_are_all_pairs_above_the_threshold(block):
    # Unit vectors whose products are exact: cosines are multiples of a half, so the threshold itself is met.
    vectors = np.random.default_rng(0).choice([-0.5, 0.5], (50, 4)).astype(np.float32)
    graph = KnowledgeGraph.from_triples([(f"n{i}", "beside", f"n{i + 1}") for i in range(49)])
    expected = {}
    for i in range(50):
        for j in range(i + 1, 50):
            cosine = sum(float(a) * float(b) for a, b in zip(vectors[i], vectors[j], strict=True))
            if cosine >= 0.5:
                expected[i, j] = cosine
    similar = graph.with_similar(vectors, 0.5, block)
    assert 0.5 in expected.values() and 1.0 in expected.values()
    assert list(map(tuple, similar.similar.tolist())) == sorted(expected)
    assert similar.cosines.tolist() == [expected[pair] for pair in sorted(expected)]
    assert similar.edges.tolist() == graph.edges.tolist() and similar.weights.tolist() == [1.0] * 49
    edges = {frozenset(p) for p in [*expected, *map(tuple, graph.edges.tolist())]}
    source, target = similar.neighbours()
    both_ways = {(a, b) for edge in edges for a in edge for b in edge if a != b}
    assert set(zip(source.tolist(), target.tolist(), strict=True)) == both_ways
    assert len(source) == 2 * len(edges) and (np.diff(target) >= 0).all()


@pytest.mark.parametrize("graph", [records().with_similar(np.eye(4, dtype=np.float32)[[0, 0, 1, 1]], 0.9), records(),
                                   KnowledgeGraph.from_triples([])], ids=["similar", "relations", "empty"])
def test_a_saved_graph_comes_back(graph, tmp_path):
    graph.save(tmp_path / "made" / "here")
    back = KnowledgeGraph.load(tmp_path / "made" / "here")
    for field in dataclasses.fields(graph):
        before, after = getattr(graph, field.name), getattr(back, field.name)
        if isinstance(before, np.ndarray):
            assert (before.dtype, before.tolist()) == (after.dtype, after.tolist()), field.name
        else:
            assert before == after, field.name


@pytest.mark.parametrize("table, field, edge", [("relations", "edges", [1, 4]), ("similar", "similar", [-1, 2])])
def test_an_edge_to_nowhere_is_named(table, field, edge, tmp_path):
    graph = records().with_similar(np.eye(4, dtype=np.float32)[[0, 0, 1, 2]], 0.9)
    edges = getattr(graph, field).copy()
    edges[0] = edge
    dataclasses.replace(graph, **{field: edges}).save(tmp_path)
    with pytest.raises(ValueError, match=rf"{table}\.parquet: an edge ends outside the 4 nodes"):
        KnowledgeGraph.load(tmp_path)


def test_real_triples_against_networkx():
    path = DATA / "musique_openie" / "openie_musique_train_results_ner_gpt-3.5-turbo-1106_1890.json"
    if not path.is_file():
        pytest.skip(f"{path} is absent: set ARK_DATA to test on real triples")
    triples = [t for doc in json.loads(path.read_text())["docs"][:150] for t in doc["extracted_triples"] if len(t) == 3]
    graph = KnowledgeGraph.from_triples(triples)
    expected = nx.Graph()
    for head, _, tail in triples:
        a, b = fold(head), fold(tail)
        if a and b and a != b:
            expected.add_edge(a, b, weight=expected.get_edge_data(a, b, {"weight": 0})["weight"] + 1)
    degrees = [d for _, d in expected.degree()]
    assert graph.summary() == {
        "nodes": len(expected), "relations": expected.number_of_edges(), "similarity_edges": 0,
        "edges": expected.number_of_edges(), "components": nx.number_connected_components(expected),
        "mean_degree": pytest.approx(np.mean(degrees)), "max_degree": max(degrees)}
    weights = lambda graph: {frozenset(edge[:2]): edge[2] for edge in graph.edges.data("weight")}
    assert weights(nx.relabel_nodes(graph.to_networkx(), fold)) == weights(expected)
    assert len(expected) > 1000


# --- PageRank --------------------------------------------------------------------------------------------------------

def numbered(n: int, edges: list[tuple[int, int]]) -> KnowledgeGraph:
    empty = KnowledgeGraph.from_triples([])
    return dataclasses.replace(empty, names=[str(i) for i in range(n)], edges=np.array(edges, np.int32).reshape(-1, 2))


@st.composite
def problems(draw):
    """A graph (nodes without neighbours included), edge weights (zeros included), seed sets, a teleport probability."""
    n = draw(st.integers(1, 12))
    pairs = [(a, b) for a in range(n) for b in range(a + 1, n)]
    edges = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=20)) if pairs else []
    weights = draw(st.lists(st.sampled_from([0.0, 0.25, 1.0, 3.5]), min_size=len(edges), max_size=len(edges)))
    seeds = draw(st.lists(st.lists(st.integers(0, n - 1), min_size=1, max_size=4), min_size=1, max_size=3))
    teleport = draw(st.sampled_from([0.15, 0.3, 0.5, 0.85, 1.0]))
    return n, dict(zip(edges, weights, strict=True)), seeds, teleport, draw(st.booleans())


@settings(max_examples=40, deadline=None)
@given(problems())
def test_pagerank_is_networkx(problem):
    n, weights, seeds, teleport, weighted = problem
    graph = numbered(n, list(weights))
    source, target = graph.neighbours()
    given = np.array([weights[min(a, b), max(a, b)] for a, b in zip(source, target, strict=True)], np.float32)
    ranks = personalized_pagerank(graph, seeds, teleport=teleport, tolerance=1e-6, weight=given if weighted else None)
    reference = nx.Graph()
    reference.add_nodes_from(range(n))
    reference.add_weighted_edges_from((a, b, w if weighted else 1.0) for (a, b), w in weights.items())
    for row, some in zip(ranks, seeds, strict=True):
        expected = nx.pagerank(reference, alpha=1 - teleport, personalization=dict.fromkeys(some, 1), tol=1e-12, max_iter=10_000)
        np.testing.assert_allclose(row, [expected[i] for i in range(n)], atol=1e-5)
        assert row.sum() == pytest.approx(1, abs=1e-5)


def test_a_seed_set_does_not_depend_on_its_batch():
    rng = np.random.default_rng(0)
    graph = numbered(60, [(a, b) for a in range(40) for b in rng.integers(a + 1, 60, 2).tolist() if a < b])
    seeds = [[0], [3, 5], [59], [10, 11, 12, 13], [41]]
    # A loose bound: sets stop after different numbers of steps, and more steps would show.
    options = {"teleport": 0.15, "tolerance": 1e-2}
    together = personalized_pagerank(graph, seeds, **options)
    alone = [personalized_pagerank(graph, [some], **options)[0] for some in seeds]
    np.testing.assert_allclose(together, alone, atol=1e-6)
    exact = personalized_pagerank(graph, seeds, teleport=0.15, tolerance=1e-6)
    assert np.abs(exact - together).max() > 1e-4


def test_pagerank_under_a_mesh(any_mesh):
    ranks = personalized_pagerank(numbered(3, [(0, 1)]), [[0], [2]], teleport=0.5, tolerance=1e-6)
    np.testing.assert_allclose(ranks, [[2 / 3, 1 / 3, 0], [0, 0, 1]], atol=1e-5)


@pytest.mark.parametrize("triple", [("a", "b"), "abc", ("a", "b", 3), ("a", "b", "c", "d")], ids=str)
def test_what_is_no_triple_is_named(triple):
    with pytest.raises(ValueError, match=r"triples\[1\] is .*give \(head, relation, tail\)"):
        KnowledgeGraph.from_triples([("x", "y", "z"), triple])


def test_no_seed_sets_no_rows():
    assert personalized_pagerank(numbered(3, [(0, 1)]), [], teleport=0.5, tolerance=1e-6).shape == (0, 3)


@pytest.mark.parametrize("change, words", [
    ({"seeds": [[0], []]}, r"seeds\[1\] is empty: give at least one node"),
    ({"seeds": [[0, 3]]}, r"seeds\[0\]: node 3 is outside 0\.\.2"),
    ({"seeds": [[1], [2, -1]]}, r"seeds\[1\]: node -1 is outside 0\.\.2"),
    ({"teleport": 0.0}, r"teleport=0\.0: must be in \(0, 1\]"),
    ({"teleport": 1.1}, r"teleport=1\.1"),
    ({"teleport": math.nan}, "teleport=nan"),
    ({"weight": np.ones(3)}, "weight: needs 4 finite non-negative numbers"),
    ({"weight": np.array([1, 1, 1, -1.0])}, "weight: needs 4"),
    ({"weight": np.array([1, 1, 1, math.inf])}, "weight: needs 4"),
    ({"weight": np.array([1, 1, 1, math.nan])}, "weight: needs 4"),
    ({"max_iterations": 2}, r"no convergence in 2 iterations: raise max_iterations or tolerance=1e-06"),
])
def test_what_pagerank_refuses(change, words):
    options = {"seeds": [[0]], "teleport": 0.15, "tolerance": 1e-6, **change}
    with pytest.raises(ValueError, match=words):
        personalized_pagerank(numbered(3, [(0, 1), (1, 2)]), options.pop("seeds"), **options)


# --- communities -----------------------------------------------------------------------------------------------------

def algorithm_1(ranks: list[float], at_least: int, at_most: int, floor: float) -> list[int]:
    """The paper's lines 3 to 7, term by term; equal ranks by number, equal gaps to the smallest."""
    ranked = sorted(range(len(ranks)), key=lambda v: (-ranks[v], v))
    ranked = [v for v in ranked if ranks[v] >= floor and ranks[v] > 0]
    minus_log = [-math.log(ranks[v]) for v in ranked]
    best, index = -1.0, min(at_most, len(ranked))
    for i in range(at_least, at_most + 1):
        if i < len(ranked) and minus_log[i] - minus_log[i - 1] > best:
            best, index = minus_log[i] - minus_log[i - 1], i
    return ranked[:index]


@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 40), st.integers(1, 12), st.integers(0, 12), st.sampled_from([0.0, 1e-4, 1e-2]))
def test_community_is_algorithm_1(seed, n, at_least, more, floor):
    rng = np.random.default_rng(seed)
    ranks = rng.dirichlet(np.full(n, 0.3)) * (rng.random(n) < 0.9) if n else np.zeros(0)
    found = community(ranks, at_least=at_least, at_most=at_least + more, floor=floor)
    assert found == algorithm_1(ranks.tolist(), at_least, at_least + more, floor)


@pytest.mark.parametrize("ranks, sizes, floor, expected", [
    ([0.5, 0.25, 0.01, 0.2], (1, 3), 0.0, [0, 1, 3]),  # the cliff stands before node 2
    ([0.5, 0.25, 0.01, 0.2], (1, 2), 0.0, [0]),  # out of reach: 0.5 / 0.25 beats 0.25 / 0.2
    ([4.0, 1.0, 2.0], (1, 2), 0.0, [0]),  # two gaps of log 2: the first
    ([0.1, 0.4, 0.1, 0.4], (2, 3), 0.0, [1, 3]),  # equal ranks by number
    ([0.1, 0.1, 0.1, 0.1], (2, 3), 0.0, [0, 1]),
    ([0.6, 0.4], (3, 10), 0.0, [0, 1]),  # fewer nodes than at_least: all
    ([0.6, 0.4, 0.0], (2, 10), 0.0, [0, 1]),  # unreached nodes never belong
    ([0.6, 0.3, 0.1, 0.01], (1, 4), 0.0, [0, 1, 2]),
    ([0.6, 0.3, 0.1, 0.01], (1, 4), 0.1, [0, 1]),  # the floor drops 0.01 and keeps 0.1
    ([0.6, 0.3, 0.1, 0.01], (1, 4), 0.11, [0]),
    ([0.0, 0.0], (1, 2), 0.0, []),
])
def test_communities_by_hand(ranks, sizes, floor, expected):
    assert community(np.array(ranks), at_least=sizes[0], at_most=sizes[1], floor=floor) == expected


# --- seeds -----------------------------------------------------------------------------------------------------------

def finder() -> tuple[SeedFinder, list[str]]:
    entities = [Entity("Long Staff", "object", "A post.", "c1"), Entity("Marrowgate", "place", "A town.", "c1"),
                Entity("Lemuel Crace", "person", "A boy.", "c2"), Entity("Dipper", "boat", "A cutter.", "c2"),
                Entity("Sorrel Ferry", "place", "A ferry.", "c3"), Entity("Ferry", "object", "Any.", "c3")]
    texts = {"c1": "The Long Staff stood at Marrowgate.", "c2": "From the Dipper, he took 11,405 soundings.", "c3": "11 of them."}
    asked = []
    nearest = lambda text: asked.append(text) or [5, 4, 3, 2, 1, 0]
    return SeedFinder(KnowledgeGraph.from_records(entities, []), texts, nearest), asked


@pytest.mark.parametrize("question, answers, chunks, rule, nodes", [
    ("Where?", ["MARROWGATE", "the Long Staff", "“marrowgate”"], ["c1"], "exact", [0, 1]),
    ("Who?", ["young Lemuel Crace"], ["c2"], "overlap", [2]),  # two words of three
    ("Which?", ["Sorrel"], [], "overlap", [4]),  # one of two: just enough
    ("How many soundings did the Dipper take?", ["11,405"], ["c1", "c2", "c3"], "mention", [3, 2]),  # what is asked for first
    ("How many soundings did the Dipper take?", ["11,405"], ["c1", "c3"], "question", [3]),  # c2 is not the question's
    ("How deep off Sorrel Ferry?", ["405 feet"], ["c2"], "question", [4, 5]),  # the longer name first
    ("How many?", ["5 soundings"], ["c1", "c2", "c3"], "embedding", [5, 4, 3, 2, 1]),  # within a number is no mention
    ("How many?", ["..."], ["c1", "c2", "c3"], "embedding", [5, 4, 3, 2, 1]),  # an answer without a word is nowhere
])
def test_each_rule_of_seeds(question, answers, chunks, rule, nodes):
    seeds, asked = finder()
    found = seeds.find(question, answers, chunks)
    assert (found.rule, found.nodes) == (rule, nodes)
    assert asked == ([f"{question} {answers[0]}"] if rule == "embedding" else [])


def test_at_most_so_many_seeds():
    seeds, _ = finder()
    assert seeds.find("?", ["Marrowgate", "Dipper", "Ferry"], [], most=2).nodes == [1, 3]
    assert seeds.find("?", ["nobody"], [], most=2).nodes == [5, 4]
