"""A graph of triples against networkx.MultiDiGraph, on disk, and with faults."""

import networkx as nx
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ark_jax as ark
from ark_jax.graph import triple_rows
from ark_jax.graph.triples import Triples

FACTS = [
    ("Paris", "capital_of", "France"),
    ("France", "contains", "Paris"),
    ("Paris", "largest_city_of", "France"),
    ("m.0abc", "spouse", "m.0ABC"),
    ("Paris", "twin_of", "Paris"),
    ("Paris", "capital_of", "France"),
]
names = st.sampled_from(["a", "A", "the a", "ä", "b", "c d", '"e"', "\U0001f3ad"])
some_triples = st.lists(st.tuples(names, st.sampled_from("rsR"), names), max_size=40)


def multigraph(triples) -> nx.MultiDiGraph:
    graph = nx.MultiDiGraph()
    graph.add_edges_from((head, tail, relation) for head, relation, tail in triples)
    return graph


def ids(graph: Triples, nodes: np.ndarray) -> list[str]:
    return [graph.nodes.ids[node].as_py() for node in nodes.tolist()]


def assert_equal(a: Triples, b: Triples) -> None:
    assert list(a) == list(b)
    assert a.duplicates == b.duplicates
    for x, y in ((a.nodes, b.nodes), (a.relations, b.relations)):
        assert x.ids.equals(y.ids) and x.names.equals(y.names)
        assert x.aliases.to_pylist() == y.aliases.to_pylist()


def test_triples_are_exported_by_the_package():
    assert ark.Triples is Triples


@given(some_triples)
def test_edges_and_rows_match_networkx(triples):
    graph, expected = Triples.from_triples(triples), multigraph(triples)
    edges = sorted((h, r, t) for h, t, r in expected.edges(keys=True))
    assert sorted(graph) == edges
    assert len(graph) + graph.duplicates == len(triples)
    assert sorted((h, r, t) for h, t, r in graph.to_networkx().edges(keys=True)) == edges
    assert len(graph.nodes) == len(expected)
    for node, id in enumerate(graph.nodes.ids.to_pylist()):
        touching = [i for i, (h, _, t) in enumerate(graph) if id in (h, t)]
        assert graph.rows(node).tolist() == touching
        assert graph.degrees()[node] == expected.degree(id)
        for relation, name in enumerate(graph.relations.ids.to_pylist()):
            assert sorted(ids(graph, graph.tails(node, relation))) == sorted(
                t for h, r, t in edges if (h, r) == (id, name)
            )


@given(some_triples)
def test_rows_too_wide_for_one_integer_are_sorted_the_same_way(triples):
    graph = Triples.from_triples(triples)
    columns = [x[::-1].astype(np.int64) for x in (graph.head, graph.relation, graph.tail)]
    widths = triple_rows.bit_widths
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triple_rows, "bit_widths", lambda *x: [w + 40 for w in widths(*x)])
        wide = triple_rows.sort_rows(*columns)
        order = triple_rows.order_by(graph.tail, graph.relation)
    for column, ours in zip(wide, (graph.head, graph.relation, graph.tail), strict=True):
        assert column.tolist() == ours.tolist()
    assert order.tolist() == graph.incoming[1].tolist()


def test_a_graph_shows_its_size():
    graph = Triples.from_triples([("a", "r", "b"), ("b", "r", "a"), ("b", "s", "c")])
    assert repr(graph) == "Triples(3 triples, 3 nodes, 2 relations)"


def test_duplicates_and_self_loops_are_counted():
    graph = Triples.from_triples(FACTS)
    assert sorted(graph) == sorted(set(FACTS))
    counts = graph.summary()
    assert counts["duplicates"] == counts["self_loops"] == 1
    assert counts["nodes"] == 4
    assert counts["hubs"][0] == ("Paris", 5)


@given(some_triples)
def test_saved_triples_are_loaded_unchanged(tmp_path_factory, triples):
    folder = tmp_path_factory.mktemp("graph")
    graph = Triples.from_triples(triples, {"a": "A name", "new": "New"}, {"A": ["x", "y"]})
    graph.save(folder)
    assert_equal(Triples.load(folder), graph)
    assert_equal(Triples.read(folder), graph)


def test_a_loaded_graph_is_mapped_into_memory(tmp_path):
    rows = [(f"n{i}", "r", f"n{i + 1}") for i in range(300_000)]
    Triples.from_triples(rows).save(tmp_path)
    before = pa.total_allocated_bytes()
    graph = Triples.load(tmp_path)
    assert pa.total_allocated_bytes() - before < 100_000
    assert graph.head.nbytes > 1_000_000
    assert not graph.head.flags.owndata and not graph.head.flags.writeable


def test_names_that_differ_by_case_or_article_stay_distinct():
    graph = Triples.from_triples([("Comedy", "r", "comedy"), ("The Comedy", "r", "x")])
    called = lambda name: ids(graph, np.array(graph.find(name), int))
    assert [called(name) for name in ("Comedy", "comedy", "The Comedy")] == [
        ["Comedy"],
        ["comedy"],
        ["The Comedy"],
    ]
    assert called("COMEDY") == ["Comedy", "comedy"]
    assert called("Tragedy") == []


def named_triples() -> Triples:
    """Three nodes may be called Paris, and m.4 has no name."""
    return Triples.from_triples(
        [("m.1", "r", "m.2"), ("m.3", "r", "m.4")],
        {"m.1": "Paris", "m.2": "Paris", "m.3": "Lyon"},
        {"m.3": ["Lugdunum", "Paris"]},
    )


