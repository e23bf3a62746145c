"""What goes wrong around a server: clients, bodies, signals, files, other servers."""

import contextlib
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from support import serving
from support.serving import QUESTION, Client

from ark_jax.serve import requests, server
from ark_jax.serve.work import CALLS


def connect(client: Client) -> socket.socket:
    return socket.create_connection(("127.0.0.1", client.port), timeout=serving.TIMEOUT)


def head(path: str, length: int) -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {length}\r\n\r\n"
    ).encode()


def reset(link: socket.socket) -> None:
    """Closes a connection as a crashed client does."""
    link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    link.close()


def until(condition) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it has not come about"
        time.sleep(0.01)


def hold(service) -> threading.Event:
    """Keeps the models busy until the event is set."""
    gate, entered = threading.Event(), threading.Event()
    service.work.submit(CALLS, lambda: (entered.set(), gate.wait(60)))
    assert entered.wait(60)
    return gate


def test_the_work_of_a_disconnected_client_is_cancelled(service, client):
    gate = hold(service)
    body = json.dumps({"inputs": ["tide"] * 50}).encode()
    link = connect(client)
    link.sendall(head("/embed", len(body)) + body)
    until(lambda: service.work.waiting == 51)
    reset(link)
    until(lambda: service.work.waiting == 1)
    gate.set()
    assert client.post("/embed", {"inputs": "salt"})[0] == 200
    until(lambda: 'path="/embed",status="499"' in client.get("/metrics")[1])


def test_a_client_that_disconnects_mid_request_does_not_affect_others(client):
    links = [connect(client) for _ in range(3)]
    links[0].sendall(head("/embed", 1000) + b'{"inputs": "ti')
    links[1].sendall(b"POST /embed HT")
    for link in links:
        reset(link)
    assert client.post("/embed", {"inputs": "salt"})[0] == 200


def test_an_incomplete_body_times_out(client, monkeypatch):
    monkeypatch.setattr(requests, "PATIENCE", 0.05)
    with contextlib.closing(connect(client)) as link:
        link.sendall(head("/embed", 1000) + b'{"inputs": "ti')
        assert b"HTTP/1.1 408" in link.recv(1000)


def test_a_connection_without_headers_times_out(client, monkeypatch):
    monkeypatch.setattr(server, "HEADERS", 0.2)
    links = [connect(client) for _ in range(20)]
    for link in links[10:]:
        link.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: ")
    links[0].sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert links[0].makefile("rb").read().startswith(b"HTTP/1.1 200")
    assert [link.recv(1) for link in links[1:]] == [b""] * 19


def test_one_connection_too_many_closes_the_longest_idle_one(service, monkeypatch):
    monkeypatch.setattr(server, "CONNECTIONS", 5)
    with serving.serving(service) as client:
        links = [connect(client) for _ in range(8)]
        assert client.get("/health")[0] == 200
        assert [link.recv(1) for link in links[:4]] == [b""] * 4
        links[-1].sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert links[-1].recv(4096).startswith(b"HTTP/1.1 200")
        for link in links:
            link.close()


def test_a_request_with_two_lengths_is_refused_and_what_follows_is_not_answered(client):
    with contextlib.closing(connect(client)) as link:
        smuggled = b"0\r\n\r\nGET /info HTTP/1.1\r\nHost: localhost\r\n\r\n"
        start = head("/embed", 6).replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n")
        link.sendall(start + smuggled)
        answer = link.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 400") and answer.count(b"HTTP/1.1") == 1


