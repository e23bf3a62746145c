"""Qwen3's embedding models at their real sizes on a mesh of 4 x 16 x 4: abstract arrays, nothing is
allocated.

`python tests/support/pod.py 8B` compiles the training step for 256 fake devices, which takes two
minutes of a small machine,
and prints as JSON what a device holds (bytes) and what travels (the collectives of the program).
"""

import functools
import json
import math
import re
import sys
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from ark_jax import layout
from ark_jax.models import decoder, encoder
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
        rope_theta=1e6,
        rope_llama3=None,
        norm_eps=1e-6,
        qk_norm=True,
        qkv_bias=False,
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
    cfg: decoder.Config | encoder.Config, mesh, batch: Batch
) -> tuple[ContrastiveObjective, fit.State, dict]:
    """Objective, state and batch of a training step; `mesh`, set by the caller, may be an
    AbstractMesh."""
    room = rooms(batch.queries * batch.short, batch.passages * batch.long // batch.pieces)
    pooling = "lasttoken" if isinstance(cfg, decoder.Config) else "mean"
    objective = ContrastiveObjective(
        cfg, pooling, cfg.width, batch.pieces, room, temperature=0.02, matryoshka=()
    )
    create = lambda: model_class(cfg)(cfg, rngs=nnx.Rngs(0))
    start = functools.partial(fit.State.create, optimizer=OPTIMIZER)
    state = jax.eval_shape(start, jax.eval_shape(create))
    state = jax.tree.map(
        lambda x: on(mesh, x.shape, x.dtype, x.sharding.spec if x.sharding else P()), state
    )
    rows = lambda shape, dtype: on(mesh, shape, dtype, P(layout.BATCH))
    texts = lambda n, length: (rows((n, length), jnp.int32), rows((n, length), bool))
    pairs = rows((batch.queries, batch.passages), bool)
    return (
        objective,
        state,
        {
            "queries": texts(batch.queries, batch.short),
            "passages": texts(batch.passages, batch.long),
            "positive": pairs,
            "negative": pairs,
        },
    )


def bytes_of(tree) -> int:
    """What one device holds of a tree of abstract arrays."""
    return sum(
        math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree)
    )


class Moved(NamedTuple):
    """An array that devices exchange: its shape and bytes as a device ends up with it, how often a
    run of the program moves it,
    and among how many devices."""

    kind: str
    shape: tuple[int, ...]
    bytes: int
    times: int
    devices: int


def collectives(text: str) -> list[Moved]:
    """Every array that devices exchange in a compiled program, where it stands in it.

    XLA joins several into one operation, so arrays are counted; an all-to-all, whose pieces are of
    one shape, once. Not
    those among one device only.
    """
    moves = []
    kinds = "all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute"
    for line, times in _executed(text):
        match = re.search(rf" = (.*?) ({kinds})(?:-start)?\(", line)
        if match and _participants(line) > 1:
            arrays = [
                (tuple(map(int, filter(None, sizes.split(",")))), WIDTHS[kind])
                for kind, sizes in re.findall(r"([a-z]+\d*)\[([\d,]*)\]", match[1])
            ]
            arrays = [(shape, width * math.prod(shape)) for shape, width in arrays]
            if match[2] == "all-to-all":
                arrays = [(arrays[0][0], sum(size for _, size in arrays))]
            moves += [
                Moved(match[2], shape, size, times, _participants(line)) for shape, size in arrays
            ]
    return moves


WIDTHS = {
    "pred": 1,
    "s8": 1,
    "u8": 1,
    "bf16": 2,
    "f16": 2,
    "s32": 4,
    "u32": 4,
    "f32": 4,
    "s64": 8,
    "u64": 8,
    "f64": 8,
}


def _executed(text: str) -> list[tuple[str, int]]:
    """Lines of a program, and how often a run of it comes by; of a loop without a known count, as
    of one round."""
    bodies: dict[str, list[str]] = {}
    calls: dict[str, list[tuple[str, int]]] = {}  # computation -> who calls it, how often each time
    for line in text.splitlines():
        if head := re.match(r"(?:ENTRY )?%(\S+) \(.*\{$", line):
            body = bodies[head[1]] = []
        elif line.startswith("  "):
            body.append(line)
            rounds = re.search(r'"known_trip_count":\{"n":"(\d+)"', line)
            for name in re.findall(
                r"(?:body|calls|to_apply|computation|branch_computations)=\{?([^,{} ]+)", line
            ):
                calls.setdefault(name.removeprefix("%"), []).append(
                    (next(reversed(bodies)), int(rounds[1]) if rounds else 1)
                )

    @functools.cache
    def times(name: str) -> int:
        return sum(rounds * times(caller) for caller, rounds in calls[name]) if name in calls else 1

    return [(line, times(name)) for name, lines in bodies.items() for line in lines]


def _participants(line: str) -> int:
    """How many devices take part in one group; HLO writes groups in three ways."""
    if listed := re.search(r"replica_groups=\{\{([\d,]*)\}", line):
        return listed[1].count(",") + 1
    if grid := re.search(r"replica_groups=\[\d+,(\d+)\]<=", line):
        return int(grid[1])
    if named := re.search(
        r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\([^)]*\)\))? \{([^}]*)\}", line
    ):
        sizes = dict(part.split("=") for part in named[1].split(","))
        return math.prod(int(sizes[axis.strip()]) for axis in named[2].split(","))
    return 2  # a permutation names pairs


def compiled(cfg, shape: tuple[int, int, int], batch: Batch) -> dict:
    """What a device holds (bytes) and what travels in a training step, compiled for as many fake
    devices."""
    jax.config.update("jax_num_cpu_devices", math.prod(shape))
    mesh = layout.make_mesh(shape)
    with jax.set_mesh(mesh):
        return compiled_on(mesh, cfg, batch)


def compiled_on(mesh, cfg, batch: Batch) -> dict:
    """`compiled` on the mesh that is set."""
    objective, state, given = abstract(cfg, mesh, batch)
    program = fit.train_step.lower(objective, OPTIMIZER, state, None, given, 1e-5).compile(
        {"xla_backend_optimization_level": 0}
    )
    memory_analysis = program.memory_analysis()
    return {
        "arguments": memory_analysis.argument_size_in_bytes,
        "temporary": memory_analysis.temp_size_in_bytes,
        "collectives": collectives(program.as_text()),
    }


def texts(batch: Batch, pieces: int) -> list[memory.Texts]:
    """What a device encodes at once."""
    rows = rooms(batch.queries, batch.passages // pieces)
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
