"""Calls to an extraction or rewriting model: one function, several backends, nothing paid for twice.

A call is a prompt, or a conversation that ends in one. A reply that has not the form asked for is remarked upon and the model
asked again, at most `reasks` times; what it said by then is what there is. Each request's reply is on disk before the next is
made (`replies`), so a run that was killed goes on with what is missing.
"""

import asyncio
import dataclasses
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ark_jax.log import read_rows, say
from ark_jax.text import offline
from ark_jax.text.cost import Usage, cost_of, price_of
from ark_jax.text.replies import Replies, digest, text_of

BACKENDS = ("openai", "local", "replay", "none")
UNUSED = "unused/"  # how the keys of completions begin that came to nothing


@dataclasses.dataclass(frozen=True)
class Call:
    """`item` names it, `turns` are what is said, by the user and the model in turn, `fields` what the prompt was filled with.

    Calls that say the same are one request, unless their `draw` differs.
    """

    item: str
    kind: str  # extract | glean | rewrite | read | judge
    turns: tuple[str, ...]
    fields: dict = dataclasses.field(default_factory=dict)
    draw: int = 0


@dataclasses.dataclass(frozen=True)
class Settings:
    """Where replies come from: the fields of `config.llm`, or of another role."""

    backend: str
    model: str
    base_url: str
    key_env: str
    temperature: float
    max_tokens: int
    concurrency: int
    requests_per_minute: int
    tokens_per_minute: int
    timeout: float
    retries: int
    reasks: int
    price: tuple[float, ...]
    max_cost: float
    replies: str

    def __post_init__(self):
        if self.concurrency < 1:
            raise ValueError(f"llm.concurrency={self.concurrency}: must be at least 1, requests under way at once")

    def key(self, turns: Sequence[str], draw: int = 0) -> str:
        """What a reply is filed under: everything that decides it."""
        where, which = [self.base_url] if self.backend == "openai" else [], [draw] if draw else []
        return digest(json.dumps([self.backend, self.model, *where, self.temperature, self.max_tokens, list(turns), *which]))


@dataclasses.dataclass(frozen=True)
class Answers:
    """What a model said to each call."""

    texts: dict[str, list[str]]  # by item: its reply, and those to what was remarked upon it
    rejected: dict[str, str]  # items that no model will answer -> why
    drifted: list[str]  # items whose recorded reply belongs to a slightly different prompt
    usage: Usage


# What is wrong with the replies so far, in words to the model, or None. The last reply may be cut off at its limit of length.
Accept = Callable[[Call, list[str], bool], str | None]
# write(conversations, heard) calls `heard(i, completion)` as soon as one is answered.
Write = Callable[[list[tuple[str, ...]], Callable[[int, dict], None]], None]


def complete(calls: Sequence[Call], settings: Settings, cache: Path, label: str,
             accept: Accept = lambda call, texts, cut: None, write: Write | None = None) -> Answers:
    """Replies to all calls, from the cache where it has them; `write` is the `local` backend's model.

    Raises:
        RuntimeError: calls that failed for good, or money spent, and how to go on. What was heard is kept.
        ValueError: a backend that is none, or a limit of cost without a price.
    """
    if settings.backend not in BACKENDS:
        raise ValueError(f"llm.backend={settings.backend!r}: must be one of {', '.join(BACKENDS)}")
    if settings.backend == "none":
        texts = offline.replies([(call.kind, call.fields) for call in calls])
        return Answers({call.item: [text] for call, text in zip(calls, texts, strict=True)}, {}, [], Usage(len(calls)))
    if settings.backend == "replay":
        return _replay(calls, settings)
    talks = Talks(calls, settings, Replies(cache), accept)
    todo = [call for call in calls if talks.next(call)]
    if len(todo) < len(calls):
        say(f"  {label}: {len(calls) - len(todo):,} of {len(calls):,} replies are in the cache")
    if todo and settings.backend == "local":
        _local(todo, talks, write)
    elif todo:
        from ark_jax.text.live import Live

        asyncio.run(Live(talks, todo, label).run())
    return talks.answers()


