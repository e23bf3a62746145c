"""Tokenizers, overlapping token chunks with character offsets, and the few lengths that batches are padded to."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

# Powers of two waste 9-47 % of the work on real lengths, these 2-7 %, for a bounded number of compilations.
LENGTHS = (*range(8, 192, 8), *range(192, 384, 16), *range(384, 512, 32), 512, 576, 640, 704, 768, 896, 1024, 1280, 1536,
           1792, 2048, 2560, 3072, 3584, 4096, 5120, 6144, 7168, 8192)
# Padding that costs about as much as compiling for one more length, in multiply-adds: a second of a small machine.
COMPILATION = 5e10


@dataclasses.dataclass(frozen=True)
class Span:
    """A run of tokens of one document: `text[start:end]` characters, `tokens` long."""

    start: int
    end: int
    tokens: int


def load_tokenizer(folder: str, vocab: int | None = None):
    """The fast tokenizer of a model folder or hub name; `vocab` entries are what the model has embeddings for.

    Raises:
        ValueError: a file that cannot be read, or a token that the model has no embedding for.
        FileNotFoundError: a folder without a tokenizer.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except Exception as error:  # the Rust parser raises nothing narrower
        if not Path(folder).is_dir():
            raise
        if not Path(folder, "tokenizer.json").is_file():
            raise FileNotFoundError(f"{folder}: no tokenizer.json; fetch it too, or make it of the other tokenizer files with "
                                    "transformers first") from error
        raise ValueError(f"{folder}/tokenizer.json or the files beside it cannot be read ({error}); fetch them again") from error
    if not tokenizer.is_fast:
        raise ValueError(f"{folder}: no tokenizer.json; convert the tokenizer to a fast one with transformers first")
    token, largest = max(tokenizer.get_vocab().items(), key=lambda item: item[1])
    if vocab is not None and largest >= vocab:
        raise ValueError(f"{folder}/tokenizer.json: token {token!r} has the id {largest}, "
                         f"but vocab_size in config.json is {vocab}; take the tokenizer of this model, or resize its "
                         "embeddings with transformers first")
    return tokenizer


def token_chunks(text: str, tokenizer, *, size: int, overlap: int) -> list[Span]:
    """Cuts `text` into windows of `size` tokens, each repeating the last `overlap` tokens of the one before.

    A tail that the previous window covers already is not emitted, so every window but the first brings
    at least one new token, and together they cover every token.
    """
    if not 0 <= overlap < size:
        raise ValueError(f"overlap {overlap} must be at least 0 and below the chunk size {size}")
    # The Rust tokenizer itself: no truncation, no special tokens, no length warning.
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    offsets = backend.encode(text, add_special_tokens=False).offsets
    spans, start = [], 0
    while start < len(offsets):
        end = min(start + size, len(offsets))
        spans.append(Span(offsets[start][0], offsets[end - 1][1], end - start))
        if end == len(offsets):
            break
        start = end - overlap
    return spans


def round_up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


def round_length(length: int) -> int:
    """The smallest padded length that holds `length` tokens."""
    return next((fixed for fixed in LENGTHS if fixed >= length), round_up(length, 1024))


def round_room(n: int) -> int:
    """At least n, rounded up to one of sixteen steps an octave, and to eight: what a stream of n tokens may hold."""
    return round_up(max(n, 1), max(8, 1 << max(n - 1, 0).bit_length() >> 5))


def round_rows(n: int, multiple: int) -> int:
    """At least n, rounded up to one of four steps an octave (..., 16, 20, 24, 28, 32, 40, ...) and to `multiple`."""
    step = max(1 << max(n - 1, 0).bit_length() >> 3, 1)
    return round_up(round_up(max(n, 1), step), multiple)


def put(ids: Sequence[Sequence[int]], at: Sequence[int], rows: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and mask, int32 and bool `[rows length]`, with `ids[i]` in row `at[i]`; the other rows are empty."""
    tokens = np.zeros((rows, length), np.int32)
    mask = np.zeros((rows, length), bool)
    for row, text in zip(at, ids, strict=True):
        tokens[row, : len(text)] = text
        mask[row, : len(text)] = True
    return tokens, mask


def deal(lengths: Sequence[int], hands: int, slots: int) -> tuple[np.ndarray, int]:
    """Deals texts to hands of so many slots, the longest first, each to the hand with the fewest tokens.

    Returns hand · slots + slot for each text, and the tokens of the fullest hand.
    """
    where, tokens, used = np.zeros(len(lengths), np.int64), [0] * hands, [0] * hands
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        hand = min((hand for hand in range(hands) if used[hand] < slots), key=tokens.__getitem__)
        where[i] = hand * slots + used[hand]
        tokens[hand] += lengths[i]
        used[hand] += 1
    return where, max(tokens)


@dataclasses.dataclass(frozen=True)
class Batch:
    """Texts for one call: `rows` on every device, padded to `length`, of at most `room` tokens a device."""

    devices: list[list[int]]  # the texts of each, at most `rows`
    rows: int
    length: int
    room: int

    def arrays(self, ids: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
        """Tokens and mask `[devices·rows length]`; surplus rows are empty."""
        texts = [ids[i] for i in itertools.chain(*self.devices)]
        return put(texts, self.where(), len(self.devices) * self.rows, self.length)

    def where(self) -> list[int]:
        """The row of each text, device by device."""
        return [device * self.rows + row for device, texts in enumerate(self.devices) for row in range(len(texts))]


def in_streams(lengths: Sequence[int], *, budget: int, parameters: int, attention: int, devices: int = 1) -> Iterator[Batch]:
    """Cuts texts into batches of `budget` tokens a device (one text at least), longest first, so that a batch that does
    not fit memory fails at once.

    A token costs `parameters` multiply-adds and each pair of tokens `attention`, for the padding of rows too. Batches
    share one shape until padding is dearer than a compilation and a twentieth of their work.
    """
    if not lengths:
        return
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    longest, total = max(max(lengths), 1), sum(lengths)
    budget = max(budget, longest)
    count = max(round_up(-(-total // budget), devices), 1)
    # Few texts are cut evenly, with some room for what a cut cannot divide.
    most = min(budget, max(longest, -(-total // count) + longest // 2 * (count > 1)))
    room = min(budget, round_room(most))
    streams, left = [], 0
    for i in order:
        if not streams or lengths[i] > left:
            streams.append([])
            left = most
        streams[-1].append(i)
        left -= lengths[i]
    streams += [[]] * (-len(streams) % devices)
    groups = [streams[i : i + devices] for i in range(0, len(streams), devices)]
    needs = [(round_rows(max(map(len, group)), 1), round_length(max(lengths[group[0][0]], 1))) for group in groups]
    shapes = alike(needs, lambda shape: devices * (room * parameters + attention * shape[0] * shape[1] ** 2))
    for group, (rows, length) in zip(groups, shapes, strict=True):
        yield Batch(group, rows, length, room)


def alike(needs: Sequence[tuple[int, ...]], cost: Callable[[tuple[int, ...]], int]) -> Iterator[tuple[int, ...]]:
    """A shape for each need, at least as large in every number: one for all in a row until what it costs beyond them
    exceeds a compilation and a twentieth of their work. `cost` is in multiply-adds."""
    at = 0
    while at < len(needs):
        shape, end, real = needs[at], at, 0
        while end < len(needs):
            higher = tuple(map(max, shape, needs[end]))
            real += cost(needs[end])
            if (end + 1 - at) * cost(higher) - real > max(COMPILATION, real // 20):
                break
            shape, end = higher, end + 1
        yield from [shape] * (end - at)
        at = end
