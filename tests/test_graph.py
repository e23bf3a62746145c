"""From entities and relations to a community: the graph, PageRank against networkx, Algorithm 1, the seeds."""

import dataclasses
import json
import math
import re
import unicodedata

import networkx as nx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import DATA
from graphs import numbered
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ark_jax.graph.community import SeedFinder, community, words
from ark_jax.graph.extract import Entity, Relation
from ark_jax.graph.store import KnowledgeGraph, fold

# --- the graph -------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", ["Nine Lamps", "the  nine lamps", '"The Nine Lamps"', "NINE\tLAMPS.", "‘nine lamps’",
                                  "Ｎine Lamps", 'The "Nine Lamps"'])
def test_names_that_are_equal(name):
    assert fold(name) == "nine lamps"


def test_names_that_are_not_equal():
    assert len({fold(name) for name in ("Ada", "Adas", "Theatre", "Atre", "The", "New Ada")}) == 6
    assert fold("Strasse") == fold("STRASSE") == fold("Straße")
    assert fold("Kırık") != fold("Kirik")  # Unicode keeps the dotless i apart, though in capitals it looks alike


@pytest.mark.parametrize("names", [
    ["ΣΊΣΥΦΟΣ", "Σίσυφος", "σίσυφοσ"], ["Café", "CAFE\u0301", "cafe\u0301"], ["ＩＢＭ", "ibm"], ["ﬁnal", "FINAL"], ["①", "1"],
    ["co\u00adoperate", "co\u200boperate", "\ufeffcooperate", "COOPERATE\u200d"], ["❤\ufe0f", "❤"], ["a\u034f\u0301", "á"],
    ["New\u00a0York", "new\u3000york", "New \t\r\n York"], ["„Müller“", "«müller»", "‚Müller‘", "「MÜLLER」"], ["The The", "the"],
    ["the The Band", "Band", "the \"The 'Band'\""], ["ᾳ\u0301", "ΆΙ", "ᾴ"], ["İ", "i\u0307"], ["the", "The."], ["ẞ", "ss"],
], ids=ascii)
def test_other_spellings_that_are_equal(names):
    assert len(set(map(fold, names))) == 1 and fold(names[0])


ARTFUL = st.lists(st.sampled_from([
    "the ", "The ", " ", "\u00a0", '"', "“", "'", ".", ",", "ß", "ς", "Σ", "İ", "ﬁ", "\u0345", "\u0301", "\u00ad", "\u200b",
    "\ufe0f", "Ａ", "e", "각", "\u11a8", "ı", "ŉ", "ᾳ", "…", "½"]) | st.text(max_size=3), max_size=8).map("".join)


@settings(deadline=None, max_examples=300)
@given(ARTFUL | st.text())
@example("the the nine")
def test_fold_is_its_own_fold_in_every_case_and_encoding(name):
    folded = fold(name)
    assert fold(folded) == folded == " ".join(folded.split())
    assert not folded.startswith("the ") and not set(folded[:1] + folded[-1:]) & set("\"'“” .,;:")
    forms = [name.lower(), name.replace(" ", "\u2003\u00a0"),
             *(unicodedata.normalize(form, name) for form in ("NFC", "NFD", "NFKC", "NFKD"))]
    if not set("ı\u0345") & set(unicodedata.normalize("NFD", name)):  # a subscript made a letter takes the next accent
        forms += [name.upper(), name.casefold()]
    if folded:
        forms.append(f'  the "{name}"\n')
    assert set(map(fold, forms)) == {folded}


def test_fold_of_every_character_that_has_another_form():
    """Behind a letter; only the dotless i becomes another character in capitals."""
    forms = lambda c: {c.casefold(), c.upper(), c.lower(), c.title(),
                       *(unicodedata.normalize(form, c) for form in ("NFC", "NFKC", "NFD"))}
    characters = [c for i in range(0x20, 0x110000) if not 0xAC00 <= i < 0xE000 and forms(c := chr(i)) != {c}]
    assert len(characters) > 7000
    assert {c for c in characters for form in forms(c) if fold(f"x{form}") != fold(f"x{c}")} == {"ı"}
    assert [c for c in characters if fold(fold(f"x{c}")) != fold(f"x{c}")] == []


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


