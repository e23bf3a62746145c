"""Time and memory that work takes on these devices, computed from model sizes alone."""

import dataclasses
import functools
import math
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ark_jax import layout
from ark_jax.estimate import steps
from ark_jax.estimate.work import Texts, Work
from ark_jax.models import decoder, hf, lora, sentence_folder
from ark_jax.models.batching import batch_tokens_of_device
from ark_jax.models.token_probabilities import block_length
from ark_jax.runtime.accelerator import assumed_device, device_in_use, float_type
from ark_jax.text import tokens as tk
from ark_jax.train import memory, optim
from ark_jax.train.flops import attention_pairs, forward, peak
from ark_jax.train.likelihood import LOGIT_BLOCK

ATTENTION_COST = 3  # time of an operation of attention, in operations of a product with weights
BACKWARD = np.array([3, 3.5])  # FLOPs with the backward pass, in those of a forward pass
WEIGHT = 4  # bytes of a trained parameter


@dataclasses.dataclass(frozen=True)
class WeightlessModel:
    """A model without its weights, on the devices of the mesh.

    Attributes:
        cfg: the config of a decoder or an encoder.
        parameters: number of parameters.
        bytes: size of the checkpoint, in the type that its config.json names.
        compute: type of products, such as "bfloat16".
        batch: tokens on each device that let a product run at full speed.
    """

    folder: Path
    cfg: decoder.Config
    parameters: int
    bytes: int
    compute: str
    batch: int

    @classmethod
    def from_folder(cls, path: str, *, compute: str, batch: int, head: bool) -> "WeightlessModel":
        """Reads the config of a model folder.

        Args:
            batch: as the attribute; 0: chosen for the device.
            head: whether logits are computed.

        Raises:
            ValueError: config.json lacks a size, the model has no logits, or the mesh does not cut
                it into equal shards.
        """
        folder = sentence_folder.weights_folder(Path(path))
        settings, compute = hf.read_config(folder), float_type(compute, device_in_use())
        try:
            kind, model_class, _ = hf.architecture(settings)
            cfg = kind.from_hf(settings, compute=compute)
        except KeyError as error:
            raise ValueError(f"{path}/config.json: no {error}; fetch the file again") from None
        if head and kind is not decoder.Config:
            raise ValueError(f"{path}: generates no text; give a decoder as generator.path")
        if kind is decoder.Config and not head:
            cfg = dataclasses.replace(cfg, tied=True)
        layout.check_divides(cfg.dims, path)
        model = jax.eval_shape(lambda: model_class(cfg, rngs=nnx.Rngs(0)))
        parameters = sum(x.size for x in jax.tree.leaves(model))
        named = settings.get("dtype") or settings.get("torch_dtype")
        stored = jnp.dtype(named or "float32").itemsize
        batch = batch or (2048 if device_in_use().platform == "cpu" else 16384)
        return cls(folder, cfg, parameters, parameters * stored, compute, batch)

    def flops(self, count: float, length: float, logits: float = 0, after: float = 0) -> np.ndarray:
        """FLOPs `[2]` of texts: products with weights, and attention.

        Args:
            logits: tokens of a text whose logits are computed.
            after: earlier tokens that the text attends to, whose states are computed already.
        """
        seen = attention_pairs(self.cfg, [after + length]) - attention_pairs(self.cfg, [after])
        return forward(self.cfg, count * length, count * seen, count * logits)

    def speed(self, rows: int = 0) -> float:
        """FLOP/s of all devices in products of `rows` tokens on each; 0: of a batch."""
        devices = math.prod(jax.sharding.get_abstract_mesh().shape.values())
        if assumed := assumed_device():
            return devices * memory.MFU * (peak(assumed.kind) or math.nan)
        rows = rows or self.batch
        return devices * product_speed(self.cfg.width, self.cfg.dims["f"], rows, self.compute)

    def describe_speed(self) -> str:
        """Devices and their speed, for the plan."""
        devices = math.prod(jax.sharding.get_abstract_mesh().shape.values())
        kind, speed = device_in_use().kind, self.speed() / 1e9
        if assumed_device():
            share = f"{memory.MFU:.0%} of the published peak"
            return f"assumed {devices} x {kind} with {speed:,.0f} GFLOP/s, {share}"
        name = f"{self.folder.name}'s width in {self.compute}"
        return f"measured {devices} x {kind} with {speed:,.0f} GFLOP/s at {name}"

    def seconds(self, flops: np.ndarray, rows: int = 0) -> float:
        """Seconds that FLOPs `[2]` take in products of `rows` tokens; see `flops` and `speed`."""
        return float(flops @ (1, ATTENTION_COST)) / self.speed(rows)

    def inference(self, work: Work) -> tuple[float, float]:
        """FLOPs and seconds of work that is not training."""
        if work.kind in ("embedding", "likelihoods"):
            flops = self.flops(work.items, work.read, work.written, work.after)
            return float(flops.sum()), self.seconds(flops)
        length = work.after + work.read
        read = self.flops(work.items, work.read, min(work.read, 1), work.after)
        written = self.flops(work.items, work.written, work.written, length)
        # The batch of `generate`, as a power of 2, since the speed of each size is measured.
        fit = min(16 * self.batch / (length + work.written), work.items / layout.batch_multiple())
        seconds = self.seconds(read) + self.seconds(written, 1 << round(math.log2(max(fit, 1))))
        return float((read + written).sum()), seconds

    def training(self, work: Work, choice: memory.Choice) -> tuple[float, float]:
        """FLOPs and seconds of training, with what is computed twice to save memory."""
        flops = 3 * self.flops(1, 0, work.written)
        for i, texts in enumerate(work.step):
            recomputed = (choice.remat == "all") + (choice.pieces > 1 and texts is work.step[-1])
            # Completions see their prompt, which is computed once for all of them.
            prefix = work.step[0].mean if i and work.written else 0
            flops += self.flops(texts.count, texts.mean, after=prefix) * (BACKWARD + recomputed)
        return float(work.items * flops.sum()), self.seconds(work.items * flops)

    def holds(self, work: Work) -> float:
        """Bytes that a device holds for a batch of embedding, or of scoring."""
        weights = self.parameters * jnp.dtype(self.cfg.dtype).itemsize
        weights /= layout.mesh_size("fsdp") * layout.mesh_size("tensor")
        if work.kind == "likelihoods":  # full batches of prefixes, and of texts behind them
            tokens = [self.batch] * 3
            return memory.suffix_bytes(self.cfg, weights, *tokens, positions=block_length())
        return memory.inference_bytes(self.cfg, weights, self.batch)

    def describe_held(self, work: Work) -> str:
        """What `holds` says, for the plan."""
        held, available = self.holds(work), memory.device_memory()
        fits = "it fits" if held <= memory.FILL * available else "it may not fit"
        return f"about {memory.gib(held)} a device of {memory.gib(available)}: {fits}"

    def verify(self, settings, work: Work, choice: memory.Choice) -> str:
        """What the compiler of the mesh's devices says about a training step, for the plan."""
        lowered = self.lowered(settings, work, choice)
        if lowered is None:
            return "not verified: a step of this kind cannot be compiled without its texts yet"
        start = time.monotonic()
        try:
            held = steps.held(lowered.compile())
        except jax.errors.JaxRuntimeError as error:
            return f"refused by the compiler: {' '.join(str(error).split())[:300]}"
        fits = "it fits" if held <= choice.available else "it does not fit"
        seconds, room = time.monotonic() - start, memory.gib(choice.available)
        shown = f"holds {memory.gib(held)} a device of {room}: {fits}"
        return f"verified: compiles in {seconds:.0f} s, {shown}"

    def lowered(self, settings, work: Work, choice: memory.Choice) -> jax.stages.Lowered | None:
        """The training step for a compiler, of planned shapes; None if `steps` has none for it."""
        cfg = dataclasses.replace(self.cfg, remat=choice.remat)
        texts = [
            x._replace(tokens=min(tk.round_up(x.tokens, 64), x.rows * x.length))
            for x in _texts_at_once(work, choice.pieces)
        ]
        if work.objective == "contrastive":
            objective, batch = steps.contrastive(cfg, texts, choice.pieces, settings.matryoshka)
        elif work.objective == "triplet":
            objective, batch = steps.triplet(cfg, texts)
        else:
            return None
        model_class = hf.architecture(hf.read_config(self.folder))[1]
        model = steps.placed(lambda: model_class(cfg, rngs=nnx.Rngs(0)))
        trainable, frozen = model, None
        if settings.get("lora_rank", 0):
            trainable, frozen = steps.placed(lambda: self._adapter(settings)), model
        if work.objective == "triplet":
            trainable = (trainable,) * work.towers
        optimizer = optim.adamw(
            weight_decay=settings.weight_decay, clip=settings.clip, moments=settings.moments
        )
        return steps.lowered(objective, optimizer, trainable, frozen, batch)

    def _adapter(self, settings) -> lora.Adapter:
        rows = lora.target_weights(self.folder, settings.lora_targets)
        sizes = {"rank": settings.lora_rank, "alpha": settings.lora_alpha}
        return lora.init(rows, self.cfg, key=jax.random.key(0), **sizes)

    def trainable(self, settings) -> int:
        """Number of parameters that training with the settings of `config.train` changes."""
        if not settings.get("lora_rank", 0):
            return self.parameters
        adapter = jax.eval_shape(lambda: self._adapter(settings))
        return sum(leaf.size for leaf in jax.tree.leaves(adapter))

    def choose(self, settings, work: Work) -> memory.Choice:
        """How `train.memory` makes a step fit in memory, with the settings of `config.train`."""
        size = WEIGHT / (layout.mesh_size("fsdp") * layout.mesh_size("tensor"))
        adapted = settings.get("lora_rank", 0) > 0
        positions = block_length(LOGIT_BLOCK)
        return memory.choose(
            self.cfg,
            settings.remat,
            settings.get("chunks", 1),
            functools.partial(_texts_at_once, work),
            trained=size * work.towers * self.trainable(settings),
            frozen=size * self.parameters if adapted else 0,
            most_pieces=_texts_at_once(work, 1)[-1].rows,
            moments=settings.moments,
            logits=memory.logits_bytes(self.cfg, positions, trained=not adapted)
            if work.written
            else 0,
        )


