"""Embedding and search of MetaQA's triples against sentence-transformers, faiss and torch.

    python tests/benchmarks/triple_search.py [embed] [topk]

`embed` embeds a sample of the triples' texts with MiniLM, tokenisation included. The peer runs as
shipped, and in its best setting: sorted by length in tokens, with the best of three batch sizes and
two matrix precisions. `topk` searches random unit vectors, as many as MetaQA has
triples, for its questions of one hop. SAMPLE, QUERIES and ROUNDS make it smaller.
"""

import functools
import itertools
import os
import sys
import time
from pathlib import Path

import numpy as np
from models import at_roof
from timing import machine, product_rate, race, report

from ark_jax import Retriever, Triples, layout
from ark_jax.demo.models import demo_models
from ark_jax.graph.triple_index import TripleIndex
from ark_jax.graph.triples import triple_texts

DATA = Path(os.environ.get("ARK_DATA", Path(__file__).parents[3] / "shared" / "data"))
METAQA = DATA / "kg" / "metaqa"
SAMPLE, QUERIES, ROUNDS = (
    int(os.environ.get(name, value))
    for name, value in (("SAMPLE", 4_000), ("QUERIES", 1_000), ("ROUNDS", 5))
)
WIDTH, K = 384, 100


@functools.cache
def metaqa() -> Triples:
    files = [METAQA / f"kb_{part}.tsv" for part in ("train", "dev", "test", "test_old")]
    return Triples.read(
        *files, names=METAQA / "kb_entity2text.txt", relation_names=METAQA / "kb_relation2text.txt"
    )


def embed() -> None:
    import torch
    from sentence_transformers import SentenceTransformer

    folder = demo_models()["retriever"]
    ours, theirs = Retriever.from_pretrained(folder), SentenceTransformer(folder, device="cpu")
    graph = metaqa()
    rows = np.sort(np.random.default_rng(0).choice(len(graph), SAMPLE, replace=False))
    texts = triple_texts(graph, rows)
    lengths = [len(ids) for ids in ours.tokenize(texts, kind="document")]
    by_length = [texts[i] for i in np.argsort(lengths, kind="stable")]

    def peer(shown: list[str], batch: int, precision: str) -> np.ndarray:
        torch.set_float32_matmul_precision(precision)
        return theirs.encode(shown, batch_size=batch, show_progress_bar=False)

    def seconds(setting: tuple[int, str]) -> float:
        start = time.perf_counter()
        peer(by_length, *setting)
        return time.perf_counter() - start

    best = min(itertools.product((32, 128, 512), ("highest", "medium")), key=seconds)
    difference = np.abs(ours.encode(texts, kind="document") - peer(texts, 32, "highest")).max()
    contenders = {
        "ark_jax": lambda: ours.encode(texts, kind="document"),
        "sentence-transformers": lambda: peer(texts, 32, "highest"),
        f"the same, sorted, {best[1]}, {best[0]}": lambda: peer(by_length, *best),
    }
    report(
        f"MiniLM, embed {SAMPLE:,} triples of {np.mean(lengths):.1f} tokens "
        f"(largest difference {difference:.0e})",
        "triples",
        SAMPLE,
        race(contenders, rounds=ROUNDS),
        least=at_roof(ours.cfg, lengths),
    )


def topk() -> None:
    import faiss
    import torch

    rng = np.random.default_rng(0)
    unit = lambda x: x / np.linalg.norm(x, axis=1, keepdims=True)
    keys = unit(rng.standard_normal((len(metaqa()), WIDTH), np.float32))
    queries = unit(rng.standard_normal((QUERIES, WIDTH), np.float32))
    index = TripleIndex(keys, np.arange(len(keys)))
    flat = faiss.IndexFlatIP(WIDTH)
    flat.add(keys)
    tensors = torch.from_numpy(queries), torch.from_numpy(keys)

    def torch_top(precision: str):
        torch.set_float32_matmul_precision(precision)
        parts = [(part @ tensors[1].T).topk(K) for part in tensors[0].split(256)]
        return np.concatenate([part.indices.numpy() for part in parts])

    _, scores = index.search(queries, K)
    for name, theirs in {
        "faiss": flat.search(queries, K)[1],
        "torch": torch_top("highest"),
    }.items():
        products = np.einsum("qe,qke->qk", queries.astype(float), keys[theirs].astype(float))
        if np.abs(products - scores).max() > 1e-6:
            raise SystemExit(f"{name} has other triples")
    contenders = {
        "ark_jax": lambda: index.search(queries, K),
        "faiss, IndexFlatIP": lambda: flat.search(queries, K),
        "torch, matmul and topk": lambda: torch_top("highest"),
        "the same, medium": lambda: torch_top("medium"),
    }
    report(
        f"{K} best of {len(keys):,} x {WIDTH} for {QUERIES:,} questions, the same for all",
        "questions",
        QUERIES,
        race(contenders, rounds=ROUNDS),
        least=2 * QUERIES * keys.size / product_rate(QUERIES, WIDTH, 32_768),
    )


if __name__ == "__main__":
    layout.enter_mesh((1, 1, 1))
    parts = {"embed": embed, "topk": topk}
    print(machine())
    for part in sys.argv[1:] or parts:
        parts[part]()
