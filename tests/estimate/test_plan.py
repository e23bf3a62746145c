"""The plan against runs, against counts by hand, and what it refuses."""

import dataclasses
import json
import math
import shutil
import statistics
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from support import tiny
from support.world import EMBEDDED, HELD_OUT, TRAINING, command, make_world, tiny_config

from ark_jax import LanguageModel, Retriever, __main__, layout
from ark_jax.data.records import Chunk, Question
from ark_jax.estimate import device_time, device_work, llm_calls, plan
from ark_jax.llm import complete, rule_based
from ark_jax.llm.reply_cache import ReplyCache
from ark_jax.models import prefix_plan
from ark_jax.pipeline import engine
from ark_jax.recipes.ark import alignment, config, curriculum, estimate, scored_prompts
from ark_jax.recipes.ark.extract import extraction_calls
from ark_jax.recipes.ark.recipe import RECIPE, stages
from ark_jax.recipes.ark.rewrite import rewriting_calls
from ark_jax.recipes.common.corpus import candidate_chunks, chunks_by_document, load_questions
from ark_jax.runtime.log import Metrics, append_row
from ark_jax.train import batches

RATE = 1e9  # FLOP/s of every device here


read, known = estimate.Recording.read, {}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """The device's speed is given, and the recording read once for each tokenizer, which half of an estimate goes into."""  # noqa: E501
    monkeypatch.setattr(device_work, "rate", lambda *_: RATE)
    probe = lambda count: tuple(count(["The tide rose.", "the Tidal Board"]))
    once = lambda count: known.get(probe(count)) or known.setdefault(probe(count), read(count))
    monkeypatch.setattr(estimate.Recording, "read", once)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """As the pipeline's tests have it, but with whole documents, so that there are questions enough for a mean."""  # noqa: E501
    root = make_world(tmp_path_factory.mktemp("world"))
    for name, kept in (
        ("documents", lambda row: [row["id"]]),
        ("questions", lambda row: row["documents"]),
    ):
        rows = [json.loads(line) for line in (EMBEDDED / f"{name}.jsonl").read_text().splitlines()]
        rows = [row for row in rows if set(kept(row)) <= {*TRAINING, *HELD_OUT}]
        (root / "corpus" / f"{name}.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in rows)
        )
    return root


def settings(world, backend="replay"):
    """Chunks so long that the recording has a reply for each."""
    c = tiny_config(world)
    c.data.chunk_tokens, c.train.batch = 300, 12
    c.graph.similarity = (
        1.0  # to a random model all texts are alike, and its communities as small as may be
    )
    c.llm.backend, c.llm.replies = backend, str(EMBEDDED / "replies.jsonl")
    return c


@pytest.fixture(scope="module")
def run(world):
    """A run up to the rewritten questions: the config, the workdir, what was asked, and plans before and on the way."""  # noqa: E501
    c, workdir, asked, plans = settings(world), world / "run", {}, {}
    with pytest.MonkeyPatch.context() as patch, jax.set_mesh(layout.make_mesh((1, 1, 1))):
        patch.setattr(device_work, "rate", lambda *_: RATE)
        real = complete.complete
        patch.setattr(
            complete,
            "complete",
            lambda calls, *rest, **named: (
                asked.setdefault(calls[0].kind, calls) and real(calls, *rest, **named)
            ),
        )
        for stage in ("data", "extract", "graph", "communities", "rewrite"):
            if stage in ("data", "communities", "rewrite"):
                plans[stage] = plan.estimate(RECIPE, c, workdir)
            context = engine.Context(c, workdir, Metrics(workdir / "metrics.jsonl"))
            engine.run(stages(c), context, only=stage)
        plans["after"] = plan.estimate(RECIPE, c, workdir)
    return SimpleNamespace(config=c, workdir=workdir, asked=asked, plans=plans, context=context)


def tokens_of(c, calls) -> int:
    from ark_jax.text.tokens import load_tokenizer

    return sum(len(load_tokenizer(c.generator.path)(call.turns[0])["input_ids"]) for call in calls)


def of(found: plan.Estimate, stage: str) -> plan.Calls:
    return next(x for x in found.calls if x.label == stage)


def works(found: plan.Estimate) -> list[tuple[str, str]]:
    return [(x.stage, x.what) for x in found.work]


def test_extraction_is_told_as_it_is_then_asked(run):
    before, calls = of(run.plans["data"], "extract"), run.asked["extract"]
    assert (before.calls, before.total) == (len(calls), len(calls)) and len(calls) > 20
    assert before.input_tokens == tokens_of(run.config, calls)