PAIRS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=12)


@settings(deadline=None)
@given(PAIRS, PAIRS)
def test_neighbours_and_summary_of_any_edges(edges, similar):
    """In any order and direction, twice or between a node and itself."""
    graph = dataclasses.replace(numbered(8, edges), similar=np.array(similar, np.int32).reshape(-1, 2))
    expected = nx.Graph()
    expected.add_nodes_from(range(8))
    expected.add_edges_from([*edges, *similar])
    source, target = graph.neighbours()
    assert source.dtype == target.dtype == np.int32
    assert list(zip(target.tolist(), source.tolist(), strict=True)) == sorted((b, a) for a in expected for b in expected[a])
    summary = graph.summary()
    assert (summary["augmented_edges"], summary["edges"], summary["similarity_edges"], summary["components"]) == (
        expected.number_of_edges(), len(edges), len(similar), nx.number_connected_components(expected))
    degrees = [len(expected[node]) for node in expected]
    bucket = lambda d: str(d) if d < 2 else "2-3" if d < 4 else "4-7" if d < 8 else "8-15"
    buckets = [bucket(degree) for degree in degrees]
    assert {k: v for k, v in summary["degrees"].items() if v} == {k: buckets.count(k) for k in buckets}


def test_a_summary_by_hand():
    graph = dataclasses.replace(numbered(7, [(0, i) for i in range(1, 5)]), similar=np.array([[0, 1], [1, 2]], np.int32))
    assert json.loads(json.dumps(graph.summary())) == {
        "nodes": 7, "edges": 4, "similarity_edges": 2, "augmented_edges": 5, "components": 3, "mean_degree": 10 / 7,
        "max_degree": 4, "degrees": {"0": 2, "1": 2, "2-3": 2, "4-7": 1}}
    assert KnowledgeGraph.from_triples([]).summary() == {
        "nodes": 0, "edges": 0, "similarity_edges": 0, "augmented_edges": 0, "components": 0, "mean_degree": 0.0,
        "max_degree": 0, "degrees": {}}


def test_a_strength_beyond_all_measure_is_no_infinity(tmp_path):
    graph = KnowledgeGraph.from_records([], [Relation("a", "b", "", 1e300, "c"), Relation("b", "a", "", 1e308, "c")])
    assert np.isfinite(graph.weights).all() and graph.weights[0] > 1e38
    graph.save(tmp_path)
    assert KnowledgeGraph.load(tmp_path).weights.tolist() == graph.weights.tolist()


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
    with pytest.raises(ValueError, match=rf"{table}\.parquet: row 0, the edge ends outside the 4 nodes of nodes\.parquet"):
        KnowledgeGraph.load(tmp_path)


@pytest.mark.parametrize("table, column, values, words", [
    ("nodes", "name", None, r"nodes\.parquet: needs one column 'name', has \['type', 'descriptions', 'chunks'\]"),
    ("nodes", "name", [1, 2, 3, 4], r"nodes\.parquet: column 'name' is of type int64, not string"),
    ("nodes", "name", ["a", "b", None, "d"], r"nodes\.parquet: row 2, name is empty"),
    ("nodes", "name", ["a", "b", "b", "d"], r"nodes\.parquet: row 2, name 'b' is that of row 1 too"),
    ("nodes", "chunks", ["a", "b", "c", "d"], r"nodes\.parquet: column 'chunks' is of type string, not list"),
    ("nodes", "descriptions", [["a"], [], [None], []], r"nodes\.parquet: column 'descriptions' holds an empty text"),
    ("relations", "weight", [1.0, float("nan")], r"relations\.parquet: row 1, weight is nan: must be a finite number, 0 or more"),
    ("relations", "weight", [-0.5, 1.0], r"relations\.parquet: row 0, weight is -0\.5: must be"),
    ("relations", "weight", ["1", "2"], r"relations\.parquet: column 'weight' is of type string, not float"),
    ("relations", "target", [0.5, 1.5], r"relations\.parquet: column 'target' is of type double, not int32"),
    ("relations", "source", [0, 1 << 40], r"relations\.parquet: column 'source' is of type int64, not int32"),
    ("similar", "cosine", [float("inf")], r"similar\.parquet: row 0, cosine is inf: must be a finite number$"),
    ("similar", "source", None, r"similar\.parquet: needs one column 'source'"),
])
def test_a_damaged_column_is_named(table, column, values, words, tmp_path):
    dataclasses.replace(records(), similar=np.array([[0, 2]], np.int32), cosines=np.array([-0.5], np.float32)).save(tmp_path)
    assert KnowledgeGraph.load(tmp_path).cosines.tolist() == [-0.5]
    path = tmp_path / f"{table}.parquet"
    columns = pq.read_table(path).to_pydict() | {column: values}
    pq.write_table(pa.table({name: x for name, x in columns.items() if x is not None}), path)
    with pytest.raises(ValueError, match=words):
        KnowledgeGraph.load(tmp_path)


