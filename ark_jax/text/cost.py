"""What replies cost: tokens counted, prices of a few models."""

import dataclasses
import re


@dataclasses.dataclass
class Usage:
    """Of the calls of one stage. `requests` and what follows it count every one that was ever answered, cached ones too."""

    calls: int = 0
    cached: int = 0  # replies that an earlier run had already heard
    asked_again: int = 0  # requests beyond the first of a call, whose reply had not the form asked for
    retries: int = 0  # requests that failed and were repeated, in this run
    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0  # USD

    def add(self, reply: dict, price: tuple[float, float] | None) -> None:
        """Counts one chat completion, at `price` USD of a million tokens in and out."""
        used = reply.get("usage") or {}
        tokens = [int(used.get(name) or 0) for name in ("prompt_tokens", "completion_tokens")]
        self.requests += 1
        self.input_tokens += tokens[0]
        self.output_tokens += tokens[1]
        self.cost += sum(n * each for n, each in zip(tokens, price or (0.0, 0.0), strict=True)) / 1e6


# USD of a million tokens in and out, list prices of late 2025 without discounts for batches or cached prompts.
PRICES = {
    "gpt-4o": (2.5, 10.0), "gpt-4o-mini": (0.15, 0.6),
    "gpt-4.1": (2.0, 8.0), "gpt-4.1-mini": (0.4, 1.6), "gpt-4.1-nano": (0.1, 0.4),
    "gemini-2.5-pro": (1.25, 10.0), "gemini-2.5-flash": (0.3, 2.5), "gemini-2.5-flash-lite": (0.1, 0.4),
    "deepseek-chat": (0.28, 0.42),
}


def price_of(model: str, override: tuple[float, ...] = ()) -> tuple[float, float] | None:
    """USD of a million tokens in and out: the override, the table's for the model or a dated version of it, or None.

    Raises:
        ValueError: an override that is not two numbers of at least 0.
    """
    if override:
        if len(override) != 2 or min(override) < 0:
            raise ValueError(f"llm.price={tuple(override)}: must be two numbers, USD of a million tokens in and out")
        return tuple(map(float, override))
    named = lambda name: re.fullmatch(re.escape(name) + r"(-latest|-preview)?(-\d+)*", model.rsplit("/", 1)[-1])
    return next((price for name, price in PRICES.items() if named(name)), None)
