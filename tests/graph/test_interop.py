"""The knowledge graph in other people's formats: round trips, graphs that others made, and what is
refused."""

import dataclasses
import json
from pathlib import Path

import networkx as nx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.paths import DATA

from ark_jax.graph.store import KnowledgeGraph

XML = st.characters(
    codec="utf-8", exclude_characters="\ufffe\uffff", exclude_categories=["Cc"]
) | st.sampled_from("\t\n\r\x85")
NUMBER = st.floats(0, 2.0**100, width=32)
TEXT = st.text(st.characters(codec="utf-8"))


@st.composite
def graphs(draw, *, names, types, texts, similar=True) -> KnowledgeGraph:
    lists = st.lists(texts, unique=True, max_size=3)
    shown = draw(st.lists(names, unique=True, max_size=5))
    n = len(shown)
    pairs = [(a, b) for a in range(n) for b in range(a + 1, n)]
    edge_lists = st.lists(st.sampled_from(pairs), unique=True).map(sorted) if pairs else st.just([])
    edges, alike = draw(edge_lists), draw(edge_lists) if similar else []
    values = lambda strategy, n: draw(st.lists(strategy, min_size=n, max_size=n))
    return KnowledgeGraph(
        shown,
        values(types, n),
        values(lists, n),
        values(lists, n),
        np.array(edges, np.int32).reshape(-1, 2),
        np.array(values(NUMBER, len(edges)), np.float32),
        values(lists, len(edges)),
        values(lists, len(edges)),
        np.array(alike, np.int32).reshape(-1, 2),
        np.array(values(st.floats(-1, 1, width=32), len(alike)), np.float32),
    )


def assert_same(before: KnowledgeGraph, after: KnowledgeGraph) -> None:
    for field in dataclasses.fields(KnowledgeGraph):
        a, b = getattr(before, field.name), getattr(after, field.name)
        if isinstance(a, np.ndarray):
            assert (a.dtype, a.shape, a.tolist()) == (b.dtype, b.shape, b.tolist()), field.name
        else:
            assert a == b, field.name


ODD = KnowledgeGraph(
    ['"Müller & Söhne" <a>', " \t歳\r\n", "", "alone"],
    ["firm", "a\rb]]>", "unknown", "\u00a0"],
    [["x<SEP>y", "[]", ""], [], ["\x00\x1f\x85\u2028\ufffe\U0001ffff"], ["&amp;\r\n"]],
    [["c1", "c 2"], ["c1"], [], []],
    np.array([[0, 1], [0, 2]], np.int32),
    np.array([0.1, 0.0], np.float32),
    [['"a"', "\\u0041"], []],
    [["c1"], []],
    np.array([[0, 1], [1, 2]], np.int32),
    np.array([0.9, -0.25], np.float32),
)


@settings(deadline=None)
@given(graphs(names=TEXT, types=TEXT, texts=TEXT))
@example(ODD)
def test_any_graph_survives_a_round_trip_through_networkx(graph):
    assert_same(graph, KnowledgeGraph.from_networkx(graph.to_networkx()))


@settings(deadline=None)
@given(
    graph=graphs(
        names=st.text(XML),
        types=st.text(XML, min_size=1),
        texts=TEXT | st.text(st.sampled_from('\x00\r\uffff<&\\"')),
    )
)
@example(graph=ODD)
def test_any_graph_survives_a_round_trip_through_graphml(graph, tmp_path_factory):
    path = tmp_path_factory.mktemp("graphml") / "graph.graphml"
    graph.to_graphml(path)
    assert_same(graph, KnowledgeGraph.from_graphml(path))


PLAIN = st.text(st.characters(codec="utf-8", exclude_characters="\u2028"), min_size=1)