def test_the_log_has_a_rate(client, caplog, monkeypatch):
    monkeypatch.setattr(server, "LOGGED", 3)
    now = time.monotonic()
    monkeypatch.setattr(server, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(server._log_rate, "minute", 0)
    for _ in range(9):
        with contextlib.closing(connect(client)) as link:
            link.sendall(b"no HTTP\r\n\r\n")
            assert link.recv(100).startswith(b"HTTP/1.1 400")
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 3 and messages[-1].endswith("(the last message of this minute)")


def test_a_disconnected_client_ends_the_reader_and_a_reader_blocks_no_other_request(service):
    """The reader runs until it is stopped, as a local one can be after each token."""
    ended, begun = threading.Event(), threading.Event()

    def answer(question, passages, partial):
        begun.set()
        try:
            while True:
                partial("The Board")
                time.sleep(0.01)
        finally:
            ended.set()

    with serving.reading(service, lambda: SimpleNamespace(answer=answer)) as client:
        for stream in (False, True):
            body = json.dumps({"question": QUESTION, "stream": stream}).encode()
            link = connect(client)
            link.sendall(head("/ask", len(body)) + body)
            assert begun.wait(60)
            assert client.post("/search", {"question": QUESTION})[0] == 200
            assert client.post("/embed", {"inputs": "salt"})[0] == 200 and not ended.is_set()
            reset(link)
            assert ended.wait(60)
            ended.clear()
            begun.clear()


def test_bytes_that_are_not_http_do_not_affect_other_clients(client):
    with contextlib.closing(connect(client)) as link:
        link.sendall(os.urandom(2000) + b"\r\n\r\n")
        assert link.recv(100).startswith(b"HTTP/1.1 400")
    assert client.post("/embed", {"inputs": "salt"})[0] == 200


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_of_ten_megabytes_is_refused_with_the_reason(chunked, client):
    body = b'{"inputs": "' + b"a" * 10_000_000 + b'"}'
    parts = iter([body]) if chunked else body
    status, _, answer = client.send("POST", "/embed", parts, content_type="application/json")
    assert status == 413 and json.loads(answer)["error_type"] == "Validation"
    assert b"4,194,304 bytes" in answer


def ask_in_parallel(client: Client, count: int) -> list[tuple[int, object]]:
    """The answers to `count` clients that all ask at once, in order."""
    barrier = threading.Barrier(count)

    def ask(number: int) -> tuple[int, object]:
        barrier.wait()
        text = " ".join(["tide", "salt", "bell"][: number % 3 + 1] * (number % 5 + 1))
        return client.post("/embed", {"inputs": f"{number} {text}"})

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(ask, range(count)))


def test_two_hundred_concurrent_clients_get_their_own_answers(client):
    answers = ask_in_parallel(client, 200)
    assert {status for status, _ in answers} == {200}
    alone = client.post("/embed", {"inputs": "0 tide"})[1][0]
    assert answers[0][1][0] == pytest.approx(alone, abs=1e-5)
    assert answers[1][1][0] != pytest.approx(alone, abs=1e-3)


@pytest.mark.slow
def test_a_thousand_concurrent_clients_are_answered(world):
    with serving.started(world) as (_, client):
        answers = ask_in_parallel(client, 1000)
        assert {status for status, _ in answers} == {200}
        assert client.get("/health")[0] == 200


def test_deleting_the_files_of_a_running_server_does_not_change_its_answers(tmp_path):
    root = serving.world(tmp_path / "w")
    service = serving.open_tiny(root, compare="base")
    with serving.serving(service) as client:
        bodies = [("/embed", {"inputs": "tide"}), ("/search", {"question": QUESTION, "k": 4})]
        bodies += [("/search", {"question": QUESTION, "compare": True})]
        before = [client.post(*body) for body in bodies]
        for name in ("tuned", "base", "index"):
            shutil.rmtree(root / name)
        assert [client.post(*body) for body in bodies] == before
        assert {status for status, _ in before} == {200}
        assert client.get("/")[0] == 200 and client.get("/page.js")[0] == 200
    service.work.close()


def test_two_servers_can_share_an_index(service, client, world):
    other = serving.open_tiny(world, compare="base", rerank=True)
    with serving.serving(other) as second:
        body = ("/search", {"question": QUESTION, "compare": True})
        assert client.post(*body) == second.post(*body)
    other.work.close()
    assert client.post(*body)[0] == 200  # one server goes on after the other has ended


def test_a_port_in_use_is_reported_in_one_line(client, world):
    command = [sys.executable, "-m", "ark_jax", "serve", str(world / "index")]
    done = subprocess.run(
        [*command, f"--port={client.port}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: port {client.port} of 127.0.0.1 cannot be used (Address alrea")
    assert line.endswith("give another with --port=N")


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_a_signal_lets_accepted_requests_finish_and_refuses_new_ones(number, world):
    with serving.started(world) as (process, client):
        body = json.dumps({"inputs": ["tide"]}).encode()
        accepted, idle = connect(client), connect(client)
        accepted.sendall(head("/embed", len(body)) + body[:5])  # the rest is still to be sent
        until(lambda: client.get("/health")[0] == 200)
        process.send_signal(number)

        def refused() -> bool:
            try:
                connect(client).close()
            except ConnectionRefusedError:
                return True
            return False

        until(refused)
        assert process.poll() is None
        accepted.sendall(body[5:])
        answer = accepted.makefile("rb").read()
        assert answer.startswith(b"HTTP/1.1 200") and answer.rstrip().endswith(b"]]")
        assert process.wait(60) == 0 and idle.recv(1) == b""
        for link in (accepted, idle):
            link.close()
    assert (world / "stderr.txt").read_text().count("Traceback") == 0
