"""What a training step holds on a device, and the fastest way to compute it that fits.

A step holds its weights with AdamW's moments and gradients, the activations that wait for the
backward pass, and what the current layer computes. `Config.remat` and GradCache's pieces reduce the
last two by computing again. The sizes follow from shapes alone, so all processes choose alike, and
a resumed run chooses as before. They are compared with what the compilers of CPUs, TPUs and GPUs
say: see `scale.py prediction` and `aot.py` among the benchmarks.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ark_jax import layout
from ark_jax.models import kernels
from ark_jax.runtime.accelerator import device_in_use
from ark_jax.runtime.device_memory import device_memory, published
from ark_jax.runtime.log import say
from ark_jax.text import tokens as tk
from ark_jax.train import flops
from ark_jax.train.config import MOMENTS, UpdateConfig
from ark_jax.train.placement import TextGrid

REMATS = ("products", "all")  # of `Config.remat`, the fastest first
# Arrays of a token's width and of its feed-forward width that a layer's backward pass holds, as
# XLA:CPU's programs have them.
NARROW, WIDE = 8, 7
SUBLANES, LANES = 8, 128  # of a TPU's tile, whose multiples an array's last axes fill
FILL = 0.8  # share of a device's memory that a step may take; the prediction may be too small

# Bytes a second that come into a device over its links, half of what is published for both ways.
# TPUs: as `flops.PEAKS`. GPUs: NVLink between those of a machine, NVIDIA's data sheets.
LINKS = {
    r"TPU v4": 300e9,
    r"TPU v5( lite|e)": 200e9,
    r"TPU v5p?": 600e9,
    r"TPU v6( lite|e)": 400e9,
    r"NVIDIA A100.*": 300e9,
    r"NVIDIA H100 PCIe": 64e9,
    r"NVIDIA H[12]00 NVL": 300e9,
    r"NVIDIA (H100 80GB HBM3|H200)": 450e9,
    r"NVIDIA B200": 900e9,
}
MFU = 0.4  # share of a device's peak that a forward pass is assumed to reach


class Texts(NamedTuple):
    """One kind of texts that a device encodes at once.

    Attributes:
        rows: with those that are empty.
        length: tokens a row, with padding.
        tokens: that the layers compute, without padding.
        prefixes, after: prompts that the texts continue, and tokens of each, with padding. Their
            keys and values are kept, and attended by XLA's kernel.
    """

    rows: int
    length: int
    tokens: int
    prefixes: int = 0
    after: int = 0

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
    heads = (dims["n"] + 2 * dims["k"]) * dims["h"]
    split = heads + (1 + cfg.gated) * dims["f"]
    # A norm behind the last product needs it; otherwise it is only added to the layer's input.
    whole_products = 3 if cfg.norms_behind else 2
    return whole_products * dims["d"] + split // tensor, dims["n"] * dims["h"] // tensor


def step_memory(
    cfg: Any,
    remat: str,
    texts: Sequence[Texts],
    *,
    trained: float,
    frozen: float = 0,
    moments: str = "float32",
    in_pieces: bool = False,
    logits: float = 0,
) -> StepMemory:
    """What a step holds on a device of the current mesh.

    Args:
        cfg: of the model, or of its encoder.
        remat: of `REMATS`.
        texts: all kinds whose activations wait at the same time.
        trained, frozen: bytes of the weights on a device that a step updates, and of the others.
        moments: a key of `config.MOMENTS`.
        in_pieces: gradients are added up over several passes, and so held once more.
        logits: as `logits_bytes` returns it; 0 for a step without logits.
    """
    working, kept = max(_working_bytes(cfg, remat, x) for x in texts), MOMENTS[moments]
    # Of one layer at a time: its weights with an adapter's product, the product and their gradient.
    merged = 3 * frozen / cfg.layers
    if device_in_use().platform == "cpu":
        weights = (2 + kept + in_pieces) * trained + frozen + merged
        # XLA:CPU computes 16 bits in float32, and saves them so.
        saved = 4 * sum(_numbers(cfg, remat, x) for x in texts)
        return StepMemory(weights, cfg.layers * saved, max(working, logits))
    # The layers' gradient of one kind of texts waits for that of the next; all add to one table's.
    layers, table = flops.weights(cfg), cfg.vocab * cfg.width
    gradients = 1 + (len(texts) - 1 + in_pieces) * layers / (layers + table)
    weights = (1 + kept + gradients) * trained + frozen + merged
    # Keys and values of prefixes wait with their gradient.
    saved = 2 * sum(x.prefixes * x.after for x in texts) * _cache_numbers(cfg)
    saved += sum(_numbers(cfg, remat, x) for x in texts)
    size = jnp.dtype(cfg.between).itemsize
    # A TPU's compiler does not put a layer's arrays where the logits were.
    working = working + logits if device_in_use().platform == "tpu" else max(working, logits)
    return StepMemory(weights, size * cfg.layers * saved, working)


def _numbers(cfg: Any, remat: str, texts: Texts) -> float:
    """Numbers that a layer saves of these texts, with the padding of a TPU's tiles."""
    token, place = saved_numbers(cfg, remat)
    if device_in_use().platform == "tpu":
        size, tensor = cfg.dims["h"], layout.mesh_size("tensor")
        lanes = tk.round_up(size, LANES)
        copies = 1 + (_kernel(cfg, texts) == "splash")  # which keeps its output in its own order
        place = copies * place // size * lanes
        if remat == "products":
            for heads in (cfg.dims["n"], *[cfg.dims["k"]] * 2):
                heads //= tensor
                token += tk.round_up(heads, SUBLANES) * lanes - heads * size
    return texts.tokens * token + texts.rows * texts.length * place