@settings(deadline=None)
@given(graph=graphs(names=TEXT, types=PLAIN, texts=PLAIN, similar=False))
def test_any_graph_survives_a_round_trip_through_graphrag(graph, tmp_path_factory):
    folder = tmp_path_factory.mktemp("graphrag")
    graph.to_graphrag(folder)
    assert_same(graph, KnowledgeGraph.from_graphrag(folder))


def test_a_networkx_edge_carries_relation_and_similarity():
    graph = ODD.to_networkx()
    first, second, third, alone = ODD.names
    assert dict(graph.nodes(data=True))[first] == {
        "type": "firm",
        "descriptions": ["x<SEP>y", "[]", ""],
        "chunks": ["c1", "c 2"],
    }
    assert graph.edges[first, second] == {
        "weight": np.float32(0.1),
        "descriptions": ['"a"', "\\u0041"],
        "chunks": ["c1"],
        "similarity": np.float32(0.9),
    }
    assert graph.edges[first, third] == {"weight": 0.0, "descriptions": [], "chunks": []}
    assert graph.edges[second, third] == {"similarity": -0.25}
    assert list(graph[alone]) == []


def test_networkx_reads_our_graphml(tmp_path):
    """With its own reader alone: names are the nodes, numbers are numbers, lists are JSON."""
    ODD.to_graphml(tmp_path / "graph.graphml")
    graph = nx.read_graphml(tmp_path / "graph.graphml")
    assert type(graph) is nx.Graph and list(graph) == ODD.names
    first, second, third, _ = ODD.names
    assert graph.nodes[first] == {
        "name": first,
        "type": "firm",
        "descriptions": '["x<SEP>y", "[]", ""]',
        "chunks": '["c1", "c 2"]',
    }
    assert graph.edges[first, second] == {
        "weight": float(np.float32(0.1)),
        "similarity": float(np.float32(0.9)),
        "descriptions": json.dumps(['"a"', "\\u0041"]),
        "chunks": '["c1"]',
    }
    assert graph.edges[second, third] == {"similarity": -0.25}
    assert nx.shortest_path(graph, second, third) == [second, third]


def test_igraph_reads_our_graphml(tmp_path):
    igraph = pytest.importorskip(
        "igraph", reason="python-igraph is absent: pip install igraph to open our GraphML in it"
    )
    # igraph refuses an empty id, and what it writes itself loses carriage returns.
    ours = dataclasses.replace(
        ODD,
        names=[name.replace("\r", "") or "nameless" for name in ODD.names],
        types=["firm", "a]]>", "unknown", "\u00a0"],
    )
    ours.to_graphml(tmp_path / "graph.graphml")
    graph = igraph.Graph.Read_GraphML(str(tmp_path / "graph.graphml"))
    assert not graph.is_directed()
    assert graph.vs["name"] == ours.names and graph.vs["type"] == ours.types
    assert graph.vs["descriptions"][0] == '["x<SEP>y", "[]", ""]'
    edges = {edge.tuple: (edge["weight"], edge["similarity"], edge["chunks"]) for edge in graph.es}
    np.testing.assert_equal(
        edges,
        {
            (0, 1): (float(np.float32(0.1)), float(np.float32(0.9)), '["c1"]'),
            (0, 2): (0.0, np.nan, "[]"),
            (1, 2): (np.nan, -0.25, ""),
        },
    )
    graph.write_graphml(str(tmp_path / "theirs.graphml"))
    assert_same(KnowledgeGraph.from_graphml(tmp_path / "theirs.graphml"), ours)


@pytest.mark.parametrize(
    "field, text, shown",
    [
        ("names", "a\x00b", r"'\\x00'"),
        ("types", "\x1f", r"'\\x1f'"),
        ("names", "\uffff", r"'\\uffff'"),
    ],
)
def test_characters_that_xml_forbids_are_refused_before_writing(field, text, shown, tmp_path):
    graph = dataclasses.replace(ODD, **{field: [*getattr(ODD, field)[:2], text, "z"]})
    with pytest.raises(
        ValueError, match=rf"{field}\[2\] is .*: GraphML cannot hold {shown}; take it out"
    ):
        graph.to_graphml(tmp_path / "graph.graphml")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("field, value", [("names", "a\ud800"), ("edge_chunks", ["", "a\ud800"])])
