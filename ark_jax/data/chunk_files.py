"""Chunks on disk, mapped into memory: a process reads the texts that it asks for."""

import dataclasses
import mmap
from collections.abc import Iterable, Iterator, Mapping, Sequence
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


def _stored(name: str) -> property:
    return property(lambda chunk: chunk._columns[name][chunk._row].as_py())


class StoredChunk:
    """A `Chunk` in a file: all but its id and document is read each time it is asked for."""

    __slots__ = ("_columns", "_row", "document", "id")

    def __init__(self, columns: Mapping[str, pa.ChunkedArray], row: int, id: str, document: str):
        self._columns, self._row, self.id, self.document = columns, row, id, document

    start, end, tokens, text, title = map(_stored, ("start", "end", "tokens", "text", "title"))
    passage = Chunk.passage


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


def load_chunks(folder: Path) -> list[StoredChunk]:
    """The chunks of a file; their ids and documents alone are read at once."""
    table, chunks, documents = _table(folder), [], {}
    columns = dict(zip(table.column_names, table.columns, strict=True))
    for batch in table.select(["id", "document"]).to_batches():
        for id, document in zip(*(column.to_pylist() for column in batch), strict=True):
            document = documents.setdefault(document, document)  # one string for all its chunks
            chunks.append(StoredChunk(columns, len(chunks), id, document))
    return chunks


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