def test_rewriting_is_told_roughly_before_the_graph_and_exactly_after(run):
    calls = run.asked["rewrite"]
    real = tokens_of(run.config, calls)
    for stage in ("data", "communities"):
        told = of(run.plans[stage], "rewrite")
        assert told.calls == len(calls) == 2 * run.plans["data"].inputs["training questions"]
        assert abs(told.input_tokens / real - 1) < 0.15 and told.input_tokens != real
        assert any("an estimate until the graph exists" in note for note in run.plans[stage].notes)
    count, _ = llm_calls.token_counter(run.config)
    bare = sum(
        count(
            [
                call.turns[0]
                for call in rewriting_calls(run.context, estimate._empty_communities(run.context))
            ]
        )
    )
    entities = (
        len(calls) / 2 * (20 + 30 / 4 + 3 + 7 / 4)
    )  # a quarter of the way from the least to the most
    assert told.input_tokens == pytest.approx(
        bare + entities * estimate.Recording.read(count).line, abs=1
    )
    assert of(run.plans["rewrite"], "rewrite").input_tokens == real
    assert not any("an estimate until" in note for note in run.plans["rewrite"].notes)


def test_replies_of_the_recording_are_about_as_long_as_told(run):
    replies = {
        row["item"]: complete.reply_text(row["reply"])
        for row in ReplyCache(EMBEDDED / "replies.jsonl").rows.values()
    }
    count, _ = llm_calls.token_counter(run.config)
    told = of(run.plans["data"], "rewrite").output_tokens
    assert told == pytest.approx(
        sum(count([replies[call.item] for call in run.asked["rewrite"]])), rel=0.1
    )
    recording = estimate.Recording.read(count)
    passages = sum(count([call.fields["passage"] for call in run.asked["extract"]]))
    assert of(run.plans["data"], "extract").output_tokens == pytest.approx(
        recording.written * passages, abs=1
    )


def test_what_is_done_costs_nothing_and_is_shown(run):
    after = run.plans["after"]
    assert after.done == ("data", "extract", "graph", "communities", "rewrite")
    assert [(x.calls, x.input_tokens, x.output_tokens, x.cost, x.seconds) for x in after.calls] == [
        (0, 0, 0, 0, 0)
    ] * 2
    assert works(run.plans["data"]) == [("graph", "embedding"), *works(after)]
    assert works(after) == [
        ("score", "embedding"),
        ("score", "likelihoods"),
        ("stage1", "training"),
        ("mine2", "embedding"),
        ("stage2", "training"),
        ("mine3", "embedding"),
        ("stage3", "training"),
        ("baselines", "embedding"),
        ("evaluate", "embedding"),
        ("evaluate", "reading"),
    ]
    assert set(run.plans["data"].disk) - set(after.disk) == {"vectors"}
    shown = plan.table(after).splitlines()
    assert {tuple(line.split()) for line in shown if line.endswith("done")} == {
        (name, "done") for name in ("extract", "rewrite", "graph", "communities")
    }
    inputs = run.plans["data"].inputs
    assert list(inputs) == ["documents", "chunks", "training questions", "held-out questions"]
    assert inputs["documents"] == 3
    assert shown[0] == ", ".join(f"{count} {name}" for name, count in inputs.items())
    assert shown[-1].startswith("total: $0, about ")


def test_a_changed_setting_is_planned_anew(run, mesh):
    c = settings(run.workdir.parent)
    c.graph.rewrites = 5
    told = plan.estimate(RECIPE, c, run.workdir)
    assert told.done == ("data", "extract", "graph", "communities")
    assert of(told, "rewrite").output_tokens == pytest.approx(
        of(run.plans["data"], "rewrite").output_tokens / 2, rel=0.01
    )


def test_a_plan_writes_nothing(run, mesh, tmp_path):
    seen = lambda: {path: path.stat().st_mtime_ns for path in run.workdir.rglob("*")}
    before = seen()
    plan.estimate(RECIPE, run.config, run.workdir)
    assert seen() == before
    plan.estimate(RECIPE, run.config, tmp_path / "none")
    assert not (tmp_path / "none").exists()


# The LLM's side by hand.


