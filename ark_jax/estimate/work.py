"""The amounts that a plan is made of: what a stage asks, computes and stores.

Recipes count them from the input. `plan` turns them into money, time, memory and disk. Nothing here
starts jax, since costs are checked before processes join.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ark_jax.llm import complete
from ark_jax.llm.pricing import find_price
from ark_jax.llm.reply_cache import ReplyCache
from ark_jax.pipeline.stage import Context

SAMPLE = 1000  # texts whose tokens are counted; of more, an even sample stands for all
ENOUGH_REPLIES = 20  # replies at hand that are believed
ENDPOINT_SPEED = 60.0  # tokens a second that an endpoint is assumed to write
SET_PRICE = "give USD of a million tokens in and out, as in --config.llm.price='(0.3,2.5)'"


class Texts(NamedTuple):
    """Texts of a kind; `mean` and `longest` are tokens."""

    count: float
    mean: float
    longest: float

    def of(self, count: float) -> "Texts":
        """As many texts of these lengths."""
        return self._replace(count=count)


@dataclasses.dataclass(frozen=True)
class Work:
    """One part of what a stage does; tokens are those of each item.

    Attributes:
        model: the section of the config that names the model.
        kind: ask, embedding, likelihoods, reading or training.
        items: calls, texts, or steps of training.
        read: tokens that a forward pass computes.
        written: tokens that are generated, or whose likelihood is taken.
        after: tokens before these, which are computed once for many items.
        step: of training, the texts of one step; GradCache cuts the last kind.
        stored: numbers of an embedding that are kept on disk, in vectors.
        settings: of calls, who is asked.
        total: calls, with those whose replies are at hand.
        pace: measured seconds of a reply; 0: unknown.
    """

    stage: str
    model: str
    kind: str
    items: float
    read: float = 0
    written: float = 0
    after: float = 0
    step: tuple[Texts, ...] = ()
    towers: int = 1
    stored: float = 0
    label: str = ""
    settings: complete.LLMSettings | None = None
    total: int = 0
    pace: float = 0

    @property
    def tokens(self) -> float:
        if self.step:
            return self.items * sum(texts.count * texts.mean for texts in self.step)
        return self.items * (self.read + self.written * (self.kind != "likelihoods"))

    @property
    def price(self) -> tuple[float, float] | None:
        """USD of a million tokens in and out; None if it is unknown."""
        if not self.settings or self.settings.backend != "openai":
            return 0.0, 0.0
        return find_price(self.settings.model, tuple(self.settings.price))

    @property
    def cost(self) -> float | None:
        """USD; None if the price is unknown and there is something to pay for."""
        if self.price is None:
            return None if self.items else 0.0
        return self.items * (self.read * self.price[0] + self.written * self.price[1]) / 1e6

    @property
    def waiting(self) -> float:
        """Seconds that the calls take, under the limits of an endpoint."""
        limits = self.settings
        if not limits or limits.backend != "openai":
            return 0.0
        rounds = math.ceil(self.items / limits.concurrency)
        per_minute = (
            (self.items, limits.requests_per_minute),
            (self.tokens, limits.tokens_per_minute),
        )
        waits = [60 * amount / limit for amount, limit in per_minute if limit]
        return max(rounds * (self.pace or self.written / ENDPOINT_SPEED), *waits, 0.0)


@functools.cache
def _tokenizer(folder: str):
    """The tokenizer of a model folder, and how many tokens the model reads."""
    from ark_jax.models import hf, sentence_folder
    from ark_jax.text.tokens import load_tokenizer

    path = hf.resolve(folder)
    tokenizer = load_tokenizer(str(path))
    return tokenizer, sentence_folder.read_max_length(path, tokenizer)


def measure(folder: str, texts: Iterable[str], count: int, *, cut: bool = True) -> Texts:
    """The tokens of `count` texts, from an even sample; `cut`: the model reads no longer ones."""
    tokenizer, most = _tokenizer(folder)
    sample = list(itertools.islice(texts, 0, None, max(-(-count // SAMPLE), 1)))
    ids = tokenizer(sample, verbose=False)["input_ids"] if sample else [[]]
    lengths = [min(len(row), most) if cut else len(row) for row in ids]
    return Texts(count, sum(lengths) / len(lengths), max(lengths))


def asked(
    context: Context,
    work: tuple[str, str],
    settings: complete.LLMSettings,
    calls: Sequence[complete.Call],
    folder: str,
    reply: float,
    more: float = 0,
) -> Work:
    """The calls whose replies are not at hand, which tell how long and how slow replies are.

    Args:
        work: the stage, and the section of the config that says who is asked.
        folder: of the model whose tokenizer counts.
        reply: tokens of a reply, unless enough replies are at hand.
        more: tokens of a prompt that are not in it yet.
    """
    replies = ReplyCache(context.workdir / "llm" / "replies.jsonl").rows
    known = {row["key"] for row in replies.values()} if settings.backend != "replay" else set()
    left = sum(settings.key(call.turns) not in known for call in calls) if known else len(calls)
    prompts = measure(folder, (call.turns[0] for call in calls), len(calls), cut=False)
    read, kind = prompts.mean + more, calls[0].kind if calls else ""
    same = [row for row in replies.values() if row.get("kind") == kind]
    usage = [row["reply"].get("usage") or {} for row in same]
    told = [x for x in usage if x.get("prompt_tokens") and x.get("completion_tokens")]
    if len(told) >= ENOUGH_REPLIES:
        reply = read * sum(x["completion_tokens"] for x in told)
        reply /= sum(x["prompt_tokens"] for x in told)
    seconds = [row["seconds"] for row in same if row.get("seconds")]
    return Work(
        *work,
        "ask",
        left,
        read,
        min(reply, settings.max_tokens),
        label=kind,
        settings=settings,
        total=len(calls),
        pace=sum(seconds) / len(seconds) if len(seconds) >= ENOUGH_REPLIES else 0,
    )
