"""The endpoint's client over real HTTP, against a server that fails in every way we know of."""

import asyncio
import contextlib
import gzip
import http.server
import json
import logging
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from types import SimpleNamespace
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.llm_calls import KEY, key_parts
from support.llm_server import random_faults, script, serving, tokens_of
from support.paths import REPOSITORY

from ark_jax.llm import endpoint as module
from ark_jax.llm.endpoint import Endpoint, RateLimiter
from ark_jax.llm.errors import EndpointUnusable, RequestRejected, RetriesExhausted
from ark_jax.llm.pricing import count_tokens

GOOD = lambda messages: f"Re: {messages[-1]['content']}"

pytest.importorskip(
    "openai", reason="the live backend needs the openai client: pip install 'ark-jax[llm]'"
)


@pytest.fixture(autouse=True)
def key_and_short_waits(monkeypatch):
    """Replaces the key of conftest.py by one whose parts can be recognised."""
    monkeypatch.setenv("ARK_TEST_KEY", KEY)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(module, "BACKOFF", 0.01)


def ask(url: str, *prompts: str, parallel: int = 64, **changes) -> tuple[Endpoint, list]:
    """Sends the prompts. Returns the endpoint, and the completion or error of each prompt."""

    async def ask_all():
        slots = asyncio.Semaphore(parallel)
        async with Endpoint(
            **{
                "model": "toy",
                "base_url": url,
                "key_env": "ARK_TEST_KEY",
                "temperature": 0.25,
                "max_tokens": 64,
                "timeout": 5.0,
                "retries": 4,
                "requests_per_minute": 0,
                "tokens_per_minute": 0,
                **changes,
            }
        ) as end:

            async def ask_one(prompt):
                async with slots:
                    return await end.ask([{"role": "user", "content": prompt}])

            return end, await asyncio.gather(*map(ask_one, prompts), return_exceptions=True)

    return asyncio.run(ask_all())


def texts(outcomes: list) -> list[str]:
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return [outcome["choices"][0]["message"]["content"] for outcome in outcomes]


def test_a_request_and_its_reply_follow_the_chat_completions_api():
    with serving(GOOD) as server:
        end, (reply,) = ask(server.url, "Hello")
        ask(server.url, "Hello again", max_tokens=7)
    assert type(reply) is dict and reply["usage"]["total_tokens"] > 0
    assert reply["choices"] == [
        {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": "Re: Hello"},
        }
    ]
    first, second = server.requests
    assert first.body == {
        "model": "toy",
        "temperature": 0.25,
        "max_tokens": 64,
        "messages": [{"role": "user", "content": "Hello"}],
    }
    assert second.body["max_tokens"] == 7
    assert first.headers["authorization"] == f"Bearer {KEY}"
    assert (end.retries_made, end.unused) == (0, [])


@pytest.mark.parametrize(
    "fault",
    [
        "408",
        "409",
        "425",
        "429",
        "500",
        "502",
        "503",
        "reset",
        "cut",
        "truncated",
        "hang",
        "empty",
        "blank",
        "no choices",
    ],
)
def test_transient_errors_are_retried(fault):
    with serving(GOOD, script(fault), retry_after={}) as server:
        end, outcomes = ask(server.url, "Hello", timeout=2)
        assert texts(outcomes) == ["Re: Hello"]
        assert (server.asked("Hello"), end.retries_made) == (2, 1)


@pytest.mark.parametrize(
    "fault, message",
    [
        ("500", "status 500"),
        ("429", "status 429"),
        ("reset", "Error"),
        ("hang", "no reply within 0.2 s"),
    ],
)
def test_errors_that_persist_exhaust_the_retries(fault, message):
    with serving(GOOD, lambda *_: fault, retry_after={}) as server:
        end, (outcome,) = ask(
            server.url, "Hello", retries=3, timeout=0.2 if fault == "hang" else 20
        )
    assert (
        isinstance(outcome, RetriesExhausted)
        and message in str(outcome)
        and "(4 times)" in str(outcome)
    )
    assert (len(server.requests), end.retries_made) == (4, 3)


