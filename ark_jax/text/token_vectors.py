"""Vectors of the tokens of many texts in one array, for retrievers that keep one for each token."""

import dataclasses
import itertools
import operator
from collections.abc import Iterable, Iterator, Sequence

import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class TokenVectors(Sequence[np.ndarray]):
    """The tokens' vectors of each text, end to end.

    Text i has `values[offsets[i] : offsets[i + 1]]`, `[t e]`. It is indexed like an array of texts:
    a slice or a list of numbers gives those texts.
    """

    values: np.ndarray  # float [tokens e], or the `retrieval.codes` of such vectors
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
            return self._chosen(np.asarray(index, np.int64))
        start, end = self.offsets[: len(self)][number], self.offsets[1:][number]
        return self.values[start:end]

    def _chosen(self, numbers: np.ndarray) -> "TokenVectors":
        """The texts of these numbers."""
        lengths = self.lengths[numbers]
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        starts = self.offsets[: len(self)][numbers]
        rows = np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])
        # Of codes, whose columns lie one after another, a column is read at a time.
        by_columns = self.values.flags.f_contiguous and not self.values.flags.c_contiguous
        values = self.values.T.take(rows, 1).T if by_columns else self.values[rows]
        return TokenVectors(np.asarray(values), offsets)

    def slices(self, tokens: int) -> Iterator[slice]:
        """Slices of texts with at most `tokens` tokens together, or of one text that has more."""
        start = 0
        while start < len(self):
            limit = self.offsets[start] + tokens
            end = max(int(np.searchsorted(self.offsets, limit, "right")) - 1, start + 1)
            yield slice(start, end)
            start = end


Vectors = np.ndarray | TokenVectors  # of texts: one each, `[n e]`, or one for each token


def stack(texts: Sequence[np.ndarray]) -> Vectors:
    """The vectors of texts that have `[e]` or `[t e]` each; there must be one."""
    return np.stack(texts) if texts[0].ndim == 1 else TokenVectors.from_texts(texts)


def join(parts: Sequence[Vectors]) -> Vectors:
    """The vectors of all parts, one after another."""
    if not isinstance(parts[0], TokenVectors):
        return np.concatenate(parts)
    texts = itertools.chain.from_iterable(parts)
    return TokenVectors.from_texts(texts, parts[0].values.shape[1])


def check_one_each(vectors: Vectors, place: str) -> np.ndarray:
    """The vectors of texts that have one each, `[n e]`.

    Args:
        place: what needs them, for the message.

    Raises:
        ValueError: each token has a vector.
    """
    if isinstance(vectors, TokenVectors):
        raise tokens_error(place)
    return vectors


def tokens_error(place: str) -> ValueError:
    """The error of a place that needs one vector for each text, and gets one for each token."""
    return ValueError(
        f"{place}: a text has one vector here, and this model keeps one for each token; search "
        "with `ark-jax search` or ark_jax.Index, or take another model"
    )