def _texts_at_once(work: Work, pieces: int) -> list[memory.Texts]:
    """What a device computes at once in a step, the last kind in pieces."""
    share = _share_at_once(work)
    *rest, last = (texts.with_count(share * texts.count) for texts in work.step)
    return [*(_texts_on_device(x, 1) for x in rest), _texts_on_device(last, pieces)]


def _share_at_once(work: Work) -> float:
    """The share of a step's texts that `train.parts` computes at once.

    It is 1, except for language models: they compute as many prompts as fit a token budget.
    """
    if not work.written:
        return 1
    devices = layout.batch_multiple()
    budgets = work.tokens / work.items / devices // batch_tokens_of_device()
    prompts = math.ceil(work.step[0].count / devices)
    return max(prompts // max(budgets, 1), 1) / prompts


def _texts_on_device(texts: Texts, pieces: int) -> memory.Texts:
    """The texts of one device in a step, or in one of its pieces."""
    rows = math.ceil(texts.count / (layout.batch_multiple() * pieces))
    length = tk.round_length(math.ceil(texts.longest))
    return memory.Texts(rows, length, math.ceil(rows * texts.mean))


@functools.cache
def product_speed(width: int, ffn: int, rows: int, kind: str) -> float:
    """FLOP/s of one device in products of `rows` tokens with `[width ffn]` and `[ffn width]`.

    Measured for a fifth of a second. The fastest fifth counts, since other programs only slow it.

    Args:
        kind: the type of the arrays, such as "bfloat16".
    """
    with jax.default_device(jax.local_devices()[0]):
        shapes = (rows, width), (width, ffn), (ffn, width)
        arrays = [jnp.ones(shape, kind) for shape in shapes]
        dot = functools.partial(jnp.dot, preferred_element_type=jnp.float32)
        run = jax.jit(lambda x, wide, narrow: dot(dot(x, wide).astype(kind), narrow).astype(kind))
        run(*arrays).block_until_ready()
        times, end = [], time.monotonic() + 0.2
        while len(times) < 3 or time.monotonic() < end:
            start = time.perf_counter()
            run(*arrays).block_until_ready()
            times.append(time.perf_counter() - start)
    return 4 * rows * width * ffn / sorted(times)[len(times) // 5]
