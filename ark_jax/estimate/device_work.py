"""What a model has to compute for so many tokens, from its sizes alone, and how long these devices
take."""

import dataclasses
import functools
import math
import time
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ark_jax import layout
from ark_jax.models import decoder, hf
from ark_jax.train.flops import attention_pairs, forward

# how much dearer an operation of attention is than one of a product with weights, as
# `unpad.price` has it
SLOW = 3


@dataclasses.dataclass(frozen=True)
class Work:
    """What the devices have to do for a part of one stage."""

    stage: str
    what: str  # embedding | likelihoods | training | reading
    tokens: float
    flops: float
    seconds: float


@dataclasses.dataclass(frozen=True)
class Model:
    """A model without its weights, on the devices of the mesh."""

    folder: Path
    cfg: decoder.Config  # or an encoder's
    total: int  # parameters
    compute: str
    batch: int  # tokens on each device that make a product run at full speed

    @classmethod
    def of(cls, path: str, *, compute: str, batch: int, head: bool) -> "Model":
        folder = Path(path)
        settings = hf.read_config(folder)
        try:
            kind, model_class, _ = hf.architecture(settings)
            cfg = kind.from_hf(settings, compute=compute)
        except KeyError as error:
            raise ValueError(
                f"{folder}/config.json: no {error}; a {settings['model_type']} checkpoint "
                "must say it"
            ) from None
        if kind is decoder.Config and not head:
            cfg = dataclasses.replace(cfg, tied=True)
        model = jax.eval_shape(lambda: model_class(cfg, rngs=nnx.Rngs(0)))
        batch = batch or (2048 if jax.default_backend() == "cpu" else 16384)
        return cls(folder, cfg, sum(x.size for x in jax.tree.leaves(model)), compute, batch)

    @property
    def causal(self) -> bool:
        return isinstance(self.cfg, decoder.Config)

    def flops(self, tokens: float, pairs: float, logits: float = 0) -> np.ndarray:
        """`train.flops.forward` of this model."""
        return forward(self.cfg, tokens, pairs, logits)

    def each(self, lengths: Sequence[int], logits: float = 0) -> np.ndarray:
        """`flops` of texts by themselves."""
        return self.flops(sum(lengths), attention_pairs(self.cfg, lengths), logits)

    def speed(self, rows: int = 0) -> float:
        """FLOP/s of all devices in products of so many tokens on each; 0: those of a batch."""
        devices = math.prod(jax.sharding.get_mesh().shape.values())
        return devices * rate(self.cfg.width, self.cfg.dims["f"], rows or self.batch, self.compute)

    def seconds(self, flops: np.ndarray, rows: int = 0) -> float:
        return float(flops @ (1, SLOW)) / self.speed(rows)

    def work(self, stage: str, what: str, tokens: float, flops: np.ndarray) -> Work:
        return Work(stage, what, tokens, float(flops.sum()), self.seconds(flops))

    def generation(
        self, stage: str, prompts: float, length: float, new: float, head: int = 0
    ) -> Work:
        """Prompts of so many tokens, each answered with `new` ones; a step of all rows of a batch
        reads all weights.

        Args:
            head: tokens that all prompts begin with, which are computed once.
        """
        read = self.each([head]) + prompts * (self.each([length], 1) - self.each([head]))
        written = self.flops(prompts * new, prompts * new * (length + new / 2), prompts * new)
        at_once = max(
            min(16 * self.batch / (length + new), prompts / layout.batch_multiple()), 1
        )  # as `generate` has them
        rows = 1 << round(math.log2(at_once))  # few different ones, since each is measured
        return Work(
            stage,
            "reading",
            head + prompts * (length - head + new),
            float((read + written).sum()),
            self.seconds(read) + self.seconds(written, rows),
        )

    @property
    def bytes(self) -> int:
        """Of the checkpoint's tensors, from the headers of its files."""
        files = hf.Checkpoint(self.folder)
        sizes = (files.slice(name) for name in files.names())
        return sum(
            math.prod(x.get_shape()) * x[tuple(slice(0, 0) for _ in x.get_shape())].dtype.itemsize
            for x in sizes
        )


@functools.cache
def rate(width: int, ffn: int, rows: int, kind: str) -> float:
    """FLOP/s of one device in products of `rows` tokens with weights `[width ffn]` and back.

    Of a third of a second, the first fifth by speed: what else the machine does only slows it.
    """
    with jax.default_device(jax.local_devices()[0]):
        x, up, down = (
            jnp.ones(shape, kind) for shape in ((rows, width), (width, ffn), (ffn, width))
        )
        dot = functools.partial(jnp.dot, preferred_element_type=jnp.float32)
        run = jax.jit(lambda x, up, down: dot(dot(x, up).astype(kind), down).astype(kind))
        run(x, up, down).block_until_ready()
        times, end = [], time.monotonic() + 0.35
        while len(times) < 3 or time.monotonic() < end:
            start = time.perf_counter()
            run(x, up, down).block_until_ready()
            times.append(time.perf_counter() - start)
    return 4 * rows * width * ffn / sorted(times)[len(times) // 5]
