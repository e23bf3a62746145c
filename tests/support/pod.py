"""Qwen3's embedding models at their real sizes on a mesh of 4 x 16 x 4: abstract arrays, nothing is
allocated.

`python tests/support/pod.py 8B` compiles the training step for 256 fake devices, which takes two
minutes of a small machine,
and prints as JSON what a device holds (bytes) and what travels (the collectives of the program).
"""

import functools
import json
import math
import sys
from pathlib import Path
from typing import NamedTuple

import jax
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

sys.path.insert(0, str(Path(__file__).parents[1]))
from support import program_text

from ark_jax import layout
from ark_jax.estimate import steps
from ark_jax.models import decoder, encoder
from ark_jax.models.rotary import Rotary
from ark_jax.train import fit, memory, optim
from ark_jax.train.contrastive import ContrastiveObjective

SHAPE = (4, 16, 4)
# vocabulary, width, layers, heads, ffn; all have 8 key heads, heads of 128 and a tied or absent
# head.
SIZES = {
    "0.6B": (151669, 1024, 28, 16, 3072),
    "4B": (151665, 2560, 36, 32, 9728),
    "8B": (151665, 4096, 36, 32, 12288),
}


class Batch(NamedTuple):
    """Rows and padded lengths, and in how many pieces passages are encoded."""

    queries: int
    short: int
    passages: int
    long: int
    pieces: int


OPTIMIZER = optim.adamw(weight_decay=0.01, clip=1.0)
BATCH = Batch(queries=64, short=64, passages=1024, long=512, pieces=4)


def config(size: str) -> decoder.Config:
    vocab, width, layers, heads, ffn = SIZES[size]
    return decoder.Config(
        vocab=vocab,
        width=width,
        layers=layers,
        heads=heads,
        kv_heads=8,
        head_dim=128,
        ffn=ffn,
        rotaries=(Rotary(1e6),),
        norm_eps=1e-6,
        qk_norm=True,
        tied=True,
        dtype="float32",
        compute="bfloat16",
        remat="all",
    )


def parameters(size: str) -> int:
    """Counted by hand, from the published architecture."""
    vocab, width, layers, heads, ffn = SIZES[size]
    attention = 2 * width * heads * 128 + 2 * width * 8 * 128 + 2 * 128
    return vocab * width + layers * (attention + 3 * width * ffn + 2 * width) + width


def rooms(*tokens: int) -> tuple[int, ...]:
    """Of so many tokens, what each device gets."""
    return tuple(n // layout.batch_multiple() for n in tokens)


def on(mesh, shape: tuple[int, ...], dtype, spec: P) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))


def model_class(cfg) -> type:
    return decoder.Decoder if isinstance(cfg, decoder.Config) else encoder.Encoder


def abstract(
    cfg: decoder.Config | encoder.Config, batch: Batch
) -> tuple[ContrastiveObjective, fit.State, dict]:
    """Objective, state and batch of a training step, on the mesh that is set."""
    objective, given = steps.contrastive(cfg, texts(batch, batch.pieces), batch.pieces)
    model = steps.placed(lambda: model_class(cfg)(cfg, rngs=nnx.Rngs(0)))
    start = functools.partial(fit.State.create, optimizer=OPTIMIZER)
    return objective, steps.placed(start, model), given


def bytes_of(tree) -> int:
    """What one device holds of a tree of abstract arrays."""
    return sum(
        math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree)
    )


def compiled(cfg, shape: tuple[int, int, int], batch: Batch) -> dict:
    """What a device holds (bytes) and what travels in a training step, compiled for as many fake
    devices."""
    jax.config.update("jax_num_cpu_devices", math.prod(shape))
    mesh = layout.make_mesh(shape)
    with jax.set_mesh(mesh):
        return compiled_on(cfg, batch)


def compiled_on(cfg, batch: Batch) -> dict:
    """`compiled` on the mesh that is set."""
    objective, state, given = abstract(cfg, batch)
    program = fit.train_step.lower(objective, OPTIMIZER, state, None, given, 1e-5).compile(
        {"xla_backend_optimization_level": 0}
    )
    memory_analysis = program.memory_analysis()
    return {
        "arguments": memory_analysis.argument_size_in_bytes,
        "temporary": memory_analysis.temp_size_in_bytes,
        "collectives": program_text.collectives(program.as_text()),
    }


def texts(batch: Batch, pieces: int) -> list[memory.Texts]:
    """What a device encodes at once."""
    devices = layout.batch_multiple()
    rows = (-(-batch.queries // devices), -(-batch.passages // (devices * pieces)))
    lengths = (batch.short, batch.long)
    return [memory.Texts(n, length, n * length) for n, length in zip(rows, lengths, strict=True)]


def predicted(cfg, batch: Batch) -> memory.StepMemory:
    """What a device of the mesh that is set should hold."""
    model = jax.eval_shape(lambda: model_class(cfg)(cfg, rngs=nnx.Rngs(0)))
    return memory.step_memory(
        cfg,
        cfg.remat,
        texts(batch, batch.pieces),
        trained=memory.bytes_on_device(model),
        in_pieces=batch.pieces > 1,
    )


if __name__ == "__main__":
    sys.stdout.write(json.dumps(compiled(config(sys.argv[1]), SHAPE, BATCH)) + "\n")
