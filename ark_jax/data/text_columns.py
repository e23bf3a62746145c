"""Columns of texts that are held as Arrow holds them: a text takes its bytes and an offset."""

import functools
import itertools
import mmap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ark_jax.data.rows import has_surrogate

ROWS = 1024  # that are converted at once where all are read in order
BLOCK = 1 << 16  # rows of one array of a column, and
BLOCK_BYTES = 1 << 30  # of its texts
Value = TypeVar("Value")


class Column(Sequence[Value]):
    """A column that is read like a list; values are made on access."""

    TYPE: pa.DataType

    def __init__(self, values: "pa.ChunkedArray | Iterable[Value]", label: str = "texts"):
        """
        Args:
            values: the column as Arrow holds it, or its values.
            label: what errors call it.

        Raises:
            ValueError: a text is not valid Unicode.
        """
        is_arrow = isinstance(values, pa.ChunkedArray)
        self.arrow = values.cast(self.TYPE) if is_arrow else self._arrow(values, label)

    def _arrow(self, values: Iterable[Value], label: str) -> pa.ChunkedArray:
        """The values as Arrow arrays of BLOCK rows."""
        values, blocks = iter(values), []
        while block := list(itertools.islice(values, BLOCK)):
            try:
                blocks.append(pa.array(block, self.TYPE))
            except UnicodeEncodeError:
                i = next(i for i, value in enumerate(block) if has_surrogate("".join(value)))
                raise ValueError(
                    f"{label}[{len(blocks) * BLOCK + i}] is {block[i]!r}, which holds half of a "
                    "character: write whole characters"
                ) from None
        return pa.chunked_array(blocks, self.TYPE)

    def __len__(self) -> int:
        return len(self.arrow)

    def __getitem__(self, row: int | slice) -> "Value | Column[Value]":
        value = self.arrow[row]
        return type(self)(value) if isinstance(row, slice) else value.as_py()

    def __iter__(self) -> Iterator[Value]:
        for start in range(0, len(self), ROWS):
            yield from self.arrow.slice(start, ROWS).to_pylist()

    def __eq__(self, other: object) -> bool:
        """Whether a sequence has the same values in the same order."""
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None

    def __repr__(self) -> str:
        shown = ", ".join(map(repr, self[:3]))
        return f"<{len(self):,} rows: {shown}{', ...' if len(self) > 3 else ''}>"


class TextColumn(Column[str]):
    """A text in each row."""

    TYPE = pa.string()


class TextListColumn(Column[list[str]]):
    """A list of texts in each row."""

    TYPE = pa.list_(pa.string())

    def first(self, row: int) -> str:
        """The first text of a row, "" if it has none."""
        texts = self.arrow[row].values
        return texts[0].as_py() if len(texts) else ""

    @classmethod
    def from_codes(cls, ends: np.ndarray, codes: np.ndarray, texts: pa.Array) -> "TextListColumn":
        """A column whose row i has the texts at `codes[ends[i - 1] : ends[i]]`.

        Args:
            ends: int64 `[rows]`, ascending.
            codes: `[texts of all rows]`, positions in `texts`.
            texts: each text once.
        """
        bounds, blocks, start = np.append(0, ends), [], 0
        sizes = pc.binary_length(texts).to_numpy().astype(np.int64)
        total = np.append(0, np.cumsum(sizes[codes]))[bounds]  # bytes before each row
        while start < len(ends):
            # An array of strings has at most 2 GiB.
            stop = int(total.searchsorted(total[start] + BLOCK_BYTES, "right")) - 1
            stop = min(max(stop, start + 1), start + BLOCK, len(ends))
            offsets = bounds[start : stop + 1]
            values = texts.take(pa.array(codes[offsets[0] : offsets[-1]]))
            offsets = pa.array((offsets - offsets[0]).astype(np.int32))
            blocks.append(pa.ListArray.from_arrays(offsets, values.cast(pa.string())))
            start = stop
        return cls(pa.chunked_array(blocks, cls.TYPE))

    def flat(self) -> tuple[np.ndarray, pa.ChunkedArray]:
        """Where each row ends, int64 `[rows]`, in the texts of all rows, and these texts."""
        lengths = pc.list_value_length(self.arrow).to_numpy()
        return np.cumsum(lengths, dtype=np.int64), pc.list_flatten(self.arrow)