def test_cost_is_tokens_times_the_price(world, mesh):
    c = settings(world, "openai")
    c.llm.model, c.llm.price, c.llm.output_ratio = "mine", (3.0, 7.0), 0.5
    told = plan.estimate(RECIPE, c)
    for x in told.calls:
        assert x.output_tokens == pytest.approx(x.input_tokens / 2, abs=1)
        assert x.cost == pytest.approx(x.input_tokens * (3 + 3.5) / 1e6, rel=1e-4)
    assert told.cost == sum(x.cost for x in told.calls) > 0
    assert "extract: 0.50 tokens out for one in, by config.llm.output_ratio" in told.notes
    c.llm.max_tokens = 20  # a reply is no longer
    assert of(plan.estimate(RECIPE, c), "extract").output_tokens == 20 * of(told, "extract").calls


@pytest.mark.parametrize("backend", ["none", "replay", "local"])
def test_our_own_backends_cost_nothing(world, mesh, backend):
    told = plan.estimate(RECIPE, settings(world, backend))
    assert told.cost == 0 and all(x.calls for x in told.calls)
    assert all((x.seconds > 0) == (backend == "local") for x in told.calls)


def test_our_own_model_is_counted_by_its_own_tokenizer_and_chat_form(world, mesh, tmp_path):
    c = settings(world, "local")
    c.llm.path = str(tiny.write(tmp_path / "chat", "qwen3", tokenizer="chat"))
    told = plan.estimate(RECIPE, c)
    plain = plan.estimate(RECIPE, settings(world))
    assert (
        of(told, "extract").input_tokens
        == of(plain, "extract").input_tokens + 3 * of(plain, "extract").calls
    )  # <s> </s> <s>
    assert (
        of(told, "extract").output_tokens == of(plain, "extract").output_tokens
    )  # what it writes is no turn
    assert told.notes[0] == "LLM tokens: counted by the tokenizer of chat"


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


def test_an_unknown_price_is_told_with_the_fix(world, mesh):
    c = settings(world, "openai")
    c.llm.model = "somebody/new-model"
    told = plan.estimate(RECIPE, c)
    assert told.cost is None and of(told, "extract").cost is None
    assert any(
        "'somebody/new-model' is unknown" in note and "--config.llm.price='(0.3,2.5)'" in note
        for note in told.notes
    )
    assert plan.table(told).splitlines()[-1].startswith("total: unknown, about ")
    plan.check_cost(RECIPE, c, world / "nowhere")  # no limit
    c.llm.max_cost = 1.0
    with pytest.raises(
        ValueError,
        match=r"max_cost is \$1.00, but the price of 'somebody/new-model' is unknown: .*llm.price",
    ):
        plan.check_cost(RECIPE, c, world / "nowhere")


def test_calls_that_would_cost_too_much_are_refused(world, mesh):
    c = settings(world, "openai")
    c.llm.price = (10.0, 10.0)
    told = plan.estimate(RECIPE, c)
    extract, rewrite = of(told, "extract"), of(told, "rewrite")
    c.llm.max_cost = told.cost * 1.001
    plan.check_cost(RECIPE, c, world / "nowhere")
    c.llm.max_cost = told.cost * 0.999
    with pytest.raises(
        ValueError,
        match=f"the {extract.calls + rewrite.calls} calls still to be made would cost about ",
    ):
        plan.check_cost(RECIPE, c, world / "nowhere")
    plan.check_cost(RECIPE, c, world / "nowhere", "extract")
    plan.check_cost(RECIPE, c, world / "nowhere", "rewrite")
    plan.check_cost(RECIPE, c, world / "nowhere", "score")
    c.llm.max_cost = extract.cost * 0.999
    with pytest.raises(ValueError, match=f"the {extract.calls} calls"):
        plan.check_cost(RECIPE, c, world / "nowhere", "extract")
    plan.check_cost(RECIPE, c, world / "nowhere", "stage1")
    c.llm.backend = "none"
    plan.check_cost(RECIPE, c, world / "nowhere")
    c.llm.max_cost = -1.0
    with pytest.raises(ValueError, match="at least 0"):
        RECIPE.check(c)
    assert not (world / "nowhere").exists()


def test_replies_at_hand_are_believed_and_not_asked_for_again(run, mesh, tmp_path, monkeypatch):
    monkeypatch.setattr(llm_calls, "ENOUGH", 6)
    monkeypatch.setattr(estimate, "ENOUGH", 6)
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
    assert llm_calls.unanswered(asks, calls, list(ReplyCache(kept).rows.values())) == calls[7:]
    # The recording's graph is not the endpoint's, so prompts will differ from those answered here, but not in kind.  # noqa: E501
    told = of(plan.estimate(RECIPE, c, tmp_path), "rewrite")
    assert told.total == told.calls == len(calls)
    assert told.output_tokens == pytest.approx(0.3 * told.input_tokens, abs=1)
    assert told.seconds == pytest.approx(told.calls * (1 + 3 / 7), rel=1e-6)


