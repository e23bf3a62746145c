"""Chunks of a file: equal to those that were written, in little memory."""

import dataclasses
import tempfile
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ark_jax.data import chunk_files
from ark_jax.data.chunk_files import MappedChunks, load_chunks, save_chunks
from ark_jax.data.records import Chunk

TEXT, COUNT = st.text(max_size=5), st.integers(0, 2**62)
CHUNKS = st.lists(st.builds(Chunk, TEXT, TEXT, COUNT, COUNT, COUNT, TEXT, TEXT), max_size=9)


@pytest.mark.parametrize("block", [2, chunk_files.BLOCK])
@given(chunks=CHUNKS)
def test_chunks_are_read_as_they_were_written(chunks, block):
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunk_files, "BLOCK", block)
        save_chunks(chunks, Path(folder))
        loaded = load_chunks(Path(folder))
        assert list(MappedChunks(Path(folder))) == chunks
        for names in ([field.name for field in dataclasses.fields(Chunk)], ["passage"]):
            values = lambda records, names=names: [[getattr(x, n) for n in names] for x in records]
            assert values(loaded) == values(chunks)


def test_a_chunk_takes_few_bytes(tmp_path):
    """Its id, of at most 12 characters here, is a string of at most 61 bytes."""
    count = 20_000
    text = "of the tide " * 99
    number = [f"{i:03}" for i in range(count)]
    chunks = (Chunk(f"d{x[:-1]}#{x}", f"d{x[:-1]}", 9, 9, 9, text, text[:50]) for x in number)
    save_chunks(chunks, tmp_path)
    load_chunks(tmp_path)
    tracemalloc.start()
    try:
        loaded = load_chunks(tmp_path)
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(loaded) == count and taken < 200 * count
