"""An OpenAI-compatible server with faults on demand.

It runs in a thread of a test, or alone: `python tests/support/llm_server.py '{"latency": 1}'`. A
request's fault depends on its conversation and on how often that was sent before, not on when it
arrives. So the same seed gives the same faults at any concurrency.
"""

import asyncio
import contextlib
import dataclasses
import functools
import hashlib
import json
import random
import re
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

RECORDED = Path(__file__).parents[2] / "ark_jax" / "demo" / "replies.jsonl"
FAULTS = {
    # Sent on to another address.
    "307",
    # Refused with a status and an OpenAI error body.
    "400", "401", "403", "404", "408", "409", "413", "422", "425", "429", "500", "502", "503",
    "quota",
    # No reply, or not all of it.
    "reset", "cut", "hang", "truncated", "html",
    # A reply in the wrong form.
    "empty", "blank", "no choices", "length", "think", "refusal", "filtered", "miscount",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Request:
    """A request that arrived, and the fault it met."""

    at: float  # time.monotonic()
    headers: dict[str, str]
    body: dict
    fault: str | None

    @property
    def prompt(self) -> str:
        return self.body["messages"][-1]["content"]


def recorded(messages: Sequence[dict]) -> str:
    """The demo's recorded reply to this prompt, else a made-up reply in the form it asks for."""
    prompt = messages[0]["content"]
    name = hashlib.sha256(prompt.encode()).hexdigest()
    if name in _recording():
        return _recording()[name]
    if '"questions"' in prompt:
        count = int((re.search(r"\d+", prompt) or ["10"])[0])
        return json.dumps(
            {"questions": [f"What is version {i} of {name[:8]}?" for i in range(count)]}
        )
    return f'("entity"<|>Thing {name[:8]}<|>thing<|>Thing {name[:8]} is mentioned.)##\n<|COMPLETE|>'


@functools.cache
def _recording() -> dict[str, str]:
    rows = map(json.loads, RECORDED.read_text(encoding="utf-8").splitlines())
    return {row["prompt"]: row["reply"]["choices"][0]["message"]["content"] for row in rows}


def random_faults(seed: int, **shares: float) -> Callable[[str, int], str | None]:
    """Faults in these shares of the requests, by seed, conversation and attempt."""

    def draw(conversation: str, attempt: int) -> str | None:
        number = random.Random(f"{seed}/{attempt}/{conversation}").random()
        for name, size in shares.items():
            number -= size
            if number < 0:
                return name
        return None

    return draw


def script(*faults: str | None) -> Callable[[str, int], str | None]:
    """These faults for each conversation, one after the other; then none."""
    return lambda conversation, attempt: faults[attempt] if attempt < len(faults) else None


class Limit:
    """At most `limit` in any stretch of `seconds`, 0 for no limit, as a strict provider counts."""

    def __init__(self, limit: float, seconds: float):
        self.limit, self.seconds = limit, seconds
        self.taken: deque[tuple[float, float]] = deque()

    def take(self, amount: float) -> bool:
        now = time.monotonic()
        while self.taken and self.taken[0][0] <= now - self.seconds:
            self.taken.popleft()
        if self.limit and sum(taken for _, taken in self.taken) + amount > self.limit:
            return False
        self.taken.append((now, amount))
        return True


class Server:
    """Chat completions over HTTP/1.1 with keep-alive.

    Args:
        reply: maps messages to the text of a reply, or to a whole body.
        faults: `faults(conversation, attempt)` is one of FAULTS, an object to send with status 400,
            or None.
        refuses: parameter -> the error sent with status 400 to requests that have it.
        latency: mean seconds of a reply, which takes between 0.5 and 1.5 times as long.
        capacity: replies made at once, 0 for no bound. The server sends capacity / latency per
            second.
        retry_after: headers of status 429 and 503.
        minute: seconds over which the limits hold.
    """

    def __init__(
        self,
        reply: Callable[[list[dict]], str | dict] = recorded,
        faults: Callable[[str, int], str | dict | None] = lambda conversation, attempt: None,
        latency: float = 0.0,
        capacity: int = 0,
        requests_per_minute: int = 0,
        tokens_per_minute: int = 0,
        minute: float = 60.0,
        retry_after: Mapping[str, str] | None = None,
        refuses: Mapping[str, dict] | None = None,
    ):
        self.reply, self.faults, self.latency, self.refuses = reply, faults, latency, refuses or {}
        self.retry_after = {"Retry-After": "1"} if retry_after is None else retry_after
        self.limits = Limit(requests_per_minute, minute), Limit(tokens_per_minute, minute)
        self.requests: list[Request] = []
        self.delivered: list[dict] = []  # complete bodies of status 200
        self.limited = 0  # requests above the limits
        self.max_busy = 0  # replies made at once
        self.url = ""
        self._slots = asyncio.Semaphore(capacity or 1_000_000)
        self._asked: Counter[str] = Counter()
        self._open: set[asyncio.Task] = set()
        self._busy = 0
        self._random = random.Random(0)

    def asked(self, prompt: str) -> int:
        """The number of requests that had this as their last message."""
        return sum(request.prompt == prompt for request in list(self.requests))

    @contextlib.asynccontextmanager
    async def listening(self, port: int = 0):
        server = await asyncio.start_server(self._connection, "127.0.0.1", port, backlog=1024)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        try:
            yield self
        finally:
            server.close()
            for task in self._open:
                task.cancel()
            await asyncio.gather(*self._open, return_exceptions=True)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        self._open.add(task)
        try:
            while True:
                top, *lines = (
                    (await reader.readuntil(b"\r\n\r\n")).decode("latin1").strip().split("\r\n")
                )
                headers = {
                    name.lower(): value for name, value in (line.split(": ", 1) for line in lines)
                }
                sent = await reader.readexactly(int(headers.get("content-length", 0)))
                if top.startswith("GET /v1/models "):
                    await self._models(writer, headers)
                elif not top.startswith("POST /v1/chat/completions "):
                    await self._send(writer, 404, _error(f"Invalid URL ({top})", None))
                else:
                    await self._answer(writer, headers, json.loads(sent))
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the client is gone, or the test is over
        finally:
            self._open.discard(task)
            writer.close()

    async def _models(self, writer: asyncio.StreamWriter, headers: dict) -> None:
        """The list of models. The fault of the empty conversation may refuse it or hang."""
        fault = self.faults("", 0)
        if fault == "hang":
            await asyncio.Event().wait()
        if fault == "401":
            return await self._send(writer, 401, _wrong_key(headers))
        if fault:
            return await self._send(
                writer, int(fault), _error(f"The fault {fault} was asked for.", None)
            )
        await self._send(
            writer, 200, {"object": "list", "data": [{"id": "toy", "object": "model"}]}
        )

    async def _answer(self, writer: asyncio.StreamWriter, headers: dict, body: dict) -> None:
        conversation = json.dumps(body["messages"])
        fault = self.faults(conversation, self._asked[conversation])
        self._asked[conversation] += 1
        self.requests.append(Request(time.monotonic(), headers, body, fault))
        done = self._completion(body, fault)
        is_within = [
            limit.take(amount)
            for limit, amount in zip(self.limits, (1, done["usage"]["total_tokens"]), strict=True)
        ]
        if not all(is_within):
            self.limited += 1
            fault = "429"
        fault = fault or next((error for name, error in self.refuses.items() if name in body), None)
        if isinstance(fault, dict):
            return await self._send(writer, 400, {"error": fault})
        if fault == "quota":
            return await self._send(
                writer, 429, _error("You exceeded your current quota.", "insufficient_quota")
            )
        if fault == "401":
            return await self._send(writer, 401, _wrong_key(headers))
        if fault == "307":
            location = {"location": "https://elsewhere.example/v1/chat/completions?token=SECRET"}
            return await self._send(writer, 307, {}, location)
        if fault and fault.isdigit():
            busy = self.retry_after if fault in ("429", "503") else {}
            return await self._send(
                writer, int(fault), _error(f"The fault {fault} was asked for.", None), busy
            )
        if fault == "hang":
            await asyncio.Event().wait()
        if fault == "reset":
            return _reset(writer)
        async with self._slots:
            self._busy += 1
            self.max_busy = max(self.max_busy, self._busy)
            await asyncio.sleep(self.latency * (0.5 + self._random.random()))
            self._busy -= 1
        if fault == "html":
            return await self._send(
                writer,
                200,
                b"<!DOCTYPE html><html><body>Welcome to nginx!</body></html>",
                kind="text/html",
            )
        if body.get("stream"):
            return await self._stream(writer, done, fault)
        content = json.dumps(done).encode()
        if fault == "cut":
            writer.write(_head(200, len(content)) + content[: len(content) // 2])
            await writer.drain()
            return _reset(writer)
        await self._send(
            writer, 200, content[: len(content) // 2] if fault == "truncated" else content
        )
        if fault != "truncated":
            self.delivered.append(done)

    def _completion(self, body: dict, fault: object) -> dict:
        text = self.reply(body["messages"])
        if isinstance(text, dict):
            return {"usage": {"total_tokens": 0}, **text}
        message: dict = {"role": "assistant", "content": text, "refusal": None}
        finish = "stop"
        match fault:
            case "empty":
                message["content"], finish = None, "length"  # all tokens spent on thinking
            case "blank":
                message["content"] = " \n"
            case "length":
                message["content"], finish = text[: len(text) // 2 + 1], "length"
            case "think":
                message["content"] = (
                    f"<think>\nWhat is {{wanted}} here? [Perhaps this.]\n</think>\n\n{text}"
                )
            case "refusal":
                message["content"], message["refusal"] = None, "I cannot help with that."
            case "filtered":
                message["content"], finish = text[: len(text) // 3], "content_filter"
            case "miscount":
                with contextlib.suppress(ValueError, TypeError, KeyError):
                    message["content"] = json.dumps(
                        {"questions": json.loads(text)["questions"][:-1]}
                    )
        counts = [tokens_of(json.dumps(body["messages"])), tokens_of(message["content"] or text)]
        usage = dict(
            zip(("prompt_tokens", "completion_tokens"), counts, strict=True),
            total_tokens=sum(counts),
        )
        choices = (
            []
            if fault == "no choices"
            else [{"index": 0, "message": message, "finish_reason": finish, "logprobs": None}]
        )
        return {
            "id": f"chatcmpl-{len(self.requests)}",
            "object": "chat.completion",
            "created": 1_700_000_000,
            "model": body["model"],
            "choices": choices,
            "usage": usage,
        }

    async def _stream(self, writer: asyncio.StreamWriter, done: dict, fault: object) -> None:
        """A completion in server-sent events, five characters in each."""
        kind = "text/event-stream; charset=utf-8"
        writer.write(_head(200, None, {"Connection": "close"}, kind))
        (choice,) = done["choices"]
        text, refusal = choice["message"]["content"] or "", choice["message"]["refusal"]
        pieces = [text[i : i + 5] for i in range(0, len(text), 5)]
        deltas = [({"role": "assistant", "content": ""}, None)]
        deltas += [({"content": piece}, None) for piece in pieces]
        deltas += [({"refusal": refusal} if refusal else {}, choice["finish_reason"])]
        base = {name: done[name] for name in ("id", "created", "model")}
        row = {"index": 0, "logprobs": None}
        choices = [[row | {"delta": x, "finish_reason": y}] for x, y in deltas]
        events = [base | {"choices": x, "usage": None} for x in choices]
        events += [base | {"choices": [], "usage": done["usage"]}]
        sent = [f"data: {json.dumps(x)}\r\n\r\n" for x in events] + ["data: [DONE]\n\n"]
        for event in sent[: len(sent) // 2] if fault == "cut" else sent:
            data = event.encode()
            for half in (data[:20], data[20:]):  # no event arrives whole
                writer.write(half)
                await writer.drain()
                await asyncio.sleep(0.001)
        if fault != "cut":
            self.delivered.append(done)
        writer.close()

    async def _send(
        self,
        writer: asyncio.StreamWriter,
        status: int,
        body: dict | bytes,
        headers: Mapping[str, str] | None = None,
        kind: str = "application/json",
    ) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        writer.write(_head(status, len(data), headers or {}, kind) + data)
        await writer.drain()


def tokens_of(text: str) -> int:
    return len(text) // 4 + 1


def _error(message: str, code: str | None) -> dict:
    return {
        "error": {"message": message, "type": code or "server_error", "param": None, "code": code}
    }


def _wrong_key(headers: Mapping[str, str]) -> dict:
    key = headers.get("authorization", "").removeprefix("Bearer ")
    parts = f"{key}, that is {key[:8]}{'*' * 20}{key[-4:]} or {key[:12]}..."
    return _error(f"Incorrect API key provided: {parts}", "invalid_api_key")


def _head(
    status: int,
    length: int | None,
    headers: Mapping[str, str] | None = None,
    kind: str = "application/json",
) -> bytes:
    lines = {"Content-Type": kind, "Content-Length": length, **(headers or {})}
    lines = {name: value for name, value in lines.items() if value is not None}
    return "\r\n".join(
        [f"HTTP/1.1 {status} X", *(f"{name}: {value}" for name, value in lines.items()), "", ""]
    ).encode()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Resets the connection, as a crashed peer does."""
    writer.get_extra_info("socket").setsockopt(
        socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
    )
    writer.transport.abort()


@contextlib.contextmanager
def serving(*args, port: int = 0, **settings) -> Iterator[Server]:
    """A `Server` in its own thread; its `url` is the address."""
    server, ready, loop = Server(*args, **settings), threading.Event(), asyncio.new_event_loop()
    stop = asyncio.Event()

    async def run() -> None:
        async with server.listening(port):
            ready.set()
            await stop.wait()

    thread = threading.Thread(
        target=lambda: asyncio.Runner(loop_factory=lambda: loop).run(run()), daemon=True
    )
    thread.start()
    try:
        assert ready.wait(10), "the server did not start"
        yield server
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)


@contextlib.contextmanager
def serving_in_process(
    faults: Mapping[str, float] | None = None, seed: int = 0, **settings
) -> Iterator[str]:
    """The address of a `Server` in another process, with these shares of faults."""
    command = [
        sys.executable,
        __file__,
        json.dumps({"faults": faults or {}, "seed": seed, **settings}),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


async def main(faults: Mapping[str, float] = {}, seed: int = 0, port: int = 0, **settings) -> None:
    unknown = faults.keys() - FAULTS
    if unknown:
        raise SystemExit(
            f"no such fault: {', '.join(sorted(unknown))}; there are {', '.join(sorted(FAULTS))}"
        )
    async with Server(faults=random_faults(seed, **faults), **settings).listening(port) as server:
        print(server.url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(**json.loads(sys.argv[1] if len(sys.argv) > 1 else "{}")))
