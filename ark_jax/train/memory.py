"""What a training step holds on a device, and the fastest way to compute it that fits.

A step holds its weights with AdamW's moments and a gradient, the activations that wait for the
backward pass, and what the current layer computes. `Config.remat` and GradCache's pieces reduce the
last two by computing again. The sizes follow from shapes alone, so all processes choose alike, and
a resumed run chooses as before.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ark_jax import layout
from ark_jax.models import decoder, kernels
from ark_jax.runtime.accelerator import device_in_use
from ark_jax.runtime.device_memory import device_memory
from ark_jax.runtime.log import say
from ark_jax.train.placement import TextGrid

REMATS = ("products", "all")  # of `Config.remat`, the fastest first
# Arrays of a token's width and of its feed-forward width that a layer's backward pass holds, as
# XLA:CPU's programs have them; see `scale.py prediction` among the benchmarks.
NARROW, WIDE = 8, 7
FILL = 0.8  # share of a device's memory that a step may take; the prediction may be too small


class Texts(NamedTuple):
    """One kind of texts that a device encodes at once."""

    rows: int
    length: int  # tokens a row, with padding
    tokens: int  # that the layers compute, without padding

    @classmethod
    def from_grid(cls, grid: TextGrid) -> "Texts":
        """A piece of a grid's rows."""
        rows = grid.rows // (layout.batch_multiple() * grid.pieces)
        return cls(rows, grid.length, grid.piece_tokens)


@dataclasses.dataclass(frozen=True)
class StepMemory:
    """Bytes that a training step holds on each device.

    Attributes:
        weights: with AdamW's moments and gradients.
        saved: activations that wait for the backward pass.
        working: what is computed for the gradient of the current layer.
    """

    weights: float
    saved: float
    working: float

    @property
    def total(self) -> float:
        return self.weights + self.saved + self.working


def saved_numbers(cfg: Any, remat: str) -> tuple[int, int]:
    """Numbers that a layer saves for its backward pass: per token, and per place of a padded row.

    They are its input and what `Config.remat` names. Attention's output is saved with padding.
    """
    if remat == "all":
        return cfg.width, 0
    dims, tensor = cfg.dims, layout.mesh_size("tensor")
    heads = (dims["n"] + 2 * dims.get("k", dims["n"])) * dims["h"]
    gated = isinstance(cfg, decoder.Config)
    # A decoder's last product is only added to the layer's input.
    whole_products, split = (2, heads + 2 * dims["f"]) if gated else (3, heads + dims["f"])
    return whole_products * dims["d"] + split // tensor, dims["n"] * dims["h"] // tensor


def step_memory(
    cfg: Any,
    remat: str,
    texts: Sequence[Texts],
    *,
    trained: float,
    frozen: float = 0,
    in_pieces: bool = False,
    logits: float = 0,
) -> StepMemory:
    """What a step holds on a device of the current mesh.

    Args:
        cfg: of the model, or of its encoder.
        remat: of `REMATS`.
        texts: all kinds whose activations wait at the same time.
        trained, frozen: bytes of the weights on a device that a step updates, and of the others.
        in_pieces: gradients are added up over several passes, and so held twice.
        logits: as `logits_bytes` returns it; 0 for a step without logits.
    """
    token, place = saved_numbers(cfg, remat)
    saved = sum(x.tokens * token + x.rows * x.length * place for x in texts)
    # Merged with an adapter, frozen weights are held twice and have a gradient.
    weights = (4 + in_pieces) * trained + 3 * frozen
    # XLA:CPU computes 16 bits in float32, and saves them so.
    size = 4 if jax.default_backend() == "cpu" else jnp.dtype(cfg.compute).itemsize
    working = max(_working_bytes(cfg, remat, x) for x in texts)
    return StepMemory(weights, size * cfg.layers * saved, max(working, logits))


def logits_bytes(cfg: Any, positions: int, *, trained: bool) -> float:
    """Bytes that a device needs for the gradient of the logits of so many positions.

    They are the logits with their probabilities and gradient, a whole copy of the table, where it
    is cut over devices or cast, and the table's gradient if it is trained.
    """
    table = cfg.vocab * cfg.width
    devices = layout.batch_multiple() * layout.mesh_size("tensor")
    size = jnp.dtype(cfg.compute).itemsize
    copies = (4 if devices > 1 else 0) + (size if size < 4 else 0) + (4 if trained else 0)
    return 3 * 4 * positions * cfg.vocab + copies * table


def _working_bytes(cfg: Any, remat: str, texts: Texts) -> float:
    """Bytes that one layer's backward pass needs beside what is saved.

    Attention weights are float32, with their gradient and a mask; a library's kernel stores none.
    """
    dims, tensor = cfg.dims, layout.mesh_size("tensor")
    kernel = kernels.choose(
        cfg.attention, device_in_use(), jnp.dtype(cfg.compute), dims["h"], texts.length
    )
    query_block = texts.length
    if isinstance(cfg, decoder.Config):
        query_block = min(query_block, max(64, query_block / 4))  # see `attention.attend`
    pairs = texts.rows * dims["n"] / tensor * query_block * texts.length
    attention = pairs * (2 * 4 + 1) if kernel == "xla" else 0
    numbers = NARROW * dims["d"] + WIDE * dims["f"] / tensor
    if remat == "all" and isinstance(cfg, decoder.Config):  # an encoder frees them earlier
        numbers += sum(saved_numbers(cfg, "products"))
    return attention + 4 * texts.tokens * numbers


