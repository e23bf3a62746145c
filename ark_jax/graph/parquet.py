"""Columns of Parquet files with checked types and values."""

import math
from collections.abc import Container, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

TEXT, TEXTS = pa.string(), pa.list_(pa.string())


def number_rule(minimum: float) -> str:
    """The fix for a number that is not finite or is below `minimum`."""
    return "must be a finite number" + (f", {minimum:g} or more" if math.isfinite(minimum) else "")


def check_unique(source: str | Path, field: str, names: Sequence[str]) -> None:
    """Raises ValueError if a name repeats."""
    if len(set(names)) < len(names):
        first = {}
        for row, name in enumerate(names):
            if first.setdefault(name, row) != row:
                raise ValueError(
                    f"{source}: row {row}, {field} {name!r} repeats row {first[name]}: "
                    "names must differ"
                )


def check_numbers(path: Path, field: str, numbers: np.ndarray, minimum: float) -> None:
    """Raises ValueError if a number is not finite or is below `minimum`."""
    bad = ~(np.isfinite(numbers) & (numbers >= minimum))
    if bad.any():
        raise ValueError(
            f"{path}: row {bad.argmax()}, {field} is {numbers[bad.argmax()]}: "
            f"{number_rule(minimum)}"
        )


def check_filled(source: str | Path, field: str, column: pa.ChunkedArray) -> None:
    """Raises ValueError if a cell is empty."""
    if column.null_count:
        row = pc.index(column.is_null(), True)
        raise ValueError(f"{source}: row {row}, {field} is empty: fill it in")


def read_columns(
    path: Path, types: Mapping[str, pa.DataType], nullable: Container[str] = ()
) -> list[pa.ChunkedArray]:
    """Reads columns of a Parquet file and casts numbers to the widths in `types`.

    Args:
        nullable: columns that may have empty cells.

    Raises:
        FileNotFoundError: the file is missing.
        ValueError: the file is not Parquet, or a column is missing, has another type or has an
            empty cell.
    """
    try:
        table = pq.ParquetFile(path).read()
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} is absent") from None
    except (pa.ArrowException, OSError) as e:
        raise ValueError(f"{path} is not a whole Parquet file: {e}") from e
    columns = []
    for name, kind in types.items():
        if table.column_names.count(name) != 1:
            raise ValueError(f"{path}: needs one column {name!r}, has {table.column_names}")
        column = table.column(name)
        try:
            if _is_primitive(column.type) != _is_primitive(kind):
                raise pa.ArrowInvalid("text is not a number")
            column = column.cast(kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as e:
            actual = table.schema.field(name).type
            raise ValueError(f"{path}: column {name!r} is of type {actual}, not {kind}: {e}") from e
        if name not in nullable:
            check_filled(path, name, column)
        if pa.types.is_list(kind) and pc.list_flatten(column).null_count:
            raise ValueError(f"{path}: column {name!r} holds an empty text in a list")
        columns.append(column)
    return columns


def _is_primitive(kind: pa.DataType) -> bool:
    """Whether a type, or the type of a list's items, is a number, a boolean or a date."""
    return pa.types.is_primitive(getattr(kind, "value_type", kind))
