"""All backends of `complete`: recordings, the cache, our own model, and a live endpoint."""

import dataclasses
from collections import Counter

import pytest
from support import llm_server
from support.llm_calls import SECRET, calls, changed_settings, completion, echo

from ark_jax.llm import complete


def test_recorded_replies_are_replayed_in_order(recording, tmp_path):
    path = recording(calls(), ["zero", "one", "two é 東"])
    cache = tmp_path / "run" / "replies.jsonl"
    answers = complete.complete(calls(), changed_settings(replies=str(path)), cache, "x")
    assert answers.texts == {"extract/0": ["zero"], "extract/1": ["one"], "extract/2": ["two é 東"]}
    assert (
        answers.drifted == []
        and answers.rejected == {}
        and answers.usage.calls == answers.usage.requests == 3
    )
    assert not cache.exists()  # recordings are never copied, so a newer one counts


def test_a_new_recording_takes_precedence_over_the_cache(recording, tmp_path):
    cache = tmp_path / "cache.jsonl"
    old = changed_settings(replies=str(recording(calls(), "abc")))
    complete.complete(calls(), old, cache, "x")
    new = changed_settings(replies=str(recording(calls(), "xyz", "new.jsonl")))
    assert complete.complete(calls(), new, cache, "x").texts["extract/0"] == ["x"]


def test_a_call_that_was_not_recorded_is_named(recording, tmp_path):
    path = recording(calls(2), "ab")
    missing = (
        r"recorded\.jsonl has no reply for 2 of 4 calls, the first being extract/2: .*Record again"
    )
    with pytest.raises(RuntimeError, match=missing):
        complete.complete(
            calls(4), changed_settings(replies=str(path)), tmp_path / "cache.jsonl", "x"
        )


def test_a_missing_recording_is_named(tmp_path):
    settings = changed_settings(replies=str(tmp_path / "nowhere"))
    with pytest.raises(FileNotFoundError, match=r"llm\.replies='.*nowhere': no such file"):
        complete.complete(calls(), settings, tmp_path / "cache.jsonl", "x")


def test_a_prompt_that_drifted_is_reported(recording, tmp_path):
    path = recording(calls(), "abc")
    changed = [calls()[0], complete.Call("extract/1", "extract", ("Read passage one",)), calls()[2]]
    answers = complete.complete(
        changed, changed_settings(replies=str(path)), tmp_path / "cache.jsonl", "x"
    )
    assert answers.texts["extract/1"] == ["b"] and answers.drifted == ["extract/1"]


def test_an_unknown_backend_is_an_error(tmp_path):
    with pytest.raises(
        ValueError, match=r"llm\.backend='gpt': must be one of openai, local, replay, none"
    ):
        complete.complete(calls(), changed_settings(backend="gpt"), tmp_path / "cache.jsonl", "x")


def test_a_local_model_gets_all_calls_in_one_batch_then_corrections(tmp_path):
    """Replies are kept as they come: a run that broke off makes only the others."""
    sent: list[list[str]] = []
    is_interrupted = True

    def generate(conversations, on_reply):
        sent.append([prompt for (prompt,) in conversations])
        for i, (prompt,) in enumerate(conversations):
            if is_interrupted and i == 2:
                raise KeyboardInterrupt
            on_reply(i, completion("better" if "\n\n" in prompt else f"reply to {prompt[-1]}"))

    def accept(call, texts, cut):
        return "Say it better." if texts[-1] == "reply to 1" else None

    def ask():
        settings = changed_settings(backend="local")
        cache = tmp_path / "cache.jsonl"
        return complete.complete(calls(), settings, cache, "x", accept, generate)

    with pytest.raises(KeyboardInterrupt):
        ask()
    is_interrupted = False
    answers = ask()
    assert answers.texts == {
        "extract/0": ["reply to 0"],
        "extract/1": ["reply to 1", "better"],
        "extract/2": ["reply to 2"],
    }
    first, second = sent
    assert first == [f"Read passage {i}" for i in range(3)]
    assert sorted(second) == ["Read passage 1\n\nSay it better.", "Read passage 2"]
    assert (answers.usage.requests, answers.usage.cached, answers.usage.asked_again) == (4, 2, 1)
    assert ask().usage.cached == 4 and len(sent) == 2


def test_replies_stay_readable_after_their_file_is_deleted(tmp_path):
    """Of several processes, all but the first have a copy of the file that they delete."""

    def generate(conversations, on_reply):
        for i, (prompt,) in enumerate(conversations):
            on_reply(i, completion(prompt[-1]))

    cache, settings = tmp_path / "cache.jsonl", changed_settings(backend="local")
    answers = complete.complete(calls(), settings, cache, "x", generate=generate)
    cache.unlink()
    assert answers.texts == {"extract/0": ["0"], "extract/1": ["1"], "extract/2": ["2"]}


def test_the_same_correction_is_not_requested_twice(tmp_path):
    """At temperature 0 the model would repeat its reply."""
    sent = Counter()

    def generate(conversations, on_reply):
        for i, (prompt,) in enumerate(conversations):
            sent[prompt] += 1
            on_reply(i, completion("worse" if "\n\n" in prompt else "bad"))

    settings = changed_settings(backend="local", reasks=5)
    answers = complete.complete(
        calls(1),
        settings,
        tmp_path / "cache.jsonl",
        "x",
        lambda call, texts, cut: "Not so.",
        generate,
    )
    assert answers.texts == {"extract/0": ["bad", "worse"]} and max(sent.values()) == 1