class Choice(NamedTuple):
    """How a step is computed.

    Attributes:
        pieces: that passages are encoded in (GradCache).
        memory: what the step is predicted to hold.
        available: bytes of a device.
        free: whether the config left it open.
    """

    remat: str
    pieces: int
    memory: StepMemory
    available: float
    free: bool

    @property
    def fits(self) -> bool:
        """Whether the step fills at most `FILL` of the device's memory."""
        return self.memory.total <= FILL * self.available

    def describe(self) -> str:
        """One line: the choice, its bytes, and the reason."""
        gib = lambda size: f"{size / 2**30:.1f} GiB"
        pieces = "1 piece" if self.pieces == 1 else f"{self.pieces} pieces"
        memory = self.memory
        if not self.free:
            why = "as the config says" + ("" if self.fits else ", which may not fit")
        elif self.fits:
            first = self.remat == REMATS[0] and self.pieces == 1
            why = "the fastest, and it fits" if first else "the fastest that fits"
        else:
            why = "nothing fits, and this takes least"
        passes = forward_passes(self.pieces, self.remat)
        return (
            f"remat={self.remat}, {pieces}, {passes} forward passes: about {gib(memory.total)} a "
            f"device (weights {gib(memory.weights)}, saved {gib(memory.saved)}, a layer "
            f"{gib(memory.working)}) of {gib(self.available)}, of which {FILL:.0%} may be filled: "
            f"{why}"
        )


def forward_passes(pieces: int, remat: str) -> int:
    """The products of a step, in forward passes.

    A backward pass takes two. Pieces are encoded once more, for their vectors, whatever their
    number; "all" computes each layer once more.
    """
    return 3 + (pieces > 1) + (remat == "all")


def choose(
    cfg: Any,
    remat: str,
    pieces: int,
    texts_for_pieces: Callable[[int], Sequence[Texts]],
    *,
    trained: float,
    frozen: float = 0,
    most_pieces: int = 1,
    available: float | None = None,
    logits: float = 0,
) -> Choice:
    """The fastest way to compute a step that fits, or else the one that needs the least memory.

    It has the fewest `forward_passes`, and of these the fewest pieces, each of which gathers the
    weights.

    Args:
        remat: "auto" for any, or the one to take.
        pieces: number of pieces, or 0 for any.
        texts_for_pieces: number of pieces -> the texts that a device encodes at once.
        trained, frozen, logits: see `step_memory`.
        most_pieces: the most that make sense.
        available: bytes of a device; None takes this device's.
    """
    available = available or device_memory()
    counts = [pieces] if pieces else _doublings(most_pieces)
    kinds = REMATS if remat == "auto" else (remat,)
    free = remat == "auto" or not pieces
    tried: list[Choice] = []
    ordered = sorted(itertools.product(counts, kinds), key=lambda x: (forward_passes(*x), x[0]))
    for count, kind in ordered:
        memory = step_memory(
            cfg,
            kind,
            texts_for_pieces(count),
            trained=trained,
            frozen=frozen,
            in_pieces=count > 1,
            logits=logits,
        )
        tried.append(Choice(kind, count, memory, available, free))
        if tried[-1].fits:
            return tried[-1]
    return min(tried, key=lambda choice: choice.memory.total)


def _doublings(limit: int) -> list[int]:
    """1, 2, 4, ..., up to `limit`."""
    return [1 << i for i in range(max(limit, 1).bit_length())]


def choose_remat(
    cfg: Any,
    remat: str,
    texts: Iterable[Texts],
    trainable: Any,
    frozen: Any,
    label: str,
    *,
    logits: float = 0,
) -> Any:
    """`cfg` with the remat of a step that encodes these texts, "auto" resolved.

    Args:
        trainable, frozen: as `fit.train` takes them.
        label: begins the line that reports a choice other than the fastest.
        logits: see `step_memory`.
    """
    if remat != "auto":
        return dataclasses.replace(cfg, remat=remat)
    listed = list(texts)
    choice = choose(
        cfg,
        remat,
        1,
        lambda _: listed,
        trained=bytes_on_device(trainable),
        frozen=bytes_on_device(frozen),
        logits=logits,
    )
    say_choice(choice, label)
    return dataclasses.replace(cfg, remat=choice.remat)


def say_choice(choice: Choice, label: str) -> None:
    """Prints a choice that the config left open, unless it is the fastest."""
    if choice.free and (choice.remat, choice.pieces) != (REMATS[0], 1):
        say(f"  {label}: {choice.describe()}")


def bytes_on_device(tree: Any) -> float:
    """Bytes of a tree of arrays on each device."""
    return sum(
        math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree)
    )
