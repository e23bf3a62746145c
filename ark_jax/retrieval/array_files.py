"""Arrays that are written to disk part by part, so that memory need not hold them."""

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np


def write_array(
    path: Path, shape: tuple[int, ...], dtype: np.dtype, parts: Iterable[np.ndarray]
) -> None:
    """Writes an array for `np.load`, durably.

    Raises:
        OSError: the file cannot be written; unlike `np.save`, it names the file.
    """
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    try:
        with path.open("wb") as file:
            np.lib.format.write_array_header_1_0(file, header)
            for part in parts:
                file.write(np.ascontiguousarray(part, dtype).tobytes())
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
