"""Qwen3's embedding models at their real sizes on a mesh of 4 x 16 x 4: abstract arrays, nothing is allocated.

`python tests/pod.py 8B` compiles the training step for 256 fake devices, which takes two minutes of a small machine,
and prints as JSON what a device holds (bytes) and what travels (the collectives of the program).
"""

import json
import math
import re
import sys

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from ark_jax import layout
from ark_jax.models import decoder
from ark_jax.train import loop

SHAPE = (4, 16, 4)
# vocabulary, width, layers, heads, ffn; all have 8 key heads, heads of 128 and a tied or absent head.
SIZES = {"0.6B": (151669, 1024, 28, 16, 3072), "4B": (151665, 2560, 36, 32, 9728), "8B": (151665, 4096, 36, 32, 12288)}
ROWS, CHUNKS, SHORT, LONG, PIECES = 64, 1024, 64, 512, 4  # a batch: queries, passages, their padded lengths, encoded in pieces


def config(size: str) -> decoder.Config:
    vocab, width, layers, heads, ffn = SIZES[size]
    return decoder.Config(vocab=vocab, width=width, layers=layers, heads=heads, kv_heads=8, head_dim=128, ffn=ffn,
                          rope_theta=1e6, rope_llama3=None, norm_eps=1e-6, qk_norm=True, qkv_bias=False, tied=True,
                          dtype="float32", compute="bfloat16", remat="all")


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


def abstract(size: str, mesh) -> tuple[loop.Objective, loop.State, dict]:
    """Objective, state and batch of a training step; `mesh`, set by the caller, may be an AbstractMesh."""
    cfg = config(size)
    objective = loop.Objective(cfg, "lasttoken", cfg.width, PIECES, rooms(ROWS * SHORT, CHUNKS * LONG // PIECES), 0.02, 0.01, 1.0,
                               ())
    create = lambda: decoder.Decoder(cfg, rngs=nnx.Rngs(0))
    state = jax.eval_shape(objective.start, jax.eval_shape(create))
    state = jax.tree.map(lambda x: on(mesh, x.shape, x.dtype, x.sharding.spec if x.sharding else P()), state)
    rows = lambda shape, dtype: on(mesh, shape, dtype, P(layout.BATCH))
    texts = lambda n, length: (rows((n, length), jnp.int32), rows((n, length), bool))
    pairs = rows((ROWS, CHUNKS), bool)
    batch = {"queries": texts(ROWS, SHORT), "passages": texts(CHUNKS, LONG), "positive": pairs, "negative": pairs}
    return objective, state, batch


def bytes_of(tree) -> int:
    """What one device holds of a tree of abstract arrays."""
    return sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def collectives(text: str) -> list[tuple[str, tuple[int, ...]]]:
    """(kind, shape of what a device ends up with) of every array that devices exchange in a compiled program.

    XLA joins several into one operation, so arrays are counted; an all-to-all, whose pieces are of one shape, once. Not
    those among one device only. What a loop repeats counts once, since it stands once in the program.
    """
    found = []
    kinds = "all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute"
    for line in text.splitlines():
        match = re.search(rf" = (.*?) ({kinds})(?:-start)?\(", line)
        if match and _participants(line) > 1:
            shapes = [tuple(map(int, filter(None, sizes.split(",")))) for sizes in re.findall(r"[a-z]+\d*\[([\d,]*)\]", match[1])]
            found += [(match[2], shape) for shape in (shapes[:1] if match[2] == "all-to-all" else shapes)]
    return found


def _participants(line: str) -> int:
    """How many devices take part in one group; HLO writes groups in three ways."""
    if listed := re.search(r"replica_groups=\{\{([\d,]*)\}", line):
        return listed[1].count(",") + 1
    if grid := re.search(r"replica_groups=\[\d+,(\d+)\]<=", line):
        return int(grid[1])
    if named := re.search(r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\([^)]*\)\))? \{([^}]*)\}", line):
        sizes = dict(part.split("=") for part in named[1].split(","))
        return math.prod(int(sizes[axis.strip()]) for axis in named[2].split(","))
    return 2  # a permutation names pairs


def main(size: str) -> None:
    jax.config.update("jax_num_cpu_devices", math.prod(SHAPE))
    mesh = layout.make_mesh(SHAPE)
    with jax.set_mesh(mesh):
        objective, state, batch = abstract(size, mesh)
        compiled = loop.train_step.lower(objective, state, None, batch, 1e-5).compile({"xla_backend_optimization_level": 0})
    memory = compiled.memory_analysis()
    sys.stdout.write(json.dumps({"arguments": memory.argument_size_in_bytes, "temporary": memory.temp_size_in_bytes,
                                 "collectives": collectives(compiled.as_text())}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
