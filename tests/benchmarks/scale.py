"""What more devices, pieces and a pod change: `python tests/benchmarks/scale.py
devices|pieces|prediction|estimate|host`.

- devices: a training step on 1, 2, 4, 8 fake CPU devices, the same batch: its time and all that
  travels
- pieces: what a step on 1,024 questions needs in 1 to 32 pieces (GradCache), and which of them run
  in LIMIT
- prediction: what a step is predicted to hold, and what XLA's program holds
- estimate: a three-stage run of Qwen3-Embedding-0.6B on a v5e-256 and on 8 x H100, on paper
- host: how long one host of the v5e-256 takes to make a batch of that run

Each figure is of a process of its own, since devices and memory limits are given to a process.
Tables are Markdown.
"""

import collections
import dataclasses
import functools
import inspect
import itertools
import json
import re
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
from flax import nnx
from timing import machine

sys.path.insert(0, str(Path(__file__).parents[1]))
from support import pod, program_text

from ark_jax import Retriever, layout
from ark_jax.demo.models import demo_models
from ark_jax.models import decoder, encoder
from ark_jax.models.pooling import VectorForm
from ark_jax.models.rotary import Rotary
from ark_jax.train import fit, flops, memory
from ark_jax.train.batches import Example
from ark_jax.train.config import ContrastiveConfig
from ark_jax.train.contrastive import ContrastiveBatches, ContrastiveObjective

# Heads, key heads and ffn of Qwen3-0.6B's proportions, and small enough for eight steps on two
# cores.
SMALL = decoder.Config(
    vocab=4096,
    width=256,
    layers=6,
    heads=16,
    kv_heads=8,
    head_dim=32,
    ffn=768,
    rotaries=(Rotary(1e6),),
    norm_eps=1e-6,
    qk_norm=True,
    tied=True,
    dtype="float32",
    compute="float32",
)
MINILM = encoder.Config(
    vocab=30522,
    width=384,
    layers=6,
    heads=12,
    ffn=1536,
    positions=512,
    pad=None,
    segments=2,
    norm_eps=1e-12,
    dtype="float32",
    compute="float32",
)
LIMIT = 4  # GiB of a process, by `ulimit -d`


def alone(*args: object) -> dict | str:
    """What this program, run with other arguments, prints as JSON.

    If it fails, the last line of why.
    """
    done = subprocess.run(
        [sys.executable, __file__, *map(str, args)], capture_output=True, text=True, check=False
    )
    return (
        json.loads(done.stdout.splitlines()[-1])
        if done.returncode == 0
        else done.stderr.strip().splitlines()[-1]
    )


def table(*rows: tuple) -> None:
    """Markdown; the first row is the head."""
    for row in (rows[0], ["---"] * len(rows[0]), *rows[1:]):
        print("| " + " | ".join(map(str, row)) + " |", flush=True)
    print()


def describe(batch: pod.Batch) -> str:
    questions = f"{batch.queries:,} questions x {batch.short} tokens"
    return f"{questions}, {batch.passages:,} passages x {batch.long}, float32"


def opened(name: str):
    """(model, config, pooling) of a model's name."""
    if name == "MiniLM":
        retriever = Retriever.from_pretrained(demo_models()["retriever"])
        return retriever.model, retriever.cfg, retriever.pooling
    return decoder.Decoder(SMALL, rngs=nnx.Rngs(0)), SMALL, "lasttoken"


