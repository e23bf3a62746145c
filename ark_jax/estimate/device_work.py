"""FLOPs of a model from its sizes alone, and the seconds that these devices take for them."""

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
from ark_jax.runtime.accelerator import device_in_use, float_type
from ark_jax.train.flops import attention_pairs, forward

ATTENTION_COST = 3  # time of an operation of attention, in operations of a product with weights


@dataclasses.dataclass(frozen=True)
class Work:
    """What the devices compute for a part of one stage.

    Attributes:
        kind: embedding, likelihoods, training or reading.
    """

    stage: str
    kind: str
    tokens: float
    flops: float
    seconds: float


@dataclasses.dataclass(frozen=True)
class WeightlessModel:
    """A model without its weights, on the devices of the mesh.

    Attributes:
        cfg: a decoder's or an encoder's.
        parameters: how many there are.
        batch: tokens on each device with which a product runs at full speed.
    """

    folder: Path
    cfg: decoder.Config
    parameters: int
    compute: str
    batch: int

    @classmethod
    def from_folder(cls, path: str, *, compute: str, batch: int, head: bool) -> "WeightlessModel":
        """Reads the config of a model folder.

        Args:
            batch: as the attribute; 0 suits the device.
            head: whether logits are computed.
        """
        folder, compute = Path(path), float_type(compute, device_in_use())
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

    def text_flops(self, lengths: Sequence[int], logits: float = 0) -> np.ndarray:
        """FLOPs of texts of these lengths, none of which sees another."""
        return self.flops(sum(lengths), attention_pairs(self.cfg, lengths), logits)

    def speed(self, rows: int = 0) -> float:
        """FLOP/s of all devices in products of `rows` tokens on each; 0: of a batch."""
        devices = math.prod(jax.sharding.get_mesh().shape.values())
        return devices * product_speed(
            self.cfg.width, self.cfg.dims["f"], rows or self.batch, self.compute
        )

    def seconds(self, flops: np.ndarray, rows: int = 0) -> float:
        return float(flops @ (1, ATTENTION_COST)) / self.speed(rows)

    def work(self, stage: str, kind: str, tokens: float, flops: np.ndarray) -> Work:
        return Work(stage, kind, tokens, float(flops.sum()), self.seconds(flops))

    def generation(
        self, stage: str, prompts: float, length: float, new: float, head: int = 0
    ) -> Work:
        """Work of generating `new` tokens after each of `prompts` prompts of `length` tokens.

        Args:
            head: tokens that all prompts begin with, which are computed once.
        """
        read = self.text_flops([head]) + prompts * (
            self.text_flops([length], 1) - self.text_flops([head])
        )
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
        """Bytes of the checkpoint's tensors, from the headers of its files.

        Of a folder without weights, the parameters in the type that its config.json names.
        """
        if not any(self.folder.glob("*.safetensors")):
            stored = hf.read_config(self.folder).get("torch_dtype", "float32")
            return self.parameters * jnp.dtype(stored).itemsize
        files = hf.Checkpoint(self.folder)
        sizes = (files.slice(name) for name in files.names())
        return sum(
            math.prod(x.get_shape()) * x[tuple(slice(0, 0) for _ in x.get_shape())].dtype.itemsize
            for x in sizes
        )


@functools.cache
def product_speed(width: int, ffn: int, rows: int, kind: str) -> float:
    """FLOP/s of one device in products of `rows` tokens with weights `[width ffn]` and back.

    The fastest fifth of the measurements of a third of a second: other programs only slow it.
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
