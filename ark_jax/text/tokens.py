"""Tokenizers, chunks of tokens, and batches of texts in few shapes.

JAX compiles a program for each input shape, so lengths and row counts are rounded up to few values.
"""

import contextlib
import dataclasses
import heapq
import itertools
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from ark_jax.runtime.log import say
from ark_jax.text.token_rows import TokenIds

# Lengths that texts are padded to. On real texts they waste 2 to 7 % of the work; powers of two
# waste 9 to 47 %.
LENGTHS = (
    *range(8, 192, 8),
    *range(192, 384, 16),
    *range(384, 512, 32),
    512,
    576,
    640,
    704,
    768,
    896,
    1024,
    1280,
    1536,
    1792,
    2048,
    2560,
    3072,
    3584,
    4096,
    5120,
    6144,
    7168,
    8192,
)
# Types of models, and the tokenizers that their config names: BERT's family and SmolLM2.
_CLASSES = {("bert", "BertTokenizer"), ("llama", "GPT2Tokenizer")}
HEAD = 64  # characters for each token that is kept; languages have up to 8 a token
SPARSE = 4  # most places of a shared shape for each token that it has room for


@dataclasses.dataclass(frozen=True)
class Span:
    """A chunk of a text: the characters `text[start:end]`, which are `tokens` tokens."""

    start: int
    end: int
    tokens: int


def load_tokenizer(folder: str, vocab: int | None = None):
    """Opens the fast tokenizer of a model folder or hub name.

    Args:
        vocab: number of rows of the model's embedding table; every token id must be below it.

    Raises:
        FileNotFoundError: the folder has no tokenizer.
        ValueError: a file cannot be read, or a token has no embedding.
    """
    try:
        tokenizer = _tokenizer_class(Path(folder)).from_pretrained(folder)
    except BaseException as error:  # the Rust parser raises nothing narrower
        is_panic = type(error).__name__ == "PanicException"
        if not Path(folder).is_dir() or not (is_panic or isinstance(error, Exception)):
            raise
        if not Path(folder, "tokenizer.json").is_file():
            raise FileNotFoundError(
                f"{folder}: no tokenizer.json; fetch it, or convert the folder's other tokenizer "
                "files with transformers"
            ) from error
        raise ValueError(
            f"{folder}/tokenizer.json or another tokenizer file cannot be read ({error}); "
            "fetch the files again"
        ) from error
    if not tokenizer.is_fast:
        raise ValueError(
            f"{folder}: no tokenizer.json; convert the tokenizer to a fast one with transformers"
        )
    limit = tokenizer.model_max_length
    if not isinstance(limit, int | float) or limit < 1:
        raise ValueError(
            f"{folder}/tokenizer_config.json: model_max_length={limit!r}: must be a number of "
            "tokens of at least 1; correct the field"
        )
    _say_second_vocabulary(Path(folder), tokenizer.get_vocab())
    token, largest = max(tokenizer.get_vocab().items(), key=lambda item: item[1])
    if vocab is not None and largest >= vocab:
        raise ValueError(
            f"{folder}/tokenizer.json: token {token!r} has the id {largest}, but vocab_size in "
            f"config.json is {vocab}; take this model's own tokenizer, or resize the embeddings "
            "with transformers"
        )
    return tokenizer


def _tokenizer_class(folder: Path):
    """The class that opens a folder: of those in `_CLASSES` the one that `AutoTokenizer` takes.

    `AutoTokenizer` imports torch where it is installed, which takes two seconds.
    """
    with _without_advice(), contextlib.suppress(OSError, ValueError, AttributeError):
        import transformers

        read = lambda name: json.loads((folder / name).read_text(encoding="utf-8"))
        declared, kind = read("tokenizer_config.json"), read("config.json").get("model_type")
        named = str(declared.get("tokenizer_class")).removesuffix("Fast")
        if (kind, named) in _CLASSES and "auto_map" not in declared:
            return getattr(transformers, named)
    with _without_advice():
        from transformers import AutoTokenizer

        return AutoTokenizer