def step(name: str, batch: pod.Batch):
    """(compiled training step, its arguments) for texts without padding.

    Passage i is the positive of question i.
    """
    model, cfg, pooling = opened(name)
    random = np.random.default_rng(0)
    texts = lambda *shape: (
        layout.rows(random.integers(5, cfg.vocab, shape, np.int32)),
        layout.rows(np.ones(shape, bool)),
    )
    positive = np.eye(batch.queries, batch.passages, dtype=bool)
    arrays = {
        "queries": texts(batch.queries, batch.short),
        "passages": texts(batch.passages, batch.long),
        "positive": layout.rows(positive),
        "negative": layout.rows(~positive),
    }
    room = pod.rooms(batch.queries * batch.short, batch.passages * batch.long // batch.pieces)
    objective = ContrastiveObjective(
        cfg,
        (VectorForm((pooling,), cfg.width),) * 2,
        batch.pieces,
        room,
        temperature=0.05,
        matryoshka=(),
    )
    args = fit.State.create(model, pod.OPTIMIZER), None, arrays, 1e-5
    return fit.train_step.lower(objective, pod.OPTIMIZER, *args).compile(), args


# --- devices
# --------------------------------------------------------------------------------------------------

WORK = pod.Batch(queries=32, short=16, passages=64, long=64, pieces=1)


def devices() -> None:
    print(f"{machine()}; {describe(WORK)}, mesh (1, n, 1)\n")
    kinds = ("all-gather", "all-reduce", "all-to-all")
    for name in ("MiniLM", "Qwen3"):
        rows = [("model", "devices", "step", "compilation", *kinds)]
        for n in (1, 2, 4, 8):
            measured = alone("on", name, n)
            arrays, size = collections.Counter(), collections.Counter()
            for kind, _, one, times, _ in measured["collectives"]:
                arrays[kind] += times
                size[kind] += times * one
            assert set(arrays) <= set(kinds), arrays
            rows.append(
                (
                    name,
                    n,
                    f"{measured['step']:.2f} s",
                    f"{measured['compilation']:.1f} s",
                    *(f"{arrays[kind]} arrays, {size[kind] / 1e6:.1f} MB" for kind in kinds),
                )
            )
        table(*rows)


def on(name: str, n: str) -> None:
    """Seconds of a step on n fake devices, and what travels in it."""
    jax.config.update("jax_num_cpu_devices", int(n))
    with jax.set_mesh(layout.make_mesh((1, int(n), 1))):
        start = time.perf_counter()
        program, (state, *rest) = step(name, WORK)
        compilation, times = time.perf_counter() - start, []
        for _ in range(4):
            start = time.perf_counter()
            state, metrics = program(state, *rest)
            metrics["loss"].block_until_ready()
            times.append(time.perf_counter() - start)
    print(
        json.dumps(
            {
                "step": statistics.median(times[1:]),
                "compilation": compilation,
                "collectives": program_text.collectives(program.as_text()),
            }
        )
    )


# --- memory
# --------------------------------------------------------------------------------------------------

MANY = pod.Batch(queries=1024, short=16, passages=1024, long=32, pieces=1)


def pieces() -> None:
    print(f"{machine()}; MiniLM, {describe(MANY)}\n")
    rows = [
        (
            "train.chunks",
            "temporaries, by XLA",
            "process before the step",
            "at its most",
            "step",
            f"under `ulimit -d` of {LIMIT} GiB",
        )
    ]
    for pieces in (1, 2, 4, 8, 16, 32):
        bound = alone("peak", pieces, LIMIT)
        failed = isinstance(bound, str)
        measured = alone("peak", pieces, 0) if failed else bound
        rows.append(
            (
                pieces,
                *(f"{measured[name] / 2**30:.2f} GiB" for name in ("temporary", "before", "most")),
                f"{measured['seconds']:.0f} s",
                bound if failed else "runs",
            )
        )
    table(*rows)


def peak(pieces: str, limit: str) -> None:
    """Memory of one real step, in a process with `limit` GiB (0: no limit)."""
    if int(limit):
        resource.setrlimit(resource.RLIMIT_DATA, (int(limit) * 2**30,) * 2)
    resident = lambda: (
        int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) * 1024
    )
    with jax.set_mesh(layout.make_mesh((1, 1, 1))):
        program, args = step("MiniLM", MANY._replace(pieces=int(pieces)))
        before, start = resident(), time.perf_counter()
        loss = float(program(*args)[1]["loss"])
    print(
        json.dumps(
            {
                "temporary": program.memory_analysis().temp_size_in_bytes,
                "before": before,
                "most": resident(),
                "seconds": time.perf_counter() - start,
                "loss": loss,
            }
        )
    )


