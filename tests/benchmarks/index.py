"""What an index takes: `python tests/benchmarks/index.py [CHUNKS] [--embed]`.

Documents are made of words as frequent as natural ones (Zipf's law), cut, indexed, and searched
with MiniLM; the process may have LIMIT GiB of data. Without --embed the vectors of passages are
drawn at random, since embedding a million takes a CPU a day: then neither time nor memory counts
that work.
"""

import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from timing import machine

import ark_jax as ark
from ark_jax.data.records import Document
from ark_jax.data.spool import Documents
from ark_jax.demo.models import demo_models
from ark_jax.models.retriever import Retriever

LIMIT = 4  # GiB
WORDS, VOCABULARY = 85, 400_000  # of a passage, about, and of all
QUESTION = "Which word w17 stands beside word w4211 and w90210?"


def documents(chunks: int) -> Documents:
    """Documents on disk, as a reader of files would have them."""
    random = np.random.default_rng(0)
    texts = Documents()
    for number in range(max(chunks // 20, 1)):
        ranks = random.zipf(1.2, 20 * WORDS) % VOCABULARY
        ends = np.where(np.arange(1, len(ranks) + 1) % 16, "", ".")
        words = " ".join(f"w{rank}{end}" for rank, end in zip(ranks, ends, strict=True))
        texts.append(Document(f"d{number}", f"Document {number}", words))
    return texts


def draw_vectors() -> None:
    """Replaces the vectors of documents by random ones."""
    encode = Retriever.encode

    def drawn(self, texts, *, kind, **options):
        if kind == "query":
            return encode(self, texts, kind=kind, **options)
        seed = len(texts[0]) if texts else 0
        vectors = np.random.default_rng(seed).normal(size=(len(texts), self.width))
        return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)

    Retriever.encode = drawn


def main() -> None:
    numbers = [word for word in sys.argv[1:] if word.isdigit()]
    wanted = int(numbers[0]) if numbers else 20_000
    resource.setrlimit(resource.RLIMIT_DATA, (LIMIT << 30, LIMIT << 30))
    if "--embed" not in sys.argv:
        draw_vectors()
    corpus, rows = documents(wanted), []
    with tempfile.TemporaryDirectory() as folder:
        start = time.process_time()
        index = ark.Index.build(Path(folder) / "index", demo_models()["retriever"], corpus)
        rows.append(("build", time.process_time() - start))
        for by in ("bm25", "dense", "hybrid"):
            index.search([QUESTION], by=by)  # compiles, and reads the files once
            start = time.process_time()
            index.search([QUESTION], by=by)
            rows.append((f"a question by {by}", time.process_time() - start))
        size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    status = Path("/proc/self/status").read_text().split()
    peak = int(status[status.index("VmHWM:") + 1]) / 1024**2
    own = int(status[status.index("RssAnon:") + 1]) / 1024**2
    print(f"\n{len(index):,} chunks; {machine()}\n\n| step | CPU seconds |\n|---|---|")
    print("\n".join(f"| {name} | {seconds:,.2f} |" for name, seconds in rows))
    print(f"\n{size / 1024**3:.2f} GiB on disk. Peak memory {peak:.2f} GiB with the mapped files,")
    print(f"{own:.2f} GiB at the end without them; the limit on data was {LIMIT} GiB.")


if __name__ == "__main__":
    main()
