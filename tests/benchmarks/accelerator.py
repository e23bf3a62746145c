"""First contact with an accelerator: `python tests/benchmarks/accelerator.py [--tiny] [--out=FILE]`

Writes one Markdown table: whether every attention kernel and type computes what float32 does on
the same device, how many programs are compiled, speed against torch where torch sees the device,
MFU and memory. `--tiny` takes sizes for a CPU and a minute, whose times mean nothing. The exit
status is 1 if a line says FAILED. Needs `pip install -e '.[test]'`, and `.[reference]` for torch
and tokamax.
"""

import argparse
import dataclasses
import functools
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # torch needs memory too
sys.path.insert(0, str(Path(__file__).parents[1]))

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from accelerator_table import (
    FAILED,
    FULL,
    TINY,
    Row,
    Sizes,
    against,
    counted_programs,
    failure,
    judged,
    speed,
    turns,
)
from accelerator_torch import torch_forward, torch_model, torch_training
from support import tiny
from support.matrices import random_matrix
from timing import machine

from ark_jax import LanguageModel, Retriever, layout
from ark_jax.graph import pagerank
from ark_jax.models import attention, kernels, packing
from ark_jax.retrieval.dense import top_k
from ark_jax.runtime.accelerator import KERNELS, device_in_use, float_type
from ark_jax.train import contrastive, fit, flops, optim

# Types that a kernel offers. The largest error, as a share of the largest number, that rounding
# may cause: where float32 products are computed in 10 or 8 bits (GPUs, TPUs), it is that of these.
TYPES = {
    "xla": ("float32", "bfloat16", "float16"),
    "cudnn": ("bfloat16", "float16"),
    "splash": ("float32", "bfloat16"),
    "tokamax": ("float32", "bfloat16"),
}
LIMITS = {"float32": 1e-5, "bfloat16": 5e-2, "float16": 1e-2}


def error_of(ours, wanted) -> float:
    """The largest difference of two trees, as a share of the largest number of its array."""
    leaves = zip(jax.tree.leaves(ours), jax.tree.leaves(wanted), strict=True)
    pairs = [(np.asarray(x, np.float32), np.asarray(y, np.float32)) for x, y in leaves]
    return float(max(np.abs(x - y).max() / np.abs(y).max() for x, y in pairs))


def device_rows(sizes: Sizes) -> Iterator[Row]:
    device, devices = device_in_use(), jax.devices()
    kind = f"{len(devices)} x {devices[0].device_kind}"
    yield Row("device", kind, f"jax {jax.__version__}, {jax.default_backend()}", machine())
    dtype = float_type("auto", device)
    head, tokens = sizes.heads[2], sizes.tokens
    kernel = kernels.choose("auto", device, dtype, head, tokens)
    yield Row("device", f"`auto` for heads of {head}, {tokens} tokens", f"{dtype}, {kernel}")


@functools.partial(jax.jit, static_argnums=(0,))
def attended(kernel: str, visible, *qkv):
    """Outputs and gradients of packed texts, with and without later tokens."""

    def loss(*qkv):
        plan = packing.plan_packing(visible, visible.size)
        packed = [packing.pack(x, plan) for x in qkv]
        attend = functools.partial(attention.attend_packed, *packed, plan, kernel=kernel)
        outs = [packing.unpack(attend(causal=x), plan).astype(jnp.float32) for x in (True, False)]
        return sum(jnp.sum(jnp.sin(out)) for out in outs), outs

    (_, outs), gradients = jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)(*qkv)
    return outs, gradients


def attention_rows(sizes: Sizes) -> Iterator[Row]:
    """Every kernel in every type that it offers, against our own in float32 and full precision."""
    rng = np.random.default_rng(0)
    n, k, h = sizes.heads
    lengths = rng.integers(1, sizes.tokens + 1, sizes.texts)
    visible = layout.rows(np.arange(sizes.tokens) < lengths[:, None])
    exact = device_in_use().platform == "cpu"
    for kernel in KERNELS[1:]:
        for dtype in TYPES[kernel]:
            what = f"{kernel}, {dtype}"
            if reason := absence(kernel):
                yield Row("attention", what, "", "", reason)
                continue
            qkv = [
                jax.device_put(
                    jnp.asarray(rng.standard_normal((*visible.shape, heads, h)), dtype),
                    attention.activation_spec("b t n h"),
                )
                for heads in (n, k, k)
            ]
            try:
                ours = jax.block_until_ready(attended(kernel, visible, *qkv))
            except Exception as error:  # the next kernel may work
                yield failure("attention", what, error)
                continue
            with jax.default_matmul_precision("highest"):
                wanted = attended("xla", visible, *(x.astype("float32") for x in qkv))
            limit = LIMITS[dtype] if exact or dtype != "float32" else 2e-2
            yield judged("attention", what, error_of(ours, wanted), limit)