def _kernel(cfg: Any, texts: Texts) -> str:
    """The kernel that attends them; texts behind prefixes have XLA's."""
    device, head_size = device_in_use(), cfg.dims["h"]
    chosen = kernels.choose(cfg.attention, device, cfg.compute, head_size, texts.length)
    is_windowed = cfg.local and cfg.window < texts.length + texts.after
    if cfg.distances or (is_windowed and not kernels.has_windows(chosen, cfg.causal)):
        return "xla"
    return "xla" if texts.after and device.platform != "cpu" else chosen


def _cache_numbers(cfg: Any) -> int:
    """Numbers of a token's keys and values in a layer, on a device."""
    return 2 * cfg.dims["k"] * cfg.dims["h"] // layout.mesh_size("tensor")


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
    platform, dims, tensor = device_in_use().platform, cfg.dims, layout.mesh_size("tensor")
    query_block = texts.length
    if cfg.causal:
        query_block = min(query_block, max(64, query_block / 4))  # see `attention.attend`
    pairs = texts.rows * query_block * texts.length
    if texts.after and platform != "cpu":
        pairs = texts.tokens * (texts.after + texts.length)
    # A mask of keys alone is no array of pairs, and is added within the softmax.
    is_fused = platform == "cpu" and not (cfg.causal or cfg.local or cfg.distances)
    weights = pairs * dims["n"] / tensor * (4 if is_fused else 2 * 4 + 1)
    attention = weights if _kernel(cfg, texts) == "xla" else 0
    if platform != "cpu":
        # The layer's products, read or computed again, and their gradients. A TPU's compiler
        # writes them in float32 before it casts them, and leaves gaps as large as one of both.
        copies = 3 * 4 if platform == "tpu" else 2 * jnp.dtype(cfg.compute).itemsize
        return attention + copies * _numbers(cfg, "products", texts)
    numbers = NARROW * dims["d"] + WIDE * dims["f"] / tensor
    if remat == "all" and cfg.gated:  # others free them earlier
        numbers += sum(saved_numbers(cfg, "products"))
    return attention + 4 * texts.tokens * numbers


def inference_bytes(cfg: Any, weights: float, tokens: int, cached: int = 0) -> float:
    """Bytes that a device holds while layers compute tokens without a gradient.

    Args:
        weights: bytes of the weights on a device.
        tokens: of a device.
        cached: tokens whose keys and values are the result.
    """
    platform, size = device_in_use().platform, jnp.dtype(cfg.compute).itemsize
    heads = cfg.dims["n"] + 2 * cfg.dims["k"]
    # The layer's input and its sum, and queries, keys and values as a stream and as rows, or else
    # what gate and up give. XLA:CPU and a TPU's compiler have float32, the latter with gaps.
    widest = max(heads * cfg.dims["h"], cfg.dims["f"]) / layout.mesh_size("tensor")
    numbers = 2 * (cfg.width + widest)
    working = {"cpu": 4, "tpu": 2 * 4}.get(platform, size) * tokens * numbers
    # A GPU's compiler turns the keys of all layers at the end.
    copies = 1.5 if platform == "gpu" else 1
    return weights + _gathered_bytes(cfg) + working + copies * cache_bytes(cfg, cached)