FITTED = {
    "MiniLM": (MINILM, pod.Batch(32, 16, 64, 128, 1)),
    "Qwen3": (SMALL, pod.Batch(16, 16, 64, 256, 1)),
    "Qwen3 in bfloat16": (
        dataclasses.replace(SMALL, compute="bfloat16"),
        pod.Batch(16, 16, 64, 256, 1),
    ),
}


def prediction() -> None:
    """What `train.memory` predicts and what XLA's program holds, weights included."""
    mesh = layout.make_mesh((1, 1, 1))
    rows = [("model", "train.remat", "train.chunks", "predicted", "held by XLA's program")]
    with jax.set_mesh(mesh):
        for (name, (cfg, batch)), remat, count in itertools.product(
            FITTED.items(), memory.REMATS, (1, 2, 4)
        ):
            work = batch._replace(pieces=count)
            kind = dataclasses.replace(cfg, remat=remat)
            held = pod.compiled_on(kind, work)
            measured = held["arguments"] + held["temporary"]
            sizes = (pod.predicted(kind, work).total, measured)
            rows.append((name, remat, count, *(f"{size / 1e6:,.0f} MB" for size in sizes)))
    table(*rows)


# --- a pod, on paper
# -------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Machine:
    """One device: bytes of memory, and bytes a second of the memory and of all incoming links."""

    kind: str
    devices: int
    memory: float
    hbm: float
    links: float


# cloud.google.com/tpu/docs/v5e: 16 GB, 819 GB/s, links of 400 GB/s both ways. NVIDIA's data sheet
# of the H100 SXM: 80 GB, 3.35 TB/s, NVLink of 900 GB/s both ways.
MACHINES = {
    "v5e-256": Machine("TPU v5 lite", 256, 16e9, 819e9, 200e9),
    "8 x H100": Machine("NVIDIA H100 80GB HBM3", 8, 80e9, 3.35e12, 450e9),
}
MFU = 0.4  # assumed, here and in embedding
QUESTIONS, CHUNKS, REWRITES, EPOCHS = (
    10_000,
    100_000,
    10,
    (3, 4, 3),
)  # a run; configs/ark.py has these rewrites and epochs
# A step: 256 questions of 64 tokens, in stage 1 with 10 positives each, later with 20 negatives
# too, of 512 tokens all.
STEPS = (pod.Batch(256, 64, 256 * 10, 512, 1), *[pod.Batch(256, 64, 256 * 30, 512, 1)] * 2)


def choice(name: str, batch: pod.Batch) -> memory.Choice:
    """How `train.remat=auto` and `train.chunks=0` compute a step on the devices of a machine."""
    m = MACHINES[name]
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((1, m.devices, 1), layout.AXES)):
        return memory.choose(
            pod.config("0.6B"),
            "auto",
            0,
            functools.partial(pod.texts, batch),
            trained=4 * pod.parameters("0.6B") / m.devices,
            most_pieces=batch.passages // m.devices,
            available=m.memory,
        )


def travel(name: str) -> None:
    """What a device holds and what travels in a step of stage 2, compiled for fake CPU devices."""
    chosen = choice(name, STEPS[1])
    cfg = dataclasses.replace(pod.config("0.6B"), remat=chosen.remat)
    batch = STEPS[1]._replace(pieces=chosen.pieces)
    print(json.dumps(pod.compiled(cfg, (1, MACHINES[name].devices, 1), batch)))