def absence(kernel: str) -> str:
    """Why a kernel cannot run on this device; "" if it can."""
    device = device_in_use()
    if kernel == "cudnn" and device.capability < 8:
        return "needs an NVIDIA GPU, Ampere or later"
    if kernel == "splash" and device.platform == "gpu":
        return "needs a TPU"
    if kernel == "tokamax":
        try:
            import tokamax  # noqa: F401
        except ImportError:
            return "pip install tokamax"
    return ""


def product_rows(sizes: Sizes) -> Iterator[Row]:
    """What the device reaches in one product of activations and weights, its roof in practice."""
    for dtype in ("float32", "bfloat16"):
        seconds = product_seconds(sizes, dtype)
        rate = 2 * np.prod(sizes.product, dtype=float) / seconds
        peak = flops.peak(jax.devices()[0].device_kind)
        share = f", {100 * rate / peak:.0f} % of the published bfloat16 peak" if peak else ""
        what = f"{'x'.join(map(str, sizes.product))}, {dtype}"
        yield Row("products", what, f"{rate / 1e12:.3g} TFLOP/s{share}")


def product_seconds(sizes: Sizes, dtype: str) -> float:
    m, k, n = sizes.product
    rng = np.random.default_rng(0)
    x, w = (jnp.asarray(rng.standard_normal(shape), dtype) for shape in ((m, k), (k, n)))
    multiply = jax.jit(functools.partial(jnp.dot, preferred_element_type=jnp.float32))
    return turns({"ours": lambda: jax.block_until_ready(multiply(x, w))}, sizes.rounds)["ours"]


def forward_rows(sizes: Sizes, folder: Path) -> Iterator[Row]:
    """Hidden states of texts of one length, against float32 in full precision."""
    peer, place = torch_model(folder)
    rng = np.random.default_rng(0)
    ids = rng.integers(0, tiny.VOCAB, (sizes.texts, sizes.tokens)).astype(np.int32)
    arrays = layout.rows(ids), layout.rows(np.ones_like(ids, bool))
    opened = {t: Retriever.from_pretrained(folder, compute=t) for t in ("float32", "bfloat16")}
    hidden = jax.jit(lambda cfg, model: model(*arrays, cfg, ids.size), static_argnums=0)
    with jax.default_matmul_precision("highest"):
        exact = opened["float32"]
        wanted = np.asarray(hidden(exact.cfg, exact.model), np.float32)
    jax.clear_caches()
    for dtype, retriever in opened.items():
        run = functools.partial(hidden, retriever.cfg, retriever.model)
        contenders = {"ours": lambda run=run: jax.block_until_ready(run())}
        if peer is not None:
            contenders |= torch_forward(peer, place, ids, dtype)
        seconds = turns(contenders, sizes.rounds)
        pairs = flops.attention_pairs(retriever.cfg, [sizes.tokens] * sizes.texts)
        count = float(flops.forward(retriever.cfg, ids.size, pairs).sum())
        error = float(np.abs(np.asarray(run(), np.float32) - wanted).mean() / np.abs(wanted).mean())
        row = judged("forward", f"{sizes.texts} x {sizes.tokens} tokens, {dtype}", error, 5e-2)
        figure = f"{speed(count, ids.size, seconds['ours'])}, mean {row.ours}"
        yield dataclasses.replace(row, ours=figure, peer=against(seconds))


