"""A file that cannot be read is named with its stage and the fix."""

import dataclasses
import itertools
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ark_jax.pipeline.tables import (
    RowsFile,
    load_json,
    load_rows,
    read_array,
    save_rows,
    save_stream,
    stream_rows,
)


def flip(path, position: int = 0) -> None:
    """Changes one bit and nothing else that a listing shows."""
    contents = bytearray(path.read_bytes())
    contents[position] ^= 1
    path.write_bytes(contents)


def test_an_unreadable_file_is_named_with_its_stage(tmp_path):
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


@dataclasses.dataclass(frozen=True)
class Row:
    name: str
    weight: float


@settings(max_examples=40)
@given(
    st.lists(st.lists(st.builds(Row, st.text("aé", max_size=3), st.floats(0, 1)), max_size=6)),
    st.integers(1, 8),
)
def test_writing_rows_table_by_table_gives_the_same_bytes(tmp_path_factory, tables, group):
    folder = tmp_path_factory.mktemp("rows")
    kinds = {"name": pa.string(), "weight": pa.float64()}
    as_table = lambda rows: pa.table(
        {name: pa.array([getattr(x, name) for x in rows], kind) for name, kind in kinds.items()}
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ark_jax.pipeline.tables.ROW_GROUP", group)
        with RowsFile(folder / "by_table.parquet", Row) as file:
            for rows in tables:
                file.write(as_table(rows))
    rows = list(itertools.chain.from_iterable(tables))
    assert file.rows == len(rows)
    save_rows(rows, folder / "at_once.parquet", Row)
    if rows:
        pq.write_table(as_table(rows), folder / "at_once.parquet", row_group_size=group)
    assert (folder / "by_table.parquet").read_bytes() == (folder / "at_once.parquet").read_bytes()


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.text("aé", max_size=3), st.floats(0, 1) | st.none()), max_size=12),
    st.integers(1, 5),
)
def test_streamed_rows_give_the_same_bytes_as_saved_ones(tmp_path_factory, values, block):
    folder = tmp_path_factory.mktemp("rows")
    rows = [{"name": name, "weight": weight} for name, weight in [*values, ("last", 0.5)]]
    schema = pa.schema([("name", pa.string()), ("weight", pa.float64())])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ark_jax.pipeline.tables.STREAMED_ROWS", block)
        count = save_stream(iter(rows), folder / "streamed.parquet", schema)
        read = list(stream_rows(pq.read_table(folder / "streamed.parquet")))
    save_rows(rows, folder / "whole.parquet")
    assert count == len(rows) and read == rows
    assert (folder / "streamed.parquet").read_bytes() == (folder / "whole.parquet").read_bytes()


def test_an_empty_stream_gives_the_bytes_of_an_empty_file(tmp_path):
    schema = pa.schema([("name", pa.string())])
    assert save_stream(iter(()), tmp_path / "streamed.parquet", schema) == 0
    save_rows([], tmp_path / "whole.parquet")
    for name in ("streamed", "whole"):
        assert load_rows(tmp_path / f"{name}.parquet") == []
    whole = (tmp_path / "whole.parquet").read_bytes()
    assert (tmp_path / "streamed.parquet").read_bytes() == whole
