"""The tables that stages write and read: Parquet for rows, JSON for the rest."""

import dataclasses
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ark_jax.runtime.distributed import is_first_process


def save_rows(rows: list, path: Path, row_type=None) -> None:
    """Writes dataclasses or dicts as Parquet, from process 0.

    Args:
        rows: all of one type; dicts have the keys of the first one.
        row_type: the dataclass whose fields are the columns when there is no row.
    """
    if not is_first_process():
        return
    rows = [dataclasses.asdict(row) if dataclasses.is_dataclass(row) else row for row in rows]
    fields = dataclasses.fields(row_type) if row_type else ()
    columns = list(rows[0]) if rows else [field.name for field in fields]
    pq.write_table(pa.table({name: [row[name] for row in rows] for name in columns}), path)


def load_rows(path: Path, row_type=dict) -> list:
    """Reads what `save_rows` wrote, as dicts or as instances of a dataclass."""
    rows = pq.read_table(path).to_pylist()
    if row_type is dict:
        return rows
    fields = dataclasses.fields(row_type)
    tuples = {field.name for field in fields if str(field.type).startswith("tuple")}
    convert = lambda name, value: tuple(value) if name in tuples else value
    return [row_type(**{name: convert(name, value) for name, value in row.items()}) for row in rows]


def save_json(value, path: Path) -> None:
    """Writes indented JSON, from process 0."""
    if is_first_process():
        text = json.dumps(value, indent=1, ensure_ascii=False)
        path.write_text(text + "\n", encoding="utf-8")


def load_json(path: Path):
    return json.loads(path.read_text(encoding="utf-8"))
