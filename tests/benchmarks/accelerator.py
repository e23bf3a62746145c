"""First contact with an accelerator: `python tests/benchmarks/accelerator.py [--tiny] [--out=FILE]
[PART ...]`

Writes one Markdown table: whether every attention kernel and type computes what float32 does on
the same device, how many programs are compiled, speed against torch, transformers and
sentence-transformers where torch sees the device, MFU and memory. The models are Qwen3-0.6B's and
MiniLM's shapes with random weights. `--tiny` takes sizes for a CPU and a minute, whose times mean
nothing. The exit status is 1 if a line says FAILED. Needs `pip install -e '.[test]'`, and
`.[reference]` for torch and tokamax.
"""

import argparse
import contextlib
import dataclasses
import functools
import os
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest import mock

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # torch needs memory too
sys.path.insert(0, str(Path(__file__).parents[1]))

import accelerator_torch as peers
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from accelerator_language import generation_rows, policy_rows, scoring_rows
from accelerator_table import (
    FAILED,
    FULL,
    TINY,
    Row,
    Sizes,
    against,
    compare,
    counted_programs,
    error_of,
    failure,
    judged,
    speed,
    step_row,
    turns,
    words,
)
from support import tiny
from support.matrices import random_matrix
from timing import machine

from ark_jax import Retriever, layout
from ark_jax.graph import pagerank
from ark_jax.models import attention, kernels, packing
from ark_jax.retrieval.dense import Keys, top_k
from ark_jax.runtime.accelerator import KERNELS, device_in_use, float_type
from ark_jax.train import contrastive, flops, memory

# Types that a kernel offers. The largest error, as a share of the largest number, that rounding
# may cause: where float32 products are computed in 10 or 8 bits (GPUs, TPUs), it is that of these.
TYPES = {
    "xla": ("float32", "bfloat16", "float16"),
    "cudnn": ("bfloat16", "float16"),
    "splash": ("float32", "bfloat16"),
    "tokamax": ("float32", "bfloat16"),
}
LIMITS = {"float32": 1e-5, "bfloat16": 5e-2, "float16": 1e-2}


def device_rows(sizes: Sizes) -> Iterator[Row]:
    device, devices = device_in_use(), jax.devices()
    kind = f"{len(devices)} x {devices[0].device_kind}"
    yield Row("device", kind, f"jax {jax.__version__}, {jax.default_backend()}", machine())
    dtype = float_type("auto", device)
    head, tokens = sizes.heads[2], sizes.tokens
    kernel = kernels.choose("auto", device, dtype, head, tokens)
    yield Row("device", f"`auto` for heads of {head}, {tokens} tokens", f"{dtype}, {kernel}")


@functools.partial(jax.jit, static_argnums=(0, 1))
def attended(kernel: str, window: int, visible, *qkv):
    """Outputs and gradients of packed texts, with and without later tokens, and in windows."""
    kinds: list[dict] = [{"causal": True}, {"causal": False}]
    if window:
        kinds.append({"causal": True, "window": window, "reach": jnp.int32(window)})

    def loss(*qkv):
        plan = packing.plan_packing(visible, visible.size)
        packed = [packing.pack(x, plan) for x in qkv]
        attend = functools.partial(attention.attend_packed, *packed, plan, kernel=kernel)
        outs = [packing.unpack(attend(**kind), plan).astype(jnp.float32) for kind in kinds]
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
        window = sizes.tokens // 4 if kernels.has_windows(kernel, causal=True) else 0
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
                ours = jax.block_until_ready(attended(kernel, window, visible, *qkv))
            except Exception as error:  # the next kernel may work
                yield failure("attention", what, error)
                continue
            with jax.default_matmul_precision("highest"):
                wanted = attended("xla", window, visible, *(x.astype("float32") for x in qkv))
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
    rng = np.random.default_rng(0)
    ids = rng.integers(0, tiny.VOCAB, (sizes.texts, sizes.tokens)).astype(np.int32)
    arrays = layout.rows(ids), layout.rows(np.ones_like(ids, bool))
    hidden = jax.jit(lambda cfg, model: model(*arrays, cfg, ids.size), static_argnums=0)
    exact = Retriever.from_pretrained(folder)
    with jax.default_matmul_precision("highest"):
        wanted = np.asarray(hidden(exact.cfg, exact.model), np.float32)
    del exact
    jax.clear_caches()
    for dtype in ("float32", "bfloat16"):
        retriever = Retriever.from_pretrained(folder, dtype=dtype, compute=dtype)
        run = functools.partial(hidden, retriever.cfg, retriever.model)
        seconds = compare(
            lambda run=run: jax.block_until_ready(run()),
            lambda dtype=dtype: peers.forward(folder, ids, dtype),
            sizes.rounds,
        )
        pairs = flops.attention_pairs(retriever.cfg, [sizes.tokens] * sizes.texts)
        count = float(flops.forward(retriever.cfg, ids.size, pairs).sum())
        error = float(np.abs(np.asarray(run(), np.float32) - wanted).mean() / np.abs(wanted).mean())
        row = judged("forward", f"{sizes.texts} x {sizes.tokens} tokens, {dtype}", error, 5e-2)
        figure = f"{speed(count, ids.size, seconds['ours'])}, mean {row.ours}"
        yield dataclasses.replace(row, ours=figure, peer=against(seconds))


