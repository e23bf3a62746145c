"""Every way a reply of a language model is come by: recorded, from the cache, of our own model, over HTTP with faults."""

import dataclasses
import hashlib
import importlib.resources
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import llm_server
import pytest

from ark_jax.data.records import Question
from ark_jax.graph.extract import parse as parse_records
from ark_jax.log import read_rows
from ark_jax.text import endpoint, llm, offline, rewrite
from ark_jax.text.replies import Replies

EMBEDDED = importlib.resources.files("ark_jax.embedded")
DOCUMENTS = [json.loads(line) for line in (EMBEDDED / "documents.jsonl").read_text(encoding="utf-8").splitlines()]
SETTINGS = llm.Settings(backend="replay", model="toy", base_url="", key_env="ARK_TEST_KEY", temperature=0.0, max_tokens=64,
                        concurrency=4, requests_per_minute=0, tokens_per_minute=0, timeout=20.0, retries=3, reasks=1, price=(),
                        max_cost=0.0, replies="")
SECRET = "sk-never-on-disk-0123456789"


def calls(n: int = 3) -> list[llm.Call]:
    return [llm.Call(f"extract/{i}", "extract", (f"Read passage {i}",)) for i in range(n)]


def replay(path, **changes) -> llm.Settings:
    return dataclasses.replace(SETTINGS, replies=str(path), **changes)


def completion(text: str | None) -> dict:
    return {"id": "x", "object": "chat.completion", "created": 0, "model": "toy",
            "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}]}


# --- recordings ------------------------------------------------------------------------------------------------------

@pytest.fixture
def recording(tmp_path):
    """`make(calls, texts)` writes what a live run would have left."""
    def make(some, texts, name="recorded.jsonl"):
        path = tmp_path / name
        replies = Replies(path)
        digest = lambda prompt: hashlib.sha256(prompt.encode()).hexdigest()
        for call, text in zip(some, texts, strict=True):
            replies.add({"item": call.item, "key": call.item, "prompt": digest(call.turns[0]), "reply": completion(text)})
        return path
    return make


def test_replay(recording, tmp_path):
    path = recording(calls(), ["zero", "one", "two é 東"])
    cache = tmp_path / "run" / "replies.jsonl"
    answers = llm.complete(calls(), replay(path), cache, "x")
    assert answers.texts == {"extract/0": ["zero"], "extract/1": ["one"], "extract/2": ["two é 東"]}
    assert answers.drifted == [] and answers.rejected == {} and answers.usage.calls == answers.usage.requests == 3
    assert not cache.exists()  # a recording is read where it lies, so a newer one is never hidden


def test_a_new_recording_is_not_hidden_by_the_cache(recording, tmp_path):
    llm.complete(calls(), replay(recording(calls(), "abc")), tmp_path / "cache.jsonl", "x")
    new = recording(calls(), "xyz", "new.jsonl")
    assert llm.complete(calls(), replay(new), tmp_path / "cache.jsonl", "x").texts["extract/0"] == ["x"]


def test_a_call_that_was_not_recorded_is_named(recording, tmp_path):
    path = recording(calls(2), "ab")
    missing = r"recorded\.jsonl has no reply for 2 of 4 calls, the first being extract/2: .*Record anew"
    with pytest.raises(RuntimeError, match=missing):
        llm.complete(calls(4), replay(path), tmp_path / "cache.jsonl", "x")
    with pytest.raises(FileNotFoundError, match=r"llm\.replies='.*nowhere': no such file"):
        llm.complete(calls(), replay(tmp_path / "nowhere"), tmp_path / "cache.jsonl", "x")


def test_a_prompt_that_drifted_is_reported(recording, tmp_path):
    path = recording(calls(), "abc")
    changed = [calls()[0], llm.Call("extract/1", "extract", ("Read passage one",)), calls()[2]]
    answers = llm.complete(changed, replay(path), tmp_path / "cache.jsonl", "x")
    assert answers.texts["extract/1"] == ["b"] and answers.drifted == ["extract/1"]


def test_a_half_written_last_row_is_ignored_and_swallows_nothing(recording, tmp_path):
    path = recording(calls(), "abc")
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    assert sorted(Replies(path).rows) == ["extract/0", "extract/1"]
    with pytest.raises(RuntimeError, match="no reply for 1 of 3 calls, the first being extract/2"):
        llm.complete(calls(), replay(path), tmp_path / "cache.jsonl", "x")
    Replies(path).add({"item": "extract/2", "key": "k", "prompt": "", "reply": completion("again")})
    assert [llm.text_of(row["reply"]) for row in read_rows(path)] == ["a", "b", "again"]
    assert sorted(Replies(path).rows) == ["extract/0", "extract/1", "k"]


@pytest.mark.parametrize("text", ["one\u2028two", "one\u0085two", "one\x0b\x0c\x1c\r\ntwo"], ids=ascii)
def test_no_character_of_a_reply_breaks_its_row(text, recording, tmp_path):
    path = recording(calls(1), [text])
    assert llm.complete(calls(1), replay(path), tmp_path / "cache.jsonl", "x").texts == {"extract/0": [text]}
    assert len(Replies(path).rows) == 1


def test_a_row_without_its_line_break_counts(recording):
    """As an editor may leave the last one."""
    path = recording(calls(2), "ab")
    path.write_bytes(path.read_bytes()[:-1])
    replies = Replies(path)
    assert sorted(replies.rows) == ["extract/0", "extract/1"]
    replies.add({"item": "x", "key": "x", "reply": completion("c")})
    assert sorted(Replies(path).rows) == ["extract/0", "extract/1", "x"]


def test_an_unknown_backend_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"llm\.backend='gpt': must be one of openai, local, replay, none"):
        llm.complete(calls(), replay("", backend="gpt"), tmp_path / "cache.jsonl", "x")


