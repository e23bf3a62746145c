"""Array files that are written part by part."""

import io
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ark_jax.retrieval.array_files import array_rows


@given(st.permutations(range(7)), st.integers(1, 7), st.sampled_from(["float32", "float16"]))
def test_rows_written_in_any_order_give_the_bytes_of_numpy_save(
    tmp_path_factory, order, batch, dtype
):
    wanted, file = np.random.default_rng(0).standard_normal((7, 3), np.float32), io.BytesIO()
    path = tmp_path_factory.getbasetemp() / "rows.npy"
    with array_rows(path, wanted.shape, dtype) as write:
        for start in range(0, len(order), batch):
            numbers = order[start : start + batch]
            write(numbers, wanted[numbers])
    np.save(file, wanted.astype(dtype))
    assert path.read_bytes() == file.getvalue()


def test_unwritten_rows_are_zeros(tmp_path):
    with array_rows(tmp_path / "rows.npy", (4, 2), np.float32) as write:
        write([2], np.ones((1, 2)))
    assert np.load(tmp_path / "rows.npy").tolist() == [[0, 0], [0, 0], [1, 1], [0, 0]]


def test_an_error_of_the_file_system_names_the_file(tmp_path):
    path = tmp_path / "no folder" / "rows.npy"
    with pytest.raises(OSError, match=re.escape(str(path))), array_rows(path, (1, 1), "f4"):
        pass
