"""BM25 on disk: the scores of all words in all texts, written once and mapped into memory.

| file | content |
|---|---|
| words.json | stem -> its number |
| starts.npy | int64 [words + 1]: where the entries of each word begin |
| texts.npy | int32 [entries]: the texts that hold the word, in order |
| scores.npy | float32 [entries]: the word's part of each text's score |

The scores are those of `bm25.bm25`, which holds all texts in memory.
"""

import functools
import itertools
import json
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from ark_jax.retrieval.array_files import write_array, write_text
from ark_jax.retrieval.bm25 import K1, B, stem_numbers, stems

BLOCK = 8192  # texts that are counted at once
ENTRIES = 1 << 22  # entries that are scored and written at once; a word with more comes alone
# A word of a text, and how often the text has it. A file of them is sorted by word, then by text.
ENTRY = np.dtype([("word", np.int32), ("text", np.int32), ("count", np.int32)])


class BM25Index:
    """Finds texts by their words.

    Args:
        folder: as `write_bm25` made it.

    Raises:
        OSError, ValueError: a file is missing or damaged.
    """

    def __init__(self, folder: Path, texts: int):
        # Read by the first search; the map keeps the file if the folder is replaced before that.
        self._vocabulary = np.memmap(folder / "words.json", mode="r")
        self._starts = np.load(folder / "starts.npy", mmap_mode="r")
        self._texts = np.load(folder / "texts.npy", mmap_mode="r")
        self._scores = np.load(folder / "scores.npy", mmap_mode="r")
        self._count = texts

    @functools.cached_property
    def _words(self) -> dict[str, int]:
        return json.loads(self._vocabulary.tobytes())

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
    """Writes the files of a collection.

    Memory holds the words, and of texts and entries a block at a time: the entries of each block of
    texts lie in a file meanwhile, 12 bytes each.

    Raises:
        OSError: a file cannot be written; it names the file.
    """
    words: dict[str, int] = {}
    lengths, files = [np.zeros(0, np.int64)], []
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="blocks-", dir=folder) as blocks:
        for number, block in enumerate(_blocks(texts)):
            entries, sizes = _count(block, words)
            entries["text"] += sum(map(len, lengths))
            lengths.append(sizes)
            files.append(Path(blocks) / f"{number}.npy")
            write_array(files[-1], entries.shape, ENTRY, [entries])
        _write_scores(folder, files, np.concatenate(lengths), len(words))
    write_text(folder / "words.json", json.dumps(words, ensure_ascii=False))


def _blocks(texts: Iterable[str]) -> Iterator[list[str]]:
    texts = iter(texts)
    while block := list(itertools.islice(texts, BLOCK)):
        yield block


def _count(texts: Sequence[str], words: dict[str, int]) -> tuple[np.ndarray, np.ndarray]:
    """The entries of some texts, numbered from 0, and the number of words of each; new words are
    added to `words`."""
    of_texts, local = stem_numbers(texts)
    numbers = np.zeros(len(local), np.int64)
    for word in sorted(local):  # in an order that is the same in every process
        numbers[local[word]] = words.setdefault(word, len(words))
    lengths = np.fromiter(map(len, of_texts), np.int64, len(texts))
    flat = np.fromiter(itertools.chain.from_iterable(of_texts), np.int64, lengths.sum())
    pairs = numbers[flat] * len(texts) + np.repeat(np.arange(len(texts)), lengths)
    pairs, counts = np.unique(pairs, return_counts=True)
    entries = np.empty(len(pairs), ENTRY)
    entries["word"], entries["text"] = np.divmod(pairs, len(texts))
    entries["count"] = counts
    return entries, lengths


def _write_scores(folder: Path, files: Sequence[Path], lengths: np.ndarray, words: int) -> None:
    """Writes the arrays of a collection.

    Args:
        files: the entries of its blocks.
        lengths: how many words each text has.
        words: how many there are.
    """
    holding = np.zeros(words, np.int64)
    for path in files:
        holding += np.bincount(np.load(path)["word"], minlength=words)
    starts = np.concatenate([[0], np.cumsum(holding)])
    weights = np.log(1 + (len(lengths) - holding + 0.5) / (holding + 0.5)).astype(np.float32)
    mean = lengths.mean() if len(lengths) else 1.0

    def scores(entries: np.ndarray) -> np.ndarray:
        counts = entries["count"].astype(np.float32)
        relative = K1 * ((1 - B) + B * lengths[entries["text"]] / mean)
        return weights[entries["word"]] * (counts / (relative + counts))

    write_array(folder / "starts.npy", starts.shape, starts.dtype, [starts])
    for name, dtype, values in (
        ("texts.npy", np.int32, lambda entries: entries["text"]),
        ("scores.npy", np.float32, scores),
    ):
        parts = map(values, _by_word(files, starts))
        write_array(folder / name, (int(starts[-1]),), np.dtype(dtype), parts)


def _by_word(files: Sequence[Path], starts: np.ndarray) -> Iterator[np.ndarray]:
    """The entries of all files, sorted by word and then by text, some words at a time."""
    low = 0
    while low < len(starts) - 1:
        high = max(np.searchsorted(starts, starts[low] + ENTRIES, "right") - 1, low + 1)
        entries = np.concatenate([_of_words(path, low, high) for path in files])
        yield entries[np.argsort(entries["word"], kind="stable")]
        low = high


def _of_words(path: Path, low: int, high: int) -> np.ndarray:
    """The entries of the words `low` to `high` - 1 in a file."""
    # Mapped anew each time: pages that were read do not stay in memory.
    entries = np.load(path, mmap_mode="r")
    # Of the column's own type: for another one, the whole column would be converted.
    first, last = np.searchsorted(entries["word"], np.array([low, high], np.int32))
    return np.array(entries[first:last])
