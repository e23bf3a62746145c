"""A tiny index behind a real server: in a thread of this process, or as a user starts it."""

import contextlib
import dataclasses
import http.client
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import pytest
from support import pairs, tiny
from support.paths import REPOSITORY

from ark_jax import layout
from ark_jax.data.records import Document
from ark_jax.index.index import Index
from ark_jax.index.reader import Reader
from ark_jax.serve import ladder, server
from ark_jax.serve.app import make_app
from ark_jax.serve.open_service import open_service
from ark_jax.serve.service import Service

TEXTS = {
    "tide": "Josiah Penhallow founded the Tidal Board in 1784. It measured every tide.",
    "salt": "The Pellin Salt Company boiled brine. Horses worked its pumps.",
    "glocke": "Die Glocke der Kirche wurde 1811 gegossen. Sie läutet bei Sturm.",
    "markup": "A <script>document.title = 'evil'</script> & <b>bold</b> tide of the Board.",
}
QUESTION = "Who founded the Tidal Board?"
TIMEOUT = 120
# `ark-jax` with few shapes, as `open_tiny` has them.
PROGRAM = """
from ark_jax.serve import ladder
ladder.LENGTHS, ladder.ROOMS = (64,), 1
from ark_jax.__main__ import main
main()
"""


def world(root: Path) -> Path:
    """Writes two retrievers, a reranker and an index of `TEXTS` into a folder; returns it."""
    tiny.retrievers(root, "tuned", "base")
    pairs.write_classifier(root / "reranker", "bert")
    documents = [Document(name, name.title(), text) for name, text in TEXTS.items()]
    with jax.set_mesh(layout.make_mesh((1, 1, 1))):
        Index.build(root / "index", root / "tuned", documents, reranker=root / "reranker")
    return root


def open_tiny(root: Path, *, capacity: int = 4096, rerank: bool = False, **models: str) -> Service:
    """A service of a world, whose models go through few shapes: compiling one takes a second.

    Args:
        models: of `open_service`: folders in `root`.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ladder, "LENGTHS", (64,))
        patch.setattr(ladder, "ROOMS", 1)
        folders = {name: str(root / folder) for name, folder in models.items()}
        opened = Index.open(root / "index")
        return open_service(opened, capacity=capacity, rerank=rerank, **folders)


@dataclasses.dataclass(frozen=True)
class Client:
    """Asks a server on this machine."""

    port: int
    headers: dict = dataclasses.field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def send(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        """Status, headers and body of the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT)
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        with contextlib.closing(connection):
            connection.request(method, path, body, self.headers | names)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()

    def post(self, path: str, body: object) -> tuple[int, object]:
        """Status and JSON of the answer to a JSON body; bytes are sent as they are."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        status, _, answer = self.send("POST", path, data, content_type="application/json")
        return status, json.loads(answer)

    def get(self, path: str) -> tuple[int, str]:
        status, _, answer = self.send("GET", path)
        return status, answer.decode()


@contextlib.contextmanager
def serving(service: Service) -> Iterator[Client]:
    """A server in a thread of this process, until the end of the block."""
    listener = server.bind("127.0.0.1", 0)
    running = server.make_server(make_app(service))
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]}, daemon=True)
    client = Client(listener.getsockname()[1])
    thread.start()
    try:
        yield client
    finally:
        running.should_exit = True
        thread.join(TIMEOUT)
        assert not thread.is_alive(), "the server did not end"


@contextlib.contextmanager
def reading(service: Service, open_reader: Callable[[], Reader]) -> Iterator[Client]:
    """The server with a local reader, in the thread that it answers in."""
    enter = lambda: jax.set_mesh(layout.make_mesh((1, 1, 1)))
    with ThreadPoolExecutor(1, initializer=enter) as reads:
        reader = reads.submit(open_reader).result()
        with serving(dataclasses.replace(service, reader=reader, reads=reads)) as client:
            yield client


@contextlib.contextmanager
def started(root: Path, *words: str, **variables: str) -> Iterator[tuple[subprocess.Popen, Client]]:
    """`ark-jax serve` of a world in another process, once it answers."""
    command = [sys.executable, "-c", PROGRAM, "serve", str(root / "index"), "--port=0", *words]
    environment = os.environ | {"ARK_CACHE": str(root / "cache"), "JAX_PLATFORMS": "cpu"}
    environment |= {"JAX_COMPILATION_CACHE_DIR": str(root / "xla")} | variables
    with (root / "stderr.txt").open("w+") as errors:
        process = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        try:
            line = process.stdout.readline()
            place = re.search(r"http://127\.0\.0\.1:(\d+)", line)
            assert place, f"{line}{(root / 'stderr.txt').read_text()}"
            yield process, Client(int(place[1]))
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