def _gathered_bytes(cfg: Any) -> float:
    """Bytes of a layer's weights, as they come from other devices and as products take them."""
    if layout.mesh_size("fsdp") == 1:
        return 0
    types = {jnp.dtype(cfg.dtype), jnp.dtype(cfg.compute)}
    numbers = flops.weights(cfg) / cfg.layers / layout.mesh_size("tensor")
    return numbers * sum(x.itemsize for x in types)


def cache_bytes(cfg: Any, tokens: int) -> float:
    """Bytes of keys and values of so many tokens of a device, in all layers."""
    return jnp.dtype(cfg.compute).itemsize * cfg.layers * tokens * _cache_numbers(cfg)


def suffix_bytes(
    cfg: Any, weights: float, tokens: int, cached: int, read: int, positions: int
) -> float:
    """Bytes that a device holds while it scores ends of texts behind shared prefixes.

    Args:
        weights: bytes of the weights on a device.
        tokens: of the ends.
        cached: tokens of the prefixes.
        read: tokens of prefixes, counted for each row of ends.
        positions: whose logits are computed at once.
    """
    devices = layout.batch_multiple() * layout.mesh_size("tensor")
    size = jnp.dtype(cfg.compute).itemsize
    table = size * cfg.vocab * cfg.width if devices > 1 else 0  # a whole copy on each device
    # cuDNN gets a copy of the prefix for each row, while little else is held.
    copies = size * read * _cache_numbers(cfg) if device_in_use().platform == "gpu" else 0
    states = max(inference_bytes(cfg, weights, tokens), weights + copies)
    return states + cache_bytes(cfg, cached) + table + 4 * positions * cfg.vocab


class Choice(NamedTuple):
    """How a step is computed.

    Attributes:
        pieces: that passages are encoded in (GradCache).
        memory: what the step is predicted to hold.
        available: bytes of a device.
        free: whether the config left it open.
        links: bytes that come into a device over its links.
    """

    remat: str
    pieces: int
    memory: StepMemory
    available: float
    free: bool
    links: float

    @property
    def fits(self) -> bool:
        """Whether the step fills at most `FILL` of the device's memory."""
        return self.memory.total <= FILL * self.available

    def describe(self) -> str:
        """One line: the choice, its passes, links and bytes, and the reason."""
        pieces = "1 piece" if self.pieces == 1 else f"{self.pieces} pieces"
        memory = self.memory
        if not self.free:
            reason = "as the config says" + ("" if self.fits else ", which may not fit")
        elif self.fits:
            first = self.remat == REMATS[0] and self.pieces == 1
            reason = "the fastest, and it fits" if first else "the fastest that fits"
        else:
            reason = "nothing fits, and this takes least"
        passes = forward_passes(self.pieces, self.remat)
        links = f"{gib(self.links)} over links" if self.links else "nothing over links"
        return (
            f"remat={self.remat}, {pieces}, {passes} forward passes, {links}: about "
            f"{gib(memory.total)} a device (weights {gib(memory.weights)}, saved "
            f"{gib(memory.saved)}, a layer {gib(memory.working)}) of {gib(self.available)}, of "
            f"which {FILL:.0%} may be filled: {reason}"
        )


def gib(size: float) -> str:
    """Bytes for a line of text."""
    return f"{size / 2**30:.1f} GiB"


def forward_passes(pieces: int, remat: str) -> int:
    """The products of a step, in forward passes.

    A backward pass takes two. Pieces are encoded once more, for their vectors, whatever their
    number; "all" computes each layer once more.
    """
    return 3 + (pieces > 1) + (remat == "all")


