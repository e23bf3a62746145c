"""Training of an encoder against torch: `python tests/benchmarks/models.py [train] [product]`.

Both sides compute the same numbers from the same weights on the CPU with the same threads; the
differences are printed. The peer runs as shipped, with
`torch.set_float32_matmul_precision("medium")`, faster on some CPUs, and compiled.
"""

import copy
import csv
import functools
import os
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import torch
from timing import machine, product_rate, race, report

from ark_jax import Retriever, layout
from ark_jax.demo.models import demo_models
from ark_jax.train import contrastive, fit, flops, optim
from ark_jax.train.batches import Example
from ark_jax.train.config import ContrastiveConfig

DATA = Path(os.environ.get("ARK_DATA", Path(__file__).parents[3] / "shared" / "data"))
PRECISIONS = {"default": "highest", "tuned": "medium"}
ROUNDS = 9  # of `product`


def under(precision: str, run):
    """`run` with torch set so; the setting is put before each run, since contenders take turns."""

    def go(*arguments):
        torch.set_float32_matmul_precision(PRECISIONS[precision])
        return run(*arguments)

    return go


def stories() -> tuple[list[str], list[str]]:
    """Real passages (story sections) and questions of FairytaleQA."""
    read = lambda pattern, field: [
        row[field]
        for path in sorted((DATA / "fairytaleqa").rglob(pattern))
        for row in csv.DictReader(path.open(encoding="utf-8"))
    ]
    return read("*-story.csv", "text"), read("*-questions.csv", "question")


def at_roof(cfg, lengths: Sequence[int], *, training: bool = False) -> float:
    """Seconds for texts if all of a model's operations ran as fast as a plain product of its
    widest layer."""
    pairs = flops.attention_pairs(cfg, lengths)
    count = flops.forward(cfg, sum(lengths), pairs).sum() * (3 if training else 1)
    return count / product_rate(2048, cfg.dims["d"], cfg.dims["f"])


@functools.cache
def minilm():
    from sentence_transformers import SentenceTransformer

    folder = demo_models()["retriever"]
    return Retriever.from_pretrained(folder), SentenceTransformer(folder, device="cpu")


def train() -> None:
    """One step of contrastive training with 32 questions and 64 passages of 128 tokens."""
    passages, questions = stories()
    alike = [" ".join([*text.split(), *passages[0].split()][:150]) for text in passages[:64]]
    train_on("64 passages x 128 tokens", questions[:32], alike, 128)


def train_on(work: str, questions: list[str], passages: list[str], most: int) -> None:
    ours, theirs = minilm()
    cut = lambda texts, kind: [
        row[: most - 1] + row[-1:] for row in ours.tokenize(texts, kind=kind).tolist()
    ]
    ids = {
        "query": dict(enumerate(cut(questions, "query"))),
        "document": {f"{i:02}": row for i, row in enumerate(cut(passages, "document"))},
    }
    examples = [Example(i, "", (f"{i:02}",), (f"{32 + i}",)) for i in range(32)]
    config = ContrastiveConfig(batch=32, chunks=1, order="question")
    make_batch = contrastive.ContrastiveBatches.from_examples([examples], *ids.values(), config)
    objective = contrastive.ContrastiveObjective(
        ours.cfg,
        (ours.form,) * 2,
        pieces=1,
        piece_tokens=make_batch.piece_tokens,
        temperature=0.05,
        matryoshka=(),
    )
    encoder = copy.deepcopy(theirs[0].auto_model).train()
    for module in encoder.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    padded = []
    for side in ids.values():
        rows = [torch.tensor(row) for row in side.values()]
        tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        padded.append(
            (tokens, torch.arange(tokens.shape[1]) < torch.tensor([[len(row)] for row in rows]))
        )

    def mean(tokens, mask):
        x = encoder(input_ids=tokens, attention_mask=mask.long()).last_hidden_state
        return (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)

    lengths = [len(row) for side in ids.values() for row in side.values()]
    race_steps(
        f"MiniLM, training step, 32 questions and {work}",
        lengths,
        objective,
        ours.model,
        make_batch(0, None).arrays,
        encoder,
        lambda: [mean(*texts) for texts in padded],
    )


