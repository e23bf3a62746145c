"""Calls to an extraction or rewriting model: one function, several backends, nothing paid for twice.

Every reply is appended to `replies.jsonl` as it arrives, one row a call: `item` (what it was for), `key`
(hash of model, parameters and prompt), `prompt` (hash of the prompt) and `reply` (an OpenAI chat completion).
That file is the cache of a live run and the recording that the `replay` backend reads.
"""

import asyncio
import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ark_jax import __version__
from ark_jax.log import Progress, append_row, read_rows, say
from ark_jax.text import offline

BACKENDS = ("openai", "local", "replay", "none")


@dataclasses.dataclass(frozen=True)
class Call:
    """One request: `item` names it, `fields` are the values its prompt was filled with."""

    item: str
    kind: str  # extract | rewrite
    prompt: str
    fields: dict


@dataclasses.dataclass(frozen=True)
class Settings:
    """Where replies come from."""

    backend: str
    model: str
    base_url: str
    key_env: str
    temperature: float
    max_tokens: int
    concurrency: int
    replies: str

    def key(self, call: Call) -> str:
        """What a cached reply is filed under: everything that decides it. `none` is our own code, which changes."""
        decides = {"openai": [self.model, self.base_url, self.temperature, self.max_tokens],
                   "local": [self.model, self.temperature, self.max_tokens], "none": [__version__, call.item]}
        return digest(json.dumps([self.backend, *decides[self.backend], call.prompt]))


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


class Replies:
    """The rows of one replies.jsonl by key."""

    def __init__(self, path: Path):
        self.path = path
        self.rows: dict[str, dict] = {row["key"]: row for row in complete_rows(path)}

    def add(self, row: dict) -> None:
        self.rows[row["key"]] = row
        append_row(row, self.path)


def complete_rows(path: Path) -> Iterator[dict]:
    """The usable rows of a replies file."""
    return (row for row in read_rows(path) if isinstance(row, dict) and "key" in row and "reply" in row)


def text_of(reply: dict) -> str:
    """The text of a chat completion."""
    return reply["choices"][0]["message"].get("content") or ""


def complete(calls: Sequence[Call], settings: Settings, cache: Path, label: str,
             accept: Callable[[Call, str], str | None] = lambda call, text: None,
             write: Callable[[list[str], Callable[[int, str], None]], object] | None = None) -> tuple[dict[str, str], list[str]]:
    """Replies to all calls, by item, from the cache where it has them.

    Args:
        accept: says what is wrong with a reply, or None. A live model is asked once more with that remark;
            what it says then is taken as it is.
        write: of the `local` backend, `write(prompts, heard)` calls `heard(i, text)` as soon as a prompt is answered.

    Returns:
        (texts by item, items whose recorded reply belongs to a slightly different prompt)

    Raises:
        RuntimeError: calls that failed for good, with the reason and how to go on. Finished ones are kept.
    """
    if settings.backend not in BACKENDS:
        raise ValueError(f"llm.backend={settings.backend!r}: must be one of {', '.join(BACKENDS)}")
    if settings.backend == "replay":
        return _replay(calls, settings)
    replies = Replies(cache)
    todo = [call for call in calls if settings.key(call) not in replies.rows]
    if len(todo) < len(calls):
        say(f"  {label}: {len(calls) - len(todo):,} of {len(calls):,} replies are in the cache")
    row = lambda call, reply: {"item": call.item, "key": settings.key(call),
                               "prompt": digest(call.prompt), "reply": reply}
    if settings.backend == "none":
        for call in todo:
            replies.add(row(call, _completion(offline.reply(call.kind, call.fields))))
    elif todo:
        keep = lambda call, reply: replies.add(row(call, reply))
        if settings.backend == "local":
            _local(todo, write, keep, accept)
        else:
            asyncio.run(_live(todo, settings, keep, accept, label))
    return {call.item: text_of(replies.rows[settings.key(call)]["reply"]) for call in calls}, []


