"""The endpoint's client against a server that fails in every way we know of, over real HTTP."""

import asyncio
import email.utils
import json
import logging
import os
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
from llm_server import FAULTS, RECORDED, Server, recorded, script, serving, shares, tokens_of

from ark_jax.text import cost, failures
from ark_jax.text import endpoint as module
from ark_jax.text.endpoint import Bucket, Endpoint
from ark_jax.text.failures import Hopeless, Rejected, Unavailable

KEY = "sk-proj-Zq7Lw2-Xt9Rk4Vb8Nm1_Pd6Hs3Jf5Gy0Cc"
GOOD = lambda messages: f"Re: {messages[-1]['content']}"

pytest.importorskip("openai", reason="the live backend needs the openai client: pip install 'ark-jax[llm]'")


@pytest.fixture(autouse=True)
def surroundings(monkeypatch):
    """A key, and waits of tests."""
    monkeypatch.setenv("ARK_TEST_KEY", KEY)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(module, "BACKOFF", 0.01)


def ask(url: str, *prompts: str, parallel: int = 64, **changes) -> tuple[Endpoint, list]:
    """The endpoint, used up, and the completion or error that each prompt came to."""

    async def all_of_them():
        slots = asyncio.Semaphore(parallel)
        async with Endpoint(**{"model": "toy", "base_url": url, "key_env": "ARK_TEST_KEY", "temperature": 0.25, "max_tokens": 64,
                               "timeout": 5.0, "retries": 4, "requests_per_minute": 0, "tokens_per_minute": 0, **changes}) as end:
            async def one(prompt):
                async with slots:
                    return await end.ask([{"role": "user", "content": prompt}])

            return end, await asyncio.gather(*map(one, prompts), return_exceptions=True)

    return asyncio.run(all_of_them())


def texts(outcomes: list) -> list[str]:
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return [outcome["choices"][0]["message"]["content"] for outcome in outcomes]


