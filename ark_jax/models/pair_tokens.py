"""Tokens of pairs of texts: cut to a budget, with segments, and with markers in front of each."""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

from ark_jax.runtime import distributed
from ark_jax.runtime.log import say

Pair = tuple[str, str]


@dataclasses.dataclass(frozen=True)
class PairTokens:
    """Tokenised pairs."""

    ids: list[list[int]]
    segments: list[list[int]]  # of each token: 0 in the first text, 1 in the second
    cut: int  # number of pairs that were cut

    def __len__(self) -> int:
        return len(self.ids)


@dataclasses.dataclass(frozen=True)
class PairTokenizer:
    """How a pair becomes tokens."""

    tokenizer: object
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
            ValueError: `pairs` is no list of pairs of texts.
        """
        check_pairs(pairs)
        rows = distributed.split_and_gather(self._encode, pairs)
        cut = sum(int(row[0]) for row in rows)
        if label and cut:
            say(
                f"  {label}: {cut:,} of {len(rows):,} pairs are longer than {self.max_length} "
                "tokens; the longer text of each is cut"
            )
        halves = [np.split(row[1:], 2) for row in rows]
        return PairTokens([x.tolist() for x, _ in halves], [x.tolist() for _, x in halves], cut)

    def _encode(self, pairs: Sequence[Pair]) -> list[np.ndarray]:
        """For each pair whether it is cut, followed by its ids and their segments."""
        if not pairs:
            return []
        texts = [[text.lower() if self.lower else text for text in pair] for pair in pairs]
        room = self.max_length - len(self.markers)
        out = self.tokenizer(
            *map(list, zip(*texts, strict=True)),
            truncation="longest_first",
            max_length=room,
            padding=False,
        )
        return [self._row(encoding) for encoding in out.encodings]

    def _row(self, encoding) -> np.ndarray:
        ids, segments = encoding.ids, encoding.type_ids
        if self.markers:
            ids, segments = self._add_markers(ids, segments, encoding.sequence_ids)
        return np.array([bool(encoding.overflowing), *ids, *segments], np.int32)

    def _add_markers(
        self, ids: list[int], segments: list[int], sides: list[int | None]
    ) -> tuple[list[int], list[int]]:
        """Puts a marker in front of each text, which may have no tokens."""
        before, between = self._special_tokens
        first, second = before, before + sides.count(0) + between
        if not any(segments):  # the tokenizer does not tell the texts apart
            segments = [int(i >= second) for i in range(len(ids))]
        ids = [*ids[:first], self.markers[0], *ids[first:second], self.markers[1], *ids[second:]]
        return ids, [*segments[:first], 0, *segments[first:second], 1, *segments[second:]]

    @functools.cached_property
    def _special_tokens(self) -> tuple[int, int]:
        """How many special tokens stand before the first text, and between the two."""
        tokens = self.tokenizer("a", "a").encodings[0].sequence_ids
        before, second = tokens.index(0), tokens.index(1)
        return before, second - before - tokens.count(0)


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