def test_a_lone_surrogate_is_refused_with_its_field_and_row(field, value):
    values = [*getattr(ODD, field)]
    with pytest.raises(ValueError, match=rf"{field}\[1\] is .*half of a character: write whole"):
        dataclasses.replace(ODD, **{field: [values[0], value, *values[2:]]})


# --- graphs of others ----------------------------------------------------------------------------


@pytest.mark.parametrize("run, nodes, edges, loops", [("hhy", 374, 186, 1), ("ihya", 406, 329, 0)])
def test_a_graph_of_nano_graphrag_is_read_completely(run, nodes, edges, loops, tmp_path, capsys):
    path = DATA / "christmas_carol" / f"{run}_graph_chunk_entity_relation.graphml"
    if not path.is_file():
        pytest.skip(f"{path} is absent: set ARK_DATA to read a real graph")
    graph = KnowledgeGraph.from_graphml(path)
    assert (len(graph), len(graph.edges), len(graph.similar)) == (nodes, edges - loops, 0)
    assert capsys.readouterr().out == (
        f"  {path}: 1 edges from a node to itself left out\n" if loops else ""
    )
    theirs = nx.read_graphml(path)
    theirs.remove_edges_from(list(nx.selfloop_edges(theirs)))
    assert graph.names == list(theirs) and graph.types == [
        data["entity_type"] for _, data in theirs.nodes(data=True)
    ]
    i = graph.names.index('"UNITED STATES"')
    assert graph.descriptions[i] == list(
        dict.fromkeys(theirs.nodes['"UNITED STATES"']["description"].split("<SEP>"))
    )
    assert len(graph.descriptions[i]) > 1 and graph.chunks[i] == theirs.nodes['"UNITED STATES"'][
        "source_id"
    ].split("<SEP>")
    weights = lambda graph: {frozenset(edge[:2]): edge[2] for edge in graph.edges.data("weight")}
    assert weights(graph.to_networkx()) == weights(theirs)
    graph.to_graphml(tmp_path / "ours.graphml")
    graph.to_graphrag(tmp_path)
    assert_same(graph, KnowledgeGraph.from_graphml(tmp_path / "ours.graphml"))
    assert_same(graph, KnowledgeGraph.from_graphrag(tmp_path))


def test_a_networkx_multigraph_is_read_as_a_simple_undirected_graph(capsys):
    theirs = nx.MultiDiGraph()
    theirs.add_node(3, entity_type=None, description="a<SEP>b<SEP>a<SEP>", source_id="c1<SEP>c2")
    theirs.add_node("Ada", description=None)
    theirs.add_node("ADA ", type="person", descriptions='["x"]', chunks=("c1",))
    theirs.add_edge("Ada", 3, weight=2.5, description="there", source_id="c2")
    theirs.add_edge(3, "Ada", description="back<SEP>there", source_id="c1<SEP>c2")
    theirs.add_edge(3, 3, weight=9.0)
    theirs.add_edge("Ada", "Ada")
    theirs.add_edge("ADA ", "Ada", similarity=0.5)
    theirs.add_edge("Ada", "ADA ", similarity=0.75)
    theirs.add_edge("ADA ", 3, similarity="0.25", weight="4")
    assert_same(
        KnowledgeGraph.from_networkx(theirs),
        KnowledgeGraph(
            ["3", "Ada", "ADA "],
            ["unknown", "unknown", "person"],
            [["a", "b"], [], ["x"]],
            [["c1", "c2"], [], ["c1"]],
            np.array([[0, 1], [0, 2]], np.int32),
            np.array([3.5, 4.0], np.float32),
            [["back", "there"], []],
            [["c1", "c2"], []],
            np.array([[0, 2], [1, 2]], np.int32),
            np.array([0.25, 0.75], np.float32),
        ),
    )
    assert capsys.readouterr().out == "  networkx graph: 2 edges from a node to itself left out\n"