def test_a_damaged_or_absent_file_is_named(tmp_path):
    records().save(tmp_path)
    path = tmp_path / "relations.parquet"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"relations\.parquet is no whole Parquet file: "):
        KnowledgeGraph.load(tmp_path)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"relations\.parquet is absent"):
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
    summary = graph.summary()
    assert sum(summary.pop("degrees").values()) == len(expected)
    assert summary == {
        "nodes": len(expected), "edges": expected.number_of_edges(), "similarity_edges": 0,
        "augmented_edges": expected.number_of_edges(), "components": nx.number_connected_components(expected),
        "mean_degree": pytest.approx(np.mean(degrees)), "max_degree": max(degrees)}
    weights = lambda graph: {frozenset(edge[:2]): edge[2] for edge in graph.edges.data("weight")}
    assert weights(nx.relabel_nodes(graph.to_networkx(), fold)) == weights(expected)
    assert len(expected) > 1000


@pytest.mark.parametrize("triple", [("a", "b"), "abc", ("a", "b", 3), ("a", "b", "c", "d")], ids=str)
def test_what_is_no_triple_is_named(triple):
    with pytest.raises(ValueError, match=r"triples\[1\] is .*give \(head, relation, tail\)"):
        KnowledgeGraph.from_triples([("x", "y", "z"), triple])


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


@settings(deadline=None)
@given(st.lists(st.sampled_from([0.0, 0.01, 0.02, 0.05, 0.1]), max_size=40), st.integers(1, 6), st.integers(0, 6),
       st.sampled_from([0.0, 0.02]), st.sampled_from([np.float32, np.float64]))
def test_equal_ranks_are_cut_by_number(ranks, at_least, more, floor, dtype):
    """Ties wherever the selection of the highest ends."""
    ranks = np.array(ranks, dtype)
    assert community(ranks, at_least=at_least, at_most=at_least + more, floor=floor) == algorithm_1(
        ranks.tolist(), at_least, at_least + more, float(dtype(floor)))


@settings(deadline=None)
@given(st.lists(st.sampled_from([0.0, 0.01, 0.02, 0.05, 0.1]), max_size=40), st.integers(1, 6), st.integers(0, 6),
       st.integers(0, 2**32))
def test_another_rounding_cuts_no_other_community(ranks, at_least, more, seed):
    """Nodes that stand alike have ranks that differ by how a machine adds."""
    noisy = np.array(ranks) * (1 + 1e-9 * np.random.default_rng(seed).standard_normal(len(ranks)))
    assert community(noisy, at_least=at_least, at_most=at_least + more, floor=0.0) == algorithm_1(
        ranks, at_least, at_least + more, 0.0)


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


def test_a_mention_needs_no_blanks_where_a_script_has_none():
    graph = KnowledgeGraph.from_records([Entity("\u7537", "person", "", "c1")], [])
    seeds = SeedFinder(graph, {"c1": "\u4ed6\u559c\u6b61\u6771\u4eac\u5854"}, lambda text: [])
    found = seeds.find("?", ["\u6771\u4eac\u5854"], ["c1"])
    assert (found.rule, found.nodes) == ("mention", [0])


