"""Batches in few shapes, which are compiled before requests come.

`tokens.batch_by_tokens` pads less, but nearly every mixture of texts gives a new shape, which is
compiled when it first occurs: a request would wait for seconds.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from ark_jax.models import packing
from ark_jax.models.batching import batch_tokens_of_device
from ark_jax.runtime.accelerator import device_in_use
from ark_jax.text import tokens as tk

LENGTHS = (16, 32, 64, 128, 192, 256, 384, 512)  # of rows; then each is twice the last
ROOMS = 3  # sizes of batches in tokens: the full one and two smaller ones
SPARE = 1.5  # places for tokens in the rows of a shape, by the tokens that it may hold
CALL = 1 / 64  # fixed cost of a call, as a share of the cost of a full batch


@dataclasses.dataclass(frozen=True, order=True)
class Shape:
    """A batch of at most `rows` texts of at most `length` tokens, together at most `room`."""

    length: int
    room: int
    rows: int


@dataclasses.dataclass(frozen=True)
class Ladder:
    """The shapes of a model's batches on one device, and what each costs.

    Attributes:
        shapes: all shapes, the smallest first.
        tokens: tokens of a full batch.
        turn: tokens of a batch that others can wait for.
        parameters: multiply-adds of one token.
        attention: multiply-adds of one pair of tokens in a row.
    """

    shapes: tuple[Shape, ...]
    tokens: int
    turn: int
    parameters: int
    attention: int

    @classmethod
    def for_model(cls, model, cfg, max_length: int) -> "Ladder":
        """The ladder of a model on the device of this process.

        Args:
            max_length: tokens of the longest text.
        """
        full = batch_tokens_of_device()
        # Padding costs a CPU time, and an accelerator little.
        is_cpu = device_in_use().platform == "cpu"
        step = 4 if is_cpu else 8
        rooms = [full // step**i for i in range(ROOMS)]
        costs = packing.multiply_adds(model, cfg)
        turn = full // step if is_cpu else full
        return cls(_shapes(max_length, rooms), full, turn, costs["parameters"], costs["attention"])

    @property
    def common_shapes(self) -> tuple[Shape, ...]:
        """The shapes without those for texts that are longer than a full batch."""
        return tuple(shape for shape in self.shapes if shape.room <= self.tokens)

    def batches(self, lengths: Sequence[int]) -> Iterator[tk.TextBatch]:
        """The batches with the least total cost. It is a `batching.Batching`.

        Args:
            lengths: tokens of each text.
        """
        order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
        for start, end, shape in self._cut_batches([lengths[i] for i in order]):
            yield tk.TextBatch([order[start:end]], shape.rows, shape.length, shape.room)

    def _cut_batches(self, lengths: Sequence[int]) -> list[tuple[int, int, Shape]]:
        """Start, end and shape of each batch, for texts sorted by length, the longest first.

        Dynamic programming finds the cheapest batches of the first i texts for each i.
        """
        best: list[tuple[float, int, Shape | None]] = [
            (0.0, 0, None)
        ]  # for i texts: cost, start of the last batch, its shape
        best += [(float("inf"), 0, None)] * len(lengths)
        for start, longest in enumerate(lengths):
            shapes = self._shapes_for(longest)
            total = 0
            for end in range(start + 1, len(lengths) + 1):
                total += lengths[end - 1]
                while shapes and (shapes[0].room < total or shapes[0].rows < end - start):
                    shapes = shapes[1:]
                if not shapes:
                    break
                cost = best[start][0] + self._cost(shapes[0])
                if cost < best[end][0]:
                    best[end] = cost, start, shapes[0]
        cuts, end = [], len(lengths)
        while end:
            _, start, shape = best[end]
            cuts.append((start, end, shape))
            end = start
        return cuts[::-1]

    def _shapes_for(self, longest: int) -> list[Shape]:
        """The shapes of the shortest length that holds a text, the smallest first."""
        length = next(shape.length for shape in self.shapes if shape.length >= longest)
        return [shape for shape in self.shapes if shape.length == length]

    def _cost(self, shape: Shape) -> float:
        """The cost of a batch of this shape, in multiply-adds."""
        call = CALL * self.tokens * self.parameters
        pairs = shape.rows * shape.length**2
        return call + shape.room * self.parameters + pairs * self.attention


def _shapes(max_length: int, rooms: Sequence[int]) -> tuple[Shape, ...]:
    """The shapes of texts of at most `max_length` tokens, the smallest first.

    Args:
        rooms: tokens of a batch, the largest first.
    """
    doubled = (LENGTHS[-1] << i for i in itertools.count(1))
    shapes = []
    for length in itertools.chain(LENGTHS, doubled):
        # A text that is longer than a full batch makes a batch alone.
        for room in [room for room in rooms if room >= length] or [length]:
            rows = max(1, int(SPARE * room / length))
            shapes.append(Shape(length, room, rows))
        if length >= max_length:
            return tuple(sorted(shapes))
    raise AssertionError("lengths have no end")
