"""A BM25 index: the scores of all words in all texts, in memory or in mapped files.

| file | content |
|---|---|
| words.json | stem -> its number |
| starts.npy | int64 [words + 1]: where the entries of each word begin |
| texts.npy | int32 [entries]: the texts that hold the word, in order |
| scores.npy | float32 [entries]: the word's part of each text's score |
"""

import functools
import itertools
import json
import re
import tempfile
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ark_jax.retrieval.array_files import check_starts, write_array, write_text
from ark_jax.retrieval.searcher import Ranking, Scopes
from ark_jax.runtime.map_shards import map_shards
from ark_jax.text.word_boundaries import UNSPACED

K1, B = 1.5, 0.75  # Lucene's are 1.2 and 0.75; these are bm25s's
BLOCK = 8192  # texts that are counted at once; words are numbered block by block
IN_MEMORY = 1 << 18  # texts of a collection that is counted for one search
ENTRIES = 1 << 22  # entries that are scored and written at once; a word with more comes alone
SAMPLE = 1 << 12  # texts of a word that give a lower bound on the best scores
COMPILED = 1 << 30  # texts times questions that take as long to search as numba takes to start
# A word of a text, and how often the text has it. A file of them is sorted by word, then by text.
ENTRY = np.dtype([("word", np.int32), ("text", np.int32), ("count", np.int32)])
ARRAYS = ("starts", "texts", "scores")
Words = Sequence[str] | Mapping[int, float]  # of a question; or tokens with their weights
# How texts become words. To "english" a character alone is no word, and a whole sentence without
# spaces is one. The last is that of new indexes.
TOKENIZERS = ("english", "multilingual")
TOKENIZER = TOKENIZERS[-1]
_LONG_WORD = re.compile(r"\b\w\w+\b")
_WIDE = re.compile("[\uff00-\uffef]+")  # letters as wide, or kana as narrow, as others are not
_UNSPACED = re.compile(f"([{UNSPACED}]+)")
STOP_WORDS = frozenset(  # Lucene's
    re.findall(
        r"\w+",
        "a an and are as at be but by for if in into is it no not of on or such that the their "
        "then there these they this to was will with",
    )
)