def training_rows(sizes: Sizes, folder: Path) -> Iterator[Row]:
    """Steps of contrastive training from float32 weights: as many questions as passages."""
    peer, place = torch_model(folder)
    rng = np.random.default_rng(0)
    draw = lambda t: rng.integers(0, tiny.VOCAB, (sizes.texts, t)).astype(np.int32)
    questions, passages = draw(8), draw(sizes.tokens)
    texts = lambda x: (layout.rows(x), layout.rows(np.ones_like(x, bool)))
    batch = {
        "queries": texts(questions),
        "passages": texts(passages),
        "positive": layout.rows(np.eye(sizes.texts, dtype=bool)),
        "negative": layout.rows(~np.eye(sizes.texts, dtype=bool)),
    }
    lengths = [8] * sizes.texts + [sizes.tokens] * sizes.texts
    for dtype in ("float32", "bfloat16"):
        retriever = Retriever.from_pretrained(folder, compute=dtype)
        objective = contrastive.ContrastiveObjective(
            retriever.cfg,
            "lasttoken",
            retriever.cfg.width,
            pieces=1,
            piece_tokens=(questions.size, passages.size),
            temperature=0.05,
            matryoshka=(),
        )
        optimizer = optim.adamw(weight_decay=0.01, clip=1.0)
        state = fit.State.create(jax.tree.map(jnp.copy, retriever.model), optimizer)
        losses = []

        def step() -> None:
            nonlocal state
            state, metrics = fit.train_step(objective, optimizer, state, None, batch, 1e-5)  # noqa: B023
            losses.append(float(metrics["loss"]))  # noqa: B023

        contenders = {"ours": step}
        if peer is not None:
            contenders |= torch_training(peer, place, questions, passages, dtype)
        with counted_programs() as compiled:
            step()
            first = len(compiled)
            step()
            again = len(compiled) - first
        seconds = turns(contenders, sizes.rounds)
        count = flops.training(retriever.cfg, lengths, 0)
        finite = np.isfinite(losses).all()
        verdict = "ok" if finite and not again else FAILED
        verdict += "" if finite else f": losses {losses[:3]}"
        verdict += f": step 2 compiled {again} programs" if again else ""
        figure = speed(count, sum(lengths), seconds["ours"])
        what = f"step, {sizes.texts} x (8 + {sizes.tokens}) tokens, {dtype}"
        yield Row("training", what, f"{figure}, {first} programs", against(seconds), verdict)


def words(rng: np.random.Generator, count: int) -> str:
    return " ".join(rng.choice(["the", "tide", "table", "of", "Great", "Surge", "1850"], count))


