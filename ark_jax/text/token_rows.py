"""Token ids of many texts in one array: a list of Python integers takes 38 bytes a token."""

import array
import contextlib
import dataclasses
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np

from ark_jax.runtime import distributed

Item = TypeVar("Item")
Key = TypeVar("Key")
TokenIds = Sequence[int] | np.ndarray
# Texts of one call to the tokenizer, whose own results take far more memory than token ids.
TOKENIZER_TEXTS = 1024
IN_MEMORY = 1 << 28  # bytes of rows that stay in memory


@dataclasses.dataclass(frozen=True, eq=False)
class TokenRows(Sequence[np.ndarray]):
    """Rows of token ids, or of other numbers of tokens, end to end.

    Row i is `values[offsets[i] : offsets[i + 1]]`, a view that cannot be written to.
    """

    values: np.ndarray  # int32 [tokens], or int8 for segments
    offsets: np.ndarray  # int64 [rows + 1]

    @classmethod
    def from_rows(cls, rows: Iterable[TokenIds], dtype=np.int32) -> "TokenRows":
        """Copies rows, one at a time, so that an iterator of lists never holds many of them.

        More than IN_MEMORY bytes are written to a temporary file and mapped into memory: $TMPDIR
        names its disk. The file has no name, so that nothing is left behind.
        """
        values, lengths, file = array.array(np.dtype(dtype).char), array.array("q"), None
        with contextlib.ExitStack() as stack:
            for row in rows:
                values.frombytes(np.asarray(row, dtype).tobytes())
                lengths.append(len(row))
                if len(values) * values.itemsize > IN_MEMORY:
                    file = file or stack.enter_context(tempfile.TemporaryFile())
                    values.tofile(file)
                    del values[:]
            if file:
                values.tofile(file)
                file.flush()
                numbers = np.asarray(np.memmap(file, dtype, "r"))  # slices of a memmap are slow
            else:
                numbers = np.frombuffer(values, dtype)
        return cls.from_lengths(numbers, np.frombuffer(lengths, np.int64))

    @classmethod
    def from_lengths(cls, values: np.ndarray, lengths: np.ndarray) -> "TokenRows":
        """Rows of these lengths, `[rows]`, end to end in `values`, which becomes read-only."""
        values.flags.writeable = False
        return cls(values, np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]))

    @classmethod
    def from_shares(
        cls, encode: Callable[[Sequence[Item]], Iterable[TokenIds]], items: Sequence[Item]
    ) -> "TokenRows":
        """The rows `encode(items)`. Of several processes, each must call this and makes its share.

        Each process maps a file of all rows, as in `from_rows`, and reads those that it needs.

        Args:
            encode: makes a row of each item, which must not depend on the others.
        """

        def encode_share(share: Sequence[Item]) -> tuple[np.ndarray, np.ndarray]:
            """The values and lengths of the rows of some items."""
            rows = cls.from_rows(encode(share))
            return rows.values, rows.lengths

        return cls.from_lengths(*distributed.split_and_gather(encode_share, items, _int32_array))

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each row, int64 `[rows]`."""
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int | slice) -> np.ndarray | list[np.ndarray]:
        row = range(len(self))[index]
        if isinstance(row, range):
            return [self[i] for i in row]
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    def tolist(self) -> list[list[int]]:
        return [row.tolist() for row in self]


class RowsByKey(Mapping[Key, np.ndarray]):
    """Rows that are looked up by key and not by number."""

    def __init__(self, keys: Iterable[Key], rows: TokenRows):
        self._rows, self._numbers = rows, {key: i for i, key in enumerate(keys)}

    def __getitem__(self, key: Key) -> np.ndarray:
        return self._rows[self._numbers[key]]

    def __iter__(self) -> Iterator[Key]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)


def _int32_array(size: int) -> np.ndarray:
    """An array `[size]`; above IN_MEMORY bytes it is a temporary file, mapped into memory.

    Raises:
        OSError: the disk is full.
    """
    array_bytes = size * np.dtype(np.int32).itemsize
    if array_bytes <= IN_MEMORY:
        return np.empty(size, np.int32)
    with tempfile.TemporaryFile() as file:
        if hasattr(os, "posix_fallocate"):  # else a full disk would kill the process as it writes
            os.posix_fallocate(file.fileno(), 0, array_bytes)
        return np.asarray(np.memmap(file, np.int32, "w+", shape=size))


def text_blocks(texts: Sequence[Item]) -> Iterator[list[Item]]:
    """The texts, or pairs of texts, of each call to the tokenizer.

    Raises:
        ValueError: one is no text.
    """
    for start in range(0, len(texts), TOKENIZER_TEXTS):
        block = list(texts[start : start + TOKENIZER_TEXTS])
        for number, item in enumerate(block, start):
            if not all(isinstance(x, str) for x in (item if type(item) is tuple else (item,))):
                raise ValueError(f"text {number}: {item!r} is no string; give strings")
        yield block


def check_list(name: str, texts: object) -> None:
    """Raises ValueError if `texts` is one text, or nothing that has a length."""
    if isinstance(texts, str):
        raise ValueError(f"{name}: {texts[:40]!r} is one text; give a list of them")
    if not hasattr(texts, "__len__"):
        raise ValueError(f"{name} is {type(texts).__name__}; give a list of texts")
