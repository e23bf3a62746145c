"""Distinct strings in a file, their positions, and mappings whose values are read on access."""

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np
import pyarrow as pa

from ark_jax.data.text_columns import TextColumn, runs

Value = TypeVar("Value")


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

    Args:
        strings: any strings, which may repeat.
        count: number of strings.
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