def test_at_most_so_many_seeds():
    seeds, _ = finder()
    assert seeds.find("?", ["Marrowgate", "Dipper", "Ferry"], [], most=2).nodes == [1, 3]
    assert seeds.find("?", ["nobody"], [], most=2).nodes == [5, 4]


def scan(graph: KnowledgeGraph, texts: dict[str, str], question: str, answers: list[str], chunks: list[str], most: int) -> tuple:
    """The rules, term by term, over all nodes."""
    first = lambda ranked: [i for _, i in sorted(ranked)[:most]]
    held = [words(name) for name in graph.names]
    exact = [(0, i) for i, name in enumerate(graph.names) if fold(name) and fold(name) in map(fold, answers)]
    share = lambda i: max((len(held[i] & words(a)) / len(held[i] | words(a)) for a in answers if words(a)), default=0.0)
    overlap = [(-share(i), i) for i in range(len(graph)) if share(i) >= 0.5]
    asked = words(question)
    holds = lambda chunk: any(fold(a) and re.search(rf"(?<!\w){re.escape(fold(a))}(?!\w)", fold(texts[chunk])) for a in answers)
    mention = [(-len(held[i] & asked) / max(len(held[i]), 1), i) for i in range(len(graph))
               if any(c in graph.chunks[i] and holds(c) for c in chunks)]
    named = [(-len(held[i]), i) for i in range(len(graph)) if held[i] and held[i] <= asked]
    for rule, ranked in (("exact", exact), ("overlap", overlap), ("mention", mention), ("question", named)):
        if ranked:
            return first(ranked), rule
    return [0], "embedding"


@st.composite
def quizzes(draw):
    """A graph of names over few words, some of them alike for `fold`, its chunks, and questions of all kinds."""
    vocabulary = st.sampled_from(["of", "of", "of", "the", "ada", "Ada,", "ferry", "long", "1790", "...", "quill"])
    phrase = st.lists(vocabulary, min_size=1, max_size=6).map(" ".join)
    names = draw(st.lists(phrase, unique=True, min_size=1, max_size=14))
    texts = {f"c{i}": text for i, text in enumerate(draw(st.lists(phrase, min_size=1, max_size=3)))}
    chunks = draw(st.lists(st.lists(st.sampled_from(list(texts)), unique=True), min_size=len(names), max_size=len(names)))
    asked = draw(st.lists(st.tuples(phrase, st.lists(phrase, max_size=3), st.lists(st.sampled_from(list(texts)), unique=True),
                                    st.integers(1, 6)), min_size=1, max_size=4))
    return dataclasses.replace(numbered(len(names), []), names=names, chunks=chunks), texts, asked


@settings(deadline=None, max_examples=200)
@given(quizzes())
def test_seeds_from_the_index_are_those_of_a_scan(quiz):
    graph, texts, asked = quiz
    seeds = SeedFinder(graph, texts, lambda text: [0])
    for question, answers, chunks, most in asked:
        found = seeds.find(question, answers, chunks, most)
        assert (found.nodes, found.rule) == scan(graph, texts, question, answers, chunks, most)


def test_frequent_words_are_not_walked_through():
    """Names of four words, two of them in all names: what is looked at does not grow with the graph."""
    names = [f"bank of a{i} b{i}" for i in range(2000)]
    seeds = SeedFinder(dataclasses.replace(numbered(2000, []), names=names, chunks=[[]] * 2000), {}, lambda text: [0])
    wanted = words("bank of a7 b8")
    assert set(seeds._overlapping(wanted)) == {7, 8}
    assert seeds.find("?", ["bank of a7"], []).nodes == [7]
    assert len(seeds.rarest["a7"]) == 1 and "bank" not in seeds.rarest
    assert seeds.find("who owns the bank of a7 b7?", ["nobody"], []).nodes == [7]