def test_empty_replies_are_rejected_after_few_retries():
    with serving(GOOD, lambda *_: "empty") as server:
        end, (outcome,) = ask(server.url, "Hello", retries=8)
    assert isinstance(outcome, RequestRejected)
    assert "config.llm.max_tokens was spent before the text began" in str(outcome)
    assert len(server.requests) == len(end.unused) == 3


def test_each_kind_of_error_has_its_own_count_of_retries():
    faults = script("500", "empty", "503", "empty", "500")
    with serving(GOOD, faults, retry_after={}) as server:
        _, outcomes = ask(server.url, "Hello", retries=3)
    assert texts(outcomes) == ["Re: Hello"]


@pytest.mark.parametrize(
    "fault, message",
    [
        ("400", "status 400: The fault 400 was asked for."),
        ("413", "413"),
        ("422", "422"),
        ("refusal", "refused: I cannot help"),
        ("filtered", "refused: by a content filter"),
        (
            {"message": "'max_tokens' is too large: 64. The context length is 32", "code": 400},
            "too large",
        ),
    ],
)
def test_a_rejected_request_is_not_retried(fault, message):
    with serving(
        GOOD, lambda conversation, attempt: fault if "bad" in conversation else None
    ) as server:
        end, (good, bad, other) = ask(server.url, "good", "bad", "other")
        assert texts([good, other]) == ["Re: good", "Re: other"]
        assert isinstance(bad, RequestRejected) and message in str(bad)
        assert (server.asked("bad"), end.retries_made) == (1, 0)
    assert len(end.unused) == (fault in ("refusal", "filtered"))


@pytest.mark.parametrize(
    "fault, message",
    [
        ("401", "Incorrect API key"),
        ("403", "403"),
        ("404", "404"),
        ("quota", "exceeded your current quota"),
        ("html", "no chat completion but '<!DOCTYPE html>"),
        (
            {"message": "API key not valid. Please pass a valid API key."},
            "not valid",
        ),  # Gemini's status 400
        ({"message": "Sorry", "code": "model_not_found"}, "Sorry (model_not_found)"),
    ],
)
def test_an_unusable_endpoint_is_not_retried(fault, message):
    with serving(GOOD, lambda *_: fault) as server:
        end, (outcome,) = ask(server.url, "Hello")
        assert isinstance(outcome, EndpointUnusable) and message in str(outcome)
        assert (len(server.requests), end.retries_made) == (1, 0)


@pytest.mark.parametrize(
    "body, outcome",
    [
        ({"object": "list", "data": []}, EndpointUnusable),
        ({"choices": [{"index": 0}]}, EndpointUnusable),
        ({"choices": [{"message": {"content": [{"image": "a part"}]}}]}, EndpointUnusable),
        ({"error": {"message": "quota"}}, EndpointUnusable),
        ({"error": {"message": "No.", "code": 400}}, RequestRejected),
        ({"error": {"message": "Busy", "code": 502}}, RetriesExhausted),
    ],
    ids=str,
)
def test_errors_may_come_with_status_200(body, outcome):
    with serving(lambda messages: body) as server:
        assert type(ask(server.url, "Hello", retries=1)[1][0]) is outcome
        assert len(server.requests) == (2 if outcome is RetriesExhausted else 1)