# --- our own model, and none -----------------------------------------------------------------------------------------

def test_our_own_model_is_asked_once_and_once_more_with_a_remark(tmp_path):
    """What it answers is kept as it comes: a run that breaks off asks for the rest alone."""
    asked: list[list[str]] = []

    def write(conversations, heard, fail=False):
        asked.append([prompt for prompt, in conversations])
        for i, (prompt,) in enumerate(conversations):
            if fail and i == 2:
                raise KeyboardInterrupt
            heard(i, completion("better" if "\n\n" in prompt else f"reply to {prompt[-1]}"))

    accept = lambda call, texts, cut: "Say it better." if texts[-1] == "reply to 1" else None
    ask = lambda fail=False: llm.complete(calls(), replay("", backend="local"), tmp_path / "cache.jsonl", "x", accept,
                                          lambda conversations, heard: write(conversations, heard, fail))
    with pytest.raises(KeyboardInterrupt):
        ask(fail=True)
    answers = ask()
    assert answers.texts == {"extract/0": ["reply to 0"], "extract/1": ["reply to 1", "better"], "extract/2": ["reply to 2"]}
    first, *later = asked
    assert first == [f"Read passage {i}" for i in range(3)]
    assert later == [["Read passage 2", "Read passage 1\n\nSay it better."]] or later == [
        ["Read passage 1\n\nSay it better.", "Read passage 2"]]
    assert (answers.usage.requests, answers.usage.cached, answers.usage.asked_again) == (4, 2, 1)
    assert ask().usage.cached == 4 and len(asked) == 2


def test_the_same_remark_is_not_made_twice(tmp_path):
    """A model that draws nothing would say the same again."""
    asked = Counter()

    def write(conversations, heard):
        for i, (prompt,) in enumerate(conversations):
            asked[prompt] += 1
            heard(i, completion("worse" if "\n\n" in prompt else "bad"))

    settings = replay("", backend="local", reasks=5)
    answers = llm.complete(calls(1), settings, tmp_path / "cache.jsonl", "x", lambda call, texts, cut: "Not so.", write)
    assert answers.texts == {"extract/0": ["bad", "worse"]} and max(asked.values()) == 1


