"""Distinct strings in a file, and where each of them stands."""

import functools
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

ROWS = 1024  # that are converted at once where all are read in order


class StoredStrings(Sequence[str]):
    """A column of distinct strings, of which a process keeps 12 bytes each; it reads the rest."""

    def __init__(self, column: pa.ChunkedArray):
        self._column = column

    def __len__(self) -> int:
        return len(self._column)

    def __getitem__(self, row: int | slice) -> "str | StoredStrings":
        value = self._column[row]
        return StoredStrings(value) if isinstance(row, slice) else value.as_py()

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), ROWS):
            yield from self._column.slice(start, ROWS).to_pylist()

    def __contains__(self, string: object) -> bool:
        return self._find(string) is not None

    def position(self, string: str) -> int:
        """Where a string stands.

        Raises:
            KeyError: it is not among them.
        """
        row = self._find(string)
        if row is None:
            raise KeyError(string)
        return row

    def _find(self, string: object) -> int | None:
        hashes, rows = self._by_hash
        value = np.int64(hash(string))
        place = int(hashes.searchsorted(value))
        while place < len(hashes) and hashes[place] == value:
            if self[int(rows[place])] == string:
                return int(rows[place])
            place += 1
        return None

    @functools.cached_property
    def _by_hash(self) -> tuple[np.ndarray, np.ndarray]:
        """The hashes of all strings in ascending order, and the rows of these strings."""
        hashes = np.fromiter(map(hash, self), np.int64, len(self))
        rows = np.argsort(hashes)
        return hashes[rows], rows.astype(np.int32 if len(self) < 1 << 31 else np.int64)