def training_rows(sizes: Sizes, folder: Path) -> Iterator[Row]:
    """Steps of contrastive training from float32 weights: as many questions as passages."""
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
    rows = sizes.texts // layout.batch_multiple()
    for dtype in dict.fromkeys((float_type("auto", device_in_use()), "bfloat16")):
        retriever = Retriever.from_pretrained(folder, compute=dtype)
        choice = memory.choose(
            retriever.cfg,
            "auto",
            1,
            lambda _: [memory.Texts(rows, t, rows * t) for t in (8, sizes.tokens)],
            trained=memory.bytes_on_device(retriever.model),
        )
        objective = contrastive.ContrastiveObjective(
            dataclasses.replace(retriever.cfg, remat=choice.remat),
            (retriever.form,) * 2,
            pieces=1,
            piece_tokens=(questions.size, passages.size),
            temperature=0.05,
            matryoshka=(),
        )
        row = step_row(
            objective,
            retriever.model,
            batch,
            lambda dtype=dtype: peers.training(folder, questions, passages, dtype),
            flops.training(retriever.cfg, lengths, 0),
            sum(lengths),
            choice.memory.total,
            sizes.rounds,
        )
        what = f"contrastive step, {sizes.texts} x (8 + {sizes.tokens}) tokens, {dtype}"
        yield dataclasses.replace(row, part="training", what=f"{what}, remat={choice.remat}")


def encoding_rows(sizes: Sizes, folder: Path) -> Iterator[Row]:
    """Texts of many lengths: programs of a first pass, and of a second with other lengths."""
    rng = np.random.default_rng(0)
    dtype = float_type("auto", device_in_use())
    retriever = Retriever.from_pretrained(folder, dtype=dtype, compute=dtype)
    family = type(retriever.model).__name__.lower()
    lengths = lambda: rng.lognormal(np.log(sizes.tokens / 8), 0.7, 64 * sizes.texts)
    draw = lambda: [words(rng, int(min(n, sizes.tokens / 2)) + 1) for n in lengths()]
    texts = draw()
    with counted_programs() as compiled:
        vectors = retriever.encode(texts, kind="document")
        first = len(compiled)
        retriever.encode(draw(), kind="document")
        second = len(compiled) - first
    run = functools.partial(retriever.encode, texts, kind="document")
    seconds = compare(run, lambda: peers.encoding(folder, texts, dtype), sizes.rounds)
    error = float(np.abs(np.linalg.norm(vectors, axis=1) - 1).max())
    row = judged("encoding", f"{family}, {len(texts)} texts, {dtype}", error, 1e-5)
    counts = list(map(len, retriever.tokenize(texts, kind="document")))
    flop = float(
        flops.forward(
            retriever.cfg, sum(counts), flops.attention_pairs(retriever.cfg, counts)
        ).sum()
    )
    rate, pace = len(texts) / seconds["ours"], speed(flop, sum(counts), seconds["ours"])
    figure = (
        f"{rate:,.0f} texts/s, {pace}, "
        f"{first} programs in {sum(compiled[:first]):.0f} s, then {second}"
    )
    yield dataclasses.replace(
        row, ours=f"{figure}; lengths of vectors: {row.ours}", peer=against(seconds)
    )


def pagerank_rows(sizes: Sizes) -> Iterator[Row]:
    """Ranks against a direct solution in float64, as the device does it and in pairs."""
    graph = random_matrix(sizes.nodes, 10 * sizes.nodes, True)
    strength = np.asarray(graph.sum(axis=0)).ravel()
    step = 0.85 * graph.T @ scipy.sparse.diags_array(1 / np.maximum(strength, 1e-30))
    seeds = np.flatnonzero(strength)[:8]
    start = np.zeros((sizes.nodes, 8))
    start[seeds, np.arange(8)] = 0.15

    def iterated(rounds: int) -> np.ndarray:
        ranks = start
        for _ in range(rounds):
            ranks = start + step @ ranks
        return ranks.T

    wanted = iterated(250)  # 0.85 ** 250 is 2e-18
    walk = pagerank.Walk(graph)
    for name, forced in (("as this device does it", None), ("residuals on the host", lambda: True)):
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
            host = lambda: {"scipy on the host": lambda: iterated(184)}  # 0.85 ** 184 is 1e-13
            seconds = compare(run, host, sizes.rounds)
        row = judged("PageRank", f"{sizes.nodes:,} nodes, {name}", error, 1e-11)
        figure = f"{seconds['ours'] / 8 * 1e3:.2f} ms a seed set, {row.ours}"
        yield dataclasses.replace(row, ours=figure, peer=against(seconds))


