"""Files that are written durably; an error names the file."""

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np


def write_array(
    path: Path, shape: tuple[int, ...], dtype: np.dtype, parts: Iterable[np.ndarray]
) -> None:
    """Writes an array for `np.load` part by part, so that memory need not hold it.

    Raises:
        OSError: the file cannot be written. `np.save` would not name it.
    """
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    with _written(path) as file:
        np.lib.format.write_array_header_1_0(file, header)
        for part in parts:
            file.write(np.ascontiguousarray(part, dtype).tobytes())


def write_text(path: Path, text: str) -> None:
    """Writes UTF-8.

    Raises:
        OSError: the file cannot be written.
    """
    with _written(path) as file:
        file.write(text.encode())


@contextlib.contextmanager
def _written(path: Path) -> Iterator[BinaryIO]:
    """A file that is on the disk when this ends."""
    try:
        with path.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