def answered(c, folder: Path) -> list[dict]:
    """The ledger of an endpoint that has answered all of extraction as our statistics do."""
    asks = complete.LLMSettings(
        **{f.name: c.llm[f.name] for f in dataclasses.fields(complete.LLMSettings)}
    )
    with plan._shadow(RECIPE, c, c, folder) as (shadow, _):
        calls = extraction_calls(shadow)
    replies = ReplyCache(folder / "llm" / "replies.jsonl")
    for call, text in zip(calls, rule_based.replies([call.fields for call in calls]), strict=True):
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
    told = of(plan.estimate(RECIPE, c, tmp_path), "extract")
    assert (told.total, told.calls) == (len(rows), len(rows) - 3)
    whole = of(plan.estimate(RECIPE, c), "extract")
    assert 0 < told.input_tokens < whole.input_tokens
    assert f"{len(rows) - 3} of {len(rows)}" in plan.table(plan.estimate(RECIPE, c, tmp_path))


def test_replies_at_hand_say_how_long_replies_are(world, mesh, tmp_path):
    c = settings(world, "openai")
    c.data.chunk_tokens = 80
    rows = answered(c, tmp_path)
    assert len(rows) > llm_calls.ENOUGH
    kept = rows[: llm_calls.ENOUGH]
    (tmp_path / "llm" / "replies.jsonl").write_text("".join(json.dumps(row) + "\n" for row in kept))
    c.llm.max_tokens = 10**6
    count, _ = llm_calls.token_counter(c)
    with plan._shadow(RECIPE, c, c, tmp_path) as (shadow, _):
        calls = extraction_calls(shadow)
    asked = count([x.turns[0] for x in calls])
    ratio = sum(count([complete.reply_text(x["reply"]) for x in kept])) / sum(
        asked[: llm_calls.ENOUGH]
    )
    told = of(plan.estimate(RECIPE, c, tmp_path), "extract")
    assert told.output_tokens == pytest.approx(ratio * told.input_tokens, abs=1)
    (tmp_path / "llm" / "replies.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in kept[1:])
    )
    assert "by the recording in the package" in " ".join(plan.estimate(RECIPE, c, tmp_path).notes)


def test_further_passes_hear_what_was_said_before(world, mesh):
    c = settings(world, "openai")
    c.llm.price, c.llm.output_ratio = (1.0, 2.0), 0.1
    once = of(plan.estimate(RECIPE, c), "extract")
    c.graph.gleanings = 2
    told = plan.estimate(RECIPE, c)
    assert of(told, "extract") == once
    more = of(told, "gleaning")
    assert (more.total, more.calls) == (2 * once.calls, 2 * once.calls)
    assert more.input_tokens == pytest.approx(2 * once.input_tokens + 3 * once.output_tokens, abs=4)
    assert more.output_tokens == pytest.approx(2 * once.output_tokens, abs=2)
    assert more.cost == pytest.approx((more.input_tokens + 2 * more.output_tokens) / 1e6, rel=1e-3)
    c.llm.max_cost = once.cost * 1.01
    with pytest.raises(ValueError, match=f"the {3 * once.calls} calls"):
        plan.check_cost(RECIPE, c, None, "extract")


# The devices' side by hand.


def model(world, role: str, **changes) -> device_work.Model:
    return device_work.Model.of(
        str(world / role),
        **({"compute": "float32", "batch": 0, "head": role == "generator"} | changes),
    )


def test_sizes_are_those_of_the_loaded_models(world, mesh):
    d, f, n = tiny.WIDTH, tiny.FFN, tiny.LAYERS
    base, judge = model(world, "retriever"), model(world, "generator")
    layers = n * (4 * (d * d + d) + 2 * d * f + f + d + 4 * d)
    assert base.total == layers + (tiny.VOCAB + tiny.POSITIONS + tiny.SEGMENTS) * d + 2 * d
    count = lambda model: sum(x.size for x in jax.tree.leaves(model))
    assert base.total == count(Retriever.from_pretrained(str(world / "retriever")).model)
    assert judge.total == count(LanguageModel.from_pretrained(str(world / "generator")).model)
    assert base.bytes == sum(x.nbytes for x in tiny.tensors("bert").values())


