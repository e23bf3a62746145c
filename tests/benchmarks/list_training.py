"""Training of pair scorers on lists against sentence-transformers' CrossEncoderTrainer.

    python tests/benchmarks/list_training.py

One epoch of MiniLM in float32, tokenisation and all. A list is a question about a node of MetaQA's
graph with one right and seven wrong paths, which differ in their last relation. The peer is a
CrossEncoder under ListNetLoss with one relevant text, which is the same loss: as shipped, and in
its best setting, which is no dropout, all pairs of a step in one forward pass and batches of about
one length. Ours has the head `linear`, which is the peer's model. LISTS, BATCH and ROUNDS make it
smaller.
"""

import os
import tempfile
from pathlib import Path

import numpy as np
from models import under
from sentence_transformers import CrossEncoder
from sentence_transformers.cross_encoder.losses import ListNetLoss
from timing import machine, race, report
from trainer import train_peer
from triple_search import metaqa

import ark_jax
from ark_jax.demo.models import demo_models
from ark_jax.graph.steps import Steps, path_text
from ark_jax.train import fit, listwise
from ark_jax.train.config import AdapterConfig
from ark_jax.train.lists import PairList

LISTS, BATCH, ROUNDS = (
    int(os.environ.get(name, value))
    for name, value in (("LISTS", 128), ("BATCH", 16), ("ROUNDS", 5))
)
NEGATIVES = 7
FOLDER = demo_models()["retriever"]
RELEVANT = 50.0  # the softmax of the peer's labels is then 1 for the right path


def lists() -> list[PairList]:
    """Questions in words that do not matter, about paths of one to three relations."""
    steps = Steps(metaqa())
    rng = np.random.default_rng(0)
    out = []
    for topic in rng.choice(len(steps.graph.nodes), LISTS, replace=False).tolist():
        name, hops = steps.graph.nodes.name(topic), int(rng.integers(1, 4))
        *before, right = (steps.names[step] for step in rng.integers(0, len(steps), hops))
        wrong = [name for name in rng.permutation(steps.names) if name != right][:NEGATIVES]
        rights = tuple(path_text(name, [*before, last], False) for last in (right, *wrong))
        question = f"what is the {right} of the {' of the '.join([*before, name])}?"
        out.append(PairList(question, rights, (1.0,) * len(rights)))
    return out


def train_ours(trained_on: list[PairList], losses: list[float]) -> None:
    config = AdapterConfig(save_every=10**6, remat="products")
    with tempfile.TemporaryDirectory() as folder:
        scorer = ark_jax.CrossEncoder.from_pretrained(FOLDER, head="linear")
        _, _, curve = listwise.train(
            scorer,
            trained_on,
            config,
            fit.Run(Path(folder)),
            batch=BATCH,
            epochs=1,
            learning_rate=1e-5,
            seed=0,
        )
    losses.append(float(np.mean([row["loss"] for row in curve])))


def train_theirs(trained_on: list[PairList], best: bool, losses: list[float]) -> None:
    columns = {
        "anchor": [one.left for one in trained_on],
        "paths": [list(one.rights) for one in trained_on],
        "labels": [[RELEVANT] + [0.0] * NEGATIVES for _ in trained_on],
    }
    model = CrossEncoder(str(FOLDER), num_labels=1, device="cpu")
    loss = ListNetLoss(model, mini_batch_size=0 if best else None)
    losses.append(train_peer(model, columns, loss, BATCH, best))


if __name__ == "__main__":
    print(machine())
    trained_on = lists()
    losses = {name: [] for name in ("linear", "default", "tuned")}
    peer = lambda name: under(name, lambda: train_theirs(trained_on, name == "tuned", losses[name]))
    timings = race(
        {
            "ark_jax": lambda: train_ours(trained_on, losses["linear"]),
            "sentence-transformers": peer("default"),
            "sentence-transformers, best": peer("tuned"),
        },
        rounds=ROUNDS,
    )
    shown = ", ".join(f"{name} {values[0]:.3f}" for name, values in losses.items())
    work = f"MiniLM, {LISTS} lists of {1 + NEGATIVES} paths, {BATCH} a step (mean losses {shown})"
    report(work, "lists", LISTS, timings)
