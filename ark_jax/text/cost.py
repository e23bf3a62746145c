"""What replies cost: tokens counted, prices of a few models."""

import dataclasses
import re


@dataclasses.dataclass
class Usage:
    """Of the calls of one stage. `requests` and what follows count all that were ever answered, by an earlier run too."""

    calls: int = 0
    cached: int = 0  # requests that an earlier run had made
    asked_again: int = 0  # requests about a reply that had not the form asked for
    retries: int = 0  # requests of this run that failed and were made again
    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0  # USD

    def add(self, reply: dict, cost: float) -> None:
        """Counts one answered request."""
        tokens = tokens_of(reply)
        self.requests += 1
        self.input_tokens += tokens[0]
        self.output_tokens += tokens[1]
        self.cost += cost

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(*(getattr(self, f.name) + getattr(other, f.name) for f in dataclasses.fields(self)))


def tokens_of(reply: dict) -> tuple[int, int]:
    """Tokens in and out of a chat completion, as its server counted them; zero where it does not say.

    Some servers count what a model thinks, and bill as said, in the total only.
    """
    used = reply.get("usage") or {}
    read, said, total = (int(used.get(f"{name}_tokens") or 0) for name in ("prompt", "completion", "total"))
    return read, max(said, total - read)


def cost_of(reply: dict, price: tuple[float, float] | None) -> float:
    """USD of a chat completion, at `price` USD of a million tokens in and out."""
    return sum(n * each for n, each in zip(tokens_of(reply), price or (0.0, 0.0), strict=True)) / 1e6


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