@pytest.mark.parametrize(
    "node, edge, words",
    [
        (
            {},
            {"weight": float("nan")},
            "edge 'a' to 'b': weight is nan: must be a finite number, 0 or more",
        ),
        ({}, {"weight": -1}, "edge 'a' to 'b': weight is -1: must be"),
        ({}, {"weight": None}, "edge 'a' to 'b': weight is None: must be"),
        ({}, {"weight": "heavy"}, "weight is 'heavy'"),
        ({}, {"weight": 10**400}, r"weight is 10+\.\.\.0+: must be"),
        ({"descriptions": "[" * 100_000}, {}, r"descriptions is '\[{37}\.\.\.\[+': give a list"),
        ({}, {"similarity": float("inf")}, "similarity is inf: must be a finite number"),
        ({}, {"chunks": 3}, "edge 'a' to 'b': chunks is 3: give a list of strings, or JSON of one"),
        ({"descriptions": "not JSON"}, {}, "node 'a': descriptions is 'not JSON': give a list"),
        ({"descriptions": "[1]"}, {}, "node 'a': descriptions is .*: give a list"),
        ({"chunks": '"c1"'}, {}, "node 'a': chunks is .*: give a list"),
    ],
)
def test_invalid_values_of_a_networkx_graph_are_refused(node, edge, words):
    graph = nx.Graph()
    graph.add_node("a", **node)
    graph.add_edge("a", "b", **edge)
    with pytest.raises(ValueError, match=f"networkx graph: .*{words}"):
        KnowledgeGraph.from_networkx(graph)


@pytest.mark.parametrize(
    "attributes, names",
    [(["x", "y"], ["x", "y"]), (["x", "x"], ["0", "1"]), (["x", None], ["0", "1"])],
)
def test_a_complete_and_unique_name_attribute_names_the_nodes(attributes, names):
    graph = nx.Graph()
    graph.add_nodes_from((i, {"name": name}) for i, name in enumerate(attributes))
    assert KnowledgeGraph.from_networkx(graph).names == names


def test_two_networkx_nodes_with_one_name_are_refused():
    graph = nx.Graph()
    graph.add_nodes_from([0, 1, "1"])
    with pytest.raises(
        ValueError, match="networkx graph: row 2, name '1' repeats row 1: names must differ"
    ):
        KnowledgeGraph.from_networkx(graph)


@pytest.mark.parametrize("text", ["", "not XML", "<graphml><graph>", "<html></html>"])
def test_a_file_that_is_not_graphml_is_refused(text, tmp_path):
    (tmp_path / "x.graphml").write_text(text)
    with pytest.raises(ValueError, match=r"x\.graphml is not GraphML that networkx can read: "):
        KnowledgeGraph.from_graphml(tmp_path / "x.graphml")
    with pytest.raises(FileNotFoundError):
        KnowledgeGraph.from_graphml(tmp_path / "y.graphml")


def test_a_graphml_file_with_two_graphs_is_refused(tmp_path):
    graph = '<graph edgedefault="undirected"><node id="a"/></graph>'
    text = f'<graphml xmlns="http://graphml.graphdrawing.org/xmlns">{graph * 2}</graphml>'
    (tmp_path / "x.graphml").write_text(text)
    with pytest.raises(ValueError, match=r"x\.graphml holds 2 graphs: write each to a file"):
        KnowledgeGraph.from_graphml(tmp_path / "x.graphml")