def race_steps(
    work: str, lengths: list[int], objective, model, batch, peer: torch.nn.Module, vectors
) -> None:
    """Steps of InfoNCE over all passages of a batch, of which the i-th is question i's, clipping
    and AdamW.

    `vectors()` gives the peer's questions and passages, by its method `forward`. `lengths` are in
    tokens, of all texts.
    """
    optimizer = optim.adamw(weight_decay=0.01, clip=1.0)
    state = fit.State.create(jax.tree.map(jnp.copy, model), optimizer)
    losses, peers = [], []

    def step():
        nonlocal state
        state, metrics = fit.train_step(objective, optimizer, state, None, batch, 1e-5)
        losses.append(float(metrics["loss"]))

    peer_optimizer = torch.optim.AdamW(peer.parameters(), lr=1e-5, weight_decay=0.01, fused=True)

    def peer_step():
        queries, passages = (torch.nn.functional.normalize(x, dim=1) for x in vectors())
        loss = torch.nn.functional.cross_entropy(
            queries @ passages.T / 0.05, torch.arange(len(queries))
        )
        peer_optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(peer.parameters(), 1.0)
        peer_optimizer.step()
        peers.append(float(loss.detach()))

    def compiled_step():
        peer.forward = compiled
        peer_step()
        peer.forward = plain

    plain, compiled = peer.forward, torch.compile(peer.forward)
    runs = {"ark_jax": step, **{f"torch, {p}": under(p, peer_step) for p in PRECISIONS}}
    runs["torch, tuned, torch.compile"] = under("tuned", compiled_step)
    timings = race(runs, rounds=5)
    report(
        f"{work} (first losses {losses[0]:.5f}, {peers[0]:.5f})",
        "tokens",
        sum(lengths),
        timings,
        least=at_roof(objective.cfg, lengths, training=True),
    )


def product() -> None:
    """Forms of one product in bfloat16, and of the gradient of logits, in CPU seconds.

    They hold on a machine that others use too.
    """
    random = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(random.standard_normal(shape), jnp.float32)
    x, w, g = draw(1024, 1024), draw(1024, 3072), draw(1024, 3072)
    half = jnp.bfloat16
    bare, dot = jnp.dot, functools.partial(jnp.dot, preferred_element_type=jnp.float32)
    forms = {
        "float32": (bare, x, w),
        "bfloat16, bare": (bare, x.astype(half), w.astype(half)),
        "bfloat16, accumulated in float32": (dot, x.astype(half), w.astype(half)),
        "float32 x bfloat16, as JAX derives": (dot, g, w.T.astype(half)),
        "both bfloat16, as ours": (dot, g.astype(half), w.T.astype(half)),
    }
    print(f"\nproducts of 1024 x 1024 x 3072, median of {ROUNDS}")
    for name, (form, *factors) in forms.items():
        run = jax.jit(form)
        jax.block_until_ready(run(*factors))
        seconds = []
        for _ in range(ROUNDS):
            start = time.process_time()
            jax.block_until_ready(run(*factors))
            seconds.append(time.process_time() - start)
        median = statistics.median(seconds)
        rate = 2 * 1024 * 1024 * 3072 / median / 1e9
        print(f"  {name:<36} {median * 1e3:8.1f} ms of CPU {rate:8.1f} GFLOP a CPU second")


if __name__ == "__main__":
    layout.enter_mesh((1, 1, 1))
    print(
        f"{machine()}; torch {torch.__version__} with {torch.get_num_threads()} threads, "
        f"jax {jax.__version__}"
    )
    for name in sys.argv[1:] or ["train"]:
        {"train": train, "product": product}[name]()