@contextlib.contextmanager
def without_panic() -> Iterator[None]:
    """Turns a panic of the Rust library, whose patterns took too many steps, into an error."""
    try:
        yield
    except BaseException as error:  # a panic is no Exception
        if type(error).__name__ != "PanicException":
            raise
        raise ValueError(
            f"the tokenizer cannot read a text ({error}): a pattern of tokenizer.json, such as "
            "(a+)+, takes too many steps; take another tokenizer"
        ) from error


def _say_second_vocabulary(folder: Path, vocabulary: Mapping[str, int]) -> None:
    """Says in a line that another file numbers tokens, too, and does it otherwise."""
    for path in (folder / "vocab.txt", folder / "vocab.json"):
        text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        if path.suffix == ".json":
            numbers = json.loads(text or "{}")
        else:
            numbers = {line.rstrip("\r"): i for i, line in enumerate(text.split("\n")) if line}
        if other := next((x for x in numbers if vocabulary.get(x) != numbers[x]), None):
            say(
                f"{folder}: tokenizer.json is read, and not {path.name}, which differs: token "
                f"{other!r} is {vocabulary.get(other)} and {numbers[other]}"
            )


@contextlib.contextmanager
def _without_advice() -> Iterator[None]:
    """Silences the warning of transformers that torch is missing, which nothing here needs."""
    name = "TRANSFORMERS_NO_ADVISORY_WARNINGS"
    earlier = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        os.environ.pop(name)
        if earlier is not None:
            os.environ[name] = earlier


def token_chunks(text: str, tokenizer, *, size: int, overlap: int) -> list[Span]:
    """Cuts `text` into chunks of `size` tokens that overlap by `overlap` tokens.

    The chunks cover every token. The last one may be shorter, but it always adds a token.
    """
    check_overlap(size, overlap)
    offsets = token_offsets(text, tokenizer)
    spans, start = [], 0
    while start < len(offsets):
        end = min(start + size, len(offsets))
        spans.append(Span(offsets[start][0], offsets[end - 1][1], end - start))
        if end == len(offsets):
            break
        start = end - overlap
    return spans


def check_overlap(size: int, overlap: int) -> None:
    """Refuses an overlap that would leave a chunk nothing new."""
    if not 0 <= overlap < size:
        raise ValueError(f"overlap {overlap} must be at least 0 and below the chunk size {size}")


@dataclasses.dataclass(frozen=True)
class Backend:
    """The Rust tokenizer alone, for `token_offsets`: it needs no file, and no transformers."""

    backend_tokenizer: object


def open_backend(tokenizer: str) -> Backend:
    """The tokenizer that `backend_tokenizer.to_str()` wrote as JSON."""
    from tokenizers import Tokenizer

    return Backend(Tokenizer.from_str(tokenizer))


@without_panic()
def token_offsets(text: str, tokenizer) -> list[tuple[int, int]]:
    """Start and end of every token, in characters of the text."""
    # The Rust tokenizer is called directly: it adds no special tokens and warns of no length.
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    return backend.encode(text, add_special_tokens=False).offsets


@without_panic()
def truncated(tokenizer, texts: Sequence[str], max_length: int) -> list:
    """The encodings of texts, cut to `max_length` tokens; the rest of a text is in `overflowing`.

    Of a very long text, only the first characters are tokenised, which give all tokens that are
    kept: the rest would take hundreds of bytes a token.
    """
    encode = lambda texts: (
        tokenizer(texts, truncation=True, max_length=max_length, padding=False).encodings
    )
    if tokenizer.truncation_side != "right":
        return encode(texts)
    heads = [text[: HEAD * max_length] for text in texts]
    encodings = encode(heads)
    for i, (text, head) in enumerate(zip(texts, heads, strict=True)):
        # The tokens that the cut changes are in the last window, which must not be the first.
        if len(head) < len(text) and len(encodings[i].overflowing) < 2:
            encodings[i] = encode([text])[0]
    return encodings


