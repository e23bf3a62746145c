"""Scoring pairs against sentence-transformers: `python tests/benchmarks/pairs.py [score] [lists]`.

Both sides compute the same logits from the same weights on the CPU with the same threads; the
differences are printed. CrossEncoder runs as shipped, which sorts pairs by length itself, and with
`torch.set_float32_matmul_precision("medium")`, faster on some CPUs.
"""

import functools
import os
import sys
import tempfile

import jax
import numpy as np
import torch
from models import PRECISIONS, at_roof, stories, under
from sentence_transformers import CrossEncoder
from timing import machine, race, report

import ark_jax
from ark_jax import layout
from ark_jax.demo.models import demo_models

PAIRS = int(os.environ.get("ARK_BENCH_PAIRS", "200"))


@functools.cache
def scorers() -> tuple[ark_jax.CrossEncoder, CrossEncoder]:
    """MiniLM, of six layers, with a classifier whose last layer is drawn."""
    ours = ark_jax.CrossEncoder.from_pretrained(demo_models()["retriever"], head="linear")
    folder = tempfile.mkdtemp()
    ours.save_pretrained(folder)
    return ours, CrossEncoder(folder, device="cpu")


def score() -> None:
    """Questions with story sections, as in reranking."""
    passages, questions = stories()
    texts = [(questions[i % len(questions)], passages[i % len(passages)]) for i in range(PAIRS)]
    compete(f"MiniLM, score, {PAIRS:,} pairs of question and story section", texts)


def lists() -> None:
    """Questions with short texts, as relation paths are."""
    _, questions = stories()
    texts = [(questions[i], " ".join(questions[-i].split()[:5])) for i in range(1, 1 + 2 * PAIRS)]
    compete(f"MiniLM, score, {len(texts):,} pairs of question and five words", texts)


def compete(work: str, texts: list[tuple[str, str]]) -> None:
    ours, theirs = scorers()
    texts = sorted(texts, key=lambda pair: -len(pair[0]) - len(pair[1]))
    run = functools.partial(theirs.predict, texts, batch_size=32, show_progress_bar=False)
    difference = np.abs(ours.score(texts) - run()).max()
    peers = {f"CrossEncoder, {name}": under(name, run) for name in PRECISIONS}
    timings = race({"ark_jax": lambda: ours.score(texts), **peers}, rounds=5)
    least = at_roof(ours.cfg.body, [len(row) for row in ours.tokenize(texts).ids])
    work += f" (largest difference {difference:.0e})"
    report(work, "pairs", len(texts), timings, least=least)


if __name__ == "__main__":
    layout.enter_mesh((1, 1, 1))
    print(
        f"{machine()}; torch {torch.__version__} with {torch.get_num_threads()} threads, "
        f"jax {jax.__version__}"
    )
    for name in sys.argv[1:] or ["score", "lists"]:
        {"score": score, "lists": lists}[name]()
