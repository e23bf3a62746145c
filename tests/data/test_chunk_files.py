"""Chunks of a file: equal to those that were written, in little memory."""

import dataclasses
import tempfile
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ark_jax.data import spool
from ark_jax.data.records import Chunk
from ark_jax.data.spool import StoredChunks, save_chunks

TEXT, COUNT = st.text(max_size=5), st.integers(0, 2**62)
CHUNKS = st.lists(st.builds(Chunk, TEXT, TEXT, COUNT, COUNT, COUNT, TEXT, TEXT), max_size=9)


@pytest.mark.parametrize("block", [2, spool.BLOCK])
@given(chunks=CHUNKS)
def test_stored_chunks_equal_the_written_ones(chunks, block):
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(spool, "BLOCK", block)
        save_chunks(chunks, Path(folder))
        loaded = StoredChunks(Path(folder))
        assert list(StoredChunks(Path(folder))) == chunks
        for names in ([field.name for field in dataclasses.fields(Chunk)], ["passage"]):
            values = lambda records, names=names: [[getattr(x, n) for n in names] for x in records]
            assert values(loaded) == values(chunks)


@given(chunks=CHUNKS)
def test_stored_chunks_are_found_by_document_and_id(chunks):
    chunks = list({chunk.id: chunk for chunk in chunks}.values())
    with tempfile.TemporaryDirectory() as folder:
        save_chunks(chunks, Path(folder))
        stored = StoredChunks(Path(folder))
        groups: dict[str, list[str]] = {}
        for chunk in chunks:  # in any order of documents
            groups.setdefault(chunk.document, []).append(chunk.id)
        assert [(k, [x.id for x in v]) for k, v in stored.by_document.items()] == [*groups.items()]
        assert {id: chunk.text for id, chunk in stored.by_id.items()} == {
            chunk.id: chunk.text for chunk in chunks
        }
        assert "no such document" not in stored.by_document
        with pytest.raises(IndexError):
            stored[len(chunks)]


def test_looking_up_a_chunk_takes_less_than_72_bytes_of_memory_each(tmp_path):
    """That is 12 for its id, and for its document 4, 12 and its characters."""
    count = 20_000
    text = "of the tide " * 99
    number = [f"{i:05}" for i in range(count)]
    chunks = (Chunk(f"d{x}#{x}", f"d{x}", 9, 9, 9, text, text[:50]) for x in number)
    save_chunks(chunks, tmp_path)
    tracemalloc.start()
    try:
        loaded, before = StoredChunks(tmp_path), pa.total_allocated_bytes()
        assert loaded.by_document["d00007"][0].id == "d00007#00007"
        assert loaded.by_id["d00008#00008"].document == "d00008"
        taken = tracemalloc.get_traced_memory()[0] + pa.total_allocated_bytes() - before
    finally:
        tracemalloc.stop()
    assert len(loaded) == count and taken < 72 * count
