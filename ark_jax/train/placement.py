"""Where texts of a training batch are put: array shapes, rows on devices, pieces (GradCache)."""

import dataclasses
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from ark_jax import layout
from ark_jax.text import tokens as tk
from ark_jax.text.token_rows import TokenIds


@dataclasses.dataclass(frozen=True)
class TextGrid:
    """The shape that holds one kind of texts (questions, passages, ...) in every batch of a run.

    A run has one shape because every other shape compiles the training step once more.
    """

    rows: int  # of all devices together
    length: int  # tokens a row, with padding
    pieces: int  # parts of the rows that are encoded one after another
    piece_tokens: int  # most tokens, without padding, that one piece has on one device

    @classmethod
    def from_lengths(cls, batches: Sequence[Sequence[int]], pieces: int = 1) -> "TextGrid":
        """The smallest grid on the current mesh that holds every batch.

        Args:
            batches: for each batch the number of tokens of each of its texts.
        """
        groups = layout.batch_multiple() * pieces
        rows = tk.round_up(max(map(len, batches)), math.lcm(2, groups))
        fullest = max(tk.balance(lengths, groups, rows // groups)[1] for lengths in batches)
        longest = max(map(max, batches))
        return cls(rows, tk.round_length(longest), pieces, tk.round_up(fullest, 64))

    @classmethod
    def for_any(cls, batches: Sequence[Sequence[int]], texts: int) -> "TextGrid":
        """A grid in one piece on the current mesh, for any choice of texts from each batch.

        Args:
            batches: for each batch the number of tokens of each text that may be chosen.
            texts: most texts that are chosen from a batch.
        """
        groups = layout.batch_multiple()
        rows = tk.round_up(min(texts, max(map(len, batches))), math.lcm(2, groups))
        # A device has at most the tokens of the longest texts that fill its rows.
        slots = rows // groups
        fullest = max(sum(sorted(lengths)[-slots:]) for lengths in batches)
        longest = max(map(max, batches))
        return cls(rows, tk.round_length(longest), 1, tk.round_up(fullest, 64))

    def assign_rows(self, lengths: Sequence[int]) -> np.ndarray:
        """A row for each text, int64 `[n]`; devices and pieces get about as many tokens each."""
        groups = layout.batch_multiple() * self.pieces
        slots = self.rows // groups
        group, slot = np.divmod(tk.balance(lengths, groups, slots)[0], slots)
        device, piece = np.divmod(group, self.pieces)
        # `encode_in_pieces` takes every `pieces`-th row of a device into the same piece.
        return (device * slots + slot) * self.pieces + piece

    def place(
        self, texts: Sequence[TokenIds], *beside: Sequence[TokenIds]
    ) -> tuple[np.ndarray, tuple[jax.Array, ...]]:
        """Puts the token ids of a batch's texts on the devices; rows without a text are empty.

        Each process builds the rows of its own devices only.

        Args:
            beside: other numbers of each token, such as its segment.

        Returns:
            The row of each text, and the arrays `[b t]`, sharded over the batch axes: tokens, mask,
            and one for each of `beside`.
        """
        rows = self.assign_rows(list(map(len, texts)))
        order = np.argsort(rows)

        def build(start: int, stop: int) -> tuple[np.ndarray, ...]:
            """The arrays' rows from `start` to before `stop`."""
            chosen = order[slice(*np.searchsorted(rows[order], (start, stop)))]
            padded = [
                tk.pad_rows(
                    [numbers[i] for i in chosen], rows[chosen] - start, stop - start, self.length
                )
                for numbers in (texts, *beside)
            ]
            return (*padded[0], *(numbers for numbers, _ in padded[1:]))

        return rows, layout.build_rows(self.rows, build)

    def place_pairs(
        self,
        columns: "TextGrid",
        rows: np.ndarray,
        column_rows: np.ndarray,
        make_masks: Callable[[np.ndarray], Sequence[np.ndarray]],
    ) -> tuple[jax.Array, ...]:
        """Masks of the pairs of two grids' rows, `[b c]`; a row without a text is in no pair.

        Each process builds the rows of its own devices only.

        Args:
            columns: the other grid.
            rows, column_rows: the rows of the texts of this grid and of the other, from `place`.
            make_masks: numbers of texts of this grid `[n]` -> masks `[n m]` of their pairs with all
                texts of the other; their types do not depend on the numbers.
        """

        def build(start: int, stop: int) -> tuple[np.ndarray, ...]:
            """The masks' rows from `start` to before `stop`."""
            chosen = np.flatnonzero((rows >= start) & (rows < stop))
            places = np.ix_(rows[chosen] - start, column_rows)
            masks = make_masks(chosen)
            spread = tuple(np.zeros((stop - start, columns.rows), mask.dtype) for mask in masks)
            for whole, mask in zip(spread, masks, strict=True):
                whole[places] = mask
            return spread

        return layout.build_rows(self.rows, build)


def encode_in_pieces(encode: Callable, pieces: int) -> Callable:
    """GradCache (Gao et al. 2021): holds the activations of one piece at a time.

    The gradient is that of the whole batch.

    Args:
        encode: tokens and mask `[b t]` -> vectors `[b e]` or `[b t e]`, each row by itself.
        pieces: every piece takes rows from all devices; `b` must be divisible by `pieces`.

    Returns:
        A function like `encode`.
    """
    if pieces == 1:
        return encode

    def encode_pieces(tokens: jax.Array, mask: jax.Array) -> jax.Array:
        """The vectors of all rows, in their order."""
        b, t = tokens.shape

        def split(x: jax.Array) -> jax.Array:
            """`[b t]` -> `[pieces rows t]`."""
            parts = x.reshape(b // pieces, pieces, t, out_sharding=P(layout.BATCH))
            return jnp.swapaxes(parts, 0, 1)

        encode_piece = jax.checkpoint(lambda _, piece: (None, encode(*piece)))
        _, vectors = jax.lax.scan(encode_piece, None, (split(tokens), split(mask)))
        shape = (b, *vectors.shape[2:])
        return jnp.swapaxes(vectors, 0, 1).reshape(shape, out_sharding=P(layout.BATCH))

    return encode_pieces
