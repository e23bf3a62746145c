"""Vectors of the tokens of many texts in one array, for retrievers that keep one for each token."""

import dataclasses
import itertools
import operator
from collections.abc import Iterable, Iterator, Sequence

import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class TokenVectors(Sequence[np.ndarray]):
    """The tokens' vectors of each text, end to end.

    Text i has `values[offsets[i] : offsets[i + 1]]`, `[t e]`. Several numbers or a slice as an
    index give those texts, as of an array that has one vector for each text.
    """

    values: np.ndarray  # float [tokens e]
    offsets: np.ndarray  # int64 [texts + 1]

    @classmethod
    def from_texts(cls, texts: Iterable[np.ndarray], width: int = 0) -> "TokenVectors":
        """Copies the vectors `[t e]` of each text.

        Args:
            width: e, where there may be no text.
        """
        texts = list(texts)
        offsets = np.cumsum([0, *map(len, texts)], dtype=np.int64)
        return cls(np.concatenate(texts or [np.zeros((0, width), np.float32)]), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each text, int64 `[texts]`."""
        return np.diff(self.offsets)

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self.values[start:end] for start, end in itertools.pairwise(self.offsets.tolist()))

    def __getitem__(self, index):
        if isinstance(index, slice) and index.step in (None, 1):
            start, end, _ = index.indices(len(self))
            offsets = self.offsets[start : max(start, end) + 1]
            return TokenVectors(self.values[offsets[0] : offsets[-1]], offsets - offsets[0])
        if isinstance(index, slice):
            index = range(len(self))[index]
        try:
            number = operator.index(index)
        except TypeError:
            numbers = np.asarray(index, np.int64)
            return TokenVectors.from_texts((self[i] for i in numbers), self.values.shape[1])
        start, end = self.offsets[: len(self)][number], self.offsets[1:][number]
        return self.values[start:end]


Vectors = np.ndarray | TokenVectors  # of texts: one each, `[n e]`, or one for each token
