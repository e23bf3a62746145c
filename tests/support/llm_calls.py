"""Calls, settings and a key for tests of the language-model client."""

import dataclasses

from ark_jax.llm import complete

SETTINGS = complete.LLMSettings(
    backend="replay",
    model="toy",
    base_url="",
    key_env="ARK_TEST_KEY",
    temperature=0.0,
    max_tokens=64,
    concurrency=4,
    requests_per_minute=0,
    tokens_per_minute=0,
    timeout=20.0,
    retries=3,
    reasks=1,
    price=(),
    max_cost=0.0,
    replies="",
)
SECRET = "sk-never-on-disk-0123456789"
KEY = "sk-proj-Zq7Lw2-Xt9Rk4Vb8Nm1_Pd6Hs3Jf5Gy0Cc"


def calls(n: int = 3) -> list[complete.Call]:
    return [complete.Call(f"extract/{i}", "extract", (f"Read passage {i}",)) for i in range(n)]


def changed_settings(**changes) -> complete.LLMSettings:
    """`SETTINGS` with changed fields."""
    return dataclasses.replace(SETTINGS, **changes)


def completion(text: str | None) -> dict:
    """A chat completion with this text."""
    return {
        "id": "x",
        "object": "chat.completion",
        "created": 0,
        "model": "toy",
        "choices": [
            {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
        ],
    }


def echo(messages) -> str:
    """The reply of a server that repeats the last message."""
    return f"Re: {messages[-1]['content']}"


def key_parts(text: str) -> list[str]:
    """The parts of `KEY` that a text shows."""
    return [KEY[i : i + 6] for i in range(3, len(KEY) - 5) if KEY[i : i + 6] in text] + [
        KEY[-4:]
    ] * (KEY[-4:] in text)