def test_xml_entity_attacks_are_refused(tmp_path):
    """Billion laughs, and an external entity."""
    file = tmp_path / "x.graphml"
    laughs = "".join(f'<!ENTITY l{i} "{f"&l{i - 1};" * 10}">' for i in range(1, 10))
    for entities in (f'<!ENTITY l0 "lol">{laughs}', '<!ENTITY l9 SYSTEM "file:///etc/passwd">'):
        file.write_text(
            f'<!DOCTYPE x [{entities}]><graphml xmlns="http://graphml.graphdrawing.org/xmlns">'
            '<key id="k" for="node" attr.name="name" attr.type="string"/><graph '
            'edgedefault="undirected"><node id="n"><data key="k">&l9;</data></node></graph>'
            "</graphml>"
        )
        with pytest.raises(ValueError, match=r"amplification factor|undefined entity"):
            KnowledgeGraph.from_graphml(file)


# --- GraphRAG's tables ---------------------------------------------------------------------------


# ODD with descriptions that GraphRAG can hold.
ODD_PLAIN = dataclasses.replace(ODD, descriptions=[["a", "b\n\nb"], [], ["c"], ["d"]])


def exported_tables(folder, graph):
    """Entities and relationships of a graph, as GraphRAG's tables."""
    graph.to_graphrag(folder)
    return [pq.read_table(folder / f"{name}.parquet") for name in ("entities", "relationships")]


def test_exported_tables_have_the_columns_of_graphrag(tmp_path):
    entities, relationships = exported_tables(tmp_path, ODD_PLAIN)
    # graphrag/data_model/schemas.py, ENTITIES_FINAL_COLUMNS and RELATIONSHIPS_FINAL_COLUMNS
    # of release 3.1
    assert entities.column_names == [
        "id",
        "human_readable_id",
        "title",
        "type",
        "description",
        "text_unit_ids",
        "frequency",
        "degree",
    ]
    assert relationships.column_names == [
        "id",
        "human_readable_id",
        "source",
        "target",
        "description",
        "weight",
        "combined_degree",
        "text_unit_ids",
    ]


def test_exported_rows_of_graphrag_hold_entities_and_relations(tmp_path):
    entities, relationships = exported_tables(tmp_path, ODD_PLAIN)
    rows = entities.drop_columns("id").to_pylist()
    assert rows[0] == {
        "human_readable_id": 0,
        "title": '"Müller & Söhne" <a>',
        "type": "firm",
        "description": "a\u2028b\n\nb",
        "text_unit_ids": ["c1", "c 2"],
        "frequency": 2,
        "degree": 2,
    }
    # Relations only: similarity edges are not in the tables.
    assert [row["degree"] for row in rows] == [2, 1, 1, 0]
    assert relationships.drop_columns("id").to_pylist()[1] == {
        "human_readable_id": 1,
        "source": ODD_PLAIN.names[0],
        "target": "",
        "description": "",
        "weight": 0.0,
        "combined_degree": 3,
        "text_unit_ids": [],
    }
    ids = entities["id"].to_pylist() + relationships["id"].to_pylist()
    assert len(set(ids)) == 6


def test_similarity_edges_are_left_out_of_graphrag_with_a_remark(tmp_path, capsys):
    ODD_PLAIN.to_graphrag(tmp_path)
    assert capsys.readouterr().out == (
        f"  {tmp_path}: 2 similarity edges left out, GraphRAG's tables have no place for them\n"
    )


def test_exporting_a_graph_again_gives_the_same_bytes(tmp_path):
    for name in ("out", "again"):
        ODD_PLAIN.to_graphrag(tmp_path / name)
    first, second = (tmp_path / name / "entities.parquet" for name in ("out", "again"))
    assert first.read_bytes() == second.read_bytes()


ENTITIES = {
    "title": ["A", "B", "C"],
    "type": ["x", None, "y"],
    "description": ["one\n\ntwo", None, "three"],
    "text_unit_ids": [["t1", "t2"], [], None],
}
RELATIONSHIPS = {
    "source": ["B", "A", "C"],
    "target": ["A", "B", "C"],
    "description": ["d", "d", None],
    "weight": [2, 3, 1],
    "text_unit_ids": [["t1"], ["t2"], None],
}