class BM25Index:
    """Finds texts by their words, or tokens with weights; a `searcher.Searcher`.

    Args:
        read_words: called by the first search; stem -> its number.
        starts: int64 `[words + 1]`.
        texts: int32 `[entries]`.
        scores: float32 `[entries]`.
        count: number of texts.
        read: questions -> the words of each.
    """

    def __init__(
        self,
        read_words: Callable[[], Mapping[str, int] | range],
        starts: np.ndarray,
        texts: np.ndarray,
        scores: np.ndarray,
        count: int,
        read: Callable[[Sequence[str]], Sequence[Words]],
    ):
        self._read_words, self._count, self._searched = read_words, count, 0
        self._read_questions = read
        # Plain views of mapped files: slices of np.memmap are slow.
        self._starts, self._texts, self._scores = map(np.asarray, (starts, texts, scores))

    def __len__(self) -> int:
        """The number of texts."""
        return self._count

    @functools.cached_property
    def _words(self) -> dict[str, int]:
        return self._read_words()

    def search(self, questions: Sequence[str], k: int, scopes: Scopes = None) -> list[Ranking]:
        """The k best texts of each question: positions, int64, and float32 scores.

        By Lucene's BM25, texts and questions become English stems without stop words. Frequencies
        and lengths are those of all texts, whatever the scope. Of equal scores the text that is
        first in the scope is first. Texts without a word of the question are left out.
        """
        everything = range(self._count)
        scopes = [everything] * len(questions) if scopes is None else scopes
        return [
            self.best(words, k)
            if isinstance(scope, range) and scope == everything
            else self._best_in_scope(words, k, scope)
            for words, scope in zip(self._read_questions(questions), scopes, strict=True)
        ]

    def _best_in_scope(self, words: Words, k: int, scope: Sequence[int]) -> Ranking:
        """As `best`, among the texts of a scope."""
        is_range = isinstance(scope, range)  # numpy would convert it number by number
        positions = (
            np.arange(scope.start, scope.stop, scope.step)
            if is_range
            else np.asarray(scope, np.int64)
        )
        scores = self.scores(words)[positions]
        best = best_texts(scores, k)
        return Ranking(positions[best], scores[best])

    def best(self, words: Words, k: int) -> Ranking:
        """The k best texts for the words of a question, as `search` ranks them."""
        entries = self._entries(words)
        if not entries:
            return Ranking(np.zeros(0, np.int64), np.zeros(0, np.float32))
        self._searched += self._count
        if self._searched > COMPILED and (compiled := _compiled_search()):
            return Ranking(*compiled(entries, self._count, k))
        scores = self._sum_scores(entries)
        # The k best texts of a sample are a lower bound on the k best of all.
        samples = (scores[texts[:SAMPLE]] for texts, *_ in entries)
        least = max(np.partition(x, -k)[-k] if len(x) >= k else 0 for x in samples)
        positions = np.flatnonzero(scores >= least if least else scores)
        best = positions[best_texts(scores[positions], k)]
        return Ranking(best, scores[best])

    def scores(self, words: Words) -> np.ndarray:
        """The scores of all texts `[n]` for the words of a query; 0: the text has none of them."""
        entries = self._entries(words)
        return self._sum_scores(entries) if entries else np.zeros(self._count, np.float32)

    def _entries(self, words: Words) -> list[tuple[np.ndarray, np.ndarray, float]]:
        """For each known word, the texts that hold it, its part of their scores, its weight."""
        weights = words if isinstance(words, Mapping) else {}
        known = ((self._words[word], weights.get(word, 1)) for word in words if word in self._words)
        entries = []
        for number, weight in known:
            cut = slice(self._starts[number], self._starts[number + 1])
            texts = self._texts[cut]
            # What adds scores up would write outside of memory.
            if len(texts) and not 0 <= texts.min() <= texts.max() < self._count:
                raise ValueError(f"the entries of word {number} are damaged; make the index again")
            entries.append((texts, self._scores[cut], weight))
        return entries

    def _sum_scores(self, entries: Sequence[tuple[np.ndarray, np.ndarray, float]]) -> np.ndarray:
        """The scores of all texts `[n]`, added up word by word.

        scipy's product of a matrix, whose columns are the words, does it in a compiled loop.
        """
        import scipy.sparse

        texts, values, weights = zip(*entries, strict=True)
        starts = np.cumsum([0, *map(len, texts)])
        columns = np.concatenate(values), np.concatenate(texts), starts
        matrix = scipy.sparse.csc_array(columns, shape=(self._count, len(entries)))
        return matrix @ np.array(weights, np.float32)


@functools.cache
def _compiled_search() -> Callable[..., tuple[np.ndarray, np.ndarray]] | None:
    """As `BM25Index.best`, for entries, compiled by numba; None where it is not installed."""
    try:
        import numba
    except ImportError:
        return None

    @numba.njit(nogil=True)
    def add(scores, texts, values, weight):
        for i in range(len(texts)):
            scores[texts[i]] += values[i] * weight

    @numba.njit(nogil=True)
    def select(scores, k):
        positions, best = np.full(k, -1, np.int64), np.zeros(k, np.float32)
        for position in range(len(scores)):
            score, place = scores[position], k - 1
            if score > best[place]:  # of equal scores the first stays first
                while place > 0 and best[place - 1] < score:
                    positions[place], best[place] = positions[place - 1], best[place - 1]
                    place -= 1
                positions[place], best[place] = position, score
        return positions, best

    def search(entries, count: int, k: int) -> tuple[np.ndarray, np.ndarray]:
        scores = np.zeros(count, np.float32)
        for texts, values, weight in entries:
            add(scores, texts, values, np.float32(weight))
        positions, best = select(scores, min(k, count))
        return positions[positions >= 0], best[positions >= 0]

    return search