@contextlib.contextmanager
def sending(
    body: bytes,
    content_type: str = "application/json",
    status: int = 200,
    encoding: str = "",
    declared: int = 0,
):
    """Yields the address of a server that answers every request with these bytes."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(status)
            self.send_header("content-type", content_type)
            if encoding:
                self.send_header("content-encoding", encoding)
            self.send_header("content-length", str(declared or len(body)))
            self.end_headers()
            with contextlib.suppress(OSError):  # the client may have left
                self.wfile.write(body)
                if declared:  # more than comes
                    self.connection.recv(1)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.shutdown()
            thread.join()


def test_a_reply_that_stops_in_its_middle_is_given_up(monkeypatch):
    monkeypatch.setattr(module, "STALL", 0.3)
    start = time.monotonic()
    with sending(b'{"choices"', declared=100) as url:
        (outcome,) = ask(url, "Hello", timeout=30, retries=0)[1]
    assert isinstance(outcome, RetriesExhausted) and "stops for 0.3 s" in str(outcome)
    assert time.monotonic() - start < 10


def test_numbers_of_a_reply_are_finite():
    numbers = "[1e999, -1e999, NaN, Infinity, " + "9" * 5000 + ", 2, 0.5]"
    assert module._parse_json(numbers) == [*[None] * 5, 2, 0.5]


HOSTILE_USAGE = [
    {"prompt_tokens": -(10**9), "total_tokens": -(10**9)},
    {"prompt_tokens": float("nan"), "total_tokens": float("inf")},
    {"prompt_tokens": "many", "total_tokens": [1]},
    {"prompt_tokens": 10**4000, "total_tokens": 10**4000},
    "free",
    [1, 2],
]


@pytest.mark.parametrize("usage", HOSTILE_USAGE, ids=str)
def test_invalid_token_counts_do_not_reject_a_reply(usage):
    body = {"choices": [{"message": {"content": "Yes"}}], "usage": usage}
    with sending(json.dumps(body).encode()) as url:
        endpoint, replies = ask(url, "Hello", tokens_per_minute=10**6)
    assert texts(replies) == ["Yes"] and count_tokens(replies[0]) == (0, 0)
    assert endpoint._tokens_per_byte > 0 and endpoint._reply_tokens > 0


COMPLETION = '{"choices": [{"message": {"content": "Grüße"}}]}'.encode()


@pytest.mark.parametrize(
    "fault",
    [None, "length", "think", "refusal", "filtered", "blank", "cut", "503", "html", "reset"],
)
def test_a_streamed_reply_is_the_whole_one_and_shown_as_it_is_written(fault):
    seen: list[str] = []
    faults = lambda conversation, attempt: fault if attempt == 0 else None
    with serving(lambda messages: "Josiah Penhallow, né 😀, said so.", faults) as server:
        _, (streamed,) = ask(server.url, "who?", partial=seen.append)
        _, (whole,) = ask(server.url, "who!")
    if isinstance(whole, Exception):
        assert (type(streamed), str(streamed)) == (type(whole), str(whole))
        return
    unlike = ("id", "object")  # a stream's pieces are of another kind
    assert {k: v for k, v in streamed.items() if k not in unlike} == {
        k: v for k, v in whole.items() if k not in unlike
    }
    assert seen[-1] == streamed["choices"][0]["message"]["content"] and len(set(seen)) > 4
    again = [i for i in range(1, len(seen)) if not seen[i].startswith(seen[i - 1])]
    assert len(again) == (fault in ("cut", "blank"))  # the second attempt begins anew


def test_what_is_called_with_a_reply_may_end_it():
    def stop(text: str) -> None:
        if text:
            raise ValueError("enough")

    with serving(GOOD) as server:
        _, (outcome,) = ask(server.url, "who?", partial=stop)
        assert isinstance(outcome, ValueError) and len(server.requests) == 1


def test_a_server_that_knows_no_options_of_a_stream_is_asked_without():
    refuses = {"stream_options": {"message": "stream_options is not supported", "code": "x"}}
    seen: list[str] = []
    with serving(GOOD, refuses=refuses) as server:
        _, (reply,) = ask(server.url, "who?", partial=seen.append)
        assert (
            "stream_options" not in server.requests[-1].body and server.requests[-1].body["stream"]
        )
    assert seen[-1] == texts([reply])[0]


@pytest.mark.parametrize("charset", ["utf-16", "idna", "hex", "latin-1", "klingon"])
def test_a_reply_is_decoded_as_utf_8_despite_its_header(charset):
    with sending(COMPLETION, f"application/json; charset={charset}") as url:
        assert texts(ask(url, "Hello")[1]) == ["Grüße"]


def test_a_byte_order_mark_is_removed_from_a_reply():
    with sending(b"\xef\xbb\xbf" + COMPLETION) as url:
        assert texts(ask(url, "Hello")[1]) == ["Grüße"]


BOMB = gzip.compress(b'{"choices": [{"message": {"content": "' + b"a" * 2**25)


@pytest.mark.parametrize("status", [200, 500])
@pytest.mark.parametrize(("body", "encoding"), [(BOMB, "gzip"), (b" " * 2**25, "identity")])
def test_a_reply_is_read_up_to_a_bound(status, body, encoding):
    with sending(body, status=status, encoding=encoding) as url:
        (outcome,) = ask(url, "Hello", timeout=60)[1]
    assert isinstance(outcome, RequestRejected) and "more than 16 MiB" in str(outcome)


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"choices": ' + b"[" * 100_000])
def test_a_body_of_deeply_nested_brackets_is_refused(body):
    with sending(body) as url:
        (outcome,) = ask(url, "Hello")[1]
    assert isinstance(outcome, EndpointUnusable) and "no chat completion" in str(outcome)


def test_an_html_page_after_a_good_reply_is_retried():
    with serving(
        GOOD,
        lambda conversation, attempt: "html" if "second" in conversation and not attempt else None,
    ) as server:
        assert texts(ask(server.url, "first", "second", parallel=1)[1]) == [
            "Re: first",
            "Re: second",
        ]


@pytest.mark.parametrize("fault", ["length", "think", "miscount"])
def test_replies_in_the_wrong_form_are_returned(fault):
    text_sent = '{"questions": ["Who?", "What?", "Why?"]}'
    with serving(lambda messages: text_sent, script(fault)) as server:
        _, (reply,) = ask(server.url, "Hello")
    text = reply["choices"][0]["message"]["content"]
    assert (reply["choices"][0]["finish_reason"], text) == {
        "length": ("length", text_sent[: len(text_sent) // 2 + 1]),
        "miscount": ("stop", '{"questions": ["Who?", "What?"]}'),
        "think": (
            "stop",
            f"<think>\nWhat is {{wanted}} here? [Perhaps this.]\n</think>\n\n{text_sent}",
        ),
    }[fault]


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def test_an_address_without_a_server_is_reported_after_two_retries():
    url = f"http://me:{KEY}@127.0.0.1:{free_port()}/v1"
    end, (outcome,) = ask(url, "Hello", retries=1000)
    assert isinstance(outcome, EndpointUnusable) and end.retries_made == 2
    assert (
        f"nothing answers at {url.replace(f'me:{KEY}@', '')}/, "
        "see config.llm.base_url: ConnectError" in str(outcome)
    )


def test_a_redirect_is_not_followed():
    """It would send the documents to an address that nobody has named."""
    with serving(GOOD, script("307")) as server:
        _, (outcome,) = ask(server.url, "Hello", retries=3)
    assert isinstance(outcome, EndpointUnusable) and len(server.requests) == 1
    assert "sends requests on to https://elsewhere.example/v1/chat/completions, and" in str(outcome)
    assert "SECRET" not in str(outcome)


def test_an_address_without_a_scheme_is_reported_after_two_retries():
    end, (outcome,) = ask("127.0.0.1:8000/v1", "Hello", retries=1000)
    assert isinstance(outcome, EndpointUnusable) and end.retries_made == 2
    assert "see config.llm.base_url: UnsupportedProtocol" in str(outcome)


def test_requests_wait_for_a_server_that_restarts(monkeypatch):
    monkeypatch.setattr(module, "MAX_BACKOFF", 0.1)
    port, prompts = free_port(), [f"Prompt {i}" for i in range(40)]
    replies = []

    def ask_all(url):
        _, outcomes = ask(url, *prompts, parallel=4, retries=1000)
        replies.extend(texts(outcomes))

    with serving(GOOD, port=port, latency=0.05) as server:
        client = threading.Thread(target=ask_all, args=(server.url,))
        client.start()
        while len(server.delivered) < 8:
            time.sleep(0.01)
    time.sleep(0.3)
    with serving(GOOD, port=port):
        client.join(20)
    assert replies == [f"Re: {prompt}" for prompt in prompts]


@pytest.mark.parametrize("after", [{"Retry-After": "0.6"}, {"retry-after-ms": "600"}], ids=str)
def test_a_429_pauses_every_request(after):
    with serving(
        GOOD,
        lambda conversation, attempt: "429" if "third" in conversation and not attempt else None,
        latency=0.02,
        retry_after=after,
    ) as server:
        prompts = ["first", "second", "third", *(f"Prompt {i}" for i in range(20))]
        assert texts(ask(server.url, *prompts, parallel=2)[1]) == [
            f"Re: {prompt}" for prompt in prompts
        ]
    times = [request.at for request in server.requests]
    refused = next(request.at for request in server.requests if request.fault)
    # One other request was under way. Its worker pauses before the next one, too.
    assert sum(refused < time < refused + 0.55 for time in times) <= 1
    assert sum(refused + 0.55 < time for time in times) >= 20


def test_an_error_other_than_429_pauses_only_its_request():
    with serving(
        GOOD,
        lambda conversation, attempt: "503" if "first" in conversation and not attempt else None,
        retry_after={"Retry-After": "0.5"},
    ) as server:
        texts(ask(server.url, "first", "second", "third", parallel=2)[1])
    refused, again = (request.at for request in server.requests if request.prompt == "first")
    assert again - refused >= 0.5 and all(
        request.at - refused < 0.4 for request in server.requests[:3]
    )


def test_an_endpoint_that_asks_for_a_day_of_waiting_is_unusable():
    with serving(GOOD, lambda *_: "429", retry_after={"Retry-After": "86400"}) as server:
        _, (outcome,) = ask(server.url, "Hello")
    assert isinstance(outcome, EndpointUnusable) and "86,400 s" in str(outcome)


def test_a_busy_server_does_not_exhaust_the_retries():
    # The server asks for a pause longer than its minute, so it answers some requests in each.
    with serving(
        GOOD, requests_per_minute=5, minute=0.1, retry_after={"retry-after-ms": "200"}
    ) as server:
        prompts = [f"Prompt {i}" for i in range(60)]
        assert texts(ask(server.url, *prompts, parallel=30, retries=2)[1]) == [
            f"Re: {prompt}" for prompt in prompts
        ]
    assert server.limited > 0
    assert (
        max(Counter(request.prompt for request in server.requests).values()) > 3
    )  # more than the retries allow


def test_waits_double_up_to_the_maximum_with_jitter(monkeypatch):
    waits, drawn = [], iter([1.0, 0.5, 1.0, 1.0, 1.0])
    monkeypatch.setattr(module, "MAX_BACKOFF", 0.06)
    monkeypatch.setattr(module, "random", SimpleNamespace(random=lambda: next(drawn)))
    sleep = asyncio.sleep

    async def recorded_sleep(seconds):
        if threading.current_thread() is threading.main_thread():  # a server has sleeps of its own
            waits.append(seconds)
        await sleep(seconds)

    with (
        serving(GOOD, lambda *_: "500") as server,
        mock.patch.object(module.asyncio, "sleep", recorded_sleep),
    ):
        ask(server.url, "Hello", retries=5)
    assert [wait for wait in waits if wait] == pytest.approx([0.01, 0.01, 0.04, 0.06, 0.06])


def test_requests_use_the_limit_per_minute_without_exceeding_it(monkeypatch):
    monkeypatch.setattr(module, "MINUTE", 1.5)
    # The server's minute is shorter, since requests arrive unevenly on a busy machine.
    with serving(GOOD, requests_per_minute=40, minute=1.2) as server:
        start = time.monotonic()
        _, outcomes = ask(server.url, *(f"Prompt {i}" for i in range(70)), requests_per_minute=40)
        seconds = time.monotonic() - start
    assert len(texts(outcomes)) == len(server.requests) == 70 and server.limited == 0
    assert 0.95 * 68 / 40 * 1.5 < seconds < 2.5 * 70 / 40 * 1.5  # on a busy machine too


@pytest.mark.parametrize(
    "max_tokens, length", [(1200, 4700), (4096, 200)], ids=["underestimated", "overestimated"]
)
def test_tokens_use_the_limit_per_minute_without_exceeding_it(max_tokens, length, monkeypatch):
    monkeypatch.setattr(module, "MINUTE", 1.5)
    prompts = [f"Prompt {i} {'word ' * 40}" for i in range(60)]
    used = sum(
        tokens_of(f'[{{"role": "user", "content": "{prompt}"}}]') + tokens_of("x" * length)
        for prompt in prompts
    )
    limit = used / 2
    with serving(
        lambda messages: "x" * length, tokens_per_minute=limit, minute=1.2, latency=0.02
    ) as server:
        start = time.monotonic()
        _, outcomes = ask(
            server.url, *prompts, parallel=8, tokens_per_minute=limit, max_tokens=max_tokens
        )
        seconds = time.monotonic() - start
    assert len(texts(outcomes)) == len(server.requests) == 60 and server.limited == 0
    assert 0.8 * 3.0 < seconds < 2.5 * 3.0  # on a busy machine too


def test_an_overestimate_delays_the_next_request_only_until_its_reply(monkeypatch):
    monkeypatch.setattr(module, "MINUTE", 6.0)
    start = time.monotonic()
    with serving(GOOD) as server:
        texts(ask(server.url, "one", "two", tokens_per_minute=6000, max_tokens=40_000)[1])
    assert time.monotonic() - start < 8  # the estimate of 10,000 tokens would take ten


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


@given(
    st.integers(1, 500),
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 3)), min_size=1, max_size=200),
)
@settings(deadline=None)
def test_the_limiter_never_exceeds_its_limit_in_a_minute(limit, requests):
    clock, taken = Clock(), []
    with mock.patch.object(module, "time", clock):
        bucket = RateLimiter(limit)
        for share, pause in requests:
            amount = share * limit / 20
            clock.now += pause
            wait = bucket.wait_seconds(amount)
            clock.now += wait
            bucket.take(amount)
            taken.append((clock.now, amount))
            if wait:
                assert bucket.level < 1e-6 * limit  # the wait was not longer than needed
    for end, _ in taken:
        assert sum(amount for at, amount in taken if end - 60 < at <= end) <= limit * (1 + 1e-9)


def test_a_limit_of_one_request_per_minute_is_kept():
    clock, times = Clock(), []
    with mock.patch.object(module, "time", clock):
        bucket = RateLimiter(1)
        for _ in range(3):
            clock.now += bucket.wait_seconds(1)
            bucket.take(1)
            times.append(clock.now)
    assert times == pytest.approx([0, 63.16, 126.3], rel=1e-3)


def test_a_huge_token_count_delays_the_next_request_for_minutes_at_most():
    clock = Clock()
    with mock.patch.object(module, "time", clock):
        bucket = RateLimiter(100)
        bucket.take(10**12)
        assert bucket.wait_seconds(1) < 3 * module.MINUTE


def test_the_nucleus_is_sent_only_where_it_leaves_tokens_out():
    with serving(GOOD) as server:
        for top_p in (1.0, 0.9):
            ask(server.url, "Hello", top_p=top_p)
        assert [request.body.get("top_p") for request in server.requests] == [None, 0.9]


@pytest.mark.parametrize("key", [KEY, "x", "max_tokens"])
def test_unsupported_parameters_are_omitted_from_later_requests(key, monkeypatch):
    monkeypatch.setenv("ARK_TEST_KEY", key)
    refuses = {
        "max_tokens": {
            "message": "Unsupported parameter: 'max_tokens' is not supported with this model. Use "
            "'max_completion_tokens' instead.",
            "code": "unsupported_parameter",
        },
        "temperature": {
            "message": "Unsupported value: 'temperature' does not support 0.25 with this model.",
            "param": "temperature",
        },
    }
    with serving(GOOD, refuses=refuses, latency=0.05) as server:
        prompts = [*(f"early {i}" for i in range(4)), "late"]
        end, outcomes = ask(server.url, *prompts, parallel=4, retries=0)
        assert texts(outcomes) == [f"Re: {prompt}" for prompt in prompts]
        # A request that starts after another was refused leaves out the same parameters.
        assert (
            server.asked("early 0") == 3
            and server.asked("late") == 1
            and 2 <= end.retries_made <= 8
        )
        assert len(server.requests) == len(prompts) + end.retries_made
    assert server.requests[-1].body == {
        "model": "toy",
        "max_completion_tokens": 64,
        "messages": [{"role": "user", "content": "late"}],
    }


@pytest.mark.parametrize("fault", ["401", "400", "500", "reset", "html"])
def test_the_key_is_never_shown(fault, caplog, capfd):
    parts = f"{KEY}, {KEY[:10]}****{KEY[-4:]}, {KEY[:12]}..., ...{KEY[-4:]}"
    echo = {"message": f"Bad key {parts} in Authorization: Bearer {KEY[5:]}"}
    faults = {"401": lambda *_: "401", "400": lambda *_: echo}.get(fault, lambda *_: fault)
    with caplog.at_level(logging.DEBUG, logger="ark_jax"), serving(GOOD, faults) as server:
        _, (outcome,) = ask(server.url, "Hello", retries=1)
    shown = "".join(traceback.format_exception(outcome))
    assert str(outcome) in shown and key_parts(shown) == []
    assert [record for record in caplog.records if record.name.startswith("ark_jax")] == []
    assert capfd.readouterr() == ("", "")


def test_the_default_address_requires_a_key(monkeypatch):
    monkeypatch.delenv("ARK_TEST_KEY")
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    message = r"set \$ARK_TEST_KEY to your key, or config\.llm\.base_url"
    with pytest.raises(RuntimeError, match=message):
        ask("", "Hello")


def test_an_own_address_requires_no_key(monkeypatch):
    monkeypatch.delenv("ARK_TEST_KEY")
    with serving(GOOD) as server:
        assert texts(ask(server.url, "Hello")[1]) == ["Re: Hello"]


def test_blanks_around_the_key_are_removed(monkeypatch):
    monkeypatch.setenv("ARK_TEST_KEY", f"  {KEY}\n")
    with serving(GOOD) as server:
        ask(server.url, "Hello")
    assert server.requests[-1].headers["authorization"] == f"Bearer {KEY}"


def test_a_key_with_impossible_characters_is_refused_without_showing_it(monkeypatch):
    monkeypatch.setenv("ARK_TEST_KEY", f"“{KEY}”")
    message = r"\$ARK_TEST_KEY holds blanks or letters that no key has"
    with pytest.raises(RuntimeError, match=message) as error:
        ask("http://127.0.0.1:1/v1", "Hello")
    assert key_parts(str(error.value)) == []


def test_a_lone_surrogate_rejects_only_its_own_request():
    with serving(GOOD) as server:
        _, (bad, good) = ask(server.url, "x \ud83d y", "Größe 漢字 🙂")
    assert isinstance(bad, RequestRejected) and "surrogate" in str(bad)
    assert texts([good]) == ["Re: Größe 漢字 🙂"]


def test_a_missing_client_is_reported_with_the_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(
        RuntimeError, match=r"^llm\.backend=openai needs the client: pip install 'ark-jax\[llm\]'$"
    ):
        ask("http://127.0.0.1:1/v1", "Hello")


def test_importing_the_endpoint_does_not_import_its_client():
    heavy = ("jax", "openai", "transformers")
    code = (
        f"import ark_jax.llm.endpoint, sys; sys.exit([x for x in {heavy} if x in sys.modules] or 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=REPOSITORY)


def test_a_cancelled_request_leaves_no_task_running():
    async def main(url: str) -> tuple[float, set]:
        async with Endpoint(
            model="toy",
            base_url=url,
            key_env="ARK_TEST_KEY",
            temperature=0.0,
            max_tokens=64,
            timeout=60.0,
            retries=8,
            requests_per_minute=30,
            tokens_per_minute=0,
        ) as end:
            tasks = [
                asyncio.create_task(end.ask([{"role": "user", "content": str(i)}]))
                for i in range(8)
            ]
            while not server.requests:
                await asyncio.sleep(0.01)
            start = time.monotonic()
            for task in tasks:  # one is under way, the others wait
                task.cancel()
            assert {type(x) for x in await asyncio.gather(*tasks, return_exceptions=True)} == {
                asyncio.CancelledError
            }
        return time.monotonic() - start, asyncio.all_tasks() - {asyncio.current_task()}

    with serving(GOOD, lambda *_: "hang") as server:
        seconds, tasks = asyncio.run(main(server.url))
    assert seconds < 20 and tasks == set()


def test_ctrl_c_ends_a_process_whose_requests_hang():
    code = """if True:
        import asyncio, sys
        from ark_jax.llm.endpoint import Endpoint
        async def main():
            settings = dict(
                model="toy", base_url=sys.argv[1], key_env="ARK_TEST_KEY", temperature=0.0,
                max_tokens=64, timeout=60.0, retries=8, requests_per_minute=0, tokens_per_minute=0
            )
            prompts = [[{"role": "user", "content": str(i)}] for i in range(16)]
            async with Endpoint(**settings) as endpoint:
                await asyncio.gather(*map(endpoint.ask, prompts))
        asyncio.run(main())"""
    with serving(GOOD, lambda *_: "hang") as server:
        process = subprocess.Popen(
            [sys.executable, "-c", code, server.url],
            stderr=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
        )
        deadline = time.monotonic() + 30
        while len(server.requests) < 16 and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        output = process.communicate(timeout=20)[1]  # the requests would wait for a minute
    assert (
        len(server.requests) == 16
        and re.search(r"KeyboardInterrupt\s*$", output)
        and key_parts(output) == []
    )


def test_every_request_is_answered_despite_many_faults(monkeypatch):
    monkeypatch.setattr(module, "MAX_BACKOFF", 0.1)
    shares = dict.fromkeys(
        ("429", "500", "502", "503", "reset", "cut", "truncated", "html", "no choices"), 0.03
    ) | {"hang": 0.01}
    prompts = [f"Prompt {i}" for i in range(300)]
    with serving(GOOD, random_faults(3, **shares), retry_after={"retry-after-ms": "20"}) as server:
        end, outcomes = ask(server.url, *prompts, parallel=16, timeout=2, retries=8)
        assert texts(outcomes) == [f"Re: {prompt}" for prompt in prompts]
    faults = Counter(request.fault for request in server.requests)
    assert (
        faults.keys() >= shares.keys()
        and end.retries_made == len(server.requests) - 300 == sum(faults.values()) - faults[None]
    )


def post(url: str, path: str, body: dict):
    """The JSON of the reply to a body that is sent to a path."""
    settings = {"model": "toy", "base_url": url, "key_env": "ARK_TEST_KEY", "temperature": 0.0}
    settings |= {"max_tokens": 1, "timeout": 5.0, "retries": 2, "requests_per_minute": 0}

    async def post_once():
        async with Endpoint(**settings, tokens_per_minute=0) as end:
            return await end.post(path, body)

    return asyncio.run(post_once())


HELLO = {"model": "toy", "messages": [{"role": "user", "content": "Hello"}]}


@pytest.mark.parametrize("faults", [(), ("429", "503"), ("truncated", "reset")])
def test_a_body_is_posted_to_any_path(faults):
    with serving(GOOD, faults=script(*faults)) as server:
        whole = server.url.removesuffix("/v1") + "/v1/chat/completions"
        for path in ("/chat/completions", whole):
            reply = post(server.url, path, HELLO)
            assert reply["choices"][0]["message"]["content"] == "Re: Hello"
    assert server.requests[0].body == HELLO and len(server.requests) == 2 + len(faults)


@pytest.mark.parametrize(
    ("path", "fault", "kind", "message"),
    [
        ("/chat/completions", "400", RequestRejected, "status 400"),
        ("/chat/completions", "500", RetriesExhausted, r"status 500.*\(3 times\)"),
        ("/chat/completions", "html", EndpointUnusable, "gives no JSON but '<!DOCTYPE"),
        ("/chat/completions", "307", EndpointUnusable, "sends requests on to https://elsewhere"),
        ("/missing", None, EndpointUnusable, "status 404"),
    ],
)
def test_errors_of_a_posted_body_are_those_of_a_chat(path, fault, kind, message):
    faults = script(*[fault] * 3) if fault else script()
    with serving(GOOD, faults=faults) as server, pytest.raises(kind, match=message) as caught:
        post(server.url, path, HELLO)
    assert not key_parts(str(caught.value))
