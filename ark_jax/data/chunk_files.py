"""Chunks on disk, mapped into memory: a process reads the texts that it asks for."""

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from ark_jax.data.records import Chunk
from ark_jax.data.text_columns import LookedUp, MappedTable, RowsByText, StoredStrings

FILE = "chunks.arrow"
BLOCK = 1 << 16  # records that are written at once, and
BLOCK_CHARACTERS = 1 << 24  # of their texts
SCHEMA = pa.schema(
    (field.name, pa.large_string() if field.type is str else pa.int64())
    for field in dataclasses.fields(Chunk)
)


def _stored_field(name: str) -> property:
    """A property that reads a field of a `StoredChunk` from the file."""
    return property(lambda chunk: chunk._columns[name][chunk._row].as_py())


class StoredChunk:
    """A `Chunk` in a file, whose fields are read on access."""

    __slots__ = ("_columns", "_row")

    def __init__(self, columns: Mapping[str, pa.ChunkedArray], row: int):
        self._columns, self._row = columns, row

    id, document, start, end = map(_stored_field, ("id", "document", "start", "end"))
    tokens, text, title = map(_stored_field, ("tokens", "text", "title"))
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


class StoredChunks(Sequence[Chunk]):
    """The chunks of a file, which are read on access."""

    def __init__(self, folder: Path):
        self._file = MappedTable(folder / FILE)
        table = self._file.table
        self._columns = {name: table[name] for name in table.column_names}
        self.ids = StoredStrings(table["id"])

    def __len__(self) -> int:
        return len(self._file)

    def __getitem__(self, row: int | slice) -> Chunk | list[Chunk]:
        if isinstance(row, slice):
            return [self[i] for i in range(*row.indices(len(self)))]
        return Chunk(**{name: column[row].as_py() for name, column in self._columns.items()})

    def view(self, row: int) -> "StoredChunk":
        """A chunk whose fields are read on access."""
        return StoredChunk(self._columns, row)

    def __iter__(self) -> Iterator[Chunk]:
        return (Chunk(**row) for row in self._file.rows())

    def documents(self) -> pa.ChunkedArray:
        """The document of each chunk, large strings."""
        return self._columns["document"]

    @property
    def by_id(self) -> Mapping[str, Chunk]:
        """chunk id -> the chunk, read field by field."""
        return LookedUp(self.ids, lambda id: self.view(self.ids.position(id)))

    @functools.cached_property
    def by_document(self) -> Mapping[str, list[Chunk]]:
        """document id -> its chunks, in the order of the file; each is read field by field."""
        rows = RowsByText(self.documents())
        return LookedUp(rows, lambda document: [self.view(int(row)) for row in rows[document]])

    def forget(self) -> None:
        """Frees the memory of what was read; later access reads it again."""
        self._file.forget()


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