def best_texts(scores: np.ndarray, k: int) -> np.ndarray:
    """The positions of the k best scores above 0, best first; equal ones keep their order."""
    positions = np.flatnonzero(scores)
    if len(positions) > k:
        least = np.partition(scores[positions], -k)[-k]
        positions = positions[scores[positions] >= least]
    return positions[np.argsort(-scores[positions], kind="stable")[:k]]


def open_bm25(folder: Path, texts: int, tokenizer: str = TOKENIZER) -> BM25Index:
    """Opens the files that `write_bm25` made.

    Args:
        texts: number of texts.
        tokenizer: that they were written with.

    Raises:
        OSError, ValueError: a file is missing or damaged.
    """
    # The map keeps the file if the folder is replaced before it is read.
    words = np.memmap(folder / "words.json", mode="r")
    starts, entries, scores = (np.load(folder / f"{x}.npy", mmap_mode="r") for x in ARRAYS)
    check_starts(starts, len(starts) - 1, len(entries), "starts.npy")
    if (entries.dtype, scores.dtype) != (np.int32, np.float32) or entries.shape != scores.shape:
        raise ValueError("texts.npy and scores.npy are not int32 and float32 of one length")

    def read_words() -> dict[str, int]:
        """The file's words; raises ValueError if it is damaged."""
        try:
            numbers = json.loads(words.tobytes())
            fits = {*numbers.values()} == {*range(len(starts) - 1)}
        except (ValueError, AttributeError, TypeError, RecursionError):
            fits = False
        if not fits:
            raise ValueError(f"{folder / 'words.json'} is damaged; make the index again")
        return numbers

    read = functools.partial(stems, tokenizer=tokenizer)
    return BM25Index(read_words, starts, entries, scores, texts, read)


def count_bm25(texts: Sequence[str], tokenizer: str = TOKENIZER) -> BM25Index:
    """Counts a collection. Many texts are counted by `map_shards`, into temporary files.

    Raises:
        OSError: such a file cannot be written; it names the file.
    """
    if len(texts) > IN_MEMORY:
        with tempfile.TemporaryDirectory(prefix="ark-jax-bm25-") as folder:
            write_bm25(Path(folder), texts, tokenizer)
            return open_bm25(Path(folder), len(texts), tokenizer)  # the maps keep the files
    words: dict[str, int] = {}
    blocks = [(np.zeros(0, ENTRY), np.zeros(0, np.int64)), *_count_blocks(texts, words, tokenizer)]
    entries, lengths = map(np.concatenate, zip(*blocks, strict=True))
    entries = entries[np.argsort(entries["word"], kind="stable")]
    document_frequency = np.bincount(entries["word"], minlength=len(words))
    scores = _entry_scorer(document_frequency, lengths)(entries)
    starts, read = _word_starts(document_frequency), functools.partial(stems, tokenizer=tokenizer)
    return BM25Index(lambda: words, starts, entries["text"], scores, len(lengths), read)


def count_weights(encode: Callable[..., Any], texts: Sequence[str]) -> BM25Index:
    """An index of the weights that a model gives the tokens of texts, in place of BM25's.

    Args:
        encode: of a `LexicalRetriever`.
    """
    weights = encode(texts, kind="document").tocsc()

    def read(questions: Sequence[str]) -> list[dict[int, float]]:
        asked = encode(questions, kind="query")
        tokens, values = (np.split(x, asked.indptr[1:-1]) for x in (asked.indices, asked.data))
        return [dict(zip(*x, strict=True)) for x in zip(tokens, values, strict=True)]

    count, tokens = weights.shape
    columns = weights.indptr, weights.indices, weights.data
    return BM25Index(lambda: range(tokens), *columns, count, read)


