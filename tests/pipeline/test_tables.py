"""A file that cannot be read is named with its stage and the fix."""

import json

import pytest

from ark_jax.pipeline.tables import load_json, load_rows, read_array, save_rows


def flip(path, position: int = 0) -> None:
    """Changes one bit and nothing else that a listing shows."""
    contents = bytearray(path.read_bytes())
    contents[position] ^= 1
    path.write_bytes(contents)


def test_a_file_that_cannot_be_read_is_named_with_its_stage(tmp_path):
    folder = tmp_path / "score"
    folder.mkdir()
    fix = "tells whether stage score is damaged, and `ark-jax run --verify` makes it again"
    save_rows([{"x": 1}] * 100, folder / "rows.parquet")
    flip(folder / "rows.parquet", -3)
    (folder / "rows.json").write_text(json.dumps([1])[:-1])
    (folder / "rows.npy").write_bytes(b"\x93NUMPY")
    for name, read in (
        ("rows.parquet", load_rows),
        ("rows.json", load_json),
        ("rows.npy", read_array),
    ):
        with pytest.raises(ValueError, match=fix) as error:
            read(folder / name)
        assert str(error.value).startswith(f"{folder / name} cannot be read (")
        with pytest.raises(FileNotFoundError):
            read(folder / f"no-{name}")