def test_flops_by_hand(world, mesh):
    base, judge = model(world, "retriever"), model(world, "generator")
    d, f, q, kv = tiny.WIDTH, tiny.FFN, tiny.HEADS * tiny.HEAD_DIM, tiny.KV_HEADS * tiny.HEAD_DIM
    layers, heads = (
        tiny.LAYERS * d * (4 * d + 2 * f),
        4 * tiny.LAYERS * d,
    )  # twice two products of all heads, of a pair of tokens
    np.testing.assert_array_equal(base.each([3, 5]), [2 * layers * 8, heads * (9 + 25)])
    layers, heads = tiny.LAYERS * d * (2 * (q + kv) + 3 * f), 4 * tiny.LAYERS * q
    logits = 2 * tiny.VOCAB * d
    np.testing.assert_array_equal(
        judge.each([3, 5], 2), [2 * layers * 8 + 2 * logits, heads * (6 + 15)]
    )
    assert judge.seconds(np.array([5e9, 1e9])) == 5 + device_work.SLOW
    begun = judge.generation("x", 10, 7, 4, 2)
    assert begun.tokens == 2 + 90
    made = judge.generation("x", 10, 7, 4)
    assert made.tokens == 110 and made.flops - begun.flops == pytest.approx(
        9 * judge.each([2]).sum()
    )
    assert made.flops == 10 * (2 * layers * 11 + 5 * logits + heads * (28 + 4 * (7 + 2)))


def test_questions_that_are_not_kept_are_not_trained_on(run, mesh):
    c, told = settings(run.workdir.parent), {}
    for keep in (1.0, 0.5):
        c.score.keep = keep
        told[keep] = {x.stage: x.tokens for x in plan.estimate(RECIPE, c, run.workdir).work}
    assert (
        0.3 < told[0.5]["stage2"] / told[1.0]["stage2"] < 0.7
        and told[0.5]["mine2"] < told[1.0]["mine2"]
    )


def test_what_systems_agree_on_is_read_once(run, mesh):
    c, read = settings(run.workdir.parent), {}
    c.evaluate.passages = 2
    for trained in ((1,), (1, 2, 3)):
        c.train.stages = trained
        told = plan.estimate(RECIPE, c, run.workdir)
        read[len(trained)] = next(x.tokens for x in told.work if x.what == "reading")
    assert read[3] / read[1] == pytest.approx(
        (1 + 3 * 0.2775) / 1.2775, rel=0.01
    )  # 1 - 0.85²; what all begin with is read once
    n = told.inputs["held-out questions"]
    assert any(f"reading: about {1.8325 * n:.0f} of {4 * n} prompts" in note for note in told.notes)
    c.evaluate.read = 2
    assert any(" of 8 prompts" in note for note in plan.estimate(RECIPE, c, run.workdir).notes)
    c.evaluate.read = 0
    told = plan.estimate(RECIPE, c, run.workdir)
    assert not any(x.what == "reading" for x in told.work) and not any(
        note.startswith("reading") for note in told.notes
    )


def test_speed_counts_the_devices_of_the_mesh(world, any_mesh):
    assert model(world, "retriever").speed() == RATE * math.prod(
        jax.sharding.get_mesh().shape.values()
    )


def questions_and_chunks(run):
    chunks = chunks_by_document(run.context)
    return load_questions(run.context, "train"), chunks


@pytest.mark.parametrize("changes", [{"candidates": 3}, {"candidates": 0, "references": 1}])
def test_scoring_is_what_the_scorer_computes(run, mesh, changes):
    """Against the arrays that sharing lays out for the real scorer, token by token."""
    c = settings(run.workdir.parent)
    c.score.update(changes)
    questions, chunks = questions_and_chunks(run)
    drawn = {q.id: estimate.Draw.from_chunks(q, candidate_chunks(q, chunks), c) for q in questions}
    judge = model(run.workdir.parent, "generator")
    templates = scored_prompts.load_templates({})
    scorer = device_time.Judge.of(judge)
    told, flops = estimate._scoring_work(scorer, judge, templates, questions, drawn, c)
    lm = LanguageModel.from_pretrained(c.generator.path)
    pairs = [
        pair
        for q in questions
        for x in drawn[q.id].candidates
        for a in q.answers[: c.score.references or None]
        for pair in scored_prompts.scored_pairs(
            scored_prompts.load_templates({}), passage=x.text, question=q.question, answer=a
        )
    ]
    rows = lm._encode_pairs(pairs)
    tokens = sees = 0
    for call in prefix_plan.plan_batches(
        [(ids, len(ids) - n - 1) for ids, n in rows],
        budget=4096,
        parameters=1,
        attention=1,
        devices=1,
    ):
        for mask, start in [
            (call.mask, np.zeros(len(call.mask), int)),
            *((b.mask, b.prefix_lengths) for b in call.suffix_batches),
        ]:
            tokens += mask.sum()
            sees += sum(
                before + t + 1
                for row, before in zip(mask, start, strict=True)
                for t in range(row.sum())
            )
    assert told == tokens < sum(len(ids) for ids, _ in rows)
    np.testing.assert_array_equal(flops, judge.flops(tokens, sees, sum(n for _, n in rows)))
    assert (
        len(
            alignment.align(
                device_time.Judge.of(judge),
                scored_prompts.load_templates({}),
                questions[:1],
                {questions[0].id: [(drawn[questions[0].id].candidates[0], 0.0)]},
                references=1,
                batch_tokens=0,
                label="",
            )
        )
        == 1
    )


