"""Records in a sequence that moves to temporary Arrow files, mapped into memory, when it grows.

The files have no name any more once they are mapped, so that nothing is left behind. They lie where
temporary files do: $TMPDIR names another disk.
"""

import bisect
import dataclasses
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from ark_jax.data.records import Document, Section
from ark_jax.data.text_columns import LookedUp, MappedTable

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
