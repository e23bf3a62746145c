"""Calls to an extraction or rewriting model: one function, several backends, nothing paid for twice.

A call is a prompt, or a conversation that ends in one. A reply that has not the form asked for is remarked upon and the model
asked again, at most `reasks` times; what it said by then is what there is. Each request's reply is on disk before the next is
made (`replies`), so a run that was killed goes on with what is missing.
"""

import asyncio
import collections
import dataclasses
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ark_jax.log import Progress, read_rows, say
from ark_jax.text import offline
from ark_jax.text.cost import Usage, cost_of, price_of
from ark_jax.text.replies import Replies, digest, text_of

BACKENDS = ("openai", "local", "replay", "none")


@dataclasses.dataclass(frozen=True)
class Call:
    """`item` names it, `turns` are what is said, by the user and the model in turn, `fields` what the prompt was filled with."""

    item: str
    kind: str  # extract | glean | rewrite
    turns: tuple[str, ...]
    fields: dict = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Settings:
    """Where replies come from: the fields of `config.llm`."""

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

    def key(self, turns: Sequence[str]) -> str:
        """What a reply is filed under: everything that decides it."""
        where = [self.base_url] if self.backend == "openai" else []
        return digest(json.dumps([self.backend, self.model, *where, self.temperature, self.max_tokens, list(turns)]))


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
        return Answers({call.item: [offline.reply(call.kind, call.fields)] for call in calls}, {}, [], Usage(len(calls)))
    if settings.backend == "replay":
        return _replay(calls, settings)
    talks = Talks(calls, settings, Replies(cache), accept)
    todo = [call for call in calls if talks.next(call)]
    if len(todo) < len(calls):
        say(f"  {label}: {len(calls) - len(todo):,} of {len(calls):,} replies are in the cache")
    if todo and settings.backend == "local":
        _local(todo, talks, write)
    elif todo:
        asyncio.run(_live(todo, talks, label))
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

    def next(self, call: Call) -> tuple[str, ...] | None:
        """What to say to the model, as far as the cache does not know what it replies; None: the call is done."""
        while turns := self._following(call):
            row = self.replies.rows.get(self.settings.key(turns))
            if row is None:
                return turns
            self.usage.cached += 1
            self._take(call, row)
        return None

    def hear(self, call: Call, turns: tuple[str, ...], reply: dict, seconds: float = 0.0) -> None:
        row = {"item": call.item, "kind": call.kind, "turn": len(self.said[call.item]), "key": self.settings.key(turns),
               "prompt": digest(turns), "seconds": round(seconds, 3), "cost": cost_of(reply, self.price), "reply": reply}
        self.replies.add(row)
        self._take(call, row)

    def waste(self, unused: list[dict]) -> None:
        """Takes completions that came to nothing into the ledger; they are paid for all the same."""
        while unused:
            reply = unused.pop()
            cost = cost_of(reply, self.price)
            self.usage.add(reply, cost)
            self.replies.add({"key": f"unused/{time.time_ns()}", "cost": cost, "reply": {"usage": reply.get("usage")}})

    def _take(self, call: Call, row: dict) -> None:
        self.usage.asked_again += bool(self.said[call.item])
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
        return None if self.settings.key(turns) == said[-1]["key"] else turns

    def answers(self) -> Answers:
        texts = {item: [text_of(row["reply"]) for row in rows] for item, rows in self.said.items()}
        rejected = {item: row["reply"]["error"] for item, rows in self.said.items() for row in rows if "error" in row["reply"]}
        return Answers(texts, rejected, [], self.usage)


def _replay(calls: Sequence[Call], settings: Settings) -> Answers:
    path = Path(settings.replies)
    if not path.is_file():
        raise FileNotFoundError(f"llm.replies={settings.replies!r}: no such file; the replay backend needs a recording")
    recorded: dict[str, list[dict]] = {}
    for row in read_rows(path):
        if isinstance(row, dict) and "item" in row and isinstance(row.get("reply"), dict):
            if not row.get("turn"):
                recorded[row["item"]] = []
            recorded.setdefault(row["item"], []).append(row)
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
    while some := [(call, turns) for call in calls if (turns := talks.next(call))]:
        write([turns for _, turns in some], lambda i, reply, some=some: talks.hear(*some[i], reply))


async def _live(calls: Sequence[Call], talks: Talks, label: str) -> None:
    """Asks an OpenAI-compatible endpoint, as many requests at once as may be."""
    from ark_jax.text.endpoint import Endpoint, Hopeless, Rejected, Unavailable

    s = talks.settings
    waiting = collections.deque(calls)
    failed: dict[str, str] = {}
    in_a_row = under_way = 0
    asked, began = 0, talks.replies.spent
    stop = ""

    async def ask(call: Call, turns: tuple[str, ...], endpoint) -> None:
        nonlocal in_a_row, under_way, stop, asked
        paid = talks.replies.spent if s.max_cost else 0.0
        # Those under way will cost what the others did.
        if s.max_cost and paid + under_way * (paid - began) / max(asked, 1) >= s.max_cost:
            stop = f"${paid:.2f} of llm.max_cost={s.max_cost} are spent, and what is under way takes the rest; raise it"
            return
        under_way += 1
        start = time.monotonic()
        try:
            reply = await endpoint.ask([{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(turns)])
        except Rejected as error:
            reply = {"error": str(error)}
        except Unavailable as error:
            failed[call.item] = str(error)
            in_a_row += 1
            if in_a_row >= max(s.concurrency, 4):
                stop = "the endpoint has answered none of the last requests; see to it"
            return
        finally:
            under_way -= 1
            talks.waste(endpoint.unused)
        in_a_row, asked = 0, asked + 1
        talks.hear(call, turns, reply, time.monotonic() - start)

    async def work(endpoint, bar: Progress) -> None:
        while waiting and not stop:
            call = waiting.popleft()
            while not stop and call.item not in failed and (turns := talks.next(call)):
                with talks.replies.claim(s.key(turns)) as ours:
                    if ours:
                        await ask(call, turns, endpoint)
                    elif s.key(turns) not in talks.replies.rows:
                        waiting.append(call)
                        await asyncio.sleep(0.1)
                        break
            else:
                bar.add(note=", ".join([*([f"${talks.usage.cost:.2f}"] if talks.price else []),
                                        *([f"{len(failed)} failed"] if failed else [])]))

    async with Endpoint(model=s.model, base_url=s.base_url, key_env=s.key_env, temperature=s.temperature, max_tokens=s.max_tokens,
                        timeout=s.timeout, retries=s.retries, requests_per_minute=s.requests_per_minute,
                        tokens_per_minute=s.tokens_per_minute) as endpoint:
        with Progress(label, len(calls), "calls") as bar:
            workers = [asyncio.create_task(work(endpoint, bar)) for _ in range(min(s.concurrency, len(calls)))]
            try:
                await asyncio.gather(*workers)
            except Hopeless as error:
                stop = str(error)
            finally:
                for worker in workers:
                    worker.cancel()
                await asyncio.gather(*workers, return_exceptions=True)
        talks.usage.retries += endpoint.retries_made
    if failed:
        item, why = next(iter(failed.items()))
        stop = f"{len(failed)} of {len(calls)} calls failed, the first being {item}: {why}{f'; {stop}' if stop else ''}"
    if stop:
        raise RuntimeError(f"{stop}. The other replies are kept; run the same command again for the rest")
