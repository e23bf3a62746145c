"""Chunks on disk, mapped into memory: a process reads the texts that it asks for."""

import dataclasses
import mmap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from ark_jax.data.records import Chunk

FILE = "chunks.arrow"
BLOCK = 1 << 16  # records that are written at once, and
BLOCK_CHARACTERS = 1 << 24  # of their texts
ROWS = 1024  # records that are converted at once where all are read in order
SCHEMA = pa.schema(
    (field.name, pa.large_string() if field.type is str else pa.int64())
    for field in dataclasses.fields(Chunk)
)


class StoredChunk(Chunk):
    """A chunk whose text stays on disk and is read each time it is asked for."""

    def __init__(self, texts: pa.ChunkedArray, row: int, **fields):
        for name, value in {"_texts": texts, "_row": row, **fields}.items():
            object.__setattr__(self, name, value)  # as Chunk is frozen

    @property
    def text(self) -> str:
        return self._texts[self._row].as_py()


def save_chunks(chunks: Iterable[Chunk], folder: Path) -> None:
    """Writes Arrow's file format, uncompressed: a process maps it and reads what it needs."""
    with pa.ipc.new_file(folder / FILE, SCHEMA) as file:
        for block in record_blocks(chunks):
            file.write_table(chunk_table(block))


def chunk_table(chunks: Sequence[Chunk]) -> pa.Table:
    """The fields of chunks as columns."""
    columns = [[getattr(chunk, name) for chunk in chunks] for name in SCHEMA.names]
    return pa.table(columns, schema=SCHEMA)


class MappedChunks(Sequence[Chunk]):
    """The chunks of a file, of which nothing is read before it is asked for."""

    def __init__(self, folder: Path):
        with (folder / FILE).open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._table = pa.ipc.open_file(pa.py_buffer(self._map)).read_all()

    def __len__(self) -> int:
        return self._table.num_rows

    def __getitem__(self, row: int) -> Chunk:
        return Chunk(**{name: self._table[name][row].as_py() for name in self._table.schema.names})

    def __iter__(self) -> Iterator[Chunk]:
        for start in range(0, len(self), ROWS):
            yield from (Chunk(**row) for row in self._table.slice(start, ROWS).to_pylist())
            self.forget()

    def documents(self) -> pa.ChunkedArray:
        """The document of each chunk, large strings."""
        return self._table["document"]

    def forget(self) -> None:
        """Frees the memory of what was read. It is read again when it is asked for again."""
        self._map.madvise(mmap.MADV_DONTNEED)


def load_chunks(folder: Path) -> list[Chunk]:
    """The chunks of a file; all but their texts is read at once."""
    table = _table(folder)
    texts = table.column("text")
    rows = table.drop_columns("text").to_pylist()
    return [StoredChunk(texts, i, **row) for i, row in enumerate(rows)]


def _table(folder: Path) -> pa.Table:
    return pa.ipc.open_file(pa.memory_map(str(folder / FILE))).read_all()


def record_blocks(records: Iterable) -> Iterator[list]:
    """The records in lists, so that memory need not hold all of them."""
    block, characters = [], 0
    for record in records:
        block.append(record)
        characters += len(record.text)
        if len(block) == BLOCK or characters >= BLOCK_CHARACTERS:
            yield block
            block, characters = [], 0
    if block:
        yield block