def round_up(n: int, multiple: int) -> int:
    """The smallest multiple that is at least `n`."""
    return -(-n // multiple) * multiple


def round_length(length: int) -> int:
    """The smallest padded length that holds `length` tokens."""
    return next((fixed for fixed in LENGTHS if fixed >= length), round_up(length, 1024))


def round_room(tokens: int) -> int:
    """A stream's capacity for `tokens` tokens: a multiple of 8, of at most 16 values an octave."""
    return round_up(max(tokens, 1), max(8, 1 << max(tokens - 1, 0).bit_length() >> 5))


def round_rows(rows: int, multiple: int) -> int:
    """At least `rows`, a multiple of `multiple`.

    Before that, one of four values an octave: ..., 16, 20, 24, 28, 32, 40, ...
    """
    step = max(1 << max(rows - 1, 0).bit_length() >> 3, 1)
    return round_up(round_up(max(rows, 1), step), multiple)


def pad_rows(
    ids: Sequence[TokenIds], row_numbers: Sequence[int] | np.ndarray, rows: int, length: int
) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and mask of a batch, int32 and bool `[rows length]`.

    Text i fills the start of row `row_numbers[i]`; the other rows stay empty.
    """
    tokens = np.zeros((rows, length), np.int32)
    mask = np.zeros((rows, length), bool)
    for row, text in zip(row_numbers, ids, strict=True):
        tokens[row, : len(text)] = text
        mask[row, : len(text)] = True
    return tokens, mask


def balance(lengths: Sequence[int], bins: int, slots: int) -> tuple[np.ndarray, int]:
    """Distributes texts over `bins` of `slots` places so that each bin has about as many tokens.

    Goes from the longest text to the shortest; each goes to the bin with the fewest tokens, of
    several to the first. Takes O(texts · log(texts)) steps.

    Returns:
        bin · slots + slot for each text, and the number of tokens of the fullest bin.

    Raises:
        ValueError: there are more texts than places.
    """
    if len(lengths) > bins * slots:
        raise ValueError(f"{len(lengths)} texts for {bins} bins of {slots} slots")
    places, used, fullest = [0] * len(lengths), [0] * bins, 0
    # tokens · bins + bin: a heap of integers is faster than one of pairs. Full bins leave it.
    heap = list(range(bins))
    for i in _longest_first(lengths):
        tokens, emptiest = divmod(heap[0], bins)
        places[i] = emptiest * slots + used[emptiest]
        used[emptiest] += 1
        fullest = max(fullest, tokens + lengths[i])
        if used[emptiest] < slots:
            heapq.heapreplace(heap, heap[0] + lengths[i] * bins)
        else:
            heapq.heappop(heap)
    return np.array(places, np.int64), fullest


def _longest_first(lengths: Sequence[int]) -> list[int]:
    """Text numbers, the longest text first; equally long ones keep their order."""
    return np.argsort(-np.asarray(lengths, np.int64), kind="stable").tolist()


@dataclasses.dataclass(frozen=True)
class TextBatch:
    """Texts for one call.

    Each device has `rows` rows of `length` tokens, of which at most `room` are not padding.
    """

    texts_by_device: list[list[int]]  # text numbers, at most `rows` a device
    rows: int
    length: int
    room: int

    def arrays(self, ids: Sequence[TokenIds]) -> tuple[np.ndarray, np.ndarray]:
        """Tokens and mask `[devices·rows length]`; surplus rows are empty."""
        texts = [ids[i] for i in itertools.chain(*self.texts_by_device)]
        rows = len(self.texts_by_device) * self.rows
        return pad_rows(texts, self.row_numbers(), rows, self.length)

    def row_numbers(self) -> list[int]:
        """The row of each text, device by device."""
        return [
            device * self.rows + row
            for device, texts in enumerate(self.texts_by_device)
            for row in range(len(texts))
        ]


def batch_by_tokens(
    lengths: Sequence[int],
    *,
    budget: int,
    parameters: float,
    attention: float,
    compilation: float,
    coarse: bool = False,
    devices: int = 1,
) -> Iterator[TextBatch]:
    """Cuts texts into batches of at most `budget` tokens a device; a longer text is on its own.

    The longest texts come first, so that a batch that does not fit into memory fails at once.
    Batches share a shape until the padding costs more than a compilation and more than a twentieth
    of their work.

    Args:
        lengths: number of tokens of each text.
        parameters: multiply-adds of one token.
        attention: multiply-adds of one pair of tokens in a row; padding counts too.
        compilation: multiply-adds that take as long as one more program.
        coarse: rounds to few sizes, so that most other texts find their shapes compiled.
    """
    if not lengths:
        return
    capacity = _stream_capacity(lengths, budget, devices)
    room = _round_coarsely(max(capacity, budget // 64)) if coarse else round_room(capacity)
    room = min(room, max(budget, *lengths, 1))
    streams = _fill_streams(lengths, capacity)
    streams += [[]] * (-len(streams) % devices)
    groups = [streams[i : i + devices] for i in range(0, len(streams), devices)]
    needs = [(max(map(len, group)), max(lengths[group[0][0]], 1)) for group in groups]
    if coarse:
        needs = [
            (_round_coarsely(rows), _round_coarsely(max(length, 32))) for rows, length in needs
        ]
    else:
        needs = [(round_rows(rows, 1), round_length(length)) for rows, length in needs]

    def cost(shape: tuple[int, ...]) -> int:
        """Multiply-adds of a batch of this shape on all devices."""
        rows, length = shape
        return devices * (room * parameters + attention * rows * length**2)

    fits = lambda shape: not coarse or math.prod(shape) <= SPARSE * room
    shapes = share_shapes(needs, cost, compilation, fits)
    for group, (rows, length) in zip(groups, shapes, strict=True):
        yield TextBatch(group, rows, length, room)


def _round_coarsely(n: int) -> int:
    """The smallest power of two, or one and a half of one, that is at least `n`."""
    power = 1 << max(n - 1, 1).bit_length()
    return power * 3 // 4 if n <= power * 3 // 4 else power


def _stream_capacity(lengths: Sequence[int], budget: int, devices: int) -> int:
    """Tokens that a device's stream may hold: `budget`, or less if the texts are few.

    Few texts are divided evenly. Half the longest length is added, since texts are not split.
    """
    longest, total = max(max(lengths), 1), sum(lengths)
    budget = max(budget, longest)
    count = max(round_up(-(-total // budget), devices), 1)
    return min(budget, max(longest, -(-total // count) + longest // 2 * (count > 1)))


def _fill_streams(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Text numbers, the longest first, in streams of at most `capacity` tokens."""
    streams, free = [], 0
    for i in _longest_first(lengths):
        if not streams or lengths[i] > free:
            streams.append([])
            free = capacity
        streams[-1].append(i)
        free -= lengths[i]
    return streams


def share_shapes(
    needs: Sequence[tuple[int, ...]],
    cost: Callable[[tuple[int, ...]], float],
    compilation: float,
    fits: Callable[[tuple[int, ...]], bool] = lambda shape: True,
) -> Iterator[tuple[int, ...]]:
    """Yields a shape for each need, at least as large in every dimension.

    Consecutive needs share one shape, so that fewer programs are compiled. A new shape begins where
    the extra work would exceed both a compilation and a twentieth of the needed work.

    Args:
        cost: multiply-adds of a shape.
        compilation: multiply-adds that take as long as one more program.
        fits: whether memory holds a shape that is shared.
    """
    start = 0
    while start < len(needs):
        shape, end, needed = needs[start], start, 0
        while end < len(needs):
            larger = tuple(map(max, shape, needs[end]))
            needed += cost(needs[end])
            extra = (end + 1 - start) * cost(larger) - needed
            is_costly = extra > max(compilation, needed // 20)
            if end > start and (is_costly or not fits(larger)):
                break
            shape, end = larger, end + 1
        yield from [shape] * (end - start)
        start = end
