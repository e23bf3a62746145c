"""Calls to language models: one function, `complete`, for several backends.

A call is a prompt, or a conversation that ends in one. If a reply has the wrong form, the model is
asked to correct it, at most `reasks` times. Each reply is on disk before the next request of its
call is sent, so a run that was killed makes only the missing requests.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from ark_jax.llm import rule_based
from ark_jax.llm.conversations import (
    Accept,
    Call,
    Completions,
    Conversations,
    LLMSettings,
    accept_all,
)
from ark_jax.llm.pricing import Usage
from ark_jax.llm.reply_cache import (
    UNUSED_PREFIX,
    ReplyCache,
    RowFile,
    StoredTexts,
    conversation_digest,
    parse_row,
    report_problems,
    row_problem,
)
from ark_jax.runtime.distributed import LazySequence
from ark_jax.runtime.log import say

BACKENDS = ("openai", "local", "replay", "none")


# generate(conversations, on_reply) calls `on_reply(i, completion)` as soon as conversation i has a
# reply. A conversation is computed on access, so it must be read before its reply is reported.
Generate = Callable[[Sequence[tuple[str, ...]], Callable[[int, dict], None]], None]


def complete(
    calls: Sequence[Call],
    settings: LLMSettings,
    cache: Path,
    label: str,
    accept: Accept = accept_all,
    generate: Generate | None = None,
    partial: Callable[[str], None] | None = None,
) -> Completions:
    """Returns the replies to all calls, from the cache where it has them.

    The texts of replies stay in the file.

    Args:
        calls: a sequence, such as a `LazySequence`; it is iterated several times.
        cache: the file of replies.
        label: names the progress lines.
        accept: checks a reply.
        generate: the model of the `local` backend.
        partial: is called with the text so far of the reply of an endpoint to a single call.

    Raises:
        RuntimeError: calls failed for good, or the cost limit is reached. The message says how to
            go on; the replies so far are kept.
        ValueError: the backend is unknown, or a cost limit is set for a model without a price.
    """
    if settings.backend not in BACKENDS:
        raise ValueError(f"llm.backend={settings.backend!r}: must be one of {', '.join(BACKENDS)}")
    if settings.backend == "none":
        return _apply_rules(calls)
    if settings.backend == "replay":
        return _replay_recording(calls, settings)
    conversations = Conversations(calls, settings, ReplyCache(cache), accept)
    open_numbers = [i for i, call in enumerate(calls) if conversations.next_turns(call)]
    open_calls = LazySequence(calls.__getitem__, open_numbers)
    if len(open_calls) < len(calls):
        count = len(calls) - len(open_calls)
        say(f"  {label}: {count:,} of {len(calls):,} replies are in the cache")
    if open_calls and settings.backend == "local":
        _generate_locally(open_calls, conversations, generate)
    elif open_calls:
        from ark_jax.llm.concurrent import RequestPool

        asyncio.run(RequestPool(conversations, open_calls, label, partial).run())
    return conversations.completions()


def _apply_rules(calls: Sequence[Call]) -> Completions:
    """The backend `none`: replies made without a model."""
    texts = rule_based.make_replies([call.fields for call in calls])
    by_item = {call.item: [text] for call, text in zip(calls, texts, strict=True)}
    return Completions(by_item, {}, [], Usage(len(calls)))


def _replay_recording(calls: Sequence[Call], settings: LLMSettings) -> Completions:
    """The backend `replay`: replies from a recording, which is never changed."""
    path = Path(settings.replies).expanduser()
    if not path.is_file():
        raise FileNotFoundError(
            f"llm.replies={settings.replies!r}: no such file; the replay backend needs a recording"
        )
    file = RowFile(path)
    recorded = _read_recording(file, path, calls)
    missing = [call.item for call in calls if call.item not in recorded]
    if missing:
        raise RuntimeError(
            f"{path} has no reply for {len(missing)} of {len(calls)} calls, the first being "
            f"{missing[0]}: the documents or the chunking changed since it was recorded. Record "
            "again with --config.llm.backend=openai, or use --config.llm.backend=none"
        )
    usage = Usage(len(calls), asked_again=sum(len(recorded[call.item]) - 1 for call in calls))
    rejected, drifted = {}, []
    for call in calls:
        rows = list(map(file.row, recorded[call.item]))
        for row in rows:
            usage.add(row["reply"], 0.0)
        if "error" in rows[-1]["reply"]:
            rejected[call.item] = rows[-1]["reply"]["error"]
        if rows[0].get("prompt") != conversation_digest(call.turns):
            drifted.append(call.item)
    texts = StoredTexts(file, {call.item: recorded[call.item] for call in calls})
    return Completions(texts, rejected, drifted, usage)


def _read_recording(file: RowFile, path: Path, calls: Sequence[Call]) -> dict[str, list[int]]:
    """item -> byte offsets of its rows in the file.

    A call whose item was not recorded takes the rows of the same prompt.
    """
    by_item: dict[str, list[int]] = {}
    by_prompt: dict[str, list[int]] = {}
    problems = {}
    for number, (place, line) in enumerate(file.lines(), 1):
        for row in parse_row(line):
            if problem := row_problem(row) or ("" if "item" in row else "it has no item"):
                problems[number] = problem
                continue
            if str(row.get("key", "")).startswith(UNUSED_PREFIX):
                continue
            if not row.get("turn"):
                by_item[row["item"]] = by_prompt[row.get("prompt")] = []
            by_item.setdefault(row["item"], []).append(place)
    report_problems(path, problems)
    for call in calls:
        if call.item not in by_item:
            prompt = conversation_digest(call.turns)
            if prompt in by_prompt:
                by_item[call.item] = by_prompt[prompt]
    return by_item


def _generate_locally(
    calls: Sequence[Call], conversations: Conversations, generate: Generate
) -> None:
    """The backend `local`: generates all replies, then corrections of those that need one."""
    while numbers := _open_numbers(calls, conversations):
        open_calls = LazySequence(calls.__getitem__, numbers)

        def record(i: int, reply: dict, open_calls=open_calls) -> None:
            conversations.record(open_calls[i], conversations.next_turns(open_calls[i]), reply)

        generate(LazySequence(conversations.next_turns, open_calls), record)


def _open_numbers(calls: Iterable[Call], conversations: Conversations) -> list[int]:
    """Positions of the calls without a reply; of equal requests only the last call."""
    numbers = {}
    for number, call in enumerate(calls):
        if turns := conversations.next_turns(call):
            numbers[conversations.settings.key(turns, call.draw)] = number
    return list(numbers.values())