def test_a_reply_is_a_plain_chat_completion():
    with serving(GOOD) as server:
        end, (reply,) = ask(server.url, "Hello")
        ask(server.url, "Hello again", max_tokens=7)
    assert type(reply) is dict and reply["usage"]["total_tokens"] > 0
    assert reply["choices"] == [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Re: Hello"}}]
    first, second = server.requests
    assert first.body == {"model": "toy", "temperature": 0.25, "max_tokens": 64,
                          "messages": [{"role": "user", "content": "Hello"}]}
    assert second.body["max_tokens"] == 7
    assert first.headers["authorization"] == f"Bearer {KEY}"
    assert (end.retries_made, end.unused) == (0, [])


@pytest.mark.parametrize("fault", ["408", "409", "425", "429", "500", "502", "503", "reset", "cut", "truncated", "hang",
                                   "empty", "blank", "no choices"])
def test_what_may_pass_is_asked_again(fault):
    with serving(GOOD, script(fault), retry_after={}) as server:
        end, outcomes = ask(server.url, "Hello", timeout=0.4)
        assert texts(outcomes) == ["Re: Hello"]
        assert (server.asked("Hello"), end.retries_made) == (2, 1)


@pytest.mark.parametrize("fault, says", [("500", "status 500"), ("429", "status 429"), ("reset", "Error"),
                                         ("hang", "no reply within 0.2 s")])
def test_what_does_not_pass_is_given_up_after_all_retries(fault, says):
    with serving(GOOD, lambda *_: fault, retry_after={}) as server:
        end, (outcome,) = ask(server.url, "Hello", retries=3, timeout=0.2)
    assert isinstance(outcome, Unavailable) and says in str(outcome) and "(4 times)" in str(outcome)
    assert (len(server.requests), end.retries_made) == (4, 3)


def test_a_request_always_answered_with_nothing_is_rejected_early_for_each_is_paid_for():
    with serving(GOOD, lambda *_: "empty") as server:
        end, (outcome,) = ask(server.url, "Hello", retries=8)
    assert isinstance(outcome, Rejected) and "config.llm.max_tokens was spent before the text began" in str(outcome)
    assert len(server.requests) == len(end.unused) == 3
    with serving(GOOD, script("500", "empty", "503", "empty", "500"), retry_after={}) as server:  # each kind is counted alone
        assert texts(ask(server.url, "Hello", retries=3)[1]) == ["Re: Hello"]


@pytest.mark.parametrize("fault, says", [
    ("400", "status 400: The fault 400 was asked for."), ("413", "413"), ("422", "422"),
    ("refusal", "refused: I cannot help"), ("filtered", "refused: by a content filter"),
    ({"message": "'max_tokens' is too large: 64. The context length is 32", "code": 400}, "too large")])
def test_what_is_rejected_is_not_asked_again_and_leaves_others_alone(fault, says):
    with serving(GOOD, lambda conversation, attempt: fault if "bad" in conversation else None) as server:
        end, (good, bad, other) = ask(server.url, "good", "bad", "other")
        assert texts([good, other]) == ["Re: good", "Re: other"]
        assert isinstance(bad, Rejected) and says in str(bad)
        assert (server.asked("bad"), end.retries_made) == (1, 0)
    assert len(end.unused) == (fault in ("refusal", "filtered"))


@pytest.mark.parametrize("fault, says", [
    ("401", "Incorrect API key"), ("403", "403"), ("404", "404"), ("quota", "exceeded your current quota"),
    ("html", "no chat completion but '<!DOCTYPE html>"),
    ({"message": "API key not valid. Please pass a valid API key."}, "not valid"),  # Gemini's status 400
    ({"message": "Sorry", "code": "model_not_found"}, "Sorry (model_not_found)")])
def test_what_no_request_can_pass_stops_at_once(fault, says):
    with serving(GOOD, lambda *_: fault) as server:
        end, (outcome,) = ask(server.url, "Hello")
        assert isinstance(outcome, Hopeless) and says in str(outcome)
        assert (len(server.requests), end.retries_made) == (1, 0)


@pytest.mark.parametrize("body, outcome", [
    ({"object": "list", "data": []}, Hopeless), ({"choices": [{"index": 0}]}, Hopeless),
    ({"choices": [{"message": {"content": [{"text": "a part"}]}}]}, Hopeless), ({"error": {"message": "quota"}}, Hopeless),
    ({"error": {"message": "No.", "code": 400}}, Rejected),
    ({"error": {"message": "Busy", "code": 502}}, Unavailable)], ids=str)
def test_status_200_is_no_promise(body, outcome):
    with serving(lambda messages: body) as server:
        assert type(ask(server.url, "Hello", retries=1)[1][0]) is outcome
        assert len(server.requests) == (2 if outcome is Unavailable else 1)


def test_a_page_in_place_of_a_reply_may_pass_once_the_address_has_proved_right():
    with serving(GOOD, lambda conversation, attempt: "html" if "second" in conversation and not attempt else None) as server:
        assert texts(ask(server.url, "first", "second", parallel=1)[1]) == ["Re: first", "Re: second"]


@pytest.mark.parametrize("fault", ["length", "think", "miscount"])
def test_replies_in_the_wrong_form_are_the_callers_matter(fault):
    said = '{"questions": ["Who?", "What?", "Why?"]}'
    with serving(lambda messages: said, script(fault)) as server:
        _, (reply,) = ask(server.url, "Hello")
    text = reply["choices"][0]["message"]["content"]
    assert (reply["choices"][0]["finish_reason"], text) == {
        "length": ("length", said[: len(said) // 2 + 1]), "miscount": ("stop", '{"questions": ["Who?", "What?"]}'),
        "think": ("stop", f"<think>\nWhat is {{wanted}} here? [Perhaps this.]\n</think>\n\n{said}")}[fault]


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def test_an_address_where_nobody_listens_is_named_soon():
    url = f"http://me:{KEY}@127.0.0.1:{free_port()}/v1"
    end, (outcome,) = ask(url, "Hello", retries=1000)
    assert isinstance(outcome, Hopeless) and end.retries_made == 2
    assert f"nothing answers at {url.replace(f'me:{KEY}@', '')}/, see config.llm.base_url: ConnectError" in str(outcome)


def test_an_address_without_its_http_is_named_soon():
    end, (outcome,) = ask("127.0.0.1:8000/v1", "Hello", retries=1000)
    assert isinstance(outcome, Hopeless) and end.retries_made == 2
    assert "see config.llm.base_url: UnsupportedProtocol" in str(outcome)


def test_a_server_that_goes_down_after_it_has_answered_is_waited_for(monkeypatch):
    monkeypatch.setattr(module, "LONGEST", 0.1)
    port, prompts = free_port(), [f"Prompt {i}" for i in range(40)]
    outcome = []
    with serving(GOOD, port=port, latency=0.05) as server:
        client = threading.Thread(target=lambda: outcome.extend(texts(ask(server.url, *prompts, parallel=4, retries=1000)[1])))
        client.start()
        while len(server.delivered) < 8:
            time.sleep(0.01)
    time.sleep(0.3)
    with serving(GOOD, port=port):
        client.join(20)
    assert outcome == [f"Re: {prompt}" for prompt in prompts]


@pytest.mark.parametrize("after", [{"Retry-After": "0.6"}, {"retry-after-ms": "600"}], ids=str)
def test_a_429_holds_back_every_request(after):
    with serving(GOOD, lambda conversation, attempt: "429" if "third" in conversation and not attempt else None,
                 latency=0.02, retry_after=after) as server:
        prompts = ["first", "second", "third", *(f"Prompt {i}" for i in range(20))]
        assert texts(ask(server.url, *prompts, parallel=2)[1]) == [f"Re: {prompt}" for prompt in prompts]
    times = [request.at for request in server.requests]
    refused = next(request.at for request in server.requests if request.fault)
    # Under way when it came was one other request: that worker, too, stops with its next.
    assert sum(refused < at < refused + 0.55 for at in times) <= 1
    assert sum(refused + 0.55 < at for at in times) >= 20


def test_another_error_holds_back_the_one_request_only():
    with serving(GOOD, lambda conversation, attempt: "503" if "first" in conversation and not attempt else None,
                 retry_after={"Retry-After": "0.5"}) as server:
        texts(ask(server.url, "first", "second", "third", parallel=2)[1])
    refused, again = (request.at for request in server.requests if request.prompt == "first")
    assert again - refused >= 0.5 and all(request.at - refused < 0.4 for request in server.requests[:3])


@pytest.mark.parametrize("headers, said, seconds", [
    ({"retry-after": "7"}, "", 7.0), ({"retry-after": "1.5"}, "", 1.5), ({"retry-after-ms": "250", "retry-after": "7"}, "", 0.25),
    ({"retry-after": email.utils.formatdate(time.time() + 1000, usegmt=True)}, "", pytest.approx(1000, abs=300)),
    ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, "", 0.0), ({"retry-after": "soon"}, "", 0.0), ({}, "", 0.0),
    ({}, "Resource exhausted. Please retry in 34.07s.", 34.07), ({}, "Please try again in 20s. Contact us", 20.0),
    ({"retry-after": "2"}, "Please try again in 20s.", 2.0)])
def test_how_long_to_wait_is_said_in_many_ways(headers, said, seconds):
    assert failures._retry_after(headers, said) == seconds


def test_a_day_is_not_waited_for():
    with serving(GOOD, lambda *_: "429", retry_after={"Retry-After": "86400"}) as server:
        _, (outcome,) = ask(server.url, "Hello")
    assert isinstance(outcome, Hopeless) and "86,400 s" in str(outcome)


def test_a_busy_server_that_answers_others_is_not_unavailable():
    # The pause that the server asks for is longer than its minute, so that some are answered in each.
    with serving(GOOD, requests_per_minute=5, minute=0.05, retry_after={"retry-after-ms": "100"}) as server:
        prompts = [f"Prompt {i}" for i in range(60)]
        assert texts(ask(server.url, *prompts, parallel=30, retries=2)[1]) == [f"Re: {prompt}" for prompt in prompts]
    assert server.limited > 0
    assert max(Counter(request.prompt for request in server.requests).values()) > 3  # more often than the retries allow


def test_waits_double_up_to_the_longest_and_are_drawn_at_random(monkeypatch):
    waits, drawn = [], iter([1.0, 0.5, 1.0, 1.0, 1.0])
    monkeypatch.setattr(module, "LONGEST", 0.06)
    monkeypatch.setattr(module, "random", SimpleNamespace(random=lambda: next(drawn)))
    sleep = asyncio.sleep

    async def noted(seconds):
        waits.append(seconds)
        await sleep(seconds)

    with serving(GOOD, lambda *_: "500") as server, mock.patch.object(module.asyncio, "sleep", noted):
        ask(server.url, "Hello", retries=5)
    assert [wait for wait in waits if wait] == pytest.approx([0.01, 0.01, 0.04, 0.06, 0.06])


def test_requests_keep_below_the_limit_per_minute_and_use_it(monkeypatch):
    monkeypatch.setattr(module, "MINUTE", 1.5)
    # The server's minute is shorter, since on a busy machine some requests take longer to come than others.
    with serving(GOOD, requests_per_minute=40, minute=1.2) as server:
        start = time.monotonic()
        _, outcomes = ask(server.url, *(f"Prompt {i}" for i in range(70)), requests_per_minute=40)
        seconds = time.monotonic() - start
    assert len(texts(outcomes)) == len(server.requests) == 70 and server.limited == 0
    assert 0.95 * 68 / 40 * 1.5 < seconds < 2.5 * 70 / 40 * 1.5  # on a busy machine too


@pytest.mark.parametrize("max_tokens, length", [(1200, 4700), (4096, 200)], ids=["underestimated", "overestimated"])
def test_tokens_keep_below_the_limit_per_minute_and_use_it(max_tokens, length, monkeypatch):
    monkeypatch.setattr(module, "MINUTE", 1.5)
    prompts = [f"Prompt {i} {'word ' * 40}" for i in range(60)]
    used = sum(tokens_of(f'[{{"role": "user", "content": "{prompt}"}}]') + tokens_of("x" * length) for prompt in prompts)
    limit = used / 2
    with serving(lambda messages: "x" * length, tokens_per_minute=limit, minute=1.2, latency=0.02) as server:
        start = time.monotonic()
        _, outcomes = ask(server.url, *prompts, parallel=8, tokens_per_minute=limit, max_tokens=max_tokens)
        seconds = time.monotonic() - start
    assert len(texts(outcomes)) == len(server.requests) == 60 and server.limited == 0
    assert 0.8 * 3.0 < seconds < 2.5 * 3.0  # on a busy machine too


def test_a_request_reckoned_too_high_holds_the_next_up_no_longer_than_until_its_reply(monkeypatch):
    monkeypatch.setattr(module, "MINUTE", 6.0)
    start = time.monotonic()
    with serving(GOOD) as server:
        texts(ask(server.url, "one", "two", tokens_per_minute=6000, max_tokens=40_000)[1])
    assert time.monotonic() - start < 3  # and not the ten seconds that ten thousand tokens take


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


@given(st.integers(1, 500), st.lists(st.tuples(st.floats(0, 1), st.floats(0, 3)), min_size=1, max_size=200))
@settings(deadline=None)
def test_no_minute_holds_more_than_a_bucket_allows(limit, wishes):
    clock, taken = Clock(), []
    with mock.patch.object(module, "time", clock):
        bucket = Bucket(limit)
        for share, pause in wishes:
            amount = share * limit / 20
            clock.now += pause
            wait = bucket.wait(amount)
            clock.now += wait
            bucket.take(amount)
            taken.append((clock.now, amount))
            if wait:
                assert bucket.level < 1e-6 * limit  # it was waited for no longer than needed
    for end, _ in taken:
        assert sum(amount for at, amount in taken if end - 60 < at <= end) <= limit * (1 + 1e-9)


def test_one_request_a_minute_is_a_limit_too():
    clock, times = Clock(), []
    with mock.patch.object(module, "time", clock):
        bucket = Bucket(1)
        for _ in range(3):
            clock.now += bucket.wait(1)
            bucket.take(1)
            times.append(clock.now)
    assert times == pytest.approx([0, 63.16, 126.3], rel=1e-3)


def test_parameters_that_a_model_refuses_are_left_out_from_then_on():
    refuses = {"max_tokens": {"message": "Unsupported parameter: 'max_tokens' is not supported with this model. Use "
                                         "'max_completion_tokens' instead.", "code": "unsupported_parameter"},
               "temperature": {"message": "Unsupported value: 'temperature' does not support 0.25 with this model.",
                               "param": "temperature"}}
    with serving(GOOD, refuses=refuses, latency=0.05) as server:
        prompts = [*(f"early {i}" for i in range(4)), "late"]
        end, outcomes = ask(server.url, *prompts, parallel=4, retries=0)
        assert texts(outcomes) == [f"Re: {prompt}" for prompt in prompts]
        # One that starts once another was refused leaves out what that one learned.
        assert server.asked("early 0") == 3 and server.asked("late") == 1 and 2 <= end.retries_made <= 8
        assert len(server.requests) == len(prompts) + end.retries_made
    assert server.requests[-1].body == {"model": "toy", "max_completion_tokens": 64,
                                        "messages": [{"role": "user", "content": "late"}]}


@pytest.mark.parametrize("body, said", [
    ('{"error": {"message": "No", "code": "too_long", "type": "invalid"}}', "No (too_long) (invalid)"),
    ('[{"error": {"message": "No", "code": 400}}]', "No (400)"), ('{"message": "No"}', "No"),
    ("<h1>No\n way</h1>", "<h1>No way</h1>"), ("word " * 200, f"{'word ' * 60}…")])
def test_what_servers_say_is_found_in_many_places(body, said):
    assert failures.hidden(failures.message_of(body), "") == said


def revealed(text: str) -> list[str]:
    """Parts of the key in a text."""
    return [KEY[i : i + 6] for i in range(3, len(KEY) - 5) if KEY[i : i + 6] in text] + [KEY[-4:]] * (KEY[-4:] in text)


@pytest.mark.parametrize("fault", ["401", "400", "500", "reset", "html"])
def test_the_key_is_never_told(fault, caplog, capfd):
    parts = f"{KEY}, {KEY[:10]}****{KEY[-4:]}, {KEY[:12]}..., ...{KEY[-4:]}"
    echo = {"message": f"Bad key {parts} in Authorization: Bearer {KEY[5:]}"}
    faults = {"401": lambda *_: "401", "400": lambda *_: echo}.get(fault, lambda *_: fault)
    with caplog.at_level(logging.DEBUG, logger="ark_jax"), serving(GOOD, faults) as server:
        _, (outcome,) = ask(server.url, "Hello", retries=1)
    told = "".join(traceback.format_exception(outcome))
    assert str(outcome) in told and revealed(told) == []
    assert [record for record in caplog.records if record.name.startswith("ark_jax")] == []
    assert capfd.readouterr() == ("", "")


@given(st.text("ab c*.…'\"", max_size=12), st.integers(0, len(KEY) - 8), st.integers(8, len(KEY)),
       st.text("ab c*.…'\"", max_size=400))
@settings(deadline=None)
def test_no_part_of_a_key_survives(before, start, length, after):
    hidden = failures.hidden(f"{before}{KEY[start : start + length]}{after}", KEY)
    assert revealed(hidden) == [] and len(hidden) <= 301


@pytest.mark.parametrize("text, shown", [
    ("Incorrect API key provided: sk-abc12. See", "Incorrect API key provided: [key]. See"), ("is AIzaSyB-x1_y2Zz", "is [key]"),
    ("gsk_1234 no", "[key] no"), ("ab12********wxyz!", "[key]!"),
    ("authorization: Bearer tok.en/1=", "authorization: Bearer [key]"),
    ("deadbeef00112233445566778899aabb", "[key]"), ("https://me:secret@host/v1", "https://host/v1"),
    ("The model gemini-2.5-flash-lite-preview-06-17 is asked to sketch a risk_free_thing...", None),
    ("Request 3f2b8c1e-1111-2222-3333-444455556666 failed: internationalisation", None)])
def test_what_looks_like_a_key_is_hidden_and_words_are_not(text, shown):
    assert failures.hidden(text, "") == (text if shown is None else shown)
    assert failures.hidden("no local-pass", "local-pass") == "no [key]"  # too short to look for in parts


def test_a_key_is_needed_where_no_address_is_given(monkeypatch):
    monkeypatch.delenv("ARK_TEST_KEY")
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(RuntimeError, match=r"set \$ARK_TEST_KEY to your key, or config\.llm\.base_url"):
        ask("", "Hello")
    with serving(GOOD) as server:
        assert texts(ask(server.url, "Hello")[1]) == ["Re: Hello"]
        monkeypatch.setenv("ARK_TEST_KEY", f"  {KEY}\n")
        ask(server.url, "Hello")
        assert server.requests[-1].headers["authorization"] == f"Bearer {KEY}"
    monkeypatch.setenv("ARK_TEST_KEY", f"“{KEY}”")
    with pytest.raises(RuntimeError, match=r"\$ARK_TEST_KEY holds blanks or letters that no key has") as error:
        ask("http://127.0.0.1:1/v1", "Hello")
    assert revealed(str(error.value)) == []


def test_half_a_letter_is_rejected_by_itself():
    with serving(GOOD) as server:
        _, (bad, good) = ask(server.url, "x \ud83d y", "Größe 漢字 🙂")
    assert isinstance(bad, Rejected) and "surrogate" in str(bad)
    assert texts([good]) == ["Re: Größe 漢字 🙂"]


def test_without_the_client_its_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(RuntimeError, match=r"^llm\.backend=openai needs the client: pip install 'ark-jax\[llm\]'$"):
        ask("http://127.0.0.1:1/v1", "Hello")


def test_importing_it_imports_little():
    code = "import ark_jax.text.endpoint, sys; sys.exit([x for x in ('jax', 'openai', 'transformers') if x in sys.modules] or 0)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=os.path.dirname(os.path.dirname(__file__)))


def test_a_cancelled_request_leaves_nothing_behind():
    async def main(url: str) -> tuple[float, set]:
        async with Endpoint(model="toy", base_url=url, key_env="ARK_TEST_KEY", temperature=0.0, max_tokens=64, timeout=60.0,
                            retries=8, requests_per_minute=30, tokens_per_minute=0) as end:
            tasks = [asyncio.create_task(end.ask([{"role": "user", "content": str(i)}])) for i in range(8)]
            while not server.requests:
                await asyncio.sleep(0.01)
            start = time.monotonic()
            for task in tasks:  # one under way, the others waiting for their turn
                task.cancel()
            assert {type(x) for x in await asyncio.gather(*tasks, return_exceptions=True)} == {asyncio.CancelledError}
        return time.monotonic() - start, asyncio.all_tasks() - {asyncio.current_task()}

    with serving(GOOD, lambda *_: "hang") as server:
        seconds, left = asyncio.run(main(server.url))
    assert seconds < 1 and left == set()


def test_a_process_ends_soon_after_ctrl_c_while_its_requests_hang():
    code = """if True:
        import asyncio, sys
        from ark_jax.text.endpoint import Endpoint
        async def main():
            async with Endpoint(model="toy", base_url=sys.argv[1], key_env="ARK_TEST_KEY", temperature=0.0, max_tokens=64,
                                timeout=60.0, retries=8, requests_per_minute=0, tokens_per_minute=0) as end:
                await asyncio.gather(*(end.ask([{"role": "user", "content": str(i)}]) for i in range(16)))
        asyncio.run(main())"""
    with serving(GOOD, lambda *_: "hang") as server:
        process = subprocess.Popen([sys.executable, "-c", code, server.url], stderr=subprocess.PIPE, text=True,
                                   cwd=os.path.dirname(os.path.dirname(__file__)))
        deadline = time.monotonic() + 30
        while len(server.requests) < 16 and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        start = time.monotonic()
        said = process.communicate(timeout=10)[1]
    assert time.monotonic() - start < 2
    assert len(server.requests) == 16 and re.search(r"KeyboardInterrupt\s*$", said) and revealed(said) == []


def test_a_stormy_day_is_weathered(monkeypatch):
    monkeypatch.setattr(module, "LONGEST", 0.1)
    storm = dict.fromkeys(("429", "500", "502", "503", "reset", "cut", "truncated", "html", "no choices"), 0.03) | {"hang": 0.01}
    prompts = [f"Prompt {i}" for i in range(300)]
    with serving(GOOD, shares(3, **storm), retry_after={"retry-after-ms": "20"}) as server:
        end, outcomes = ask(server.url, *prompts, parallel=16, timeout=0.6, retries=8)
        assert texts(outcomes) == [f"Re: {prompt}" for prompt in prompts]
    faults = Counter(request.fault for request in server.requests)
    assert faults.keys() >= storm.keys() and end.retries_made == len(server.requests) - 300 == sum(faults.values()) - faults[None]


def test_faults_are_drawn_in_their_shares_and_alike_each_time():
    draw = shares(7, reset=0.2, think=0.1)
    drawn = Counter(draw(f"prompt {i}", attempt) for i in range(2000) for attempt in range(2))
    assert {name: n / 4000 for name, n in drawn.items()} == {
        "reset": pytest.approx(0.2, abs=0.03), "think": pytest.approx(0.1, abs=0.02), None: pytest.approx(0.7, abs=0.03)}
    same = [shares(seed, reset=0.5)("prompt", attempt) for seed in (7, 8) for attempt in range(64)]
    assert same[:64] != same[64:] and same[:64] == [shares(7, reset=0.5)("prompt", attempt) for attempt in range(64)]
    assert drawn.keys() - {None} <= FAULTS


def test_the_server_works_on_no_more_than_its_capacity():
    with serving(GOOD, latency=0.02, capacity=3) as server:
        texts(ask(server.url, *map(str, range(24)))[1])
    assert server.most == 3 and len(server.delivered) == 24


def test_the_server_knows_the_recorded_replies_and_makes_up_others():
    row = json.loads(RECORDED.read_text(encoding="utf-8").splitlines()[0])
    with mock.patch("llm_server.hashlib", SimpleNamespace(sha256=lambda text: SimpleNamespace(hexdigest=lambda: row["prompt"]))):
        assert recorded([{"content": "any"}]) == row["reply"]["choices"][0]["message"]["content"]
    made_up = json.loads(recorded([{"content": 'Write 4 questions as {"questions": []}'}]))["questions"]
    assert len(set(made_up)) == 4 and Server().reply is recorded


def test_a_prompt_that_is_moderated_is_refused_by_itself():
    said = "Your chosen model requires moderation and your input was flagged for violence"
    assert isinstance(failures.judged(403, {}, said), Rejected)
    assert isinstance(failures.judged(403, {}, "no access to this model"), Hopeless)


def test_what_a_model_thinks_is_billed_where_only_the_total_counts_it():
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 1110}
    assert cost.tokens_of({"usage": usage}) == (100, 1010) and cost.cost_of({"usage": usage}, (0.0, 1e6)) == 1010.0
    assert cost.tokens_of({"usage": {"prompt_tokens": 3, "completion_tokens": 2}}) == (3, 2) and cost.tokens_of({}) == (0, 0)
