"""Files that are written durably; an error names the file."""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np


def write_array(
    path: Path,
    shape: tuple[int, ...],
    dtype: np.dtype,
    parts: Iterable[np.ndarray],
    *,
    by_columns: bool = False,
) -> None:
    """Writes an array for `np.load` part by part, so that memory need not hold it.

    Args:
        by_columns: puts the columns of a matrix one after another, so that one is read alone.

    Raises:
        OSError: the file cannot be written. `np.save` would not name it.
    """
    with _durable_file(path) as file:
        _write_header(file, shape, dtype, by_columns)
        if by_columns:
            start, row, size = file.tell(), 0, np.dtype(dtype).itemsize
            file.truncate(start + shape[0] * shape[1] * size)
            for part in parts:
                for number, column in enumerate(part.T):
                    file.seek(start + (number * shape[0] + row) * size)
                    file.write(np.ascontiguousarray(column, dtype))
                row += len(part)
            return
        for part in parts:
            file.write(np.ascontiguousarray(part, dtype).tobytes())


def write_arrays(path: Path, arrays: Sequence[np.ndarray]) -> None:
    """Writes arrays one after another, for as many calls of `np.load` on the open file.

    Raises:
        OSError: as `write_array`.
    """
    with _durable_file(path) as file:
        for array in arrays:
            _write_header(file, array.shape, array.dtype)
            file.write(np.ascontiguousarray(array).tobytes())


@contextlib.contextmanager
def array_rows(
    path: Path, shape: tuple[int, int], dtype: np.dtype
) -> Iterator[Callable[[Sequence[int], np.ndarray], None]]:
    """A file of an array `[n e]` for `np.load`, whose rows are written in any order.

    Yields:
        A function that writes rows `[b e]` in the places of their numbers `[b]`.

    Raises:
        OSError: the file cannot be written.
    """
    with _durable_file(path) as file:
        _write_header(file, shape, dtype)
        start, row_bytes = file.tell(), shape[1] * np.dtype(dtype).itemsize
        file.truncate(start + shape[0] * row_bytes)

        def write(numbers: Sequence[int], rows: np.ndarray) -> None:
            for number, row in zip(numbers, np.ascontiguousarray(rows, dtype), strict=True):
                file.seek(start + number * row_bytes)
                file.write(row)

        yield write


def _write_header(
    file: BinaryIO, shape: tuple[int, ...], dtype: np.dtype, by_columns: bool = False
) -> None:
    """Writes what precedes the numbers of an array in a .npy file."""
    descr = np.lib.format.dtype_to_descr(np.dtype(dtype))
    header = {"descr": descr, "fortran_order": by_columns, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)


def check_starts(starts: np.ndarray, rows: int, end: int, name: str) -> None:
    """Raises ValueError unless `starts`, int64 `[rows + 1]`, rise from 0 to `end`.

    Args:
        name: of the file, for the message.
    """
    fits = starts.dtype == np.int64 and starts.shape == (rows + 1,)
    if not (fits and starts[0] == 0 and starts[-1] == end and np.all(starts[:-1] <= starts[1:])):
        raise ValueError(f"{name} does not rise from 0 to {end:,} in {rows:,} steps")


def write_text(path: Path, text: str) -> None:
    """Writes UTF-8.

    Raises:
        OSError: the file cannot be written.
    """
    with _durable_file(path) as file:
        file.write(text.encode())


@contextlib.contextmanager
def _durable_file(path: Path) -> Iterator[BinaryIO]:
    """Opens a file for writing, and flushes it to the disk at the end; an error names the file."""
    try:
        with path.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(error.filename or path)) from error
