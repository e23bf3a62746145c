"""Fixtures for tests that talk to a live endpoint."""

import hashlib

import pytest
from support.llm_calls import SECRET, changed_settings, completion

from ark_jax.llm import complete, endpoint
from ark_jax.llm.reply_cache import ReplyCache


@pytest.fixture(autouse=True)
def key_and_short_waits(monkeypatch):
    monkeypatch.setenv("ARK_TEST_KEY", SECRET)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(endpoint, "BACKOFF", 0.01)


@pytest.fixture
def live(tmp_path):
    """`ask(server, calls, ...)` calls `complete`. Afterwards the key must be in no file."""
    pytest.importorskip(
        "openai", reason="the live backend needs the openai client: pip install 'ark-jax[llm]'"
    )

    def ask(server, calls, *accept, **changes):
        settings = changed_settings(backend="openai", base_url=server.url, **changes)
        return complete.complete(calls, settings, tmp_path / "cache.jsonl", "x", *accept)

    yield ask
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files and [path for path in files if SECRET.encode() in path.read_bytes()] == []


@pytest.fixture
def recording(tmp_path):
    """`make(calls, texts)` writes the replies file of a live run."""

    def make(calls, texts, name="recorded.jsonl"):
        path = tmp_path / name
        replies = ReplyCache(path)
        digest = lambda prompt: hashlib.sha256(prompt.encode()).hexdigest()
        for call, text in zip(calls, texts, strict=True):
            replies.add(
                {
                    "item": call.item,
                    "key": call.item,
                    "prompt": digest(call.turns[0]),
                    "reply": completion(text),
                }
            )
        return path

    return make
