"""The passages and vectors of an index as a table of LanceDB, which can be searched there."""

import dataclasses
from collections.abc import Iterator

import lancedb
import numpy as np
import pyarrow as pa

from ark_jax.index.index import Index
from ark_jax.text.token_vectors import check_one_each

BLOCK = 8192  # rows in memory at once


def write(index: Index, url: str) -> None:
    """Writes a table named after the index's files, unless it exists.

    Args:
        url: what `lancedb.connect` takes: a folder, s3://... or, with a key in $LANCEDB_API_KEY,
            db://...

    Raises:
        ValueError: the index has vectors of tokens.
    """
    check_one_each(index.vectors, "LanceDB")
    database, name = lancedb.connect(url), index.manifest.folder
    table = _open_table(database, name)
    if table is None or table.count_rows() != len(index):
        database.create_table(name, _batches(index), schema=_schema(index), mode="overwrite")


def nearest(url: str, name: str, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The k chunks nearest to each unit vector `[q e]`: their rows and cosines, `[q k]` each."""
    check_one_each(queries, "LanceDB")
    table = _open_table(lancedb.connect(url), name)
    if table is None:
        raise FileNotFoundError(f"{url}: no table {name}; `ark-jax index --to=lancedb` writes it")
    columns = ["row", "_distance"]
    search = lambda query: table.search(query).distance_type("dot").select(columns).limit(k)
    results = [search(query).to_arrow() for query in queries]
    rows = np.stack([result["row"].to_numpy() for result in results])
    return rows, 1 - np.stack([result["_distance"].to_numpy() for result in results])


def _open_table(database: lancedb.DBConnection, name: str) -> lancedb.table.Table | None:
    """The table of this name; None if there is none."""
    try:
        return database.open_table(name)
    except ValueError:  # LanceDB raises it for a missing table
        return None


def _schema(index: Index) -> pa.Schema:
    vector = pa.list_(pa.from_numpy_dtype(index.vectors.dtype), index.vectors.shape[1])
    texts = [(name, pa.string()) for name in ("id", "document", "title", "text")]
    numbers = [(name, pa.int64()) for name in ("row", "start", "end")]
    return pa.schema([*numbers, *texts, ("vector", vector)])


def _batches(index: Index) -> Iterator[pa.RecordBatch]:
    """The rows of the table, `BLOCK` at a time."""
    row = lambda i: {"row": i, **dataclasses.asdict(index.chunks[i]), "vector": index.vectors[i]}
    for start in range(0, len(index), BLOCK):
        block = range(start, min(start + BLOCK, len(index)))
        yield pa.RecordBatch.from_pylist(list(map(row, block)), schema=_schema(index))