def test_without_a_model_replies_can_be_read(tmp_path):
    frequency = Counter(word for d in DOCUMENTS for word in offline.words(d["text"]))
    some = [llm.Call(f"extract/{d['id']}", "extract", (d["text"],), {"passage": d["text"]}) for d in DOCUMENTS]
    names = ["Long Staff", "Barnaby Quill", "Marrowgate"]
    question = Question("q", "Who read the {post}?", ("Ada",), ("d",))
    some.append(llm.Call("rewrite/q", "rewrite", ("p",), {"question": question.question, "names": names, "count": 10}))
    answers = llm.complete(some, replay("", backend="none"), tmp_path / "cache.jsonl", "x")
    assert answers.drifted == [] and len(DOCUMENTS) > 10 and not list(tmp_path.iterdir())
    assert answers.usage.calls == len(some) and answers.usage.requests == 0
    for d in DOCUMENTS:
        entities, relations, lost = parse_records(answers.texts[f"extract/{d['id']}"][0], d["id"])
        assert len(entities) > 20 and len(relations) > 20 and lost == []
        known = {entity.name for entity in entities}
        assert {r.source for r in relations} | {r.target for r in relations} <= known
        assert all(name in " ".join(d["text"].split()) for name in known)
        terms = {e.name for e in entities if e.type == "term"}
        assert terms and all(frequency[t] <= 2 and (frequency[t] == 2 or d["text"].count(t) > 1) for t in terms)
    questions = rewrite.parse(*answers.texts["rewrite/q"])
    assert rewrite.complaint(questions, question, 10) is None and len(questions) == 10
    assert all("ho read the {post}" in q and any(name in q for name in names) for q in questions)


# --- the cache between processes -------------------------------------------------------------------------------------

def test_a_claim_is_for_one(tmp_path):
    replies, key = Replies(tmp_path / "cache.jsonl"), "ab" * 32
    with replies.claim(key) as first, replies.claim(key) as second:
        assert (first, second) == (True, False)
        with replies.claim("cd" * 32) as other:
            assert other
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            assert pool.apply(claims, (replies.path, key)) is False
            assert pool.apply(claims, (replies.path, "cd" * 32)) is True
    replies.add({"key": key, "reply": completion("x")})
    with replies.claim(key) as answered:
        assert not answered


def claims(path: Path, key: str) -> bool:
    with Replies(path).claim(key) as ours:
        return ours


# --- a live endpoint -------------------------------------------------------------------------------------------------

@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setenv("ARK_TEST_KEY", SECRET)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(endpoint, "BACKOFF", 0.01)


@pytest.fixture
def live(tmp_path):
    """`ask(server, calls, ...)` as the pipeline does; afterwards the key must be in no file."""
    pytest.importorskip("openai", reason="the live backend needs the openai client: pip install 'ark-jax[llm]'")

    def ask(server, some, *accept, **changes):
        settings = replay("", backend="openai", base_url=server.url, **changes)
        return llm.complete(some, settings, tmp_path / "cache.jsonl", "x", *accept)

    yield ask
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files and [path for path in files if SECRET.encode() in path.read_bytes()] == []


def echo(messages) -> str:
    return f"Re: {messages[-1]['content']}"


def test_live_replies_are_asked_for_once(live):
    with llm_server.serving(echo) as server:
        answers = live(server, calls())
        assert answers.texts == {f"extract/{i}": [f"Re: Read passage {i}"] for i in range(3)}
        assert answers.usage.requests == 3 and answers.usage.cached == 0 and answers.usage.input_tokens > 10
        again = live(server, calls(4))
        assert again.texts["extract/3"] == ["Re: Read passage 3"] and again.usage.cached == 3
        assert [server.asked(f"Read passage {i}") for i in range(4)] == [1, 1, 1, 1]
        sent = server.requests[0]
        assert sent.headers["authorization"] == f"Bearer {SECRET}"
        assert (sent.body["model"], sent.body["temperature"], sent.body["max_tokens"]) == ("toy", 0.0, 64)
        assert [m["role"] for m in sent.body["messages"]] == ["user"]
        live(server, calls(1), temperature=0.5)  # what decides a reply decides its place in the cache
        assert server.asked("Read passage 0") == 2


def test_equal_prompts_are_asked_once(live):
    some = [llm.Call(f"extract/{i}", "extract", ("The same passage",)) for i in range(8)]
    with llm_server.serving(echo, latency=0.05) as server:
        answers = live(server, some)
        assert len(server.requests) == 1 and all(texts == ["Re: The same passage"] for texts in answers.texts.values())
        assert answers.usage == dataclasses.replace(answers.usage, calls=8, cached=0, requests=1)
        assert live(server, some).usage == dataclasses.replace(answers.usage, cached=1)


