"""Tokens and prices of replies."""

import pytest
from support import llm_server
from support.llm_calls import calls, echo

from ark_jax.llm import pricing


def test_a_cost_limit_needs_a_price(live):
    with llm_server.serving(echo) as server:
        with pytest.raises(
            ValueError, match=r"no price of toy is known; give --config\.llm\.price"
        ):
            live(server, calls(1), max_cost=1.0)
        live(server, calls(1))


@pytest.mark.parametrize("number", [-5, float("nan"), float("inf"), 10**30, "5", True, [1], {}])
def test_an_impossible_token_count_is_dropped_from_the_cost(number):
    usage = {"prompt_tokens": number, "completion_tokens": 2, "details": {"x": 1}}
    reply = pricing.drop_false_counts({"usage": usage, "id": "x"})
    assert reply == {"usage": {"completion_tokens": 2, "details": {"x": 1}}, "id": "x"}
    assert pricing.reply_cost(reply, (1e6, 1e6)) == 2.0


@pytest.mark.parametrize("usage", ["free", [1, 2], 7])
def test_a_usage_that_is_not_an_object_is_dropped(usage):
    assert pricing.drop_false_counts({"usage": usage, "id": "x"}) == {"id": "x"}


def test_thinking_tokens_in_the_total_are_billed():
    reply = {"usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 1110}}
    assert pricing.count_tokens(reply) == (100, 1010)
    assert pricing.reply_cost(reply, (0.0, 1e6)) == 1010.0


@pytest.mark.parametrize(
    ("reply", "tokens"),
    [({"usage": {"prompt_tokens": 3, "completion_tokens": 2}}, (3, 2)), ({}, (0, 0))],
)
def test_tokens_are_counted_without_a_total(reply, tokens):
    assert pricing.count_tokens(reply) == tokens
