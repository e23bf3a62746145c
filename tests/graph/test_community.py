"""Communities against Algorithm 1 written out; seeds against a scan of all nodes."""

import dataclasses
import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.graphs import numbered

from ark_jax.graph.community import NameIndex, SeedFinder, community, words
from ark_jax.graph.extract import Entity
from ark_jax.graph.store import KnowledgeGraph, fold

# --- the graph -----------------------------------------------------------------------------------


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
@given(
    st.integers(0, 2**32),
    st.integers(0, 40),
    st.integers(1, 12),
    st.integers(0, 12),
    st.sampled_from([0.0, 1e-4, 1e-2]),
)
def test_communities_equal_algorithm_1_of_the_paper(seed, n, at_least, more, floor):
    rng = np.random.default_rng(seed)
    ranks = rng.dirichlet(np.full(n, 0.3)) * (rng.random(n) < 0.9) if n else np.zeros(0)
    ours = community(ranks, at_least=at_least, at_most=at_least + more, floor=floor)
    assert ours == algorithm_1(ranks.tolist(), at_least, at_least + more, floor)


@settings(deadline=None)
@given(
    st.lists(st.sampled_from([0.0, 0.01, 0.02, 0.05, 0.1]), max_size=40),
    st.integers(1, 6),
    st.integers(0, 6),
    st.sampled_from([0.0, 0.02]),
    st.sampled_from([np.float32, np.float64]),
)
def test_equal_ranks_are_cut_in_node_order(ranks, at_least, more, floor, dtype):
    """Ties wherever the selection of the highest ends."""
    ranks = np.array(ranks, dtype)
    assert community(ranks, at_least=at_least, at_most=at_least + more, floor=floor) == algorithm_1(
        ranks.tolist(), at_least, at_least + more, float(dtype(floor))
    )


@settings(deadline=None)
@given(
    st.lists(st.sampled_from([0.0, 0.01, 0.02, 0.05, 0.1]), max_size=40),
    st.integers(1, 6),
    st.integers(0, 6),
    st.integers(0, 2**32),
)
def test_rounding_noise_does_not_change_a_community(ranks, at_least, more, seed):
    """Nodes that stand alike have ranks that differ by how a machine adds."""
    noisy = np.array(ranks) * (1 + 1e-9 * np.random.default_rng(seed).standard_normal(len(ranks)))
    assert community(noisy, at_least=at_least, at_most=at_least + more, floor=0.0) == algorithm_1(
        ranks, at_least, at_least + more, 0.0
    )


@pytest.mark.parametrize(
    "ranks, sizes, floor, expected",
    [
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
    ],
)
def test_communities_equal_examples_worked_by_hand(ranks, sizes, floor, expected):
    assert community(np.array(ranks), at_least=sizes[0], at_most=sizes[1], floor=floor) == expected


# --- seeds ---------------------------------------------------------------------------------------


def finder() -> tuple[SeedFinder, list[str]]:
    entities = [
        Entity("Long Staff", "object", "A post.", "c1"),
        Entity("Marrowgate", "place", "A town.", "c1"),
        Entity("Lemuel Crace", "person", "A boy.", "c2"),
        Entity("Dipper", "boat", "A cutter.", "c2"),
        Entity("Sorrel Ferry", "place", "A ferry.", "c3"),
        Entity("Ferry", "object", "Any.", "c3"),
    ]
    texts = {
        "c1": "The Long Staff stood at Marrowgate.",
        "c2": "From the Dipper, he took 11,405 soundings.",
        "c3": "11 of them.",
    }
    asked = []
    nearest = lambda text: asked.append(text) or [5, 4, 3, 2, 1, 0]
    return SeedFinder(KnowledgeGraph.from_records(entities, []), texts, nearest), asked