def _completion(text: str) -> dict:
    return {"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]}


def _replay(calls: Sequence[Call], settings: Settings) -> tuple[dict[str, str], list[str]]:
    """Recorded texts by item, and the items recorded under another prompt."""
    path = Path(settings.replies)
    if not path.is_file():
        raise FileNotFoundError(f"llm.replies={settings.replies!r}: no such file; the replay backend needs a recording")
    recorded = {row["item"]: row for row in complete_rows(path)}
    missing = [call.item for call in calls if call.item not in recorded]
    if missing:
        raise RuntimeError(f"{path} has no reply for {len(missing)} of {len(calls)} calls, the first being "
                           f"{missing[0]}: the documents or the chunking changed since it was recorded. Record anew "
                           "with --config.llm.backend=openai, or use --config.llm.backend=none")
    drifted = [c.item for c in calls if recorded[c.item].get("prompt") != digest(c.prompt)]
    return {call.item: text_of(recorded[call.item]["reply"]) for call in calls}, drifted


def _local(calls: Sequence[Call], write, keep: Callable[[Call, dict], None], accept: Callable[[Call, str], str | None]) -> None:
    """Asks our own model, all at once, and once more what it did not answer in the form asked for."""
    again: list[tuple[Call, str]] = []

    def heard(i: int, text: str) -> None:
        remark = accept(calls[i], text)
        if remark:
            # Without the reply that was wrong: a small model repeats it, and its context is short.
            again.append((calls[i], f"{calls[i].prompt}\n\n{remark}"))
        else:
            keep(calls[i], _completion(text))

    write([call.prompt for call in calls], heard)
    if again:
        write([prompt for _, prompt in again], lambda i, text: keep(again[i][0], _completion(text)))


async def _live(calls: Sequence[Call], settings: Settings, keep: Callable[[Call, dict], None],
                accept: Callable[[Call, str], str | None], label: str) -> None:
    """Asks an OpenAI-compatible endpoint; its client retries what a server may recover from, with back-off."""
    try:
        import openai
    except ImportError:
        raise RuntimeError("llm.backend=openai needs the client: pip install 'ark-jax[llm]'") from None
    key = os.environ.get(settings.key_env, "")
    if not key and not settings.base_url:
        raise RuntimeError(f"llm.backend=openai: set ${settings.key_env} to your key, or config.llm.base_url to an "
                           "endpoint that needs none, or use --config.llm.backend=none")
    client = openai.AsyncOpenAI(api_key=key or "none", base_url=settings.base_url or None, max_retries=6, timeout=300)
    slots = asyncio.Semaphore(settings.concurrency)
    failed: list[tuple[str, str]] = []

    async def ask(messages: list[dict]) -> dict:
        answer = await client.chat.completions.create(
            model=settings.model, messages=messages, temperature=settings.temperature, max_tokens=settings.max_tokens)
        reply = answer.model_dump(exclude_none=True)
        text_of(reply)  # what is no chat completion fails here, before it is kept
        return reply

    async def one(call: Call, bar: Progress) -> None:
        async with slots:
            messages = [{"role": "user", "content": call.prompt}]
            try:
                reply = await ask(messages)
                remark = accept(call, text_of(reply))
                if remark:
                    messages += [{"role": "assistant", "content": text_of(reply)}, {"role": "user", "content": remark}]
                    reply = await ask(messages)
            except (openai.OpenAIError, LookupError, TypeError, ValueError, AttributeError) as error:
                # Besides refusals: a body that is no chat completion, as a wrong address gives.
                failed.append((call.item, f"{type(error).__name__}: {error}"))
                return
            keep(call, reply)
            bar.add(note=f"{len(failed)} failed" if failed else "")

    async with client:
        with Progress(label, len(calls), "calls") as bar:
            await asyncio.gather(*(one(call, bar) for call in calls))
    if failed:
        raise RuntimeError(f"{len(failed)} of {len(calls)} calls failed, the first being {failed[0][0]}: "
                           f"{failed[0][1][:300]}. The other replies are kept; run the same command again for the rest")
