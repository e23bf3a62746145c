"""The amounts that a plan is made of: what a stage asks, computes and stores.

Recipes count them from the input; `plan` turns them into money, time, memory and disk. Nothing here
starts jax, since costs are checked before processes join.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ark_jax.llm import complete
from ark_jax.llm.pricing import find_price
from ark_jax.llm.reply_cache import ReplyCache
from ark_jax.pipeline.stage import Context

SAMPLE = 1000  # texts whose tokens are counted; of more, an even sample stands for all
ENOUGH_REPLIES = 20  # cached replies whose mean is trusted
ENDPOINT_SPEED = 60.0  # tokens a second that an endpoint is assumed to write


class Texts(NamedTuple):
    """Texts of a kind; `mean` and `longest` are tokens, `characters` are the mean."""

    count: float
    mean: float
    longest: float
    characters: float = 0

    def with_count(self, count: float) -> "Texts":
        """Another number of texts with these lengths."""
        return self._replace(count=count)


@dataclasses.dataclass(frozen=True)
class Work:
    """One part of the work of a stage. Numbers of tokens are those of one item.

    Attributes:
        model: the config's section of the model.
        kind: ask, embedding, likelihoods, reading or training.
        items: calls, texts, or steps of training.
        read: tokens that a forward pass computes.
        written: tokens that are generated, or whose likelihood is taken.
        after: tokens before these, whose states are computed once for many items.
        step: of training, the texts of one step; GradCache cuts the last kind.
        objective: of training, the builder in `steps` that makes this step for a compiler; "" where
            there is none.
        towers: models that are trained at once.
        stored: vectors that are kept on disk.
        label: what the plan calls these calls.
        settings: of calls, the language model.
        total: all calls, including those whose replies are cached.
        pace: measured seconds of a reply; 0: unknown.
        replies: of a call, which an endpoint writes side by side; `written` is their sum.
    """

    stage: str
    model: str
    kind: str
    items: float
    read: float = 0
    written: float = 0
    after: float = 0
    step: tuple[Texts, ...] = ()
    objective: str = ""
    towers: int = 1
    stored: float = 0
    label: str = ""
    settings: complete.LLMSettings | None = None
    total: int = 0
    pace: float = 0
    replies: int = 1

    @property
    def tokens(self) -> float:
        """Tokens of all items. For likelihoods the read tokens include the written ones."""
        if self.step:
            return self.items * sum(texts.count * texts.mean for texts in self.step)
        return self.items * (self.read + self.written * (self.kind != "likelihoods"))

    @property
    def is_remote(self) -> bool:
        """Whether none of it runs on the devices of this run."""
        return self.kind == "ask" and self.settings.backend != "local"

    @property
    def price(self) -> tuple[float, float] | None:
        """USD of a million tokens in and out; None if it is unknown."""
        if self.settings.backend != "openai":
            return 0.0, 0.0
        return find_price(self.settings.model, tuple(self.settings.price))

    @property
    def cost(self) -> float | None:
        """USD of calls; None if the price is unknown and there is something to pay for."""
        if self.price is None:
            return None if self.items else 0.0
        return self.items * (self.read * self.price[0] + self.written * self.price[1]) / 1e6

    @property
    def reply_seconds(self) -> float:
        """Seconds of one reply: measured, or from an assumed speed."""
        return self.pace or self.written / self.replies / ENDPOINT_SPEED

    @property
    def waiting(self) -> float:
        """Seconds that the calls take, under the limits of an endpoint."""
        llm = self.settings
        if llm.backend != "openai":
            return 0.0
        limits = (self.items, llm.requests_per_minute), (self.tokens, llm.tokens_per_minute)
        by_limits = [60 * amount / limit for amount, limit in limits if limit]
        return max(math.ceil(self.items / llm.concurrency) * self.reply_seconds, *by_limits, 0.0)


@functools.cache
def _tokenizer(folder: str):
    """The tokenizer of a model folder, and how many tokens the model reads."""
    from ark_jax.models import hf, sentence_folder
    from ark_jax.text.tokens import load_tokenizer

    weights = sentence_folder.weights_folder(hf.resolve(folder))
    tokenizer = load_tokenizer(str(weights))
    return tokenizer, sentence_folder.read_max_length(weights, tokenizer)


def measure(
    folder: str, items: Sequence, text: Callable[[Any], str] = str, *, cut: bool = True
) -> Texts:
    """Lengths of the texts of items, from an even sample.

    Args:
        folder: of the model whose tokenizer counts.
        text: gives the text of an item.
        cut: whether texts are cut to what the model reads.
    """
    tokenizer, limit = _tokenizer(folder)
    stride = max(-(-len(items) // SAMPLE), 1)
    sample = [text(items[i]) for i in range(0, len(items), stride)] or [""]
    ids = tokenizer(sample, verbose=False, add_special_tokens=cut)["input_ids"]
    lengths = [min(len(row), limit) if cut else len(row) for row in ids]
    mean = lambda numbers: sum(numbers) / len(numbers)
    return Texts(len(items), mean(lengths), max(lengths), mean([*map(len, sample)]))


def pending_calls(
    context: Context,
    stage: str,
    settings: complete.LLMSettings,
    calls: Sequence[complete.Call],
    folder: str,
    reply: float,
    more: float = 0,
) -> Work:
    """The calls whose replies are not cached.

    Length and time of a reply come from cached replies, if there are enough.

    Args:
        folder: of the model whose tokenizer counts.
        reply: characters of a reply, unless enough replies are cached.
        more: characters of a prompt that are not in it yet.
    """
    replies = ReplyCache(context.workdir / "llm" / "replies.jsonl").rows.values()
    known = {row["key"] for row in replies} if settings.backend != "replay" else set()
    left = sum(settings.key(call.turns) not in known for call in calls) if known else len(calls)
    prompt = measure(folder, calls, lambda call: call.turns[0], cut=False)
    rate = prompt.mean / max(prompt.characters, 1)
    read, written = prompt.mean + more * rate, reply * rate
    label = calls[0].kind if calls else ""
    matching = [row for row in replies if row.get("kind") == label]
    usage = [row["reply"].get("usage") or {} for row in matching]
    used = [(x.get("prompt_tokens") or 0, x.get("completion_tokens") or 0) for x in usage]
    used = [(tokens_in, tokens_out) for tokens_in, tokens_out in used if tokens_in and tokens_out]
    if len(used) >= ENOUGH_REPLIES:
        written = read * sum(x for _, x in used) / sum(x for x, _ in used)
    seconds = [row["seconds"] for row in matching if row.get("seconds")]
    pace = sum(seconds) / len(seconds) if len(seconds) >= ENOUGH_REPLIES else 0
    shown = {"label": label, "settings": settings, "total": len(calls), "pace": pace}
    return Work(stage, "llm", "ask", left, read, min(written, settings.max_tokens), **shown)