def test_many_pairs_are_sampled(run, mesh, monkeypatch):
    c = settings(run.workdir.parent)
    questions, chunks = questions_and_chunks(run)
    drawn = {q.id: estimate.Draw.from_chunks(q, candidate_chunks(q, chunks), c) for q in questions}
    judge = model(run.workdir.parent, "generator")
    lm = device_time.Judge.of(judge)
    whole, _ = estimate._scoring_work(
        lm, judge, scored_prompts.load_templates({}), questions, drawn, c
    )
    alone = (
        statistics.fmean(len(ids) for ids, _ in lm.rows)
        * 2
        * sum(3 * len(q.answers) for q in questions)
    )
    monkeypatch.setattr(estimate, "SAMPLE", 12)
    seen, real = [], lm.log_likelihood
    lm.log_likelihood = lambda pairs, **named: seen.append(len(pairs)) or real(pairs, **named)
    some, _ = estimate._scoring_work(
        lm, judge, scored_prompts.load_templates({}), questions, drawn, c
    )
    assert max(seen) <= 12 and sum(seen) <= 24
    assert whole < some < alone  # fewer questions share a passage


def test_a_retriever_without_weights_tokenises_alike(world, mesh):
    real, ours = (
        Retriever.from_pretrained(str(world / "retriever")),
        device_time.tokenizing(model(world, "retriever")),
    )
    assert (ours.max_length, ours.width, ours.lower, ours.prompts) == (
        real.max_length,
        real.width,
        real.lower,
        real.prompts,
    )
    texts = ["The tide.", "the Tidal Board " * 40]
    assert ours.tokenize(texts, kind="document") == real.tokenize(texts, kind="document")


def training(base, questions, drawn, lengths, c, stage: int):
    """The work of a stage of the curriculum."""
    examples = [
        batches.Example(q.id, "d", tuple(drawn[q.id].positives), tuple(drawn[q.id].negatives))
        for q in questions
    ]
    epochs, negatives = curriculum.epochs(c.train, stage), stage in curriculum.MINING_SIZES
    seed = c.seed + stage
    return device_time.training(base, examples, lengths, c.train, epochs, seed, negatives)


def test_training_is_the_fullest_batch_in_every_step(world, mesh):
    """Three questions in one batch, for two epochs."""
    c = tiny_config(world)
    c.train.batch, c.train.epochs, c.train.order, c.train.save_every = 3, (2, 1, 1), "document", 1
    c.score.keep = 1.0
    questions = [Question(f"q{i}", "?", ("a",), ("d",)) for i in range(3)]
    drawn = {f"q{i}": estimate.Draw([], [f"p{i}"], ["n"]) for i in range(3)}
    lengths = {"q0": 10, "q1": 20, "q2": 30}, {"p0": 40, "p1": 50, "p2": 60, "n": 20}
    base = model(world, "retriever")
    steps, tokens, flops = training(base, questions, drawn, lengths, c, 1)
    # Rows are even, lengths rounded up as all batches are, tokens to 64: 60 -> 64 and 150 -> 192.
    assert (steps, tokens) == (2, 2 * (64 + 192))
    pairs = 2 * (4 * 32**2 + 4 * 64**2)
    np.testing.assert_allclose(flops, base.flops(tokens, pairs) * (3, 3.5))
    steps, tokens, _ = training(base, questions, drawn, lengths, c, 2)
    assert (steps, tokens) == (1, 64 + 192)  # 170 with the negative
    c.train.remat = "all"
    np.testing.assert_allclose(
        training(base, questions, drawn, lengths, c, 1)[2], base.flops(512, pairs) * (4, 4.5)
    )
    c.train.remat, c.train.chunks = (
        "products",
        2,
    )  # only passages go twice, in two pieces of at least 64 tokens
    steps, tokens, flops = training(base, questions, drawn, lengths, c, 1)
    assert tokens == 2 * (64 + 2 * 128)
    expected = base.flops(128, 2 * 4 * 32**2) * (3, 3.5) + base.flops(2 * 256, 2 * 4 * 64**2) * (
        4,
        4.5,
    )
    np.testing.assert_allclose(flops, expected)


