"""Calls: their price, how long they take, and which are still to be made."""

import dataclasses

import pytest
from support.plans import settings

from ark_jax.estimate.work import Work, measure, pending_calls
from ark_jax.llm import complete
from ark_jax.pipeline.stage import Context
from ark_jax.recipes.core.ask import llm_settings
from ark_jax.runtime.log import Metrics, append_row


def work(c, **changes) -> Work:
    call = Work("extract", "llm", "ask", 10, 500, 100, settings=llm_settings(c))
    return dataclasses.replace(call, **changes)


def test_cost_is_tokens_times_the_price(world):
    c = settings(world, "openai")
    c.llm.model, c.llm.price = "mine", (3.0, 7.0)
    assert work(c).cost == pytest.approx(10 * (500 * 3 + 100 * 7) / 1e6)
    c.llm.price = ()
    assert work(c).cost is None and work(c, items=0).cost == 0
    c.llm.backend = "replay"
    assert (work(c).cost, work(c).waiting) == (0, 0)


def test_the_waiting_time_follows_the_limits_of_the_endpoint(world):
    c = settings(world, "openai")
    c.llm.concurrency = 4
    assert work(c, written=120).waiting == 6  # three rounds of two seconds, at 60 tokens/s
    assert work(c, pace=5).waiting == 15
    c.llm.requests_per_minute = 30
    assert work(c, pace=2).waiting == 20
    c.llm.tokens_per_minute = 9000
    assert work(c, pace=2).waiting == 40


def test_text_lengths_are_measured_on_an_even_sample(world):
    long, folder = "the Tidal Board " * 100, str(world / "retriever")
    whole = measure(folder, ["The tide."] * 3 + [long], cut=False)
    cut = measure(folder, ["The tide."] * 3 + [long])
    assert whole.longest > 64 == cut.longest and cut.mean < whole.mean
    assert whole.characters == cut.characters == (3 * 9 + 1600) / 4
    many = measure(folder, range(10_000), lambda i: "The tide." if i % 10 else long)
    assert many.count == 10_000 and many.mean == 64  # every tenth
    assert measure(folder, []).count == 0


def test_cached_replies_are_not_planned_again_but_used_as_estimates(world, tmp_path):
    c = settings(world, "openai")
    context = Context(c, tmp_path, Metrics(tmp_path / "metrics.jsonl"))
    calls = [complete.Call(f"rewrite/{i}", "rewrite", (f"Prompt {i}",), {}) for i in range(40)]
    asks, usage = llm_settings(c), {"prompt_tokens": 10, "completion_tokens": 3}
    for i, call in enumerate(calls[:25]):
        row = {"item": call.item, "kind": "rewrite", "key": asks.key(call.turns)}
        row |= {
            "seconds": 1.0 + i % 2,
            "reply": {"choices": [{"message": {"content": "x"}}], "usage": usage},
        }
        append_row(row, tmp_path / "llm" / "replies.jsonl")
        if i == 18:
            few = pending_calls(context, "rewrite", asks, calls, str(world / "generator"), 50)
            assert (few.items, few.total, few.pace) == (21, 40, 0)
            assert few.written == pytest.approx(50 * few.read / 8.75)  # characters of a prompt
    left = pending_calls(context, "rewrite", asks, calls, str(world / "generator"), 50)
    assert (left.label, left.items, left.total) == ("rewrite", 15, 40)
    assert left.written == pytest.approx(0.3 * left.read) and left.pace == 1.48
    c.llm.max_tokens = 1  # a reply is no longer
    cut = pending_calls(context, "rewrite", llm_settings(c), calls, str(world / "generator"), 50)
    assert (cut.items, cut.written) == (40, 1)  # other settings, other replies
