"""The request pool: when it stops, what it costs, and processes that die or share the work."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support import llm_server
from support.llm_calls import SECRET, SETTINGS, calls, changed_settings, completion, echo

from ark_jax.llm.reply_cache import ReplyCache


def test_only_a_failed_call_is_sent_again(live):
    broken = {"passage 1"}
    faults = lambda conversation, attempt: (
        "500" if any(name in conversation for name in broken) else None
    )
    with llm_server.serving(echo, faults) as server:
        with pytest.raises(
            RuntimeError,
            match=r"^1 of 3 calls failed, the first being extract/1: .*run the same command again",
        ):
            live(server, calls())
        assert server.asked("Read passage 1") == 4  # once and three retries
        broken.clear()
        assert live(server, calls()).texts == {
            f"extract/{i}": [f"Re: Read passage {i}"] for i in range(3)
        }
        assert [server.asked(f"Read passage {i}") for i in range(3)] == [1, 5, 1]


def test_the_run_stops_after_failures_in_a_row(live):
    faults = lambda conversation, attempt: "503" if "passage 0" not in conversation else None
    message = r"of 200 calls failed, the first .*answered none of the last requests"
    with (
        llm_server.serving(echo, faults, retry_after={}) as server,
        pytest.raises(RuntimeError, match=message),
    ):
        live(server, calls(200))
    assert len(server.requests) < 60


def test_rejections_of_every_request_are_not_cached(live, tmp_path):
    """The settings may be wrong. Once they are right, all requests are sent again."""
    fault = "400"
    with llm_server.serving(echo, lambda conversation, attempt: fault) as server:
        message = r"^\d of 200 calls failed, the first .*: status 400.*rejects every request"
        with pytest.raises(RuntimeError, match=message):
            live(server, calls(200))
        assert len(server.requests) <= 8
        with pytest.raises(RuntimeError, match=r"^2 of 2 calls failed"):
            live(server, calls(2))
        fault = None
        assert live(server, calls(2)).rejected == {}


@pytest.mark.parametrize("fault", ["401", "404", "quota", "html"])
def test_an_unusable_endpoint_stops_the_run(fault, live, tmp_path):
    settings = changed_settings(backend="openai", base_url="")
    ReplyCache(tmp_path / "cache.jsonl").add(
        {"key": settings.key(("x",)), "reply": completion("kept")}
    )
    with llm_server.serving(echo, lambda conversation, attempt: fault) as server:
        with pytest.raises(
            RuntimeError, match="The other replies are kept; run the same command again"
        ) as raised:
            live(server, calls(200))
        assert len(server.requests) <= 4 and "sk-never" not in str(raised.value)


def test_replies_in_flight_are_kept_when_the_endpoint_fails(live, tmp_path):
    faults = lambda conversation, attempt: "401" if "passage 3" in conversation else None
    with (
        llm_server.serving(echo, faults, latency=0.5) as server,
        pytest.raises(RuntimeError, match="status 401"),
    ):
        live(server, calls(12))
    assert len(server.requests) == 4
    assert len(ReplyCache(tmp_path / "cache.jsonl").rows) == len(server.delivered) == 3


def test_a_burst_stays_within_the_cost_limit(live):
    """Until a reply shows its cost, a request counts with the highest possible one."""
    priced = {"price": (0.0, 1e6), "concurrency": 32, "max_tokens": 6}  # a dollar a token
    with llm_server.serving(lambda messages: "x", latency=0.05) as server:
        with pytest.raises(RuntimeError, match="are spent"):
            live(server, calls(100), max_cost=12.0, **priced)
        cost = server.delivered[0]["usage"]["completion_tokens"]
        assert 12 - cost < cost * len(server.requests) < 12 + cost


def test_concurrency_is_at_least_one():
    with pytest.raises(ValueError, match=r"llm\.concurrency=0: must be at least 1"):
        dataclasses.replace(SETTINGS, concurrency=0)


def test_the_cost_limit_stops_the_run_and_a_higher_one_continues_it(live):
    priced = {"price": (1e3, 1e3), "concurrency": 4}  # a dollar for a thousand tokens
    with llm_server.serving(echo) as server:
        with pytest.raises(
            RuntimeError,
            match=r"^\$0\.\d\d of llm\.max_cost=0\.2 are spent.*run the same command again",
        ):
            live(server, calls(100), max_cost=0.2, **priced)
        done = len(server.requests)
        cost = sum(body["usage"]["total_tokens"] for body in server.delivered) / done / 1e3
        assert 0.2 - 5 * cost < done * cost < 0.2 + 4 * cost  # four requests at once
        with pytest.raises(RuntimeError, match="are spent"):
            live(server, calls(100), max_cost=0.2, **priced)
        assert len(server.requests) == done
        answers = live(server, calls(100), **priced)
        assert len(server.requests) == 100 and answers.usage.cached == done
        assert answers.usage.cost == pytest.approx(100 * cost, rel=0.05)


def test_the_cost_includes_empty_replies(live):
    with llm_server.serving(echo, llm_server.script("blank")) as server:
        answers = live(server, calls(2), price=(1e3, 1e3))
        assert answers.usage.requests == 4 and answers.usage.retries == 2
        total = sum(body["usage"]["total_tokens"] for body in server.delivered)
        assert answers.usage.cost == pytest.approx(total / 1e3)
        again = live(server, calls(2), price=(1e3, 1e3)).usage
        assert again == dataclasses.replace(answers.usage, cached=2, retries=0)


SCRIPT = """
import json, sys
from pathlib import Path
from ark_jax.llm import complete
url, cache, n = sys.argv[1:]
calls = [complete.Call(f"extract/{i}", "extract", (f"Read passage {i}",)) for i in range(int(n))]
settings = complete.LLMSettings(backend="openai", model="toy", base_url=url, key_env="ARK_TEST_KEY",
    temperature=0.0, max_tokens=64, concurrency=4, requests_per_minute=0, tokens_per_minute=0,
    timeout=60.0, retries=3, reasks=1, price=(), max_cost=0.0, replies="")
