"""Counts the tokens of replies and their cost; list prices of common models."""

import dataclasses
import re

COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")
MAX_AMOUNT = 1e12  # tokens or USD; no request has more


@dataclasses.dataclass
class Usage:
    """Calls, requests, tokens and cost of one stage.

    `requests`, the tokens and `cost` include the requests of earlier runs, whose replies are
    cached.
    """

    calls: int = 0
    cached: int = 0  # requests that an earlier run had made
    asked_again: int = 0  # requests that asked the model to correct its reply
    retries: int = 0  # attempts of this run that failed and were repeated
    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0  # USD

    def add(self, reply: dict, cost: float) -> None:
        """Counts one answered request."""
        input_tokens, output_tokens = count_tokens(reply)
        self.requests += 1
        self.input_tokens += input_tokens
        self.output_tokens += output_tokens
        self.cost += cost

    def __add__(self, other: "Usage") -> "Usage":
        names = [field.name for field in dataclasses.fields(self)]
        return Usage(*(getattr(self, name) + getattr(other, name) for name in names))


def is_amount(value: object) -> bool:
    """Whether a count of tokens or a cost is a finite number of at least 0."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 <= value <= MAX_AMOUNT


def drop_false_counts(reply: dict) -> dict:
    """A chat completion without impossible counts of tokens, such as negative ones."""
    usage = reply.get("usage")
    if not isinstance(usage, dict):
        return {name: value for name, value in reply.items() if name != "usage"}
    kept = {name: n for name, n in usage.items() if name not in COUNTS or is_amount(n)}
    return reply | {"usage": kept}


def count_tokens(reply: dict) -> tuple[int, int]:
    """Input and output tokens of a chat completion, as the server counted them, else 0.

    Some servers count thinking tokens in the total only, and bill them as output.
    """
    usage = reply.get("usage") or {}
    prompt, completion, total = (int(usage.get(name) or 0) for name in COUNTS)
    return prompt, max(completion, total - prompt)


def reply_cost(reply: dict, price: tuple[float, float] | None) -> float:
    """USD of a chat completion, at `price` USD per million tokens of input and output."""
    if not price:
        return 0.0
    return sum(n * rate for n, rate in zip(count_tokens(reply), price, strict=True)) / 1e6


# USD per million tokens of input and output: list prices of late 2025, without discounts for
# batches or cached prompts.
PRICES = {
    "gpt-4o": (2.5, 10.0),
    "gpt-4o-mini": (0.15, 0.6),
    "gpt-4.1": (2.0, 8.0),
    "gpt-4.1-mini": (0.4, 1.6),
    "gpt-4.1-nano": (0.1, 0.4),
    "gemini-2.5-pro": (1.25, 10.0),
    "gemini-2.5-flash": (0.3, 2.5),
    "gemini-2.5-flash-lite": (0.1, 0.4),
    "deepseek-chat": (0.28, 0.42),
}


def find_price(model: str, override: tuple[float, ...] = ()) -> tuple[float, float] | None:
    """USD per million tokens of input and output; None if it is unknown.

    It is the override, or else the price in `PRICES`, where a dated version has its model's price.

    Raises:
        ValueError: the override is not two numbers of at least 0.
    """
    if override:
        if len(override) != 2 or min(override) < 0:
            raise ValueError(
                f"llm.price={tuple(override)}: must be two numbers, USD of a million tokens in "
                "and out"
            )
        return tuple(map(float, override))
    base_name = model.rsplit("/", 1)[-1]
    version = r"(-latest|-preview)?(-\d+)*"
    for name, price in PRICES.items():
        if re.fullmatch(re.escape(name) + version, base_name):
            return price
    return None
