"""Training on three levels of a graph's triples against sentence-transformers' trainer.

    python tests/benchmarks/triple_training.py [metaqa] [demo]

One epoch of MiniLM in float32, two margins (eq. 5), one neighbour and one negative a question,
tokenisation and all. `metaqa` takes questions about different triples of MetaQA, so that hardly a
batch has a triple twice; `demo` all questions about the demo's 363 triples in batches of 256, in
which most triples come several times. The peer trains the same questions and triples with its
TripletLoss, once for either margin: as shipped, and in its best setting, which is no dropout and
batches of about one length. QUESTIONS, BATCH and ROUNDS make it smaller.
"""

import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from models import under
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import TripletDistanceMetric, TripletLoss
from timing import machine, race, report
from trainer import train_peer
from triple_search import metaqa

from ark_jax import DualEncoder, Retriever, Triples
from ark_jax.demo.models import demo_models
from ark_jax.graph.triples import triple_texts
from ark_jax.train import fit, triplet
from ark_jax.train.config import TripletConfig

QUESTIONS, BATCH, ROUNDS = (
    int(os.environ.get(name, value))
    for name, value in (("QUESTIONS", 512), ("BATCH", 32), ("ROUNDS", 5))
)
FOLDER = demo_models()["retriever"]
MARGINS = (0.2, 0.2)


def questions(graph: Triples, rows: np.ndarray) -> triplet.MaskedQuestions:
    """A question for the tail and one for the head of each triple, in words that do not matter."""
    texts = triple_texts(graph, rows)
    ends = [text.split(" | ") for text in texts]
    asked = [f"what is the {relation} of {head}?" for head, relation, _ in ends]
    asked += [f"what has {tail} as its {relation}?" for _, relation, tail in ends]
    asks_tail = np.repeat([True, False], len(rows))
    return triplet.MaskedQuestions(asked, np.tile(rows, 2), asks_tail)


def config(batch: int) -> TripletConfig:
    return TripletConfig(
        batch=batch,
        loss="triplet",
        margins=MARGINS,
        negatives="random",
        hub=0,
        save_every=10**6,
        remat="products",
    )


def train_ours(graph: Triples, masked: triplet.MaskedQuestions, batch: int) -> None:
    base = Retriever.from_pretrained(FOLDER)
    with tempfile.TemporaryDirectory() as folder:
        triplet.train(
            DualEncoder(base, base),
            graph,
            masked,
            lambda rows: triple_texts(graph, rows),
            config(batch),
            fit.Run(Path(folder)),
            epochs=1,
            learning_rate=1e-5,
            seed=0,
        )


class TwoMargins(torch.nn.Module):
    """TripletLoss of question, triple and neighbour, and of question, neighbour and negative."""

    def __init__(self, model: SentenceTransformer):
        super().__init__()
        cosine = TripletDistanceMetric.COSINE
        self.losses = [
            TripletLoss(model, distance_metric=cosine, triplet_margin=margin) for margin in MARGINS
        ]
        self.model = model

    def forward(self, features, labels=None):
        vectors = [self.model(column)["sentence_embedding"] for column in features]
        question, positive, neighbour, negative = vectors
        first, second = self.losses
        return first.compute_loss_from_embeddings(
            [question, positive, neighbour], None
        ) + second.compute_loss_from_embeddings([question, neighbour, negative], None)


def train_theirs(graph: Triples, masked: triplet.MaskedQuestions, batch: int, best: bool) -> None:
    order, levels = triplet.Epochs(graph, masked, config(batch), epochs=1, seed=0).draw(0)
    text = lambda rows: triple_texts(graph, np.where(rows < 0, levels.negatives, rows)[order])
    columns = {
        "anchor": [masked.texts[i] for i in order],
        "positive": text(levels.positives),
        "neighbour": text(levels.neighbours),
        "negative": text(levels.negatives),
    }
    model = SentenceTransformer(FOLDER, device="cpu")
    train_peer(model, columns, TwoMargins(model), batch, best)


def compare(name: str, graph: Triples, rows: np.ndarray, batch: int) -> None:
    masked = questions(graph, rows)
    peer = lambda best: under(
        "tuned" if best else "default", lambda: train_theirs(graph, masked, batch, best)
    )
    timings = race(
        {
            "ark_jax": lambda: train_ours(graph, masked, batch),
            "sentence-transformers": peer(False),
            "sentence-transformers, best": peer(True),
        },
        rounds=ROUNDS,
    )
    report(f"{name}: {len(masked)} questions, {batch} a step", "questions", len(masked), timings)


if __name__ == "__main__":
    chosen = sys.argv[1:] or ["metaqa", "demo"]
    print(machine())
    if "metaqa" in chosen:
        graph = metaqa()
        rows = np.sort(np.random.default_rng(0).choice(len(graph), QUESTIONS // 2, replace=False))
        compare("MetaQA", graph, rows, BATCH)
    if "demo" in chosen:
        demo = Path(triplet.__file__).parents[1] / "demo" / "gpr"
        graph = Triples.read(demo / "graph.tsv", names=demo / "names.tsv")
        compare("demo", graph, np.arange(len(graph)), 256)
