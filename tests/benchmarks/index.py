"""What an index takes: `python tests/benchmarks/index.py [CHUNKS] [--embed] [--tokens]`.

As many documents of one passage are made of words as frequent as natural ones (Zipf's law). They
are indexed, a hundredth of them changes and another is deleted, as many are added, and questions
are asked. Each step prints its seconds and its peak memory: of the process, and its parts. Pages of
mapped files are memory that the system takes back when it needs some. The process may have LIMIT
GiB of data.

The encoder is MiniLM's first layer on the first TOKENS tokens, since all of MiniLM would embed a
million passages in a CPU day; with --embed it does. With --tokens each passage has PASSAGE_TOKENS
vectors in two bits, and these codes are drawn at random in place of encoding.
"""

import contextlib
import json
import re
import resource
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file
from timing import machine

import ark_jax as ark
from ark_jax.data.records import Document
from ark_jax.demo.models import demo_models
from ark_jax.models.multi_vector import MultiVectorRetriever
from ark_jax.retrieval import codes
from ark_jax.retrieval.chunks import ChunkRules
from ark_jax.text.token_vectors import TokenVectors

LIMIT = 4  # GiB
WORDS, VOCABULARY = 30, 400_000  # of a passage, and of all
TOKENS = 8  # that the small encoder reads
PASSAGE_TOKENS = 180
RULES = ChunkRules(tokens=512)
QUESTION = "Which word w17 stands beside word w4211 and w90210?"
KINDS = {"all": "VmRSS", "own": "RssAnon", "mapped": "RssFile"}
COLUMNS = ("step", "seconds", "CPU seconds", "peak memory, GiB", "own", "mapped files")
_BLOCK = 4096  # documents that are drawn at once


def documents(count: int, seed: int) -> Iterator[Document]:
    """Documents of about 200 characters; equal counts and seeds give equal ones."""
    random = np.random.default_rng(seed)
    for first in range(0, count, _BLOCK):
        ranks = random.zipf(1.2, (_BLOCK, WORDS)) % VOCABULARY
        for number, row in enumerate(ranks[: count - first].tolist(), first):
            sentences = (row[start : start + 10] for start in range(0, WORDS, 10))
            text = " ".join(" ".join(f"w{rank}" for rank in words) + "." for words in sentences)
            yield Document(f"{seed}-{number}", f"Document {number}", text)


def write_corpus(path: Path, count: int, changed: int = 0) -> None:
    """Writes documents, of which the last ones have another text and the first are left out."""
    with path.open("w") as file:
        for number, document in enumerate(documents(count, seed=0)):
            if number < changed:
                continue
            text = document.text + " Changed." * (number >= count - changed)
            file.write(json.dumps(vars(document) | {"text": text, "sections": []}) + "\n")


def small_encoder(folder: Path) -> Path:
    """MiniLM's embeddings and first layer, in a folder of their own."""
    shutil.copytree(demo_models()["retriever"], folder)
    for name, field, value in (
        ("config.json", "num_hidden_layers", 1),
        ("sentence_bert_config.json", "max_seq_length", TOKENS),
    ):
        settings = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(settings | {field: value}))
    weights = load_file(folder / "model.safetensors")
    later = re.compile(r"encoder\.layer\.[1-9]")
    early_weights = {name: value for name, value in weights.items() if not later.search(name)}
    save_file(early_weights, folder / "model.safetensors")
    return folder


def draw_codes(model: Path, folder: Path) -> Path:
    """A model of tokens in a folder of its own; passages get random codes from now on."""
    MultiVectorRetriever.from_pretrained(model).save_pretrained(folder)
    random, encode = np.random.default_rng(2), MultiVectorRetriever.encode

    def draw(self, texts, *, kind, **options):
        if kind == "query":
            return encode(self, texts, kind=kind, **options)
        offsets = np.arange(len(texts) + 1) * PASSAGE_TOKENS
        shape = int(offsets[-1]), codes.columns(self.width, 2)
        return TokenVectors(random.integers(0, 1 << 32, shape, codes.DTYPE), offsets)

    MultiVectorRetriever.encode = draw
    return folder


@contextlib.contextmanager
def step(name: str) -> Iterator[None]:
    """Prints a row of the table: seconds and peak memory."""
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
    peaks, done = memory(), threading.Event()

    def watch() -> None:
        while not done.wait(0.05):
            peaks.update({kind: max(peaks[kind], size) for kind, size in memory().items()})

    watcher = threading.Thread(target=watch)
    start, cpu = time.perf_counter(), time.process_time()
    watcher.start()
    try:
        yield
    finally:
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        done.set()
        watcher.join()
    peaks["all"] = memory("VmHWM")["all"]
    sizes = " | ".join(f"{size:.2f}" for size in peaks.values())
    print(f"| {name} | {seconds:,.2f} | {cpu:,.2f} | {sizes} |", flush=True)


def memory(of_all: str = KINDS["all"]) -> dict[str, float]:
    """GiB of this process by kind."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    names = KINDS | {"all": of_all}
    return {kind: int(fields[name].split()[0]) / 1024**2 for kind, name in names.items()}


def main() -> None:
    numbers = [word for word in sys.argv[1:] if word.isdigit()]
    count = int(numbers[0]) if numbers else 10_000
    resource.setrlimit(resource.RLIMIT_DATA, (LIMIT << 30, LIMIT << 30))
    part = max(count // 100, 1)
    with tempfile.TemporaryDirectory() as place:
        print(f"{machine()}\n\n| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|")
        corpus, folder = Path(place) / "documents.jsonl", Path(place) / "index"
        embeds = "--embed" in sys.argv
        model = demo_models()["retriever"] if embeds else small_encoder(Path(place) / "model")
        if "--tokens" in sys.argv:
            model = draw_codes(model, Path(place) / "tokens")
        write_corpus(corpus, count)
        with step("build"):
            ark.Index.build(folder, model, corpus, rules=RULES)
        write_corpus(corpus, count, changed=part)
        with step(f"build again, {part:,} changed, {part:,} deleted"):
            ark.Index.build(folder, model, corpus, rules=RULES)
        with step(f"add {part:,}"):
            ark.Index.open(folder).add(documents(part, seed=1))
        with step("open"):
            index = ark.Index.open(folder)
        for by in ("bm25", "dense", "hybrid"):
            with step(f"first question by {by}"):
                index.search([QUESTION], by=by)
            with step("next"):
                index.search([QUESTION], by=by)
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        print(f"\n{len(index):,} chunks, {size / 1024**3:.2f} GiB on disk")


if __name__ == "__main__":
    main()