def estimate() -> None:
    """A step takes its slowest part where compute, memory and links work at once, and compute +
    links where they do not:

    compute = (6 x weights x tokens + 12 x layers x heads x h x pairs) / (devices x peak x MFU)
    memory  = (10 x weights x pieces + 4 x products x tokens of a device + 28 x parameters /
    devices) / bandwidth
    links   = what a device receives in the compiled step / bandwidth

    Left out: the latency of each collective, the host, compiling, scoring, searching, saving.
    """
    cfg = pod.config("0.6B")
    print(f"{inspect.getdoc(estimate)}\n")
    rows = [
        (
            "on",
            "compute",
            "memory",
            "links",
            "a step of stages 2, 3",
            "tokens/s",
            "held by a device",
            "predicted",
        )
    ]
    runs = [("on", *(f"stage {i}" for i in (1, 2, 3)), "embedding, twice", "three stages")]
    for name, m in MACHINES.items():
        chosen, measured = choice(name, STEPS[1]), alone("travel", name)
        collectives = sum(x[3] for x in measured["collectives"])
        print(f"{name}: {chosen.describe()}; {collectives:,} arrays are exchanged in a step\n")
        speed = m.devices * flops.peak(m.kind) * MFU
        links = sum(program_text.Moved(*x).received for x in measured["collectives"]) / m.links
        parts = [
            (compute(cfg, batch) / speed, traffic(cfg, batch, name) / m.hbm, links)
            for batch in STEPS
        ]
        tokens = STEPS[1].queries * STEPS[1].short + STEPS[1].passages * STEPS[1].long
        between = lambda least, most, unit=" s": f"{least:.2f} to {most:.2f}{unit}"
        bounds = [(max(part), part[0] + part[2]) for part in parts]
        rows.append(
            (
                name,
                *(f"{x * 1e3:.0f} ms" for x in parts[1]),
                between(*bounds[1]),
                f"{tokens / bounds[1][1] / 1e6:.2f} to {tokens / bounds[1][0] / 1e6:.2f} M",
                f"{(measured['arguments'] + measured['temporary']) / 1e9:.1f} of "
                f"{m.memory / 1e9:.0f} GB",
                f"{chosen.memory.total / 1e9:.1f} GB",
            )
        )
        count = [
            epochs * -(-QUESTIONS // batch.queries)
            for epochs, batch in zip(EPOCHS, STEPS, strict=True)
        ]
        stages = [[n * least, n * most] for n, (least, most) in zip(count, bounds, strict=True)]
        texts = [512] * CHUNKS + [64] * (REWRITES + 1) * QUESTIONS
        embedding = (
            2 * flops.forward(cfg, sum(texts), flops.attention_pairs(cfg, texts)).sum() / speed
        )
        minutes = [tuple(x / 60 for x in stage) for stage in stages]
        total = [sum(of_case) + embedding / 60 for of_case in zip(*minutes, strict=True)]
        runs.append(
            (
                name,
                *(between(*stage, " min") for stage in minutes),
                f"{embedding / 60:.2f} min",
                between(*total, " min"),
            )
        )
    table(*rows)
    table(*runs)


def compute(cfg, batch: pod.Batch) -> float:
    """Model FLOPs of a step."""
    return flops.training(cfg, [batch.short] * batch.queries + [batch.long] * batch.passages, 0)


def traffic(cfg, batch: pod.Batch, name: str) -> float:
    """Bytes that a device reads and writes at least, where all but products is fused into them.

    Every piece reads the gathered weights in bfloat16 three times (for vectors, for the gradient of
    activations, and once more as GradCache or remat=all computes forward twice) and writes their
    gradient in float32. A product reads its input and writes its output, both times forward and
    twice the same backward. AdamW reads weights, moments and gradient and writes all but the last.
    """
    m, pieces = MACHINES[name], choice(name, batch).pieces
    d, heads, keys, f = cfg.width, cfg.heads * cfg.head_dim, cfg.kv_heads * cfg.head_dim, cfg.ffn
    products = (
        2
        * cfg.layers
        * sum(
            a + b for a, b in [(d, heads), (d, keys), (d, keys), (heads, d), (d, f), (d, f), (f, d)]
        )
    )
    tokens = (batch.queries * batch.short + batch.passages * batch.long) / m.devices
    return (
        10 * flops.weights(cfg) * pieces
        + 4 * products * tokens
        + 28 * pod.parameters("0.6B") / m.devices
    )


# --- the host of a pod
# -------------------------------------------------------------------------------------------------

DEVICES_OF_A_HOST = 4  # of a v5e-256


def host() -> None:
    print(f"{machine()}; STEPS[1] of a v5e-256: its batch, made by one of 64 hosts\n")
    measured = alone("batch", "v5e-256")
    rows = [("part of a batch", "CPU time of the host"), *measured["parts"].items()]
    table(*((part, f"{x * 1e3:.1f} ms" if isinstance(x, float) else x) for part, x in rows))


def batch(name: str) -> None:
    """CPU seconds of a batch and of its costly parts, the medians of 15.

    All devices are fake and of one process, so `layout.build_rows` is replaced by one that builds
    and sends what a process of DEVICES_OF_A_HOST devices would.
    """
    on_paper, work = MACHINES[name], STEPS[1]
    jax.config.update("jax_num_cpu_devices", on_paper.devices)
    share, pieces = DEVICES_OF_A_HOST / on_paper.devices, choice(name, work).pieces
    devices = jax.devices()[:DEVICES_OF_A_HOST]
    layout.build_rows = lambda count, build: tuple(
        [
            jax.device_put(block, device)
            for block, device in zip(np.split(array, len(devices)), devices, strict=True)
        ]
        for array in build(0, round(share * count))
    )
    with jax.set_mesh(layout.make_mesh((1, on_paper.devices, 1))):
        maker = ContrastiveBatches.from_examples(
            [examples(work)], *tokens(work), settings(pieces), count_flops=count_flops
        )
        lengths = list(map(len, maker.passage_tokens.values()))
        seconds = {
            "all": cpu_seconds(lambda: maker(0)),
            "balance of passages": cpu_seconds(lambda: maker.passages.assign_rows(lengths)),
        }
    print(json.dumps({"parts": seconds}))


def cpu_seconds(run) -> float:
    """Of this thread: other programs do not count, nor does what waits."""
    times = []
    for _ in range(16):
        start = time.thread_time()
        run()
        times.append(time.thread_time() - start)
    return statistics.median(times[1:])


def examples(batch: pod.Batch) -> list[Example]:
    """Of a step: a third of the passages are positives."""
    each = batch.passages // batch.queries
    names = [f"document {i // 50}#{i % 50}" for i in range(batch.passages)]
    of = [tuple(names[i * each : (i + 1) * each]) for i in range(batch.queries)]
    return [
        Example(f"q{i}", "d", chunks[: each // 3], chunks[each // 3 :])
        for i, chunks in enumerate(of)
    ]


def tokens(batch: pod.Batch) -> list[dict[str, np.ndarray]]:
    """Token ids of the questions and passages of `examples`, up to a fourth shorter than `long`."""
    random, step = np.random.default_rng(0), examples(batch)
    length = lambda most: random.integers(3 * most // 4, most + 1)
    draw = lambda most: random.integers(5, 1000, length(most)).astype(np.int32)
    passages = sorted({chunk for e in step for chunk in (*e.positives, *e.negatives)})
    return [
        {e.question: draw(batch.short) for e in step},
        {chunk: draw(batch.long) for chunk in passages},
    ]


def count_flops(lengths) -> float:
    return flops.training(pod.config("0.6B"), lengths, 0)


def settings(pieces: int) -> ContrastiveConfig:
    """Only the fields that a batch depends on matter."""
    return ContrastiveConfig(batch=STEPS[1].queries, chunks=pieces, order="question")


if __name__ == "__main__":
    name, *args = sys.argv[1:]
    verbs = (devices, on, pieces, prediction, peak, estimate, travel, host, batch)
    {x.__name__: x for x in verbs}[name](*args)
