"""BM25 on disk: the scores of all words in all texts, written once and mapped into memory.

| file | content |
|---|---|
| words.json | stem -> its number |
| starts.npy | int64 [words + 1]: where the entries of each word begin |
| texts.npy | int32 [entries]: the texts that hold the word, in order |
| scores.npy | float32 [entries]: the word's part of each text's score |

The scores are those of `bm25.bm25`, which holds all texts in memory.
"""

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ark_jax.retrieval.array_files import write_array, write_text
from ark_jax.retrieval.bm25 import K1, B, stem_numbers, stems

BLOCK = 8192  # texts that are counted at once
_WRITTEN = 1 << 22  # entries that are written at once


class Postings(NamedTuple):
    """Which words a block of texts has, sorted by word and then by text."""

    words: np.ndarray  # int32 [entries]
    texts: np.ndarray  # int32 [entries]
    counts: np.ndarray  # [entries]: how often


class BM25Index:
    """Finds texts by their words.

    Args:
        folder: as `write_bm25` made it.

    Raises:
        OSError, ValueError: a file is missing or damaged.
    """

    def __init__(self, folder: Path, texts: int):
        self._words = json.loads((folder / "words.json").read_text(encoding="utf-8"))
        self._starts = np.load(folder / "starts.npy")
        self._texts = np.load(folder / "texts.npy", mmap_mode="r")
        self._scores = np.load(folder / "scores.npy", mmap_mode="r")
        self._count = texts

    def search(self, queries: Sequence[str], k: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """The positions of the k best texts of each query, int64, and their scores, float32.

        Best first; of equal scores the lower position is first. Texts without a word of the query
        are left out.
        """
        return [self._best(words, k) for words in stems(queries)]

    def _best(self, words: Sequence[str], k: int) -> tuple[np.ndarray, np.ndarray]:
        scores = np.zeros(self._count, np.float32)
        for number in (self._words[word] for word in words if word in self._words):
            entries = slice(self._starts[number], self._starts[number + 1])
            scores[self._texts[entries]] += self._scores[entries]
        positions = np.flatnonzero(scores)
        if len(positions) > k:
            least = np.partition(scores[positions], -k)[-k]
            positions = positions[scores[positions] >= least]
        order = np.argsort(-scores[positions], kind="stable")[:k]
        return positions[order], scores[positions[order]]


def write_bm25(folder: Path, texts: Iterable[str]) -> None:
    """Writes the files of a collection. Of the texts, memory holds a block at a time.

    Raises:
        OSError: a file cannot be written; it names the file.
    """
    words: dict[str, int] = {}
    blocks, sizes = [], [np.zeros(0, np.int64)]
    for block in _blocks(texts):
        postings, lengths = _count(block, words)
        first = sum(map(len, sizes))
        blocks.append(postings._replace(texts=postings.texts + np.int32(first)))
        sizes.append(lengths)
    starts, holders, scores = _scored(blocks, np.concatenate(sizes), len(words))
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "words.json", json.dumps(words, ensure_ascii=False))
    write_array(folder / "starts.npy", starts.shape, starts.dtype, [starts])
    for name, array in (("texts.npy", holders), ("scores.npy", scores)):
        parts = (array[at : at + _WRITTEN] for at in range(0, len(array), _WRITTEN))
        write_array(folder / name, array.shape, array.dtype, parts)


def _blocks(texts: Iterable[str]) -> Iterator[list[str]]:
    texts = iter(texts)
    while block := list(itertools.islice(texts, BLOCK)):
        yield block


def _count(texts: Sequence[str], words: dict[str, int]) -> tuple[Postings, np.ndarray]:
    """The postings of some texts, from 0 on, and the number of words of each; new words are added
    to `words`."""
    of_texts, local = stem_numbers(texts)
    numbers = np.zeros(len(local), np.int64)
    for word in sorted(local):  # in an order that is the same in every process
        numbers[local[word]] = words.setdefault(word, len(words))
    lengths = np.fromiter(map(len, of_texts), np.int64, len(texts))
    flat = np.fromiter(itertools.chain.from_iterable(of_texts), np.int64, lengths.sum())
    pairs = numbers[flat] * len(texts) + np.repeat(np.arange(len(texts)), lengths)
    pairs, counts = np.unique(pairs, return_counts=True)
    word, text = np.divmod(pairs, len(texts))
    smallest = np.min_scalar_type(counts.max(initial=0))
    postings = Postings(word.astype(np.int32), text.astype(np.int32), counts.astype(smallest))
    return postings, lengths


def _scored(
    blocks: list[Postings], lengths: np.ndarray, words: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The arrays `starts`, `texts` and `scores` of a collection.

    Args:
        lengths: how many words each text has.
        words: how many there are.
    """
    holding = np.zeros(words, np.int64)
    for block in blocks:
        holding += np.bincount(block.words, minlength=words)
    starts = np.concatenate([[0], np.cumsum(holding)])
    weights = np.log(1 + (len(lengths) - holding + 0.5) / (holding + 0.5)).astype(np.float32)
    mean = lengths.mean() if len(lengths) else 1.0
    texts, scores = np.empty(starts[-1], np.int32), np.empty(starts[-1], np.float32)
    free = starts[:-1].copy()  # the first free entry of each word
    for block in blocks:
        sizes = np.bincount(block.words, minlength=words)
        rank = np.arange(len(block.words)) - (np.cumsum(sizes) - sizes)[block.words]
        places = free[block.words] + rank
        counts = block.counts.astype(np.float32)
        relative = K1 * ((1 - B) + B * lengths[block.texts] / mean)
        texts[places] = block.texts
        scores[places] = weights[block.words] * (counts / (relative + counts))
        free += sizes
    return starts, texts, scores