def search_rows(sizes: Sizes) -> Iterator[Row]:
    rng = np.random.default_rng(0)
    unit = lambda x: x / np.linalg.norm(x, axis=1, keepdims=True)
    keys = unit(rng.standard_normal((sizes.keys, 64))).astype(np.float32)
    queries = unit(rng.standard_normal((64, 64))).astype(np.float32)
    scores = queries.astype(np.float64) @ keys.astype(np.float64).T
    wanted = np.sort(scores, axis=1)[:, ::-1][:, :10]
    run = functools.partial(top_k, queries, Keys(keys), 10)
    error = float(np.abs(run()[1] - wanted).max())
    seconds = compare(run, lambda: peers.nearest(queries, keys, 10), sizes.rounds)
    row = judged("nearest keys", f"10 of {sizes.keys:,}, 64 queries", error, 1e-6)
    figure = f"{seconds['ours'] * 1e3:,.1f} ms, {row.ours}"
    yield dataclasses.replace(row, ours=figure, peer=against(seconds))


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


def measure(sizes: Sizes, folder: Path, chosen: Sequence[str]) -> Iterator[Row]:
    """All lines, or those of the chosen parts. A part that fails gives one, and the next begins."""
    parts = {
        "device": functools.partial(device_rows, sizes),
        "attention": functools.partial(attention_rows, sizes),
        "products": functools.partial(product_rows, sizes),
        "forward": functools.partial(forward_rows, sizes, folder / "decoder"),
        "training": functools.partial(training_rows, sizes, folder / "decoder"),
        "encoding": functools.partial(encoding_rows, sizes, folder / "decoder"),
        "MiniLM": functools.partial(encoding_rows, sizes, folder / "encoder"),
        "scoring": functools.partial(scoring_rows, sizes, folder / "language"),
        "generation": functools.partial(generation_rows, sizes, folder / "language"),
        "policy": functools.partial(policy_rows, sizes, folder / "language"),
        "PageRank": functools.partial(pagerank_rows, sizes),
        "nearest keys": functools.partial(search_rows, sizes),
        "memory": functools.partial(memory_rows, sizes),
    }
    with write_models(sizes, folder):
        for part in chosen or parts:
            try:
                yield from parts[part]()
            except Exception as error:  # the other parts may work
                traceback.print_exc()
                yield failure(part, "", error)
            jax.clear_caches()
            peers.free()


@contextlib.contextmanager
def write_models(sizes: Sizes, folder: Path) -> Iterator[None]:
    """A retriever and a language model of one decoder's weights, and a retriever like MiniLM."""
    with mock.patch.multiple(tiny, **sizes.encoder) if sizes.encoder else contextlib.nullcontext():
        if not (folder / "encoder").is_dir():
            tiny.write(folder / "encoder", "bert", tokenizer="cls")
            tiny.sentence_transformer(folder / "encoder", pooling="mean")
    with mock.patch.multiple(tiny, **sizes.decoder) if sizes.decoder else contextlib.nullcontext():
        if not (folder / "decoder").is_dir():
            tiny.write(folder / "decoder", "qwen3", tokenizer="end", dtype="bfloat16")
            tiny.sentence_transformer(folder / "decoder", pooling="lasttoken")
            (folder / "language").mkdir()
            for name in ("config.json", "model.safetensors"):
                (folder / "language" / name).symlink_to(folder / "decoder" / name)
            tiny.make_tokenizer(folder / "language", "plain")
        yield


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", help="such as attention, training; default: all")
    parser.add_argument("--tiny", action="store_true", help="sizes for a CPU and a minute")
    parser.add_argument("--out", type=Path, help="file that gets the table too")
    parser.add_argument("--models", type=Path, help="folder that keeps the models for other runs")
    options = parser.parse_args(arguments)
    layout.enter_mesh((1, -1, 1))
    table = ["| part | what | ours | peer (how many times faster ours is) | verdict |"]
    table += ["|---|---|---|---|---|"]
    failed = False
    print("\n".join(table))
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.models or Path(temporary)
        for row in measure(TINY if options.tiny else FULL, folder, options.parts):
            table.append("| " + " | ".join(dataclasses.astuple(row)) + " |")
            print(table[-1], flush=True)
            failed |= row.verdict.startswith(FAILED)
            if options.out:
                options.out.write_text("\n".join(table) + "\n", encoding="utf-8")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