def write(folder: Path, entities: dict, relationships: dict) -> None:
    for name, columns in (("entities", entities), ("relationships", relationships)):
        pq.write_table(pa.table(columns), folder / f"{name}.parquet")


def test_tables_written_by_graphrag_are_read(tmp_path, capsys):
    """Large strings and whole-number weights, as pandas writes them; both directions of a pair;
    empty cells."""
    write(
        tmp_path,
        {**ENTITIES, "title": pa.array(ENTITIES["title"], pa.large_string()), "more": [1, 2, 3]},
        RELATIONSHIPS,
    )
    assert_same(
        KnowledgeGraph.from_graphrag(tmp_path),
        KnowledgeGraph(
            ["A", "B", "C"],
            ["x", "unknown", "y"],
            [["one\n\ntwo"], [], ["three"]],
            [["t1", "t2"], [], []],
            np.array([[0, 1]], np.int32),
            np.array([5], np.float32),
            [["d"]],
            [["t1", "t2"]],
            np.zeros((0, 2), np.int32),
            np.zeros(0, np.float32),
        ),
    )
    assert (
        capsys.readouterr().out
        == f"  {tmp_path / 'relationships.parquet'}: 1 edges from a node to itself left out\n"
    )


@pytest.mark.parametrize(
    "entities, relationships, words",
    [
        ({"title": None}, {}, r"entities\.parquet: needs one column 'title', has \['type', "),
        (
            {"title": [1, 2, 3]},
            {},
            r"entities\.parquet: column 'title' is of type int64, not string",
        ),
        ({"title": ["A", None, "C"]}, {}, r"entities\.parquet: row 1, title is empty"),
        ({"title": ["C", "B", "C"]}, {}, r"entities\.parquet: row 2, title 'C' repeats row 0"),
        (
            {"text_unit_ids": ["t1,t2", "", ""]},
            {},
            r"entities\.parquet: column 'text_unit_ids' is of type string, not list",
        ),
        (
            {"text_unit_ids": [["t1"], [None], []]},
            {},
            r"entities\.parquet: column 'text_unit_ids' holds an empty text in a list",
        ),
        ({}, {"weight": None}, r"relationships\.parquet: needs one column 'weight'"),
        (
            {},
            {"weight": ["1", "2", "3"]},
            r"relationships\.parquet: column 'weight' is of type string, not double",
        ),
        (
            {},
            {"weight": [1.0, float("nan"), 1.0]},
            r"relationships\.parquet: row 1, weight is nan: must be a finite",
        ),
        ({}, {"weight": [1.0, 1.0, -2.0]}, r"relationships\.parquet: row 2, weight is -2\.0"),
        ({}, {"weight": [None, 1.0, 2.0]}, r"relationships\.parquet: row 0, weight is empty"),
        (
            {},
            {"target": ["A", "Z", "C"]},
            r"relationships\.parquet: row 1, target 'Z' is not a title in entities\.parquet",
        ),
        (
            {},
            {"source": ["a", "A", "C"]},
            r"relationships\.parquet: row 0, source 'a' is not a title",
        ),
    ],
)
def test_invalid_graphrag_tables_are_refused(entities, relationships, words, tmp_path):
    present = lambda columns: {
        name: column for name, column in columns.items() if column is not None
    }
    write(tmp_path, present(ENTITIES | entities), present(RELATIONSHIPS | relationships))
    with pytest.raises(ValueError, match=words):
        KnowledgeGraph.from_graphrag(tmp_path)


def test_a_missing_graphrag_table_is_named(tmp_path):
    write(tmp_path, ENTITIES, RELATIONSHIPS)
    (tmp_path / "relationships.parquet").unlink()
    with pytest.raises(FileNotFoundError, match=r"relationships\.parquet is absent"):
        KnowledgeGraph.from_graphrag(tmp_path)