print("ready", flush=True)
answers = complete.complete(calls, settings, Path(cache), "x")
print(json.dumps(dict(answers.texts)), flush=True)
"""


def start(server, cache: Path, n: int) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, server.url, str(cache), str(n)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "ARK_TEST_KEY": SECRET},
    )


def test_a_killed_process_repeats_no_request_whose_reply_arrived(tmp_path):
    pytest.importorskip(
        "openai", reason="the live backend needs the openai client: pip install 'ark-jax[llm]'"
    )
    cache = tmp_path / "cache.jsonl"
    with llm_server.serving(echo, latency=0.05) as server:
        for after in (10, 25):
            with start(server, cache, 60) as process:
                while len(server.delivered) < after:
                    time.sleep(0.005)
                process.kill()
            time.sleep(0.1)
        with start(server, cache, 60) as process:
            texts = json.loads(process.communicate(timeout=60)[0].splitlines()[-1])
        assert texts == {f"extract/{i}": [f"Re: Read passage {i}"] for i in range(60)}
        # After a kill only the requests under way are sent again: at most four.
        assert 60 <= len(server.requests) <= 60 + 2 * 4
        assert len(ReplyCache(cache).rows) == 60


def test_two_processes_share_the_work(tmp_path):
    pytest.importorskip(
        "openai", reason="the live backend needs the openai client: pip install 'ark-jax[llm]'"
    )
    with llm_server.serving(echo, latency=0.02) as server:
        processes = [start(server, tmp_path / "cache.jsonl", 80) for _ in range(2)]
        texts = [
            json.loads(process.communicate(timeout=60)[0].splitlines()[-1]) for process in processes
        ]
        assert (
            texts[0] == texts[1] == {f"extract/{i}": [f"Re: Read passage {i}"] for i in range(80)}
        )
        assert len(server.requests) == 80
        assert len((tmp_path / "cache.jsonl").read_text().splitlines()) == 80


def test_an_interrupt_ends_a_process_whose_requests_hang(tmp_path):
    pytest.importorskip(
        "openai", reason="the live backend needs the openai client: pip install 'ark-jax[llm]'"
    )
    with llm_server.serving(
        echo, lambda conversation, attempt: None if "passage 0" in conversation else "hang"
    ) as server:
        with start(server, tmp_path / "cache.jsonl", 30) as process:
            while len(server.requests) < 5:
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=20)  # the requests would wait for a minute
        assert len(ReplyCache(tmp_path / "cache.jsonl").rows) == 1