class Talks:
    """What was said in each call, and what is to be said next."""

    def __init__(self, calls: Sequence[Call], settings: Settings, replies: Replies, accept: Accept):
        self.settings, self.replies, self.accept = settings, replies, accept
        self.said: dict[str, list[dict]] = {call.item: [] for call in calls}
        self.price = price_of(settings.model, settings.price) if settings.backend == "openai" else None
        if settings.backend == "openai" and settings.max_cost and not self.price:
            raise ValueError(f"llm.max_cost={settings.max_cost}: no price of {settings.model} is known; give "
                             "--config.llm.price='(IN, OUT)', USD of a million tokens")
        self.usage = Usage(len(calls))
        self.found = frozenset(replies.rows)  # keys that an earlier run had asked for
        self.counted: set[str] = set()  # keys in `usage`: calls that say the same are one request
        for row in replies.rows.values():
            if row["key"].startswith(UNUSED) and row.get("item") in self.said:
                self.usage.add(row["reply"], row.get("cost", 0.0))

    def next(self, call: Call) -> tuple[str, ...] | None:
        """What to say to the model, as far as the cache does not know what it replies; None: the call is done."""
        while turns := self._following(call):
            row = self.replies.rows.get(self.settings.key(turns, call.draw))
            if row is None:
                return turns
            self._take(call, row)
        return None

    def hear(self, call: Call, turns: tuple[str, ...], reply: dict, seconds: float = 0.0) -> None:
        row = {"item": call.item, "kind": call.kind, "turn": len(self.said[call.item]),
               "key": self.settings.key(turns, call.draw), "prompt": digest(turns), "seconds": round(seconds, 3),
               "cost": cost_of(reply, self.price), "reply": reply}
        self.replies.add(row)
        self._take(call, row)

    def waste(self, call: Call, unused: list[dict]) -> None:
        """Takes completions that came to nothing into the ledger, under one of those calls; they are paid for all the same."""
        while unused:
            reply = unused.pop()
            cost = cost_of(reply, self.price)
            self.usage.add(reply, cost)
            self.replies.add({"item": call.item, "key": f"{UNUSED}{time.time_ns()}", "cost": cost,
                              "reply": {"usage": reply.get("usage")}})

    def _take(self, call: Call, row: dict) -> None:
        if row["key"] not in self.counted:
            self.counted.add(row["key"])
            self.usage.asked_again += bool(self.said[call.item])
            self.usage.cached += row["key"] in self.found
            self.usage.add(row["reply"], row.get("cost", 0.0))
        self.said[call.item].append(row)

    def _following(self, call: Call) -> tuple[str, ...] | None:
        said = self.said[call.item]
        if not said:
            return call.turns
        if "error" in said[-1]["reply"] or len(said) > self.settings.reasks:
            return None
        local = self.settings.backend == "local"
        texts = [text_of(row["reply"]) for row in said]
        cut = not local and said[-1]["reply"]["choices"][0].get("finish_reason") == "length"
        remark = self.accept(call, texts, cut)
        if remark is None:
            return None
        # A small model repeats the reply that was wrong if it sees it, and its context is short.
        turns = (*call.turns[:-1], f"{call.turns[-1]}\n\n{remark}") if local else (*call.turns, texts[-1], remark)
        return None if self.settings.key(turns, call.draw) == said[-1]["key"] else turns

    def answers(self) -> Answers:
        texts = {item: [text_of(row["reply"]) for row in rows] for item, rows in self.said.items()}
        rejected = {item: row["reply"]["error"] for item, rows in self.said.items() for row in rows if "error" in row["reply"]}
        return Answers(texts, rejected, [], self.usage)


def _replay(calls: Sequence[Call], settings: Settings) -> Answers:
    path = Path(settings.replies).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"llm.replies={settings.replies!r}: no such file; the replay backend needs a recording")
    recorded: dict[str, list[dict]] = {}
    alike: dict[str, list[dict]] = {}  # by prompt, for what was asked once for several items
    for row in read_rows(path):
        usable = isinstance(row, dict) and "item" in row and isinstance(row.get("reply"), dict)
        if usable and not str(row.get("key", "")).startswith(UNUSED):
            if not row.get("turn"):
                recorded[row["item"]] = alike[row.get("prompt")] = []
            recorded.setdefault(row["item"], []).append(row)
    for call in calls:
        if call.item not in recorded and digest(call.turns) in alike:
            recorded[call.item] = alike[digest(call.turns)]
    missing = [call.item for call in calls if call.item not in recorded]
    if missing:
        raise RuntimeError(f"{path} has no reply for {len(missing)} of {len(calls)} calls, the first being "
                           f"{missing[0]}: the documents or the chunking changed since it was recorded. Record anew "
                           "with --config.llm.backend=openai, or use --config.llm.backend=none")
    usage = Usage(len(calls), asked_again=sum(len(recorded[call.item]) - 1 for call in calls))
    rejected, drifted, texts = {}, [], {}
    for call in calls:
        replies = [row["reply"] for row in recorded[call.item]]
        for reply in replies:
            usage.add(reply, 0.0)
        texts[call.item] = list(map(text_of, replies))
        if "error" in replies[-1]:
            rejected[call.item] = replies[-1]["error"]
        if recorded[call.item][0].get("prompt") != digest(call.turns):
            drifted.append(call.item)
    return Answers(texts, rejected, drifted, usage)


def _local(calls: Sequence[Call], talks: Talks, write: Write) -> None:
    """Asks our own model, all at once, and then once more those that it did not answer in the form asked for."""
    following = lambda: ((call, turns) for call in calls if (turns := talks.next(call)))
    while some := list({talks.settings.key(turns, call.draw): (call, turns) for call, turns in following()}.values()):
        write([turns for _, turns in some], lambda i, reply, some=some: talks.hear(*some[i], reply))
