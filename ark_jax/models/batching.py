"""How texts become batches: which go through a model at once, and in which shape."""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from ark_jax import layout
from ark_jax.models import packing
from ark_jax.runtime.accelerator import device_in_use
from ark_jax.text import tokens as tk

Item = TypeVar("Item")
Batching = Callable[[Sequence[int]], Iterable[tk.TextBatch]]  # lengths of texts -> batches of them


def one_ahead(started: Iterable[Item]) -> Iterator[Item]:
    """Yields each item after the next has started: a device computes while the host prepares."""
    waiting: list[Item] = []
    for item in started:
        waiting.append(item)
        if len(waiting) > 1:
            yield waiting.pop(0)
    yield from waiting


def little_padding(model, cfg, batch_tokens: int = 0) -> Batching:
    """Cuts texts into batches that waste little work; see `tokens.batch_by_tokens`.

    Args:
        model, cfg: decide the cost of computing padding.
        batch_tokens: tokens of a batch on each device; 0 suits the device.
    """
    return functools.partial(
        tk.batch_by_tokens,
        budget=batch_tokens or batch_tokens_of_device(),
        devices=layout.batch_multiple(),
        coarse=device_in_use().platform != "cpu",
        **packing.multiply_adds(model, cfg),
    )


def batch_tokens_of_device() -> int:
    """Tokens of a batch: few enough for a CPU's cache, or enough to fill an accelerator."""
    return 1024 if device_in_use().platform == "cpu" else 16384
