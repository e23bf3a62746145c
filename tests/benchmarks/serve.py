"""A server under load: `python tests/benchmarks/serve.py [REQUESTS] [search]`.

CLIENTS clients send one text each and wait for its vector, again and again; with `search` for the
passages that a hybrid search of PASSAGES stories' passages finds. The server is ours each
time; what differs is the function that embeds the texts that wait: ours, or that of
sentence-transformers, as shipped and in its best setting. Texts are pieces of FairytaleQA's stories
and its questions; their lengths are drawn from 3 to 180 words, short ones as often as long ones on
a scale of doublings. All models are MiniLM, on the CPU, with the same threads.
"""

import dataclasses
import http.client
import itertools
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from models import at_roof, stories
from support import serving
from timing import machine, race, report

import ark_jax as ark
from ark_jax.data.records import Document
from ark_jax.demo.models import demo_models
from ark_jax.serve.models import Embedded, Texts
from ark_jax.serve.open_service import open_service
from ark_jax.serve.service import Service

CLIENTS, ROUNDS = 64, int(os.environ.get("ROUNDS", "5"))
SHORTEST, LONGEST = 3, 180  # words of a text
PASSAGES = 500
PATHS = {"/embed": "inputs", "/search": "question"}  # and the field of the text
BEST_BATCH = 4  # of 4, 8 and 32 texts the one that took the least time


class Peer:
    """sentence-transformers as a lane of the server.

    Args:
        batch: texts that go through the model at once; it sorts all that wait by length.
        precision: of matrix products.
    """

    room = turn = CLIENTS
    of_tokens = False

    def __init__(self, folder: str, batch: int, precision: str):
        from sentence_transformers import SentenceTransformer

        self.model = SentenceTransformer(folder, device="cpu")
        self.batch, self.precision = batch, precision
        self.name, self.width = "minilm", self.model.get_embedding_dimension()
        self.max_length = self.model.max_seq_length

    def size(self, request: Texts) -> int:
        return len(request.texts)

    def prepare(self, request: Texts) -> Sequence[str]:
        return request.texts

    def cost(self, item: str) -> int:
        return 1

    def run(self, items: list[str]) -> list[Embedded]:
        torch.set_float32_matmul_precision(self.precision)
        vectors = self.model.encode(
            items, batch_size=self.batch, show_progress_bar=False, normalize_embeddings=True
        )
        return [Embedded(vector, 0) for vector in vectors]


def mixed_texts(count: int) -> list[str]:
    """Pieces of stories and questions, of mixed lengths."""
    rng = np.random.default_rng(0)
    passages, questions = stories()
    words = " ".join(passages).split()
    sizes = np.exp(rng.uniform(np.log(SHORTEST), np.log(LONGEST), count)).astype(int)
    starts = rng.integers(0, len(words) - LONGEST, count)
    pieces = [" ".join(words[start : start + n]) for start, n in zip(starts, sizes, strict=True)]
    asked = itertools.cycle(questions)
    return [next(asked) if i % 4 == 0 else piece for i, piece in enumerate(pieces)]


def load(port: int, path: str, texts: Sequence[str], seconds: list[float]) -> Callable[[], None]:
    """Lets clients send all texts, and adds the time of each request to `seconds`."""

    def run() -> None:
        left = iter(texts)
        lock = threading.Lock()

        def client() -> None:
            link = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
            while True:
                with lock:
                    text = next(left, None)
                if text is None:
                    return link.close()
                body = json.dumps({PATHS[path]: text, "truncate": True})
                start = time.perf_counter()
                link.request("POST", path, body, {"content-type": "application/json"})
                answer = link.getresponse()
                data = answer.read()
                assert answer.status == 200, data
                seconds.append(time.perf_counter() - start)

        threads = [threading.Thread(target=client) for _ in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return run


def with_peer(service: Service, peer: Peer) -> Service:
    """The same server with another function that embeds."""
    return dataclasses.replace(service, tuned=dataclasses.replace(service.tuned, embedder=peer))


def main() -> None:
    numbers = [int(word) for word in sys.argv[1:] if word.isdigit()]
    texts = mixed_texts(numbers[0] if numbers else 512)
    folder, path = demo_models()["retriever"], "/search" if "search" in sys.argv else "/embed"
    passages = stories()[0][:PASSAGES] if path == "/search" else ["A tide."]
    documents = [Document(str(i), "", text) for i, text in enumerate(passages)]
    with tempfile.TemporaryDirectory() as place:
        index = ark.Index.build(Path(place) / "index", folder, documents)
        ours = open_service(index)
        best = f"sentence-transformers, batches of {BEST_BATCH}, medium"
        services = {
            "ark_jax": ours,
            "sentence-transformers, as shipped": with_peer(ours, Peer(folder, 32, "highest")),
            best: with_peer(ours, Peer(folder, BEST_BATCH, "medium")),
        }
        seconds: dict[str, list[float]] = {name: [] for name in services}
        with serving.serving(ours) as a, serving.serving(services[best]) as c:
            shipped = services["sentence-transformers, as shipped"]
            with serving.serving(shipped) as b:
                ports = [client.port for client in (a, b, c)]
                runs = {
                    name: load(port, path, texts, seconds[name])
                    for name, port in zip(services, ports, strict=True)
                }
                timings = race(runs, rounds=ROUNDS)
        ours.work.close()
    print(machine())
    lengths = [len(row) for row in index.retriever.tokenize(texts, kind="document")]
    report(
        f"{len(texts):,} requests to {path} of {CLIENTS} clients, {np.mean(lengths):.0f} tokens "
        "a text on average",
        "requests",
        len(texts),
        timings,
        least=at_roof(index.retriever.cfg, lengths),
    )
    for name, times in seconds.items():
        counted = times[len(texts) :]  # the first round warms up
        p50, p99 = np.percentile(counted, [50, 99])
        print(f"  {name:<48} p50 {p50 * 1e3:8,.0f} ms   p99 {p99 * 1e3:8,.0f} ms")


if __name__ == "__main__":
    main()
