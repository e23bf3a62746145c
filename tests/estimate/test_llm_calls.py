"""Calls, tokens and cost of what is still to be asked."""

import dataclasses
import json
from pathlib import Path

import pytest
from support import tiny
from support.plans import calls_of_kind, settings

from ark_jax.estimate import llm_calls, plan
from ark_jax.llm import complete, reply_cache, rule_based
from ark_jax.llm.reply_cache import ReplyCache
from ark_jax.recipes.ark import config, estimate_calls
from ark_jax.recipes.ark.extract import extraction_calls
from ark_jax.recipes.ark.recipe import RECIPE
from ark_jax.runtime.log import append_row


def test_cost_is_tokens_times_the_price(world, mesh):
    c = settings(world, "openai")
    c.llm.model, c.llm.price = "mine", (3.0, 7.0)
    planned = plan.estimate(RECIPE, c)
    for x in planned.calls:
        assert x.output_tokens > 0
        assert x.cost == pytest.approx((3 * x.input_tokens + 7 * x.output_tokens) / 1e6, rel=1e-4)
    assert planned.cost == sum(x.cost for x in planned.calls) > 0
    c.llm.max_tokens = 20  # a reply is no longer
    assert (
        calls_of_kind(plan.estimate(RECIPE, c), "extract").output_tokens
        == 20 * calls_of_kind(planned, "extract").calls
    )


@pytest.mark.parametrize("backend", ["none", "replay", "local"])
def test_our_own_backends_cost_nothing(world, mesh, backend):
    planned = plan.estimate(RECIPE, settings(world, backend))
    assert planned.cost == 0 and all(x.calls for x in planned.calls)
    assert all((x.seconds > 0) == (backend == "local") for x in planned.calls)


def test_our_own_model_is_counted_by_its_own_tokenizer_and_chat_form(world, mesh, tmp_path):
    c = settings(world, "local")
    c.llm.path = str(tiny.write(tmp_path / "chat", "qwen3", tokenizer="chat"))
    planned = plan.estimate(RECIPE, c)
    plain = plan.estimate(RECIPE, settings(world))
    assert (
        calls_of_kind(planned, "extract").input_tokens
        == calls_of_kind(plain, "extract").input_tokens + 3 * calls_of_kind(plain, "extract").calls
    )  # <s> </s> <s>
    assert (
        calls_of_kind(planned, "extract").output_tokens
        == calls_of_kind(plain, "extract").output_tokens
    )  # what it writes is no turn
    assert planned.notes[0] == "tokens of language models: counted by the tokenizer of chat"


def test_an_endpoint_holds_calls_back():
    c = config.ark().llm
    c.backend, c.concurrency = "openai", 4
    assert llm_calls.waiting_seconds(c, 10, 6000, 2.0) == 6  # three rounds of two seconds
    c.requests_per_minute = 30
    assert llm_calls.waiting_seconds(c, 10, 6000, 2.0) == 20
    c.tokens_per_minute = 9000
    assert llm_calls.waiting_seconds(c, 10, 6000, 2.0) == 40
    c.backend = "none"
    assert llm_calls.waiting_seconds(c, 10, 6000, 2.0) == 0


def test_hyde_asks_for_a_passage_for_each_held_out_question(world, mesh):
    c = settings(world, "openai")
    c.search.expand, c.mine.by = "hyde", "question"  # which asks for nothing else
    planned = plan.estimate(RECIPE, c)
    calls = calls_of_kind(planned, "hyde")
    assert (calls.stage, calls.calls) == ("baselines", planned.inputs["held-out questions"])
    assert calls.output_tokens == 120 * calls.calls and calls.cost > 0
    assert any("embedding for hyde" in note for note in planned.notes)


def test_an_unknown_price_is_told_with_the_fix(world, mesh):
    c = settings(world, "openai")
    c.llm.model = "somebody/new-model"
    planned = plan.estimate(RECIPE, c)
    assert planned.cost is None and calls_of_kind(planned, "extract").cost is None
    assert any(
        "'somebody/new-model' is unknown" in note and "--config.llm.price='(0.3,2.5)'" in note
        for note in planned.notes
    )
    assert plan.format_plan(planned).splitlines()[-1].startswith("total: unknown, about ")
    plan.check_cost(RECIPE, c, world / "nowhere")  # no limit
    c.llm.max_cost = 1.0
    with pytest.raises(
        ValueError,
        match=r"max_cost is \$1.00, but the price of 'somebody/new-model' is unknown: .*llm.price",
    ):
        plan.check_cost(RECIPE, c, world / "nowhere")