def test_live_replies_are_requested_once(live):
    with llm_server.serving(echo) as server:
        answers = live(server, calls())
        assert answers.texts == {f"extract/{i}": [f"Re: Read passage {i}"] for i in range(3)}
        assert (answers.usage.requests, answers.usage.cached) == (3, 0)
        assert answers.usage.input_tokens > 10
        again = live(server, calls(4))
        assert again.texts["extract/3"] == ["Re: Read passage 3"] and again.usage.cached == 3
        assert [server.asked(f"Read passage {i}") for i in range(4)] == [1, 1, 1, 1]


def test_a_live_request_has_the_settings_and_the_key(live):
    with llm_server.serving(echo) as server:
        live(server, calls(1))
    sent = server.requests[0]
    assert sent.headers["authorization"] == f"Bearer {SECRET}"
    names = ("model", "temperature", "max_tokens")
    assert [sent.body[name] for name in names] == ["toy", 0.0, 64]
    assert [message["role"] for message in sent.body["messages"]] == ["user"]


def test_another_temperature_requests_a_reply_again(live):
    with llm_server.serving(echo) as server:
        live(server, calls(1))
        live(server, calls(1), temperature=0.5)
        assert server.asked("Read passage 0") == 2


def test_equal_prompts_are_asked_once(live):
    requests = [complete.Call(f"extract/{i}", "extract", ("The same passage",)) for i in range(8)]
    with llm_server.serving(echo, latency=0.05) as server:
        answers = live(server, requests)
        assert len(server.requests) == 1 and all(
            texts == ["Re: The same passage"] for texts in answers.texts.values()
        )
        assert answers.usage == dataclasses.replace(answers.usage, calls=8, cached=0, requests=1)
        assert live(server, requests).usage == dataclasses.replace(answers.usage, cached=1)


def test_a_reply_to_equal_prompts_is_replayed_for_each(live, tmp_path):
    requests = [*calls(2), complete.Call("extract/2", "extract", ("Read passage 1",))]
    with llm_server.serving(
        echo, llm_server.script("blank")
    ) as server:  # the file also has unused completions
        answers = live(server, requests)
    again = complete.complete(
        requests,
        changed_settings(replies=str(tmp_path / "cache.jsonl")),
        tmp_path / "none.jsonl",
        "x",
    )
    assert (
        again.texts
        == answers.texts
        == {item: [f"Re: Read passage {i}"] for item, i in zip(answers.texts, "011", strict=True)}
    )
    assert again.drifted == []


def test_a_correction_is_requested_for_a_malformed_reply(live):
    accept = lambda call, texts, cut: None if "good" in texts[-1] else f"Not so, {call.item}."
    replies = {
        "Read passage 0": ["bad", "good"],
        "Read passage 1": ["bad", "worse", "never sent"],
        "Read passage 2": ["good as it is"],
    }
    with llm_server.serving(
        lambda messages: replies[messages[0]["content"]][len(messages) // 2]
    ) as server:
        answers = live(server, calls(), accept)
        assert answers.texts == {
            "extract/0": ["bad", "good"],
            "extract/1": ["bad", "worse"],
            "extract/2": ["good as it is"],
        }
        assert answers.usage.asked_again == 2 and len(server.requests) == 5
        assert [
            r.body["messages"] for r in server.requests if r.prompt == "Not so, extract/0."
        ] == [
            [
                {"role": "user", "content": "Read passage 0"},
                {"role": "assistant", "content": "bad"},
                {"role": "user", "content": "Not so, extract/0."},
            ]
        ]
        assert live(server, calls(), accept).texts == answers.texts and len(server.requests) == 5


def test_a_reply_that_was_cut_off_is_continued(live):
    accept = lambda call, texts, cut: "Go on." if cut else None
    replies = lambda messages: "the rest" if len(messages) > 1 else "a long reply"
    with llm_server.serving(replies, llm_server.script("length")) as server:
        # The script cuts the first reply to each conversation, also the one to the remark.
        assert live(server, calls(1), accept).texts == {"extract/0": ["a long ", "the r"]}


def test_a_rejected_request_is_not_sent_again(live):
    with llm_server.serving(
        echo, lambda conversation, attempt: "400" if "passage 1" in conversation else None
    ) as server:
        for _ in range(2):
            answers = live(server, calls())
            assert answers.texts["extract/2"] == ["Re: Read passage 2"] and answers.texts[
                "extract/1"
            ] == [""]
            assert (
                list(answers.rejected) == ["extract/1"]
                and "status 400" in answers.rejected["extract/1"]
            )
        assert server.asked("Read passage 1") == 1


def test_a_missing_key_is_named(monkeypatch, tmp_path):
    pytest.importorskip(
        "openai", reason="the live backend needs the openai client: pip install 'ark-jax[llm]'"
    )
    monkeypatch.delenv("ARK_TEST_KEY", raising=False)
    with pytest.raises(RuntimeError, match=r"set \$ARK_TEST_KEY to your key"):
        complete.complete(
            calls(), changed_settings(backend="openai"), tmp_path / "cache.jsonl", "x"
        )


def test_an_own_endpoint_needs_no_key(monkeypatch, tmp_path):
    pytest.importorskip(
        "openai", reason="the live backend needs the openai client: pip install 'ark-jax[llm]'"
    )
    monkeypatch.delenv("ARK_TEST_KEY", raising=False)
    with llm_server.serving(echo) as server:
        settings = changed_settings(backend="openai", base_url=server.url)
        answers = complete.complete(calls(1), settings, tmp_path / "cache.jsonl", "x")
    assert answers.texts == {"extract/0": ["Re: Read passage 0"]}
