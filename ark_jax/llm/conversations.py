"""Calls of a language model and the state of each: its replies so far, and what to send next."""

import dataclasses
import json
import time
from collections.abc import Callable, Mapping, Sequence

from ark_jax.llm.pricing import Usage, find_price, reply_cost
from ark_jax.llm.reply_cache import (
    UNUSED_PREFIX,
    ReplyCache,
    StoredTexts,
    conversation_digest,
    reply_text,
)


@dataclasses.dataclass(frozen=True)
class Call:
    """One task for the model. Calls with equal `turns` and `draw` are one request.

    Args:
        item: names the task, such as `extract/CHUNK`.
        kind: extract, glean, questions, rewrite, read or judge.
        turns: texts of the user and the model in turn, ending with the user's.
        fields: what the prompt's template was filled with; the backend `none` works from it.
        draw: number of the sample, where the same turns are sent several times.
    """

    item: str
    kind: str
    turns: tuple[str, ...]
    fields: dict = dataclasses.field(default_factory=dict)
    draw: int = 0


@dataclasses.dataclass(frozen=True)
class LLMSettings:
    """The fields of `config.llm`, or of another role's section of the config."""

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
    top_p: float = 1.0

    def __post_init__(self):
        if self.concurrency < 1:
            raise ValueError(
                f"llm.concurrency={self.concurrency}: must be at least 1, the requests sent at once"
            )

    def key(self, turns: Sequence[str], draw: int = 0) -> str:
        """The cache key of a reply: a hash of everything that decides it."""
        fields = [self.backend, self.model]
        fields += [self.base_url] if self.backend == "openai" else []
        fields += [self.temperature, self.max_tokens, list(turns)]
        fields += [draw] if draw else []
        fields += [f"top_p {self.top_p}"] if self.top_p < 1 else []
        return conversation_digest(json.dumps(fields))


@dataclasses.dataclass(frozen=True)
class Completions:
    """The replies to a sequence of calls."""

    texts: Mapping[str, list[str]]  # item -> its reply, then the corrected ones
    rejected: dict[str, str]  # item -> why no model will answer it
    drifted: list[str]  # items whose recorded reply belongs to another version of the prompt
    usage: Usage


# accept(call, texts, is_cut) returns what is wrong with the replies so far, in words to the model,
# or None if they are accepted. `is_cut`: the last reply was cut off at `max_tokens`.
Accept = Callable[[Call, list[str], bool], str | None]


def accept_all(call: Call, texts: list[str], is_cut: bool) -> None:
    """Accepts every reply."""


class Conversations:
    """The state of each call: the replies so far, and what to send next."""

    def __init__(
        self, calls: Sequence[Call], settings: LLMSettings, cache: ReplyCache, accept: Accept
    ):
        self.settings, self.cache, self.accept = settings, cache, accept
        # item -> byte offsets of its rows in the cache's file
        self.places: dict[str, tuple[int, ...]] = {call.item: () for call in calls}
        self.rejected: dict[str, str] = {}  # item -> why no model will answer it
        self.price = None
        if settings.backend == "openai":
            self.price = _find_required_price(settings)
        self.usage = Usage(len(calls))
        self.places_of_earlier_runs = range(cache.rows.end)
        self.counted_places: set[int] = set()  # rows in `usage`, since equal calls are one request
        for row in [cache.rows[key] for key in cache.rows if key.startswith(UNUSED_PREFIX)]:
            if row.get("item") in self.places:
                self.usage.add(row["reply"], row.get("cost", 0.0))

    def next_turns(self, call: Call) -> tuple[str, ...] | None:
        """The turns to send next; None if the call is done. Replies in the cache are used first."""
        while turns := self._turns_after(self._replies_so_far(call), call):
            key = self.settings.key(turns, call.draw)
            if key not in self.cache.rows:
                return turns
            self._assign_row(call, key, self.cache.rows[key])
        return None

    def _replies_so_far(self, call: Call) -> list[dict]:
        """The stored rows of the replies to a call, in order."""
        return [self.cache.rows.file.row(place) for place in self.places[call.item]]

    def record(self, call: Call, turns: tuple[str, ...], reply: dict, seconds: float = 0.0) -> None:
        """Adds a reply to the cache and to its call."""
        row = {
            "item": call.item,
            "kind": call.kind,
            "turn": len(self.places[call.item]),
            "key": self.settings.key(turns, call.draw),
            "prompt": conversation_digest(turns),
            "seconds": round(seconds, 3),
            "cost": reply_cost(reply, self.price),
            "reply": reply,
        }
        self.cache.add(row)
        self._assign_row(call, row["key"], row)

    def record_unused(self, call: Call, unused: list[dict]) -> None:
        """Moves completions without a usable text to the cache, since they are paid for."""
        while unused:
            reply = unused.pop()
            cost = reply_cost(reply, self.price)
            self.usage.add(reply, cost)
            self.cache.add(
                {
                    "item": call.item,
                    "key": f"{UNUSED_PREFIX}{time.time_ns()}",
                    "cost": cost,
                    "reply": {"usage": reply.get("usage")},
                }
            )

    def _assign_row(self, call: Call, key: str, row: dict) -> None:
        """Adds a row of the cache to a call, and counts it in `usage` once."""
        place, earlier = self.cache.rows.place(key), self.places[call.item]
        if place not in self.counted_places:
            self.counted_places.add(place)
            self.usage.asked_again += bool(earlier)
            self.usage.cached += place in self.places_of_earlier_runs
            self.usage.add(row["reply"], row.get("cost", 0.0))
        if "error" in row["reply"]:
            self.rejected[call.item] = row["reply"]["error"]
        self.places[call.item] = (*earlier, place)

    def _turns_after(self, rows: list[dict], call: Call) -> tuple[str, ...] | None:
        """The turns to send after these replies; None if no further reply is needed or allowed."""
        if not rows:
            return call.turns
        last = rows[-1]["reply"]
        if "error" in last or len(rows) > self.settings.reasks:
            return None
        is_local = self.settings.backend == "local"
        is_cut = not is_local and last["choices"][0].get("finish_reason") == "length"
        texts = [reply_text(row["reply"]) for row in rows]
        remark = self.accept(call, texts, is_cut)
        if remark is None:
            return None
        if is_local:
            # Leave out the wrong reply: a small model would repeat it, and its context is short.
            turns = (*call.turns[:-1], f"{call.turns[-1]}\n\n{remark}")
        else:
            turns = (*call.turns, texts[-1], remark)
        is_repeated = self.settings.key(turns, call.draw) == rows[-1]["key"]
        return None if is_repeated else turns

    def completions(self) -> Completions:
        """The replies recorded so far."""
        texts = StoredTexts(self.cache.rows.file, self.places) if self.places else {}
        rejected = {item: self.rejected[item] for item in self.places if item in self.rejected}
        return Completions(texts, rejected, [], self.usage)


def _find_required_price(settings: LLMSettings) -> tuple[float, float] | None:
    """USD per million tokens in and out; None if unknown.

    Raises:
        ValueError: it is unknown, and a cost limit is set.
    """
    price = find_price(settings.model, settings.price)
    if settings.max_cost and not price:
        raise ValueError(
            f"llm.max_cost={settings.max_cost}: no price of {settings.model} is known; give "
            "--config.llm.price='(IN, OUT)', USD of a million tokens in and out"
        )
    return price
