"""Tokenizers, overlapping token chunks with character offsets, and the few lengths that batches are padded to."""

import dataclasses
from collections.abc import Iterator, Sequence
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


def round_rows(n: int, multiple: int) -> int:
    """At least n, rounded up to one of four steps an octave (..., 16, 20, 24, 28, 32, 40, ...) and to `multiple`."""
    step = max(1 << max(n - 1, 0).bit_length() >> 3, 1)
    return round_up(round_up(max(n, 1), step), multiple)


def pad(ids: Sequence[Sequence[int]], rows: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Right-padded tokens and mask, int32 and bool `[rows length]`. Surplus rows hold one visible token, so
    that no row is empty."""
    tokens = np.zeros((rows, length), np.int32)
    mask = np.zeros((rows, length), bool)
    mask[:, 0] = True
    for i, row in enumerate(ids):
        tokens[i, : len(row)] = row
        mask[i] = np.arange(length) < len(row)
    return tokens, mask


def by_length(lengths: Sequence[int], *, budget: int, parameters: int, multiple: int = 1) -> Iterator[tuple[list[int], int, int]]:
    """Groups items of like length: yields (indices, rows, padded length) with rows·length at most `budget` tokens
    (one row at least).

    Longest first, so that a batch that does not fit memory fails at once. A run of items shares one padded
    length until the padding is dearer than a compilation (for a model of so many `parameters`) and a twentieth
    of the run, and is cut into batches of one height, so that a small call does not spend its time compiling.
    """
    slack = COMPILATION / parameters
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    at = 0
    while at < len(order):
        length = round_length(max(lengths[order[at]], 1))
        end, real = at, 0
        while end < len(order):
            real += lengths[order[end]]
            padded = (end + 1 - at) * length
            if round_length(max(lengths[order[end]], 1)) != length and padded - real > max(slack, real // 20):
                break
            end += 1
        run = order[at:end]
        full = max(multiple, budget // length // multiple * multiple)
        count = -(-len(run) // full)
        rows = min(full, round_rows(-(-len(run) // count), multiple))
        for first in range(0, len(run), rows):
            yield run[first : first + rows], rows, length
        at = end
