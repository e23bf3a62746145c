"""Records in Arrow files that are mapped into memory: a sequence that grows, and stored chunks.

A sequence that grows moves to temporary files, which have no name any more once they are mapped, so
that nothing is left behind. They lie where temporary files do: $TMPDIR names another disk.
"""

import bisect
import dataclasses
import functools
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from ark_jax.data.records import Chunk, Document, Section
from ark_jax.data.text_columns import LookedUp, MappedTable, RowsByText, StoredStrings

IN_MEMORY = 1 << 26  # bytes of records that stay in memory
RECORD_BYTES = 300  # about the memory of a record without its strings
_SECTION = pa.struct([("start", pa.int64()), ("path", pa.string())])
_TYPES = {str: pa.string(), int: pa.int64(), tuple[Section, ...]: pa.list_(_SECTION)}


class Spool(Sequence):
    """A sequence of records of one dataclass that can grow.

    It equals any sequence of equal records. A record that was moved to disk is read on access.

    Args:
        record_type: a dataclass of strings, integers and sections, such as `Document`.
        in_memory: bytes of records that are kept in memory.
    """

    def __init__(self, record_type: type, in_memory: int = IN_MEMORY):
        self._type, self._in_memory = record_type, in_memory
        fields = dataclasses.fields(record_type)
        self._schema = pa.schema([(field.name, _TYPES[field.type]) for field in fields])
        self._tables: list[MappedTable] = []
        self._ends: list[int] = []  # of each table, counted from the first record
        self._latest: list = []
        self._latest_bytes = 0

    def append(self, record) -> None:
        self._latest.append(record)
        strings = (value for value in vars(record).values() if isinstance(value, str))
        self._latest_bytes += RECORD_BYTES + sum(map(sys.getsizeof, strings))
        if self._latest_bytes > self._in_memory:
            self._move_to_disk()

    def _move_to_disk(self) -> None:
        names = self._schema.names
        columns = {name: [getattr(record, name) for record in self._latest] for name in names}
        if "sections" in columns:
            columns["sections"] = [[vars(s) for s in row] for row in columns["sections"]]
        self._tables.append(_mapped_unnamed_file(pa.table(columns, schema=self._schema)))
        self._ends.append(self._on_disk + len(self._latest))
        self._latest, self._latest_bytes = [], 0

    @property
    def _on_disk(self) -> int:
        """How many records were moved to disk."""
        return self._ends[-1] if self._ends else 0

    def __len__(self) -> int:
        return self._on_disk + len(self._latest)

    def __getitem__(self, index):
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        if index >= self._on_disk:
            return self._latest[index - self._on_disk]
        table, row = self._table_and_row(index)
        return self._record(table.slice(row, 1).to_pylist()[0])

    def _table_and_row(self, index: int) -> tuple[pa.Table, int]:
        """Where a record on disk is."""
        number = bisect.bisect_right(self._ends, index)
        return self._tables[number].table, index - (self._ends[number - 1] if number else 0)

    def __iter__(self) -> Iterator:
        for table in self._tables:
            yield from map(self._record, table.rows())
        yield from self._latest

    def _record(self, values: dict):
        """The record of a row."""
        if "sections" in values:
            values["sections"] = tuple(Section(**section) for section in values["sections"])
        return self._type(**values)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or len(self) != len(other):
            return False
        return all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None

    def __repr__(self) -> str:
        return f"<{len(self):,} {self._type.__name__} records, {self._on_disk:,} of them on disk>"

    def text(self, index: int) -> str:
        """The text of one record, without its other fields."""
        if index >= self._on_disk:
            return self._latest[index - self._on_disk].text
        table, row = self._table_and_row(index)
        return table.column("text")[row].as_py()


class Documents(Spool):
    """Documents with different ids.

    Attributes:
        rows: document id -> its index.
        texts: document id -> its text, read on access.
    """

    def __init__(self, in_memory: int = IN_MEMORY):
        super().__init__(Document, in_memory)
        self.rows: dict[str, int] = {}
        self.texts = LookedUp(self.rows, lambda id: self.text(self.rows[id]))

    def append(self, document: Document) -> None:
        """Adds a document, unless there is one with its id."""
        if document.id not in self.rows:
            self.rows[document.id] = len(self)
            super().append(document)


def _mapped_unnamed_file(table: pa.Table) -> MappedTable:
    """Writes a table into a temporary file, maps the file, and deletes its name."""
    with tempfile.NamedTemporaryFile(prefix="ark-jax-", suffix=".arrow", delete=False) as file:
        path = Path(file.name)
        try:
            with pa.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table)
            file.flush()
            return MappedTable(path)
        finally:
            path.unlink()


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
    """The chunks of a file, which are read on access.

    Raises:
        FileNotFoundError, pyarrow.ArrowException, ValueError: the file is missing or damaged.
    """

    def __init__(self, folder: Path):
        self._file = MappedTable(folder / FILE)
        table = self._file.table
        if table.schema != SCHEMA:
            raise ValueError(f"{folder / FILE} has other columns than those of chunks")
        table.validate(full=True)  # damaged offsets would lead outside of the file
        self.forget()
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