@pytest.mark.parametrize(
    "question, answers, chunks, rule, nodes",
    [
        ("Where?", ["MARROWGATE", "the Long Staff", "“marrowgate”"], ["c1"], "exact", [0, 1]),
        ("Who?", ["young Lemuel Crace"], ["c2"], "overlap", [2]),  # two words of three
        ("Which?", ["Sorrel"], [], "overlap", [4]),  # one of two: just enough
        (
            "How many soundings did the Dipper take?",
            ["11,405"],
            ["c1", "c2", "c3"],
            "mention",
            [3, 2],
        ),  # what is asked for first
        (
            "How many soundings did the Dipper take?",
            ["11,405"],
            ["c1", "c3"],
            "question",
            [3],
        ),  # c2 is not the question's
        (
            "How deep off Sorrel Ferry?",
            ["405 feet"],
            ["c2"],
            "question",
            [4, 5],
        ),  # the longer name first
        (
            "How many?",
            ["5 soundings"],
            ["c1", "c2", "c3"],
            "embedding",
            [5, 4, 3, 2, 1],
        ),  # within a number is no mention
        (
            "How many?",
            ["..."],
            ["c1", "c2", "c3"],
            "embedding",
            [5, 4, 3, 2, 1],
        ),  # an answer without a word is nowhere
    ],
)
def test_each_seed_rule_finds_its_nodes(question, answers, chunks, rule, nodes):
    seeds, asked = finder()
    result = seeds.find(question, answers, chunks)
    assert (result.rule, result.nodes) == (rule, nodes)
    assert asked == ([f"{question} {answers[0]}"] if rule == "embedding" else [])


def test_names_in_scripts_without_spaces_are_found_inside_a_text():
    graph = KnowledgeGraph.from_records([Entity("\u7537", "person", "", "c1")], [])
    seeds = SeedFinder(graph, {"c1": "\u4ed6\u559c\u6b61\u6771\u4eac\u5854"}, lambda text: [])
    result = seeds.find("?", ["\u6771\u4eac\u5854"], ["c1"])
    assert (result.rule, result.nodes) == ("mention", [0])


def test_the_number_of_seeds_is_limited():
    seeds, _ = finder()
    assert seeds.find("?", ["Marrowgate", "Dipper", "Ferry"], [], limit=2).nodes == [1, 3]
    assert seeds.find("?", ["nobody"], [], limit=2).nodes == [5, 4]


@pytest.mark.parametrize(
    "named, within, rule, nodes",
    [
        (["THE DIPPER", "Marrowgate"], None, "model", [1, 3]),
        (["THE DIPPER", "Marrowgate"], {0, 1, 2}, "model", [1]),
        (["Captain Lemuel of Sorrel"], None, "shared", [2, 4]),
        (["Captain Lemuel of Sorrel"], {4}, "shared", [4]),
        (["nobody"], None, "exact", [0]),
        ([], {1, 5}, "embedding", [5, 1]),  # no other rule has a node among these
        ([], set(), "embedding", []),
    ],
)
def test_entities_that_a_model_named_come_before_the_rules(named, within, rule, nodes):
    """ARK, src/community/extraction.py:275: equal names; generate_neg.py:244: else Jaccard."""
    seeds, _ = finder()
    found = seeds.find("?", ["the Long Staff"], [], limit=5, named=named, within=within)
    assert (found.rule, found.nodes) == (rule, nodes)


def test_at_most_five_pairs_of_shared_words_become_seeds():
    """A node that two names share words with takes two of the five places."""
    names = ["mill", "old mill", "mill lane", "ford mill", "weir mill", "mill pond at the weir"]
    graph = dataclasses.replace(numbered(6, []), names=names, chunks=[[]] * 6)
    seeds = SeedFinder(graph, {}, lambda text: [])
    jaccard = lambda a, b: len(words(a) & words(b)) / len(words(a) | words(b))
    named = ["the mill by the ford", "a weir or mill"]
    pairs = sorted((-jaccard(name, names[i]), i) for name in named for i in range(6))[:5]
    assert len({i for _, i in pairs}) < 5
    assert seeds.find("?", [], [], named=named).nodes == list(dict.fromkeys(i for _, i in pairs))


@settings(deadline=None)
@given(st.lists(st.sets(st.sampled_from("abcdef"), min_size=1), min_size=1, max_size=12), st.data())
def test_overlaps_from_the_index_equal_those_of_a_full_scan(nodes, data):
    target = data.draw(st.sets(st.sampled_from("abcdefg")))
    least = data.draw(st.sampled_from([0, 0.2, 1 / 3, 0.5, 2 / 3, 1]))
    index = NameIndex([" ".join(sorted(name)) for name in nodes])
    share = lambda i: len(nodes[i] & target) / len(nodes[i] | target)
    expected = [i for i in range(len(nodes)) if share(i) >= least and share(i) > 0]
    assert index.overlapping([target], least) == sorted(expected, key=lambda i: (-share(i), i))


