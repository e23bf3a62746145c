"""Calls of a language model that a run has still to make: how many, their tokens, cost and time."""

import dataclasses
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from ark_jax.llm import complete
from ark_jax.llm.pricing import find_price
from ark_jax.llm.reply_cache import reply_text

ENOUGH_REPLIES = 20  # replies in the cache to measure on; with fewer, other figures stand in
ENDPOINT_SPEED = 60.0  # tokens a second that an endpoint is assumed to write
TEXTS_AT_ONCE = 1024  # texts that are tokenised at once
SET_PRICE = "give USD of a million tokens in and out, as in --config.llm.price='(0.3,2.5)'"

# Tokens of texts; with asked=True in the form in which a model is asked.
TokenCounter = Callable[..., list[int]]


@dataclasses.dataclass(frozen=True)
class Calls:
    """What one kind of calls has still to ask: nothing once its stage is done.

    Attributes:
        label: what the plan calls them.
        stage: the stage that makes them.
        total: all calls, also those whose replies are in the cache.
        cost: USD; None if the price is unknown.
        role: the section of the config that says who is asked.
    """

    label: str
    stage: str
    total: int
    calls: int
    input_tokens: int
    output_tokens: int
    cost: float | None
    seconds: float
    role: str = "llm"


def price_for(settings) -> tuple[float, float] | None:
    """USD of a million tokens in and out under a role's settings; None if it is unknown."""
    if settings.backend != "openai":
        return 0.0, 0.0
    return find_price(settings.model, tuple(settings.price))


def cost_of(price: tuple[float, float] | None, read: float, written: float) -> float | None:
    """USD; None if the price is unknown and there is something to pay for."""
    if price is None:
        return None if read or written else 0.0
    return (read * price[0] + written * price[1]) / 1e6


def unknown_price(settings) -> list[str]:
    """A note that the price under a role's settings is unknown, with the fix; none if it is not."""
    if price_for(settings) is not None:
        return []
    return [f"price: that of {settings.model!r} is unknown; {SET_PRICE}"]


def reply_seconds(replies: Sequence[dict], tokens: float) -> tuple[float, str]:
    """The mean seconds of one reply, and what they rest on.

    Args:
        replies: rows of the cache; if enough of them were timed, they decide.
        tokens: of one reply, which is else written at `ENDPOINT_SPEED`.
    """
    seconds = [row["seconds"] for row in replies if row.get("seconds")]
    if len(seconds) >= ENOUGH_REPLIES:
        return statistics.fmean(seconds), f"as {len(seconds):,} replies at hand took"
    return tokens / ENDPOINT_SPEED, f"assuming {ENDPOINT_SPEED:g} tokens/s"


def waiting_seconds(settings, calls: int, tokens: float, pace: float) -> float:
    """Seconds that calls to an endpoint take, under its limits.

    Args:
        pace: seconds of one reply.
    """
    if settings.backend != "openai":
        return 0.0
    limits = ((calls, settings.requests_per_minute), (tokens, settings.tokens_per_minute))
    by_limits = [60 * amount / limit for amount, limit in limits if limit]
    return max(math.ceil(calls / settings.concurrency) * pace, *by_limits, 0.0)


def token_counter(config, *, is_asked: bool = True) -> tuple[TokenCounter, str]:
    """Counts the tokens of `config.llm`, and says whose tokenizer it counts by.

    Args:
        is_asked: whether anything is asked of `config.llm`; otherwise its tokenizer is not opened.
    """
    from ark_jax.text.tokens import load_tokenizer

    local = is_asked and config.llm.backend == "local"
    path = (config.llm.path if local else "") or config.generator.path
    tokenizer = load_tokenizer(path)
    chat = local and tokenizer.chat_template

    def as_turn(text: str) -> str:
        message = [{"role": "user", "content": text}]
        return tokenizer.apply_chat_template(
            message, add_generation_prompt=True, tokenize=False, enable_thinking=False
        )

    def count(texts: Sequence[str], *, asked: bool = False) -> list[int]:
        texts = [as_turn(text) for text in texts] if asked and chat else texts
        special = bool(asked and local and not chat)
        lengths = []
        for start in range(0, len(texts), TEXTS_AT_ONCE):
            batch = tokenizer(
                texts[start : start + TEXTS_AT_ONCE], add_special_tokens=special, verbose=False
            )
            lengths += map(len, batch["input_ids"])
        return lengths

    stand_in = "" if local else " (generator.path), in place of their own"
    return count, f"the tokenizer of {Path(path).name}{stand_in}"


def unanswered(
    settings: complete.LLMSettings, calls: Sequence[complete.Call], replies: Sequence[dict]
) -> list[complete.Call]:
    """Calls whose reply is not in the cache; of a replay, all calls."""
    if settings.backend == "replay":
        return list(calls)
    known = {row["key"] for row in replies}
    return [call for call in calls if settings.key(call.turns) not in known]


def measured_ratio(
    replies: Sequence[dict], prompt_tokens: dict[str, float], count: TokenCounter
) -> tuple[float | None, int]:
    """Tokens out for one token in, over the replies in the cache, and how many these are.

    The ratio is None if they are too few.

    Args:
        prompt_tokens: call -> tokens of its prompt, for replies that do not tell their usage.
    """
    usages = [row["reply"].get("usage") or {} for row in replies]
    pairs = [
        (usage["prompt_tokens"], usage["completion_tokens"])
        for usage in usages
        if usage.get("prompt_tokens") and usage.get("completion_tokens")
    ]
    if len(pairs) < ENOUGH_REPLIES:
        known = [row for row in replies if row["item"] in prompt_tokens]
        written = count([reply_text(row["reply"]) for row in known])
        read = [prompt_tokens[row["item"]] for row in known]
        pairs = list(zip(read, written, strict=True))
    if len(pairs) < ENOUGH_REPLIES:
        return None, len(pairs)
    ratio = sum(written for _, written in pairs) / sum(read for read, _ in pairs)
    return ratio, len(pairs)