def test_replies_at_hand_are_believed_and_not_asked_for_again(run, mesh, tmp_path, monkeypatch):
    monkeypatch.setattr(llm_calls, "ENOUGH_REPLIES", 6)
    c = settings(run.workdir.parent, "openai")
    c.llm.concurrency = 1
    asks = complete.LLMSettings(
        **{f.name: c.llm[f.name] for f in dataclasses.fields(complete.LLMSettings)}
    )
    calls, kept = run.asked["rewrite"], tmp_path / "llm" / "replies.jsonl"
    for i, call in enumerate(calls[:7]):
        reply = {
            "choices": [{"message": {"content": "x"}}],
            "usage": {"prompt_tokens": 10, "completion_tokens": 3},
        }
        row = {
            "item": call.item,
            "kind": "rewrite",
            "key": asks.key(call.turns),
            "seconds": 1.0 + i % 2,
            "reply": reply,
        }
        append_row(row, kept)
    replies = list(ReplyCache(kept).rows.values())
    assert llm_calls.unanswered(asks, calls, replies) == list(calls[7:])
    # The recording's graph is not the endpoint's, so prompts will differ from those answered here,
    # but not in kind.
    planned = calls_of_kind(plan.estimate(RECIPE, c, tmp_path), "rewrite")
    assert planned.total == planned.calls == len(calls)
    assert planned.output_tokens == pytest.approx(0.3 * planned.input_tokens, abs=1)
    assert planned.seconds == pytest.approx(planned.calls * (1 + 3 / 7), rel=1e-6)


def answered(c, folder: Path) -> list[dict]:
    """The ledger of an endpoint that has answered all of extraction as our statistics do."""
    asks = complete.LLMSettings(
        **{f.name: c.llm[f.name] for f in dataclasses.fields(complete.LLMSettings)}
    )
    with plan._shadow(RECIPE, c, c, folder) as (shadow, _):
        calls = extraction_calls(shadow, estimate_calls.chunks_to_extract(shadow, set()))
    replies = ReplyCache(folder / "llm" / "replies.jsonl")
    for call, text in zip(
        calls, rule_based.make_replies([call.fields for call in calls]), strict=True
    ):
        replies.add(
            {
                "item": call.item,
                "kind": call.kind,
                "key": asks.key(call.turns),
                "reply": {"choices": [{"message": {"content": text}}]},
            }
        )
    return list(replies.rows.values())


def test_half_answered_calls_are_half_planned(world, mesh, tmp_path):
    """The ledger of an endpoint, cut in the middle, as a kill leaves it."""
    c = settings(world, "openai")
    answered(c, tmp_path)
    rows = (tmp_path / "llm" / "replies.jsonl").read_text().splitlines()
    (tmp_path / "llm" / "replies.jsonl").write_text("\n".join(rows[:3]) + "\n" + rows[3][:50])
    planned = calls_of_kind(plan.estimate(RECIPE, c, tmp_path), "extract")
    assert (planned.total, planned.calls) == (len(rows), len(rows) - 3)
    whole = calls_of_kind(plan.estimate(RECIPE, c), "extract")
    assert 0 < planned.input_tokens < whole.input_tokens
    assert f"{len(rows) - 3} of {len(rows)}" in plan.format_plan(plan.estimate(RECIPE, c, tmp_path))


def test_replies_at_hand_say_how_long_replies_are(world, mesh, tmp_path):
    c = settings(world, "openai")
    c.data.chunk_tokens = 80
    rows = answered(c, tmp_path)
    assert len(rows) > llm_calls.ENOUGH_REPLIES
    kept = rows[: llm_calls.ENOUGH_REPLIES]
    (tmp_path / "llm" / "replies.jsonl").write_text("".join(json.dumps(row) + "\n" for row in kept))
    c.llm.max_tokens = 10**6
    count, _ = llm_calls.token_counter(c)
    with plan._shadow(RECIPE, c, c, tmp_path) as (shadow, _):
        calls = extraction_calls(shadow, estimate_calls.chunks_to_extract(shadow, set()))
    asked = count([x.turns[0] for x in calls])
    ratio = sum(count([reply_cache.reply_text(x["reply"]) for x in kept])) / sum(
        asked[: llm_calls.ENOUGH_REPLIES]
    )
    planned = calls_of_kind(plan.estimate(RECIPE, c, tmp_path), "extract")
    assert planned.output_tokens == pytest.approx(ratio * planned.input_tokens, abs=1)
    (tmp_path / "llm" / "replies.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in kept[1:])
    )
    assert "by the recording in the package" in " ".join(plan.estimate(RECIPE, c, tmp_path).notes)


def test_further_passes_hear_what_was_said_before(world, mesh):
    c = settings(world, "openai")
    c.llm.price = (1.0, 2.0)
    once = calls_of_kind(plan.estimate(RECIPE, c), "extract")
    c.graph.gleanings = 2
    planned = plan.estimate(RECIPE, c)
    assert calls_of_kind(planned, "extract") == once
    more = calls_of_kind(planned, "gleaning")
    assert (more.total, more.calls) == (2 * once.calls, 2 * once.calls)
    assert more.input_tokens == pytest.approx(2 * once.input_tokens + 3 * once.output_tokens, abs=4)
    assert more.output_tokens == pytest.approx(2 * once.output_tokens, abs=2)
    assert more.cost == pytest.approx((more.input_tokens + 2 * more.output_tokens) / 1e6, rel=1e-3)
    c.llm.max_cost = once.cost * 1.01
    with pytest.raises(ValueError, match=f"the {3 * once.calls} calls"):
        plan.check_cost(RECIPE, c, None, "extract")
