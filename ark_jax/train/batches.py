"""Training examples: in a shuffled order, and as the masks of a batch."""

import dataclasses
import random
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np


@dataclasses.dataclass(frozen=True)
class Example:
    """A question with the ids of its positives and hard negatives."""

    question: str  # its id
    documents: str  # a key, equal for questions over the same documents
    positives: tuple[str, ...]
    negatives: tuple[str, ...]
    shares: tuple[float, ...] = ()  # a teacher's share of each positive; see `losses.distil`


def split_pairs(examples: Sequence[Example]) -> list[Example]:
    """An example for each positive, so that a batch holds pairs (q, t+), eq. 7 and algorithm 3.

    Of the other positives of a question, those in the batch are then its negatives in eq. 7, and
    none is in eq. 8 (`denominator="own"`).
    """
    pairs = []
    for example in examples:
        hard = tuple(chunk for chunk in example.negatives if chunk not in example.positives)
        pairs += [
            dataclasses.replace(example, positives=(positive,), negatives=hard)
            for positive in example.positives
        ]
    return pairs


def draw_negatives(examples: Sequence[Example], count: int, seed: int) -> list[Example]:
    """The examples, each with at most `count` of its negatives, drawn for its own positives."""
    drawn = []
    for x in examples:
        rng = random.Random(f"{seed} {x.question} {' '.join(x.positives)}")
        negatives = rng.sample(x.negatives, min(count, len(x.negatives)))
        drawn.append(dataclasses.replace(x, negatives=tuple(negatives)))
    return drawn


def shuffled_order(examples: Sequence[Example], *, epochs: int, seed: int, by: str) -> np.ndarray:
    """Indices of the examples of all epochs, one epoch after another: int64 `[epochs · n]`.

    Args:
        by: "question" shuffles questions. "document" shuffles documents and, inside each, its
            questions. Questions over the same chunks then share a batch, which encodes each chunk
            once.
    """
    groups: dict[str, list[int]] = {}
    for i, example in enumerate(examples):
        groups.setdefault(example.documents if by == "document" else str(i), []).append(i)
    members = list(groups.values())
    order = [np.zeros(0, np.int64)]
    for epoch in range(epochs):
        rng = np.random.default_rng([seed, epoch])
        order += [rng.permutation(members[k]) for k in rng.permutation(len(members))]
    return np.concatenate(order)


def split_batches(order: np.ndarray, size: int) -> list[np.ndarray]:
    """Cuts an order into batches. The last batch may be short; no example is dropped."""
    return [order[start : start + size] for start in range(0, len(order), size)]


def distinct_chunks(examples: Sequence[Example], *, use_negatives: bool) -> list[str]:
    """The ids of the chunks that the examples are trained on, each once, sorted."""
    chunks = {chunk for example in examples for chunk in example.positives}
    if use_negatives:
        chunks |= {chunk for example in examples for chunk in example.negatives}
    return sorted(chunks)


DENOMINATORS = ("own", "batch", "all")


class NumberedExample(NamedTuple):
    """An example that names chunks by their numbers."""

    question: str  # its id
    positives: np.ndarray  # int64 [any]
    negatives: np.ndarray  # int64 [any]: none in stage 1
    shares: np.ndarray  # float32: of the positives, or none; see `Example`


def number_chunks(
    examples: Sequence[Example], chunks: Sequence[str], *, use_negatives: bool
) -> list[NumberedExample]:
    """The examples with the numbers that their chunks have in `chunks`."""
    number = {chunk: i for i, chunk in enumerate(chunks)}
    numbers = lambda ids: np.array([number[id] for id in ids], np.int64)
    return [
        NumberedExample(
            x.question,
            numbers(x.positives),
            numbers(x.negatives if use_negatives else ()),
            np.array(x.shares, np.float32),
        )
        for x in examples
    ]


def distinct_numbers(examples: Sequence[NumberedExample]) -> np.ndarray:
    """The numbers of the chunks of a batch, each once, ascending: int64 `[c]`."""
    return np.unique(np.concatenate([ids for x in examples for ids in (x.positives, x.negatives)]))


def pair_masks(
    examples: Sequence[NumberedExample],
    chunks: np.ndarray,
    *,
    use_negatives: bool,
    denominator: str,
    has_shares: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Which chunks of a batch are positive and negative for each question.

    Args:
        chunks: the numbers of all chunks of the batch, ascending: int64 `[c]`.
        use_negatives: False in stage 1, where the positives of other questions are the negatives
            (eq. 7).
        denominator: with `use_negatives`, "own" contrasts a question with its own hard negatives
            (eq. 8), "batch" with every chunk of the batch. A question's positive is then never its
            negative. "all" drops this rule: a positive's siblings are negatives too, which shows
            what masking them gains.
        has_shares: whether the examples have shares; `examples` may be empty and not show it.

    Returns:
        The masks `positive` and `negative`, bool `[b c]`. If examples have shares, `positive` is
        float32 instead and holds the shares, 0 elsewhere.

    Raises:
        ValueError: an unknown denominator.
    """
    if denominator not in DENOMINATORS:
        choices = ", ".join(DENOMINATORS)
        raise ValueError(f"config.train.denominator={denominator!r}: must be one of {choices}")
    shape = len(examples), len(chunks)
    positive = np.zeros(shape, np.float32 if has_shares else bool)
    negative = np.full(shape, denominator != "own" or not use_negatives)
    for row, example in enumerate(examples):
        columns = np.searchsorted(chunks, example.positives)
        positive[row, columns] = example.shares if has_shares else True
        negative[row, np.searchsorted(chunks, example.negatives)] = True
    return positive, negative if denominator == "all" else negative & (positive == 0)


def make_examples(
    positives: Mapping[str, Collection[str]],
    negatives: Mapping[str, Collection[str]],
    documents: Mapping[str, str],
    originals: Mapping[str, str],
) -> list[Example]:
    """One example for each question that has positives, in the order of `positives`.

    Args:
        positives, negatives: question -> chunks.
        documents: question -> the key of its documents.
        originals: chunk -> the chunk that replaces it, for copies of other chunks. Without them a
            copy of a positive could be a negative of the same batch.
    """

    def replace_copies(chunks: Collection[str]) -> tuple[str, ...]:
        """The chunks, each once, with originals in place of copies."""
        return tuple(dict.fromkeys(originals.get(chunk, chunk) for chunk in chunks))

    return [
        Example(
            question,
            documents[question],
            replace_copies(chunks),
            replace_copies(negatives.get(question, ())),
        )
        for question, chunks in positives.items()
        if chunks
    ]