def language_rows(sizes: Sizes, folder: Path) -> Iterator[Row]:
    """Log-likelihoods of answers to shared chunks against float32, and greedy replies."""
    rng = np.random.default_rng(0)
    chunks = [words(rng, sizes.tokens // 2) for _ in range(max(2, sizes.texts // 8))]
    pairs = [(chunk, f" {words(rng, 4)}") for chunk in chunks for _ in range(4)]
    with jax.default_matmul_precision("highest"):
        exact = LanguageModel.from_pretrained(folder)
        wanted = exact.log_likelihood(pairs).mean
    jax.clear_caches()
    dtype = "bfloat16"
    lm = LanguageModel.from_pretrained(folder, dtype=dtype, compute=dtype)
    prompts = [words(rng, 8) for _ in range(4)]
    reply = functools.partial(lm.generate, prompts, max_new_tokens=8)
    for part, amount, unit, run in (
        ("scoring", len(pairs), "pairs", lambda: lm.log_likelihood(pairs)),
        ("generation", 32, "new tokens at most", reply),
    ):
        with counted_programs() as compiled:
            scores = run()
            first = len(compiled)
            seconds = turns({"ours": run}, sizes.rounds)["ours"]
            again = len(compiled) - first
        verdict = f"{FAILED}: {again} programs compiled again" if again else "ok"
        figure = f"{seconds * 1e3:,.1f} ms, {first} programs"
        if part == "scoring":
            error = float(np.abs(scores.mean - wanted).mean() / np.abs(wanted).mean())
            row = judged(part, "", error, 5e-2)
            figure, verdict = f"{figure}, mean {row.ours}", row.verdict if not again else verdict
        yield Row(part, f"{amount} {unit}, {dtype}", figure, "", verdict)


def encoding_rows(sizes: Sizes, folder: Path) -> Iterator[Row]:
    """Texts of many lengths: programs of a first pass, and of a second with other lengths."""
    rng = np.random.default_rng(0)
    dtype = float_type("auto", device_in_use())
    retriever = Retriever.from_pretrained(folder, compute=dtype)
    draw = lambda: [words(rng, n) for n in rng.integers(1, sizes.tokens // 2, 8 * sizes.texts)]
    texts = draw()
    with counted_programs() as compiled:
        vectors = retriever.encode(texts, kind="document")
        first = len(compiled)
        retriever.encode(draw(), kind="document")
        second = len(compiled) - first
    run = functools.partial(retriever.encode, texts, kind="document")
    seconds = turns({"ours": run}, sizes.rounds)["ours"]
    error = float(np.abs(np.linalg.norm(vectors, axis=1) - 1).max())
    row = judged("encoding", f"{len(texts)} texts, {dtype}", error, 1e-5)
    figure = f"{len(texts) / seconds:,.0f} texts/s, {first} programs, then {second}"
    yield dataclasses.replace(row, ours=f"{figure}; lengths of vectors: {row.ours}")


def pagerank_rows(sizes: Sizes) -> Iterator[Row]:
    """Ranks against a direct solution in float64, as the device does it and in pairs."""
    graph = random_matrix(sizes.nodes, 10 * sizes.nodes, True)
    strength = np.asarray(graph.sum(axis=0)).ravel()
    step = 0.85 * graph.T @ scipy.sparse.diags_array(1 / np.maximum(strength, 1e-30))
    seeds = np.flatnonzero(strength)[:8]
    wanted = np.zeros((8, sizes.nodes))
    wanted[np.arange(8), seeds] = 1
    start = 0.15 * wanted.T
    for _ in range(250):  # 0.85 ** 250 is 2e-18
        wanted = (start + step @ wanted.T).T
    walk = pagerank.Walk(graph)
    for name, forced in (("as this device does it", None), ("in pairs of float32", lambda: True)):
        run = functools.partial(
            pagerank.personalized_pagerank,
            walk,
            [[seed] for seed in seeds.tolist()],
            teleport=0.15,
            tolerance=1e-13,
            dtype="float64",
        )
        with mock.patch.object(pagerank, "emulates_float64", forced or pagerank.emulates_float64):
            error = float(np.abs(run() - wanted).max())
            seconds = turns({"ours": run}, sizes.rounds)["ours"]
        row = judged("PageRank", f"{sizes.nodes:,} nodes, {name}", error, 1e-11)
        yield dataclasses.replace(row, ours=f"{seconds / 8 * 1e3:.2f} ms a seed set, {row.ours}")


def search_rows(sizes: Sizes) -> Iterator[Row]:
    rng = np.random.default_rng(0)
    unit = lambda x: x / np.linalg.norm(x, axis=1, keepdims=True)
    keys = unit(rng.standard_normal((sizes.keys, 64))).astype(np.float32)
    queries = unit(rng.standard_normal((64, 64))).astype(np.float32)
    scores = queries.astype(np.float64) @ keys.astype(np.float64).T
    wanted = np.sort(scores, axis=1)[:, ::-1][:, :10]
    run = functools.partial(top_k, queries, keys, 10)
    error = float(np.abs(run()[1] - wanted).max())
    seconds = turns({"ours": run}, sizes.rounds)["ours"]
    row = judged("nearest keys", f"10 of {sizes.keys:,}, 64 queries", error, 1e-6)
    yield dataclasses.replace(row, ours=f"{seconds * 1e3:,.1f} ms, {row.ours}")


def memory_rows(sizes: Sizes) -> Iterator[Row]:
    statistics = jax.devices()[0].memory_stats() or {}
    peak, limit = (statistics.get(x) for x in ("peak_bytes_in_use", "bytes_limit"))
    figure = f"{peak / 2**30:.2f} GiB" if peak else "the device does not say"
    yield Row(
        "memory",
        "peak on the first device, all of the above",
        figure,
        f"of {limit} bytes" if limit else "",
    )


def measure(sizes: Sizes, folder: Path) -> Iterator[Row]:
    """All lines. A part that fails gives one, and the next begins."""
    with mock.patch.multiple(tiny, **sizes.checkpoint):
        tiny.write(folder, "qwen3", tokenizer="end")
        parts = {
            "device": functools.partial(device_rows, sizes),
            "attention": functools.partial(attention_rows, sizes),
            "products": functools.partial(product_rows, sizes),
            "forward": functools.partial(forward_rows, sizes, folder),
            "training": functools.partial(training_rows, sizes, folder),
            "scoring": functools.partial(language_rows, sizes, folder),
            "encoding": functools.partial(encoding_rows, sizes, folder),
            "PageRank": functools.partial(pagerank_rows, sizes),
            "nearest keys": functools.partial(search_rows, sizes),
            "memory": functools.partial(memory_rows, sizes),
        }
        for part, rows in parts.items():
            try:
                yield from rows()
            except Exception as error:  # the other parts may work
                yield failure(part, "", error)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="sizes for a CPU and a minute")
    parser.add_argument("--out", type=Path, help="file that gets the table too")
    options = parser.parse_args(arguments)
    layout.enter_mesh((1, -1, 1))
    table = ["| part | what | ours | peer (how many times faster ours is) | verdict |"]
    table += ["|---|---|---|---|---|"]
    failed = False
    print("\n".join(table))
    with tempfile.TemporaryDirectory() as folder:
        for row in measure(TINY if options.tiny else FULL, Path(folder)):
            table.append("| " + " | ".join(dataclasses.astuple(row)) + " |")
            print(table[-1], flush=True)
            failed |= row.verdict.startswith(FAILED)
    if options.out:
        options.out.write_text("\n".join(table) + "\n", encoding="utf-8")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