def links_bytes(cfg: Any, kinds: int, pieces: int) -> float:
    """Bytes that a step of so many kinds of texts brings into a device over its links.

    Each pass forth or back over a kind, or over a piece of the last kind, gathers the layers'
    weights in the type of products; what "all" computes again shares the gather of the backward
    pass. Each backward pass adds up the float32 gradient over the devices.
    """
    fsdp, data = layout.mesh_size("fsdp"), layout.mesh_size("data")
    weights = flops.weights(cfg) / layout.mesh_size("tensor")
    gather = jnp.dtype(cfg.compute).itemsize * weights * (1 - 1 / fsdp)
    # Scattered over fsdp, then summed over data, which takes a scatter and a gather.
    gradient = 4 * weights * (1 - 1 / fsdp + 2 * (1 - 1 / data) / fsdp)
    passes = 2 * (kinds - 1) + (2 + (pieces > 1)) * pieces
    return passes * gather + (kinds - 1 + pieces) * gradient


def _speeds(cfg: Any, texts: Sequence[Texts]) -> tuple[float, float]:
    """Seconds of a forward pass over texts, and bytes a second of the links.

    Where the device's are not published, a pass is 1 and links take no time.
    """
    kind = device_in_use().kind
    peak, links = flops.peak(kind), published(LINKS, kind)
    if not peak or not links:
        return 1.0, math.inf
    lengths = [x.tokens / x.rows + x.after for x in texts for _ in range(x.rows)]
    work = flops.forward(cfg, sum(x.tokens for x in texts), flops.attention_pairs(cfg, lengths))
    return float(work.sum()) / layout.mesh_size("tensor") / (MFU * peak), links


def choose(
    cfg: Any,
    remat: str,
    pieces: int,
    texts_for_pieces: Callable[[int], Sequence[Texts]],
    *,
    trained: float,
    frozen: float = 0,
    moments: str = "float32",
    most_pieces: int = 1,
    available: float | None = None,
    logits: float = 0,
) -> Choice:
    """The fastest way to compute a step that fits, or else the one that needs the least memory.

    Its time is that of its `forward_passes` and of what its links bring. Where the device's speeds
    are not published, passes decide, and of equal ones the number of pieces, each of which gathers
    the weights.

    Args:
        remat: "auto" for any, or the one to take.
        pieces: number of pieces, or 0 for any.
        texts_for_pieces: number of pieces -> the texts that a device encodes at once.
        trained, frozen, moments, logits: see `step_memory`.
        most_pieces: the most that make sense.
        available: bytes of a device; None takes this device's.
    """
    available = available or device_memory()
    counts = [pieces] if pieces else [1 << i for i in range(max(most_pieces, 1).bit_length())]
    kinds = REMATS if remat == "auto" else (remat,)
    free = remat == "auto" or not pieces
    texts = functools.cache(texts_for_pieces)
    seconds_of_pass, rate = _speeds(cfg, texts(counts[0]))
    links = {count: links_bytes(cfg, len(texts(counts[0])), count) for count in counts}

    def pace(setting: tuple[int, str]) -> tuple[float, int]:
        """Seconds of a step, of which equal ones are ordered by the number of pieces."""
        count = setting[0]
        return forward_passes(*setting) * seconds_of_pass + links[count] / rate, count

    tried: list[Choice] = []
    for count, kind in sorted(itertools.product(counts, kinds), key=pace):
        memory = step_memory(
            cfg,
            kind,
            texts(count),
            trained=trained,
            frozen=frozen,
            moments=moments,
            in_pieces=count > 1,
            logits=logits,
        )
        tried.append(Choice(kind, count, memory, available, free, links[count]))
        if tried[-1].fits:
            return tried[-1]
    return min(tried, key=lambda choice: choice.memory.total)


def choose_remat(
    cfg: Any,
    config: UpdateConfig,
    texts: Iterable[Texts],
    trainable: Any,
    frozen: Any,
    label: str,
    *,
    logits: float = 0,
) -> Any:
    """`cfg` with the config's remat, "auto" resolved for a step that encodes these texts.

    Args:
        trainable, frozen: as `fit.train` takes them.
        label: begins the line that reports a choice other than the fastest.
        logits: see `step_memory`.
    """
    if config.remat != "auto":
        return dataclasses.replace(cfg, remat=config.remat)
    listed = list(texts)
    choice = choose(
        cfg,
        config.remat,
        1,
        lambda _: listed,
        trained=bytes_on_device(trainable),
        frozen=bytes_on_device(frozen),
        moments=config.moments,
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