def write_bm25(folder: Path, texts: Iterable[str], tokenizer: str = TOKENIZER) -> None:
    """Writes the files of a collection. Many texts are counted by `map_shards`.

    Memory holds the words, and of texts and entries some blocks at a time: the entries of each
    block of texts are in a temporary file, 12 bytes each.

    Raises:
        OSError: a file cannot be written; it names the file.
    """
    words: dict[str, int] = {}
    lengths, files = [np.zeros(0, np.int64)], []
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="blocks-", dir=folder) as blocks:
        for number, (entries, sizes) in enumerate(_count_blocks(texts, words, tokenizer)):
            lengths.append(sizes)
            files.append(Path(blocks) / f"{number}.npy")
            write_array(files[-1], entries.shape, ENTRY, [entries])
        _write_scores(folder, files, np.concatenate(lengths), len(words))
    write_text(folder / "words.json", json.dumps(words, ensure_ascii=False))


def _count_blocks(
    texts: Iterable[str], words: dict[str, int], tokenizer: str
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the entries of each block of texts, and the number of words of each text.

    Args:
        words: word -> its number; new words are added.
    """
    first, prepare = 0, functools.partial(_block_counter, tokenizer)
    for block_words, entries, lengths in map_shards(prepare, _text_blocks(texts)):
        numbers = np.array([words.setdefault(word, len(words)) for word in block_words], np.int32)
        entry_words = numbers[entries["word"]]
        order = np.argsort(entry_words, kind="stable")
        entries = entries[order]  # a copy: Ray's arrays cannot be changed
        entries["word"] = entry_words[order]
        entries["text"] += first
        first += len(lengths)
        yield entries, lengths


def _text_blocks(texts: Iterable[str]) -> Iterator[list[str]]:
    texts = iter(texts)
    while block := list(itertools.islice(texts, BLOCK)):
        yield block


def _block_counter(
    tokenizer: str,
) -> Callable[[list[str]], tuple[list[str], np.ndarray, np.ndarray]]:
    """Work for `map_shards`, see `_count_block`."""
    stems([])  # imports the packages before the first block
    return functools.partial(_count_block, tokenizer=tokenizer)


def _count_block(texts: list[str], tokenizer: str) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Counts the words of some texts.

    Returns:
        The words, sorted, so that every process numbers them alike; the entries, where words and
        texts are numbered from 0; and the number of words of each text.
    """
    rows = stems(texts, tokenizer)
    words = sorted({*itertools.chain.from_iterable(rows)})
    numbers = dict(zip(words, range(len(words)), strict=True))
    lengths = np.fromiter(map(len, rows), np.int64, len(texts))
    flat = map(numbers.__getitem__, itertools.chain.from_iterable(rows))
    pairs = np.fromiter(flat, np.int64, lengths.sum()) * len(texts) + np.repeat(
        np.arange(len(texts)), lengths
    )
    pairs, counts = np.unique(pairs, return_counts=True)
    entries = np.empty(len(pairs), ENTRY)
    entries["word"], entries["text"] = np.divmod(pairs, len(texts))
    entries["count"] = counts
    return words, entries, lengths


def _word_starts(document_frequency: np.ndarray) -> np.ndarray:
    """Where the entries of each word begin: int64 `[words + 1]`."""
    return np.concatenate([[0], np.cumsum(document_frequency)])


def _entry_scorer(
    document_frequency: np.ndarray, lengths: np.ndarray
) -> Callable[[np.ndarray], np.ndarray]:
    """A function that scores entries by Lucene's BM25, in float32.

    Args:
        document_frequency: how many texts hold each word.
        lengths: how many words each text has.
    """
    weights = np.log(
        1 + (len(lengths) - document_frequency + 0.5) / (document_frequency + 0.5)
    ).astype(np.float32)
    mean = lengths.mean() if len(lengths) else 1.0

    def scores(entries: np.ndarray) -> np.ndarray:
        counts = entries["count"].astype(np.float32)
        relative = K1 * ((1 - B) + B * lengths[entries["text"]] / mean)
        return (weights[entries["word"]] * (counts / (relative + counts))).astype(np.float32)

    return scores


def _write_scores(folder: Path, files: Sequence[Path], lengths: np.ndarray, words: int) -> None:
    """Writes the arrays of a collection.

    Args:
        files: the entries of its blocks.
        lengths: how many words each text has.
        words: number of different words.
    """
    document_frequency = np.zeros(words, np.int64)
    for path in files:
        document_frequency += np.bincount(np.load(path)["word"], minlength=words)
    starts, scores = _word_starts(document_frequency), _entry_scorer(document_frequency, lengths)
    write_array(folder / "starts.npy", starts.shape, starts.dtype, [starts])
    for name, dtype, values in (
        ("texts.npy", np.int32, lambda entries: entries["text"]),
        ("scores.npy", np.float32, scores),
    ):
        parts = map(values, _entries_by_word(files, starts))
        write_array(folder / name, (int(starts[-1]),), np.dtype(dtype), parts)


def _entries_by_word(files: Sequence[Path], starts: np.ndarray) -> Iterator[np.ndarray]:
    """The entries of all files, sorted by word and then by text, some words at a time."""
    low = 0
    while low < len(starts) - 1:
        high = max(np.searchsorted(starts, starts[low] + ENTRIES, "right") - 1, low + 1)
        entries = np.concatenate([_entries_of_words(path, low, high) for path in files])
        yield entries[np.argsort(entries["word"], kind="stable")]
        low = high


def _entries_of_words(path: Path, low: int, high: int) -> np.ndarray:
    """The entries of the words `low` to `high` - 1 in a file."""
    # Mapped again each time: pages that were read do not stay in memory.
    entries = np.load(path, mmap_mode="r")
    # Of the column's own type: for another one, the whole column would be converted.
    first, last = np.searchsorted(entries["word"], np.array([low, high], np.int32))
    return np.array(entries[first:last])


def stems(texts: Sequence[str], tokenizer: str = TOKENIZER) -> list[list[str]]:
    """The English stems of each text, in order, without stop words.

    Those of `TOKENIZERS`' "english" are as `bm25s.tokenize` gives them; bm25s itself takes a second
    to import.
    """
    import Stemmer

    find = _LONG_WORD.findall if tokenizer == "english" else _words_of_any_script
    rows = [find(text.lower()) for text in texts]
    words = list({word for row in rows for word in row} - STOP_WORDS)
    stem = dict(zip(words, Stemmer.Stemmer("english").stemWords(words), strict=True))
    return [[stem[word] for word in row if word in stem] for row in rows]


def _words_of_any_script(text: str) -> list[str]:
    """The words of a text; of a script without spaces, the characters and their pairs.

    Lucene takes pairs alone, which find less. A single letter after an apostrophe is no word.
    """
    if not text.isascii():
        as_usual = lambda match: unicodedata.normalize("NFKC", match[0])
        text = unicodedata.normalize("NFC", _WIDE.sub(as_usual, text))
    words = _any_word().findall(text)
    if not _UNSPACED.search(text):
        return words
    tokens: list[str] = []
    for part in itertools.chain.from_iterable(map(_UNSPACED.split, words)):
        is_unspaced = _UNSPACED.match(part)
        tokens += (
            (*part, *map("".join, itertools.pairwise(part))) if is_unspaced else [part] * bool(part)
        )
    return tokens


@functools.cache
def _any_word() -> re.Pattern[str]:
    """Words with the marks above and below letters, without which none of Hindi is whole."""
    marks = "".join(x for x in map(chr, range(0x300, 0x10000)) if unicodedata.category(x)[0] == "M")
    return re.compile(rf"[\w{marks}]{{2,}}|(?<!\w['’])[^\W_]")