def test_what_was_asked_once_for_several_is_replayed_for_each(live, tmp_path):
    some = [*calls(2), llm.Call("extract/2", "extract", ("Read passage 1",))]
    with llm_server.serving(echo, llm_server.script("blank")) as server:  # the file also holds completions that came to nothing
        answers = live(server, some)
    again = llm.complete(some, replay(tmp_path / "cache.jsonl"), tmp_path / "none.jsonl", "x")
    assert again.texts == answers.texts == {item: [f"Re: Read passage {i}"] for item, i in zip(answers.texts, "011", strict=True)}
    assert again.drifted == []


def test_a_malformed_reply_is_remarked_upon(live):
    accept = lambda call, texts, cut: None if "good" in texts[-1] else f"Not so, {call.item}."
    said = {"Read passage 0": ["bad", "good"], "Read passage 1": ["bad", "worse", "never sent"],
            "Read passage 2": ["good as it is"]}
    with llm_server.serving(lambda messages: said[messages[0]["content"]][len(messages) // 2]) as server:
        answers = live(server, calls(), accept)
        assert answers.texts == {"extract/0": ["bad", "good"], "extract/1": ["bad", "worse"], "extract/2": ["good as it is"]}
        assert answers.usage.asked_again == 2 and len(server.requests) == 5
        assert [r.body["messages"] for r in server.requests if r.prompt == "Not so, extract/0."] == [[
            {"role": "user", "content": "Read passage 0"}, {"role": "assistant", "content": "bad"},
            {"role": "user", "content": "Not so, extract/0."}]]
        assert live(server, calls(), accept).texts == answers.texts and len(server.requests) == 5


def test_a_reply_that_broke_off_is_gone_on_with(live):
    accept = lambda call, texts, cut: "Go on." if cut else None
    said = lambda messages: "the rest" if len(messages) > 1 else "a long reply"
    with llm_server.serving(said, llm_server.script("length")) as server:
        # The script cuts the first reply to each conversation, so that to the remark too.
        assert live(server, calls(1), accept).texts == {"extract/0": ["a long ", "the r"]}


def test_what_no_model_will_answer_is_set_aside_and_not_asked_again(live):
    with llm_server.serving(echo, lambda conversation, attempt: "400" if "passage 1" in conversation else None) as server:
        for _ in range(2):
            answers = live(server, calls())
            assert answers.texts["extract/2"] == ["Re: Read passage 2"] and answers.texts["extract/1"] == [""]
            assert list(answers.rejected) == ["extract/1"] and "status 400" in answers.rejected["extract/1"]
        assert server.asked("Read passage 1") == 1


def test_a_call_that_fails_leaves_the_others_and_is_all_that_is_asked_again(live):
    broken = {"passage 1"}
    faults = lambda conversation, attempt: "500" if any(name in conversation for name in broken) else None
    with llm_server.serving(echo, faults) as server:
        with pytest.raises(RuntimeError, match=r"^1 of 3 calls failed, the first being extract/1: .*run the same command again"):
            live(server, calls())
        assert server.asked("Read passage 1") == 4  # once and three retries
        broken.clear()
        assert live(server, calls()).texts == {f"extract/{i}": [f"Re: Read passage {i}"] for i in range(3)}
        assert [server.asked(f"Read passage {i}") for i in range(3)] == [1, 5, 1]


def test_where_nothing_answers_not_all_calls_are_tried(live):
    with llm_server.serving(echo, lambda conversation, attempt: "503" if "passage 0" not in conversation else None,
                            retry_after={}) as server, \
            pytest.raises(RuntimeError, match=r"of 200 calls failed, the first .*answered none of the last requests"):
        live(server, calls(200))
    assert len(server.requests) < 60


def test_where_every_request_is_rejected_none_is_set_aside(live, tmp_path):
    """A limit of tokens that the model does not take, say: with it put right, all are asked again."""
    fault = ["400"]
    with llm_server.serving(echo, lambda conversation, attempt: fault[0]) as server:
        with pytest.raises(RuntimeError, match=r"^\d of 200 calls failed, the first .*: status 400.*rejects every request"):
            live(server, calls(200))
        assert len(server.requests) <= 8
        with pytest.raises(RuntimeError, match=r"^2 of 2 calls failed"):
            live(server, calls(2))
        fault[0] = None
        assert live(server, calls(2)).rejected == {}


@pytest.mark.parametrize("fault", ["401", "404", "quota", "html"])
def test_where_there_is_no_hope_nothing_more_is_asked(fault, live, tmp_path):
    live_before = replay("", backend="openai", base_url="")
    Replies(tmp_path / "cache.jsonl").add({"key": live_before.key(("x",)), "reply": completion("kept")})
    with llm_server.serving(echo, lambda conversation, attempt: fault) as server:
        with pytest.raises(RuntimeError, match="The other replies are kept; run the same command again") as raised:
            live(server, calls(200))
        assert len(server.requests) <= 4 and "sk-never" not in str(raised.value)


def test_replies_that_are_under_way_when_there_is_no_hope_are_kept(live, tmp_path):
    with llm_server.serving(echo, lambda conversation, attempt: "401" if "passage 3" in conversation else None,
                            latency=0.5) as server, pytest.raises(RuntimeError, match="status 401"):
        live(server, calls(12))
    assert len(server.requests) == 4 and len(Replies(tmp_path / "cache.jsonl").rows) == len(server.delivered) == 3


def test_a_burst_does_not_go_beyond_the_limit_of_cost(live):
    """Until a reply tells what one costs, it is reckoned at the most that it can."""
    priced = {"price": (0.0, 1e6), "concurrency": 32, "max_tokens": 6}  # a dollar a token
    with llm_server.serving(lambda messages: "x", latency=0.05) as server:
        with pytest.raises(RuntimeError, match="are spent"):
            live(server, calls(100), max_cost=12.0, **priced)
        each = server.delivered[0]["usage"]["completion_tokens"]
        assert 12 - each < each * len(server.requests) < 12 + each


def test_at_least_one_request_is_under_way():
    with pytest.raises(ValueError, match=r"llm\.concurrency=0: must be at least 1"):
        dataclasses.replace(SETTINGS, concurrency=0)


@pytest.mark.parametrize("text", ["[" * 6000, '{"questions": ["Who is he?", ' * 220, '{"a":' * 3000])
def test_a_reply_nested_beyond_reading_holds_no_question(text):
    assert rewrite.parse(text) in ([], ["Who is he?"])


@pytest.mark.parametrize("reply, found", [
    ('thinking: {"questions": ["draft?"]}\n</think>\n{"questions": ["a?", "b?"]}', ["a?", "b?"]),
    ('{"reasoning": ["a thought", "another"], "questions": ["a?", "b?"]}', ["a?", "b?"]),
    ('Here [1] is ["x"]:\n{"questions": ["a?"]}', ["a?"]), ('["a?", "b?"]', ["a?", "b?"]),
    ('{"rewritten": ["a?"]}', ["a?"]), ('{"questions": ["a?", "b?', ["a?", "b?"])])
def test_questions_are_read_from_what_models_write(reply, found):
    assert rewrite.parse(reply) == found


def test_names_and_terms_of_any_script_with_blanks():
    russian = "Наташа любила Болконского. Болконский оставил Наташу в гостиной."
    french = "Émile Zola écrivit Germinal."
    for text, names in ((russian, {"Наташа", "Болконского", "Наташу"}), (french, {"Émile Zola", "Germinal"})):
        entities, relations, _ = parse_records(offline.extract(text, Counter(offline.words(text))), "c")
        assert names <= {entity.name for entity in entities} and relations


def test_money_that_is_spent_stops_the_run_and_more_goes_on(live):
    priced = {"price": (1e3, 1e3), "concurrency": 4}  # a dollar for a thousand tokens
    with llm_server.serving(echo) as server:
        with pytest.raises(RuntimeError, match=r"^\$0\.\d\d of llm\.max_cost=0\.2 are spent.*run the same command again"):
            live(server, calls(100), max_cost=0.2, **priced)
        done = len(server.requests)
        each = sum(body["usage"]["total_tokens"] for body in server.delivered) / done / 1e3
        assert 0.2 - 5 * each < done * each < 0.2 + 4 * each  # four at once
        with pytest.raises(RuntimeError, match="are spent"):
            live(server, calls(100), max_cost=0.2, **priced)
        assert len(server.requests) == done
        answers = live(server, calls(100), **priced)
        assert len(server.requests) == 100 and answers.usage.cached == done
        assert answers.usage.cost == pytest.approx(100 * each, rel=0.05)


def test_replies_that_come_to_nothing_are_paid_for(live):
    with llm_server.serving(echo, llm_server.script("blank")) as server:
        answers = live(server, calls(2), price=(1e3, 1e3))
        assert answers.usage.requests == 4 and answers.usage.retries == 2
        total = sum(body["usage"]["total_tokens"] for body in server.delivered)
        assert answers.usage.cost == pytest.approx(total / 1e3)
        again = live(server, calls(2), price=(1e3, 1e3)).usage
        assert again == dataclasses.replace(answers.usage, cached=2, retries=0)


def test_a_limit_of_cost_wants_a_price(live):
    with llm_server.serving(echo) as server:
        with pytest.raises(ValueError, match=r"no price of toy is known; give --config\.llm\.price"):
            live(server, calls(1), max_cost=1.0)
        live(server, calls(1))


def test_a_missing_key_is_named(monkeypatch, tmp_path):
    pytest.importorskip("openai", reason="the live backend needs the openai client: pip install 'ark-jax[llm]'")
    monkeypatch.delenv("ARK_TEST_KEY", raising=False)
    with pytest.raises(RuntimeError, match=r"set \$ARK_TEST_KEY to your key"):
        llm.complete(calls(), replay("", backend="openai"), tmp_path / "cache.jsonl", "x")
    with llm_server.serving(echo) as server:
        settings = replay("", backend="openai", base_url=server.url)
        assert llm.complete(calls(1), settings, tmp_path / "cache.jsonl", "x").texts == {"extract/0": ["Re: Read passage 0"]}


# --- processes that die, and two at once -----------------------------------------------------------------------------

SCRIPT = """
import json, sys
from pathlib import Path
from ark_jax.text import llm
url, cache, n = sys.argv[1:]
calls = [llm.Call(f"extract/{i}", "extract", (f"Read passage {i}",)) for i in range(int(n))]
settings = llm.Settings(backend="openai", model="toy", base_url=url, key_env="ARK_TEST_KEY", temperature=0.0,
    max_tokens=64, concurrency=4, requests_per_minute=0, tokens_per_minute=0, timeout=60.0, retries=3, reasks=1, price=(),
    max_cost=0.0, replies="")
print("ready", flush=True)
answers = llm.complete(calls, settings, Path(cache), "x")
print(json.dumps(answers.texts), flush=True)
"""


def started(server, cache: Path, n: int) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", SCRIPT, server.url, str(cache), str(n)], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, env={**os.environ, "ARK_TEST_KEY": SECRET})


def test_a_killed_process_repeats_no_call_whose_reply_had_arrived(tmp_path):
    pytest.importorskip("openai", reason="the live backend needs the openai client: pip install 'ark-jax[llm]'")
    cache = tmp_path / "cache.jsonl"
    with llm_server.serving(echo, latency=0.05) as server:
        for after in (10, 25):
            with started(server, cache, 60) as process:
                while len(server.delivered) < after:
                    time.sleep(0.005)
                process.kill()
            time.sleep(0.1)
        with started(server, cache, 60) as process:
            told = json.loads(process.communicate(timeout=60)[0].splitlines()[-1])
        assert told == {f"extract/{i}": [f"Re: Read passage {i}"] for i in range(60)}
        # Of a kill only what was under way is asked for again: four at most.
        assert 60 <= len(server.requests) <= 60 + 2 * 4
        assert len(Replies(cache).rows) == 60


def test_two_processes_share_the_work(tmp_path):
    pytest.importorskip("openai", reason="the live backend needs the openai client: pip install 'ark-jax[llm]'")
    with llm_server.serving(echo, latency=0.02) as server:
        both = [started(server, tmp_path / "cache.jsonl", 80) for _ in range(2)]
        told = [json.loads(process.communicate(timeout=60)[0].splitlines()[-1]) for process in both]
        assert told[0] == told[1] == {f"extract/{i}": [f"Re: Read passage {i}"] for i in range(80)}
        assert len(server.requests) == 80
        assert len((tmp_path / "cache.jsonl").read_text().splitlines()) == 80


def test_an_interrupt_ends_the_process_within_two_seconds(tmp_path):
    pytest.importorskip("openai", reason="the live backend needs the openai client: pip install 'ark-jax[llm]'")
    with llm_server.serving(echo, lambda conversation, attempt: None if "passage 0" in conversation else "hang") as server:
        with started(server, tmp_path / "cache.jsonl", 30) as process:
            while len(server.requests) < 5:
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)
            at = time.monotonic()
            process.communicate(timeout=10)
            assert time.monotonic() - at < 2
        assert len(Replies(tmp_path / "cache.jsonl").rows) == 1