def scan(
    graph: KnowledgeGraph,
    texts: dict[str, str],
    question: str,
    answers: list[str],
    chunks: list[str],
    limit: int,
) -> tuple:
    """The rules, term by term, over all nodes."""
    first = lambda ranked: [i for _, i in sorted(ranked)[:limit]]
    held = [words(name) for name in graph.names]
    exact = [
        (0, i)
        for i, name in enumerate(graph.names)
        if fold(name) and fold(name) in map(fold, answers)
    ]
    share = lambda i: max(
        (len(held[i] & words(a)) / len(held[i] | words(a)) for a in answers if words(a)),
        default=0.0,
    )
    overlap = [(-share(i), i) for i in range(len(graph)) if share(i) >= 0.5]
    question_words = words(question)
    holds = lambda chunk: any(
        fold(a) and re.search(rf"(?<!\w){re.escape(fold(a))}(?!\w)", fold(texts[chunk]))
        for a in answers
    )
    mention = [
        (-len(held[i] & question_words) / max(len(held[i]), 1), i)
        for i in range(len(graph))
        if any(c in graph.chunks[i] and holds(c) for c in chunks)
    ]
    named = [(-len(held[i]), i) for i in range(len(graph)) if held[i] and held[i] <= question_words]
    for rule, ranked in (
        ("exact", exact),
        ("overlap", overlap),
        ("mention", mention),
        ("question", named),
    ):
        if ranked:
            return first(ranked), rule
    return [0], "embedding"


@st.composite
def quizzes(draw):
    """A graph of names over few words, some of them alike for `fold`, its chunks, and questions of
    all kinds."""
    vocabulary = st.sampled_from(
        ["of", "of", "of", "the", "ada", "Ada,", "ferry", "long", "1790", "...", "quill"]
    )
    phrase = st.lists(vocabulary, min_size=1, max_size=6).map(" ".join)
    names = draw(st.lists(phrase, unique=True, min_size=1, max_size=14))
    texts = {f"c{i}": text for i, text in enumerate(draw(st.lists(phrase, min_size=1, max_size=3)))}
    chunks = draw(
        st.lists(
            st.lists(st.sampled_from(list(texts)), unique=True),
            min_size=len(names),
            max_size=len(names),
        )
    )
    questions = draw(
        st.lists(
            st.tuples(
                phrase,
                st.lists(phrase, max_size=3),
                st.lists(st.sampled_from(list(texts)), unique=True),
                st.integers(1, 6),
            ),
            min_size=1,
            max_size=4,
        )
    )
    return (
        dataclasses.replace(numbered(len(names), []), names=names, chunks=chunks),
        texts,
        questions,
    )


@settings(deadline=None, max_examples=80)
@given(quizzes())
def test_seeds_from_the_index_equal_those_of_a_full_scan(quiz):
    graph, texts, questions = quiz
    seeds = SeedFinder(graph, texts, lambda text: [0])
    for question, answers, chunks, limit in questions:
        result = seeds.find(question, answers, chunks, limit)
        assert (result.nodes, result.rule) == scan(graph, texts, question, answers, chunks, limit)


def test_a_lookup_skips_names_that_share_only_frequent_words():
    """Names of four words, two of them in all names: what is looked at does not grow with the
    graph."""
    names = [f"bank of a{i} b{i}" for i in range(2000)]
    seeds = SeedFinder(
        dataclasses.replace(numbered(2000, []), names=names, chunks=[[]] * 2000),
        {},
        lambda text: [0],
    )
    wanted = words("bank of a7 b8")
    index = NameIndex(names)
    assert set(index._overlap_candidates(wanted)) == {7, 8}
    assert seeds.find("?", ["bank of a7"], []).nodes == [7]
    by_rarest = lambda word: index._by_rarest_word.rows(index._numbers[word]).tolist()
    assert by_rarest("a7") == [7] and by_rarest("bank") == []
    assert seeds.find("who owns the bank of a7 b7?", ["nobody"], []).nodes == [7]
