"""Tokens of pairs of texts: cut to a budget, with segments, and with markers in front of each."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ark_jax.runtime import distributed
from ark_jax.runtime.log import say
from ark_jax.text import tokens as tk
from ark_jax.text.token_rows import TokenRows, text_blocks

Pair = tuple[str, str]


@dataclasses.dataclass(frozen=True)
class PairTokens:
    """Tokenised pairs."""

    ids: TokenRows
    segments: TokenRows  # int8, of each token: 0 in the first text, 1 in the second
    cut: int  # number of pairs that were cut

    def __len__(self) -> int:
        return len(self.ids)


@dataclasses.dataclass(frozen=True)
class PairTokenizer:
    """How a pair becomes tokens."""

    tokenizer: Any
    max_length: int  # tokens that a pair is cut to, special tokens and markers included
    lower: bool  # texts are converted to lower case first
    # Ids that are put in front of the first and of the second text. No text can contain them, since
    # they follow the vocabulary.
    markers: tuple[int, ...]

    def tokenize(self, pairs: Sequence[Pair], *, label: str = "") -> PairTokens:
        """Token ids and segments of pairs; a long pair loses tokens of its longer text first.

        If there are several processes, each must call this and tokenises its share.

        Args:
            label: name of the line that reports cut pairs; without it none is shown.

        Raises:
            ValueError: `pairs` is not a list of pairs of texts.
        """
        check_pairs(pairs)
        cut = 0

        def encode(share: Sequence[Pair]) -> Iterator[list[int]]:
            """The ids of each pair, followed by their segments."""
            nonlocal cut
            for block in text_blocks(share):
                encodings = self._encode(block)
                cut += sum(bool(encoding.overflowing) for encoding in encodings)
                yield from map(self._ids_and_segments, encodings)

        rows = TokenRows.from_shares(encode, pairs)
        cut = distributed.sum_of_processes(cut)
        if label and cut:
            say(
                f"  {label}: {cut:,} of {len(rows):,} pairs are longer than {self.max_length} "
                "tokens; the longer text of each is cut"
            )
        return PairTokens(
            TokenRows.from_rows(row[: len(row) // 2] for row in rows),
            TokenRows.from_rows((row[len(row) // 2 :] for row in rows), np.int8),
            cut,
        )

    @tk.without_panic()
    def _encode(self, pairs: Sequence[Pair]) -> list:
        """The tokenizer's encoding of each pair, cut to leave room for the markers."""
        texts = [[text.lower() if self.lower else text for text in pair] for pair in pairs]
        return self.tokenizer(
            *map(list, zip(*texts, strict=True)),
            truncation="longest_first",
            max_length=self.max_length - len(self.markers),
            padding=False,
        ).encodings

    def _ids_and_segments(self, encoding) -> list[int]:
        """The ids of a pair, followed by as many segments; both with the markers."""
        ids, segments = encoding.ids, encoding.type_ids
        if self.markers:
            ids, segments = self._add_markers(ids, segments, encoding.sequence_ids)
        return ids + segments

    def _add_markers(
        self, ids: list[int], segments: list[int], sides: list[int | None]
    ) -> tuple[list[int], list[int]]:
        """(ids, segments) with a marker in front of each text, which may have no tokens.

        Args:
            sides: for each token 0 or 1, the text it belongs to; None for special tokens.
        """
        head, gap = self._special_token_counts
        first, second = head, head + sides.count(0) + gap
        if not any(segments):  # the tokenizer gives no segments
            segments = [int(i >= second) for i in range(len(ids))]
        ids = [*ids[:first], self.markers[0], *ids[first:second], self.markers[1], *ids[second:]]
        return ids, [*segments[:first], 0, *segments[first:second], 1, *segments[second:]]

    @functools.cached_property
    def _special_token_counts(self) -> tuple[int, int]:
        """The number of special tokens before the first text, and between the two."""
        tokens = self.tokenizer("a", "a").encodings[0].sequence_ids
        head, second = tokens.index(0), tokens.index(1)
        return head, second - head - tokens.count(0)


def check_pairs(pairs: Sequence) -> None:
    """Raises ValueError if `pairs` is not a list of pairs of texts; the message names the first."""
    if isinstance(pairs, str):
        raise ValueError(f"pairs: {pairs[:40]!r} is one text; give a list of pairs of texts")
    for number, pair in enumerate(pairs):
        is_pair = isinstance(pair, tuple | list) and len(pair) == 2
        if not is_pair or not all(isinstance(text, str) for text in pair):
            raise ValueError(
                f"pair {number}: {str(pair)[:40]!r} is not two texts; give (text, text)"
            )