def test_names_and_aliases_find_all_candidates():
    graph = named_triples()
    assert ids(graph, np.array(graph.find("Paris"))) == ["m.1", "m.3", "m.2"]
    assert graph.find("lugdunum") == graph.find("Lugdunum") == [graph.nodes.index("m.3")]
    assert (graph.nodes.unnamed, graph.nodes.shared_names) == (1, 1)


def test_a_node_without_a_name_is_called_by_its_id():
    graph = named_triples()
    assert graph.find("m.4") == [graph.nodes.index("m.4")]
    assert graph.nodes.name(graph.nodes.index("m.4")) == "m.4"


def test_a_name_is_not_accepted_as_an_id():
    with pytest.raises(KeyError, match="'Paris' is not an id of this graph"):
        named_triples().nodes.index("Paris")


@pytest.mark.parametrize(
    "bad, words",
    [
        (("a", "r"), r"triples\[1\] is \('a', 'r'\): give \(head, relation, tail\)"),
        (("a", "r", "b", "c", "d"), r"triples\[1\] is .*three strings"),
        ("abc", r"triples\[1\] is 'abc': give"),
        (7, r"triples\[1\] is 7: give"),
        (("a", "r", 7), r"triples\[1\]: tail is a number; write a string"),
        (("a", None, "b"), r"triples\[1\]: relation is null; write a string"),
        ((" ", "r", "b"), r"triples\[1\]: head is empty; fill it in"),
        (("a", "r\t", "b"), r"triples\[1\]: relation 'r\\t' holds a tab"),
        (("a", "r", "\ud800"), r"triples\[1\]: tail holds bytes or .* not valid UTF-8"),
        (("a", "r", "\u200b"), r"triples\[1\]: tail holds only characters that show nothing"),
    ],
)
def test_a_malformed_triple_is_refused(bad, words):
    with pytest.raises(ValueError, match=words):
        Triples.from_triples([("a", "r", "b"), bad])


def test_unknown_nodes_and_relations_are_refused():
    graph = Triples.from_triples(FACTS)
    with pytest.raises(IndexError, match="node -1: this graph has 4, from 0"):
        graph.rows(-1)
    with pytest.raises(IndexError, match="relation 9: this graph has 5, from 0"):
        graph.tails(0, 9)


def test_a_damaged_graph_folder_is_refused(tmp_path):
    graph = Triples.from_triples(FACTS)

    def saved(table: str, **columns) -> None:
        graph.save(tmp_path)
        path = tmp_path / f"{table}.arrow"
        before = pa.ipc.open_file(path.read_bytes()).read_all()
        changed = {name: columns.get(name, before[name]) for name in before.column_names}
        table = pa.table({name: column for name, column in changed.items() if column is not None})
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)

    for table, columns, words in [
        ("triples", {"head": pa.array([0, 0, 0, 1, 9])[:5].cast("int32")}, "row 4, head is 9, but"),
        ("triples", {"head": pa.array([1, 0, 0, 0, 0]).cast("int32")}, "rows are not in order"),
        ("triples", {"tail": None}, "needs one column 'tail' of int32"),
        ("nodes", {"id": pa.array(["a", "b", "a", "c"])}, "an id is empty or repeated"),
        ("relations", {"name": pa.array([1, 2, 3, 4, 5])}, "needs one column 'name' of string"),
    ]:
        saved(table, **columns)
        with pytest.raises(ValueError, match=words):
            Triples.load(tmp_path)
    (tmp_path / "nodes.arrow").write_bytes(b"no Arrow")
    with pytest.raises(ValueError, match=r"nodes\.arrow is not a whole Arrow file"):
        Triples.load(tmp_path)
    (tmp_path / "nodes.arrow").unlink()
    with pytest.raises(FileNotFoundError, match=r"nodes\.arrow is absent"):
        Triples.load(tmp_path)


def test_a_graph_without_triples_is_empty():
    graph = Triples.from_triples([])
    assert len(graph) == len(graph.nodes) == len(graph.relations) == 0
    assert list(graph) == graph.find("a") == [] and graph.degrees().tolist() == []
    assert graph.to_networkx().size() == graph.summary()["triples"] == 0


def test_a_graph_of_one_triple_answers_all_look_ups():
    graph = Triples.from_triples([("a", "r", "b")])
    assert list(graph) == [("a", "r", "b")] and graph.rows(0).tolist() == [0]
    assert graph.tails(0, 0).tolist() == [1] and graph.tails(1, 0).tolist() == []


def test_a_hub_of_a_hundred_thousand_triples_lists_all_neighbours():
    spokes = [f"n{i}" for i in range(100_000)]
    rows = [(id, "likes", "hub") for id in spokes] + [("hub", "knows", id) for id in spokes]
    graph = Triples.from_triples([*rows, ("hub", "made", "n7"), ("hub", "likes", "hub")])
    hub, likes, knows, made = (
        *graph.find("hub"),
        *(graph.relations.index(id) for id in ("likes", "knows", "made")),
    )
    assert graph.tails(hub, likes).tolist() == [hub]
    assert len(graph.tails(hub, knows)) == 100_000 and len(graph.rows(hub)) == 200_002
    assert ids(graph, graph.tails(hub, made)) == ["n7"]  # a relation that is seen once
    assert graph.summary()["hubs"][0] == ("hub", 200_003)