class MappedTable:
    """A table in a file of Arrow's format, mapped into memory: a process reads what it uses.

    The file may be deleted meanwhile.
    """

    def __init__(self, path: Path):
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.table = pa.ipc.open_file(pa.py_buffer(self._map)).read_all()

    def __len__(self) -> int:
        return self.table.num_rows

    def rows(self) -> Iterator[dict]:
        """All rows in order; what was read does not stay in memory."""
        for start in range(0, len(self), ROWS):
            yield from self.table.slice(start, ROWS).to_pylist()
            self.forget()

    def forget(self) -> None:
        """Frees the memory of what was read; later access reads it again."""
        self._map.madvise(mmap.MADV_DONTNEED)


def runs(column: pa.ChunkedArray) -> tuple[np.ndarray, pa.ChunkedArray]:
    """Where each run of equal strings begins, int64 `[runs]`, and the string of each."""
    starts, names, row, last = [np.empty(0, np.int64)], [], 0, None
    for block in (block for block in column.chunks if len(block)):
        is_new = np.ones(len(block), bool)
        is_new[0] = block[0].as_py() != last
        is_new[1:] = pc.not_equal(block[1:], block[:-1])
        starts.append(row + np.flatnonzero(is_new))
        names.append(block.filter(pa.array(is_new)))
        row, last = row + len(block), block[-1].as_py()
    return np.concatenate(starts), pa.chunked_array(names, column.type)


class LookedUp(Mapping[str, Value]):
    """key -> a value that is read or made on access.

    Args:
        keys: all keys, in order.
        value: key -> its value; it raises KeyError for any other string.
    """

    def __init__(self, keys: Collection[str], value: Callable[[str], Value]):
        self._keys, self._value = keys, value

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def __getitem__(self, key: str) -> Value:
        return self._value(key)


class StoredStrings(TextColumn):
    """A column of distinct strings in a file. Memory holds 12 bytes of an index for each string."""

    def __init__(self, column: pa.ChunkedArray):
        self.arrow = column  # not cast, which would read it

    def __contains__(self, string: object) -> bool:
        return self._find(string) is not None

    def position(self, string: str) -> int:
        """The position of a string.

        Raises:
            KeyError: the column does not have it.
        """
        row = self._find(string)
        if row is None:
            raise KeyError(string)
        return row

    def _find(self, string: object) -> int | None:
        """The position of a string; None if the column does not have it."""
        rows = self._hashed.rows(string)
        return next((row for row in rows if self[row] == string), None)

    @functools.cached_property
    def _hashed(self) -> "HashedStrings":
        return HashedStrings(self, len(self))


class HashedStrings:
    """Finds the rows that may have a string, by its hash, in 12 bytes a string.

    The caller compares the strings, since different ones may have one hash.
    """

    def __init__(self, strings: Iterable[str], count: int):
        hashes = np.fromiter(map(hash, strings), np.int64, count)
        rows = np.argsort(hashes, kind="stable")
        self._hashes = hashes[rows]
        self._rows = rows.astype(np.int32 if count < 1 << 31 else np.int64)

    def rows(self, string: object) -> Iterator[int]:
        """The rows of all strings that have the same hash, in ascending order."""
        value = np.int64(hash(string))
        place = int(self._hashes.searchsorted(value))
        while place < len(self._hashes) and self._hashes[place] == value:
            yield int(self._rows[place])
            place += 1


class RowsByText(LookedUp[Sequence[int]]):
    """text -> the rows of a column that have it, in ascending order."""

    def __init__(self, column: pa.ChunkedArray):
        starts, texts = runs(column)
        ends = np.append(starts[1:], len(column))
        self._rows: Sequence[int] = range(len(column))
        encoded = texts.dictionary_encode().combine_chunks()
        if len(encoded.dictionary) < len(texts):  # rows with the same text are not adjacent
            numbers = np.repeat(encoded.indices.to_numpy(), ends - starts)
            self._rows = np.argsort(numbers, kind="stable")
            texts, ends = pa.chunked_array([encoded.dictionary]), np.bincount(numbers).cumsum()
        self._texts, self._ends = StoredStrings(texts), ends
        super().__init__(self._texts, self._rows_with)

    def _rows_with(self, text: str) -> Sequence[int]:
        """The rows that have a text; KeyError if none has it."""
        number = self._texts.position(text)
        start = self._ends[number - 1] if number else 0
        return self._rows[start : self._ends[number]]
