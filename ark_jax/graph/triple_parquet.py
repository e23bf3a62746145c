"""Columns of triples in Parquet files."""

import collections
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ark_jax.data.problems import Findings
from ark_jax.data.records import Problem
from ark_jax.data.table_files import broken_parquet
from ark_jax.graph.parquet import TEXT
from ark_jax.graph.terms import name_fault
from ark_jax.graph.triple_rows import PARTS, part_positions, remark_graphs, suspects


def has_triples(path: Path) -> bool:
    """Whether a Parquet file has columns of triples, or a graph a row."""
    try:
        schema = pq.read_schema(path)
    except (pa.ArrowException, OSError):
        return False
    return part_positions(schema.names) is not None or _has_graphs(schema)


def parquet_columns(path: Path, findings: Findings) -> list[pa.ChunkedArray]:
    """Head, relation and tail without the rows that have a fault."""
    try:
        schema = pq.read_schema(path)
        if places := part_positions(schema.names):
            columns = _read_parts(path, [schema.names[place] for place in places], findings)
            return _drop_faulty(columns, None, path, findings) if columns else _empty_columns()
        if _has_graphs(schema):
            return _drop_faulty(*_graph_triples(path, findings), path, findings)
        message = f"has the columns {', '.join(schema.names[:5])}; name them {', '.join(PARTS)}"
        findings.problems.add(path, message)
    except (pa.ArrowException, OSError) as error:
        findings.problems.add(path, broken_parquet(error))
    return _empty_columns()


def _empty_columns() -> list[pa.ChunkedArray]:
    """Head, relation and tail of no triple."""
    return [pa.chunked_array([], TEXT)] * 3


def _read_parts(path: Path, names: Sequence[str], findings: Findings) -> list[pa.ChunkedArray]:
    """Head, relation and tail; none, and a problem, if one is neither text nor whole numbers."""
    columns = []
    for part, name in zip(PARTS, names, strict=True):
        # Few relations repeat often: they stay encoded. Nodes are many, and encoding them a row
        # group at a time is slower than all at once.
        encoded = [name] if part == "relation" else []
        column = pq.read_table(path, columns=[name], read_dictionary=encoded).column(0)
        kind = column.type
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        if not (pa.types.is_integer(kind) or is_text):
            message = f"is of type {kind}; give strings or whole numbers"
            findings.problems.add(path, message, 0, part)
            return []
        stays = part == "relation" and column.type.equals(pa.dictionary(pa.int32(), TEXT))
        columns.append(column if stays else column.cast(TEXT))
    findings.problems.rows += len(columns[0])
    return columns


def _has_graphs(schema: pa.Schema) -> bool:
    """Whether each row has a list of triples in `graph`, as RoG's have."""
    kind = schema.field("graph").type if schema.names.count("graph") == 1 else None
    return kind is not None and _is_list(kind) and _is_list(kind.value_type)


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind)


def _graph_triples(path: Path, findings: Findings) -> tuple[list[pa.ChunkedArray], np.ndarray]:
    """Head, relation and tail of all rows' triples, and the row of each triple, from 0.

    A triple that is not a list of three is a problem.
    """
    parts: tuple[list[pa.Array], ...] = ([], [], [])
    rows, count = [np.zeros(0, np.int64)], 0
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=256, columns=["graph"]):
            triples = pc.list_flatten(batch.column(0))
            row = count + pc.list_parent_indices(batch.column(0)).to_numpy()
            is_triple = pc.equal(pc.list_value_length(triples), 3).fill_null(False)
            is_triple = is_triple.to_numpy(zero_copy_only=False)
            for place in row[~is_triple].tolist():
                message = (
                    f"row {place + 1} has a triple that is not a list of three; write [head, "
                    "relation, tail]"
                )
                findings.problems.add(path, message, place + 1, "graph")
            names = pc.list_flatten(triples.filter(pa.array(is_triple))).cast(TEXT)
            for i, chunks in enumerate(parts):
                chunks.append(names.take(pa.array(np.arange(i, len(names), 3))))
            rows.append(row[is_triple])
            count += len(batch)
    findings.problems.rows += count
    remark_graphs(path, count, findings)
    return [pa.chunked_array(chunks, TEXT) for chunks in parts], np.concatenate(rows)


def _drop_faulty(
    columns: list[pa.ChunkedArray], rows: np.ndarray | None, path: Path, findings: Findings
) -> list[pa.ChunkedArray]:
    """The columns without triples that have a fault."""
    problems_by_row: dict[int, list[Problem]] = collections.defaultdict(list)
    for part, column in zip(PARTS, columns, strict=True):
        # Most names are valid at first sight. Only the others are checked one by one, and rows
        # only if one of those has a fault.
        faults = {name: name_fault(name) for name in suspects(column)}
        faulty = pa.array([name for name, fault in faults.items() if fault], TEXT)
        if len(faulty):
            column = column.cast(TEXT)
            is_faulty = pc.or_(pc.is_in(column, faulty), column.is_null())
            for place in pc.indices_nonzero(is_faulty).to_pylist():
                defect, fix = faults[column[place].as_py()]
                row = 1 + (place if rows is None else int(rows[place]))
                message = f"{defect} in row {row}; {fix}"
                problems_by_row[place].append(Problem(str(path), row, part, message))
    if problems_by_row:
        findings.problems.extend(
            problem for place in sorted(problems_by_row) for problem in problems_by_row[place]
        )
        valid = np.ones(len(columns[0]), bool)
        valid[list(problems_by_row)] = False
        columns = [column.filter(pa.array(valid)) for column in columns]
    return columns