def test_what_is_chosen_among_a_questions_chunks():
    c = config.ark()
    c.score.candidates, c.score.positives, c.mine.negatives, c.mine.top, c.graph.rewrites = (
        4,
        2,
        9,
        3,
        2,
    )
    chunks = [Chunk(f"c{i}", "d", 0, 1, 1, "") for i in range(10)]
    q = Question("q", "?", ("a",), ("d",))
    drawn = estimate.Draw.from_chunks(q, chunks, c)
    assert (len(drawn.candidates), len(drawn.positives), len(drawn.negatives)) == (
        4,
        2,
        6,
    )  # three for each of two versions
    assert set(drawn.positives) <= {x.id for x in drawn.candidates} and not set(
        drawn.positives
    ) & set(drawn.negatives)
    assert estimate.Draw.from_chunks(q, chunks, c) == drawn
    c.score.candidates, c.graph.rewrites = 0, 10
    drawn = estimate.Draw.from_chunks(q, chunks, c)
    assert (len(drawn.candidates), len(drawn.negatives)) == (10, 8)


def test_disk_by_hand(run, world, mesh):
    told, base = run.plans["data"], model(world, "retriever")
    c = run.config
    steps = [
        math.ceil(told.inputs["training questions"] / c.train.batch) * epochs
        for epochs in c.train.epochs
    ]
    assert (
        told.disk["checkpoints"] == 3 * 12 * base.total and max(steps) > 3
    )  # one a step, two kept and one being written
    assert told.disk["models"] == 3 * base.bytes and told.disk["export"] == base.bytes
    pairs = sum(3 * len(q.answers) for q in questions_and_chunks(run)[0])
    assert told.disk["scores"] == 32 * pairs
    assert told.disk["vectors"] % (4 * tiny.WIDTH) == 0
    c = settings(run.workdir.parent)
    c.train.lora_rank, c.train.lora_targets, c.train.save_every = 2, ("q", "down"), 3
    adapter = tiny.LAYERS * 2 * ((tiny.WIDTH + tiny.WIDTH) + (tiny.FFN + tiny.WIDTH))
    assert device_time.trained(base, c.train) == adapter
    assert (
        plan.estimate(RECIPE, c, run.workdir).disk["checkpoints"]
        == min(max(steps) // 3, 3) * 12 * adapter
    )


@pytest.mark.slow
def test_checkpoints_are_as_large_as_told(run, mesh, tmp_path, monkeypatch):
    """What training really leaves before it clears up: two, where three are told while the last is being written."""  # noqa: E501
    workdir, sizes, remove = tmp_path / "w", [], shutil.rmtree
    shutil.copytree(run.workdir, workdir)

    def measured(path, *args, **named):
        if Path(path).name == "checkpoints":
            sizes.append(sum(x.stat().st_size for x in Path(path).rglob("*") if x.is_file()))
        remove(path, *args, **named)

    monkeypatch.setattr(engine.shutil, "rmtree", measured)
    context = engine.Context(run.config, workdir, Metrics(tmp_path / "metrics.jsonl"))
    for stage in ("score", "positives", "stage1"):
        engine.run(stages(run.config), context, only=stage)
    # Names and indices weigh beside tiny arrays.
    assert sizes[0] * 3 / 2 == pytest.approx(run.plans["data"].disk["checkpoints"], rel=0.4)


def test_speed_is_measured(monkeypatch):
    monkeypatch.undo()
    found = device_work.rate(64, 128, 256, "bfloat16")
    assert 1e7 < found < 1e15 and device_work.rate(64, 128, 256, "bfloat16") == found


# What a user meets.


def test_a_model_that_is_not_here_is_named_with_the_fix(world, mesh):
    c = settings(world)
    c.generator.path = "nobody/no-such-model"
    with pytest.raises(
        ValueError,
        match=r"generator.path='nobody/no-such-model' is not on this machine.*hf download nobody/no",  # noqa: E501
    ):
        plan.estimate(RECIPE, c)
    c.generator.path = str(world / "absent")
    with pytest.raises(FileNotFoundError, match="no such folder"):
        plan.estimate(RECIPE, c)
    c.generator.path = str(world / "retriever")
    with pytest.raises(ValueError, match="generates no text"):
        plan.estimate(RECIPE, c)


@pytest.fixture
def ark(world, mesh, monkeypatch, capsys):
    """The command in this process: (verb, flags) -> its exit status, standard output and error."""
    for name in (
        "JAX_COMPILATION_CACHE_DIR",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS",
        "TRANSFORMERS_VERBOSITY",
    ):
        monkeypatch.setenv(name, "0")  # so that what the command sets does not stay

    def call(verb: str, *flags: str):
        workdir = [] if "--no-workdir" in flags else [f"--workdir={world / 'absent'}"]
        args = [
            verb,
            command(world, world, verb)[4],
            *workdir,
            "--config.llm.backend=openai",
            *(flag for flag in flags if flag != "--no-workdir"),
        ]
        monkeypatch.setattr(
            sys, "argv", ["ark-jax", *args]
        )  # where overrides of a config are looked up
        status = __main__._main(args)
        assert not (world / "absent").exists()
        return status, *capsys.readouterr()

    return call


@pytest.mark.parametrize("flags", [["--max-cost=5"], ["--no-workdir"]])
def test_the_command(ark, flags):
    status, said, wrong = ark("plan", *flags)
    lines = said.splitlines()
    assert (status, wrong) == (0, "") and "GFLOP/s" in said and "assuming 60 tokens/s" in said
    assert (
        lines[0].startswith("3 documents, ")
        and lines[-1].startswith("total: $")
        and lines[-1].endswith(" of disk")
    )


@pytest.mark.parametrize(
    ("verb", "flags", "told"),
    [
        ("run", ["--max-cost=0.0001"], "calls still to be made would cost about $"),
        ("extract", ["--max-cost", "1", "--config.llm.model=x"], "the price of 'x' is unknown"),
        ("rewrite", ["--config.llm.max_cost=0.0001"], "more than the $0.0001 of llm.max_cost"),
        ("run", ["--max-cost=much"], "max-cost"),
        ("run", ["--max-cost=-1"], "at least 0"),
        ("plan", ["--max-cost"], "max-cost"),
        ("plan", ["--config.data.path="], "config.data.path is empty"),
        (
            "plan",
            ["--config.llm.backend=magic"],
            "config.llm.backend='magic': must be openai, local, replay or none",
        ),
        ("plan", ["--config.llm.price=(1.0,)"], "must be a tuple of 0 or 2 finite numbers"),
    ],
)
def test_what_is_refused_is_one_clear_line(ark, verb, flags, told):
    status, _, wrong = ark(verb, *flags)
    assert status == 1 and told in wrong and wrong.startswith("error: ") and wrong.count("\n") == 1


def test_numbers_for_people():
    assert [plan.human(n) for n in (0, 7, 999, 1000, 1_234_567, 123_456, 8e12)] == [
        "0",
        "7",
        "999",
        "1.0 k",
        "1.2 M",
        "123 k",
        "8.0 T",
    ]
    assert [plan.human(n, "B") for n in (12, 1024, 2_040_109_466)] == ["12 B", "1.0 KiB", "1.9 GiB"]
    assert [plan.money(x) for x in (0.0, 0.344, 1234.5, 0.001234, None)] == [
        "$0",
        "$0.34",
        "$1,234.50",
        "$0.0012",
        "unknown",
    ]


@pytest.mark.network
def test_the_demo_as_it_is_known(real_models, mesh):
    c = config.demo()
    told = plan.estimate(RECIPE, c)
    assert list(told.inputs.values()) == [11, 153, 72, 60]
    assert [(x.label, x.calls) for x in told.calls] == [("extract", 84), ("rewrite", 144)]
    assert of(told, "rewrite").input_tokens == pytest.approx(
        92_915, rel=0.05
    )  # with the communities of a finished demo
    replies = {
        row["item"]: complete.reply_text(row["reply"])
        for row in ReplyCache(EMBEDDED / "replies.jsonl").rows.values()
    }
    count, _ = llm_calls.token_counter(c)
    for x in told.calls:
        real = sum(count([text for item, text in replies.items() if item.startswith(x.label)]))
        assert x.output_tokens == pytest.approx(real, rel=0.03)
    assert (c.data.chunk_tokens / (c.data.chunk_tokens - c.data.chunk_overlap)) == estimate.REPEATED
    assert (
        told.disk["checkpoints"]
        == 6
        // 4
        * 12
        * device_work.Model.of(
            real_models["retriever"], compute="float32", batch=0, head=False
        ).total
    )
