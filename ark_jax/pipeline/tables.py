"""The tables that stages write and read: Parquet for rows, JSON for the rest."""

import contextlib
import dataclasses
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ark_jax.runtime.distributed import is_first_process

ROW_GROUP = 1 << 20  # rows, the default of `pyarrow.parquet.write_table`
STREAMED_ROWS = 1024  # rows that are dicts at the same time


def save_rows(rows: Sequence[Any], path: Path, row_type=None) -> None:
    """Writes dataclasses or dicts as Parquet, from process 0.

    Args:
        rows: all of one type; dicts have the keys of the first one.
        row_type: the dataclass whose fields are the columns if there is no row.
    """
    if not is_first_process():
        return
    rows = [row if isinstance(row, dict) else dataclasses.asdict(row) for row in rows]
    fields = dataclasses.fields(row_type) if row_type else ()
    columns = list(rows[0]) if rows else [field.name for field in fields]
    pq.write_table(pa.table({name: [row[name] for row in rows] for name in columns}), path)


class RowsFile:
    """Writes rows that come table by table. The file is that of `save_rows`, byte for byte.

    Args:
        row_type: the dataclass whose fields are the columns if there is no row; None: no columns.
    """

    def __init__(self, path: Path, row_type: type | None = None):
        self._path, self._row_type = path, row_type
        self._file: pq.ParquetWriter | None = None
        self._tables: list[pa.Table] = []
        self._waiting = self.rows = 0  # rows that are not written yet, and all

    def write(self, table: pa.Table) -> None:
        """Adds the rows of a table, which must have the columns of the others."""
        self._tables.append(table)
        self._waiting += len(table)
        self.rows += len(table)
        while self._waiting >= ROW_GROUP:
            self._write_group()

    def _write_group(self) -> None:
        """Writes the first `ROW_GROUP` waiting rows, or all if there are fewer."""
        table = pa.concat_tables(self._tables)
        if self._file is None:
            self._file = pq.ParquetWriter(self._path, table.schema)
        group = table.slice(0, ROW_GROUP)
        self._file.write_table(group.combine_chunks())
        self._tables = [table.slice(len(group))]
        self._waiting -= len(group)

    def __enter__(self) -> "RowsFile":
        return self

    def __exit__(self, error: type | None, *_) -> None:
        if error is None and not self.rows:
            save_rows([], self._path, self._row_type)
        elif error is None and self._waiting:
            self._write_group()
        if self._file is not None:
            self._file.close()


def save_stream(rows: Iterable[dict], path: Path, schema: pa.Schema) -> int:
    """Writes dicts as they come, from process 0, as `save_rows` would; returns how many there were.

    Args:
        schema: of the columns, in the order of the keys.
    """
    count, rows = 0, iter(rows)
    with RowsFile(path) if is_first_process() else contextlib.nullcontext() as file:
        while block := list(itertools.islice(rows, STREAMED_ROWS)):
            count += len(block)
            if file is not None:
                file.write(pa.Table.from_pylist(block, schema=schema))
    return count


def stream_rows(table: pa.Table) -> Iterator[dict]:
    """The rows of a table as dicts, a few at a time."""
    for batch in table.to_batches(max_chunksize=STREAMED_ROWS):
        yield from batch.to_pylist()


def load_rows(path: Path, row_type=dict) -> list:
    """Reads what `save_rows` wrote, as dicts or as instances of a dataclass."""
    return list(stream_records(path, row_type))


def stream_records(path: Path, row_type=dict) -> Iterator:
    """`load_rows`, row by row."""
    rows = stream_rows(read_table(path))
    if row_type is dict:
        return rows
    fields = dataclasses.fields(row_type)
    tuples = {field.name for field in fields if str(field.type).startswith("tuple")}
    convert = lambda name, value: tuple(value) if name in tuples else value
    return (row_type(**{name: convert(name, value) for name, value in row.items()}) for row in rows)


def read_table(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Reads a Parquet file of a finished stage.

    Raises:
        ValueError: the file is damaged.
    """
    try:
        return pq.read_table(path, columns=columns)
    except (pa.ArrowException, OSError) as error:
        raise _read_error(path, error) from error


def read_array(path: Path) -> np.ndarray:
    """Reads an array of a finished stage, without pickles.

    Raises:
        ValueError: the file is damaged.
    """
    try:
        return np.load(path, allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise _read_error(path, error) from error


def _read_error(path: Path, error: Exception) -> Exception:
    """A ValueError that names the file and the fix; `error` itself if the file is missing."""
    if isinstance(error, FileNotFoundError):
        return error
    stage = path.parent
    reason = " ".join(str(error).split()).rstrip(".")
    return ValueError(
        f"{path} cannot be read ({reason}): `ark-jax status --verify` tells whether stage "
        f"{stage.name} is damaged, and `ark-jax run --verify` makes it again"
    )


def save_json(value, path: Path) -> None:
    """Writes indented JSON, from process 0."""
    if is_first_process():
        text = json.dumps(value, indent=1, ensure_ascii=False)
        path.write_text(text + "\n", encoding="utf-8")


def load_json(path: Path):
    """Reads what `save_json` wrote.

    Raises:
        ValueError: the file is damaged.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise _read_error(path, error) from error
