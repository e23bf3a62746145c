"""A table of a graph is refused by file, column and row."""

import dataclasses

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.records import records

from ark_jax.graph.store import KnowledgeGraph


@pytest.mark.parametrize(
    "table, field, edge", [("relations", "edges", [1, 4]), ("similar", "similar", [-1, 2])]
)
def test_an_edge_to_a_missing_node_is_refused(table, field, edge, tmp_path):
    graph = records().with_similar(np.eye(4, dtype=np.float32)[[0, 0, 1, 2]], 0.9)
    edges = getattr(graph, field).copy()
    edges[0] = edge
    dataclasses.replace(graph, **{field: edges}).save(tmp_path)
    with pytest.raises(
        ValueError,
        match=rf"{table}\.parquet: row 0, the edge ends outside the 4 nodes of nodes\.parquet",
    ):
        KnowledgeGraph.load(tmp_path)


@pytest.mark.parametrize(
    "table, column, values, words",
    [
        (
            "nodes",
            "name",
            None,
            r"nodes\.parquet: needs one column 'name', has \['type', 'descriptions', 'chunks'\]",
        ),
        (
            "nodes",
            "name",
            [1, 2, 3, 4],
            r"nodes\.parquet: column 'name' is of type int64, not string",
        ),
        ("nodes", "name", ["a", "b", None, "d"], r"nodes\.parquet: row 2, name is empty"),
        ("nodes", "name", ["a", "a", "c", "d"], r"nodes\.parquet: row 1, name 'a' repeats row 0"),
        (
            "nodes",
            "chunks",
            ["a", "b", "c", "d"],
            r"nodes\.parquet: column 'chunks' is of type string, not list",
        ),
        (
            "nodes",
            "descriptions",
            [["a"], [], [None], []],
            r"nodes\.parquet: column 'descriptions' holds an empty text",
        ),
        (
            "relations",
            "weight",
            [1.0, float("nan")],
            r"relations\.parquet: row 1, weight is nan: must be a finite number, 0 or more",
        ),
        (
            "relations",
            "weight",
            [-0.5, 1.0],
            r"relations\.parquet: row 0, weight is -0\.5: must be",
        ),
        (
            "relations",
            "weight",
            ["1", "2"],
            r"relations\.parquet: column 'weight' is of type string, not float",
        ),
        (
            "relations",
            "target",
            [0.5, 1.5],
            r"relations\.parquet: column 'target' is of type double, not int32",
        ),
        (
            "relations",
            "source",
            [0, 1 << 40],
            r"relations\.parquet: column 'source' is of type int64, not int32",
        ),
        (
            "similar",
            "cosine",
            [float("inf")],
            r"similar\.parquet: row 0, cosine is inf: must be a finite number$",
        ),
        ("similar", "source", None, r"similar\.parquet: needs one column 'source'"),
    ],
)
def test_a_damaged_column_is_refused(table, column, values, words, tmp_path):
    dataclasses.replace(
        records(), similar=np.array([[0, 2]], np.int32), cosines=np.array([-0.5], np.float32)
    ).save(tmp_path)
    assert KnowledgeGraph.load(tmp_path).cosines.tolist() == [-0.5]
    path = tmp_path / f"{table}.parquet"
    columns = pq.read_table(path).to_pydict() | {column: values}
    pq.write_table(pa.table({name: x for name, x in columns.items() if x is not None}), path)
    with pytest.raises(ValueError, match=words):
        KnowledgeGraph.load(tmp_path)


def test_a_damaged_or_missing_file_is_named(tmp_path):
    records().save(tmp_path)
    path = tmp_path / "relations.parquet"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"relations\.parquet is not a whole Parquet file: "):
        KnowledgeGraph.load(tmp_path)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"relations\.parquet is absent"):
        KnowledgeGraph.load(tmp_path)
