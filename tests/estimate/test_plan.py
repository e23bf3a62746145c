"""The plan against runs, against counts by hand, and what it refuses."""

import dataclasses
import json
import math
import shutil
import sys
from pathlib import Path

import huggingface_hub
import pytest
from support import tiny
from support.plans import calls_of_kind, model, questions_and_chunks, settings
from support.world import EMBEDDED, command

from ark_jax import __main__
from ark_jax.data.records import Chunk, Question
from ark_jax.estimate import device_time, device_work, llm_calls, plan
from ark_jax.llm import reply_cache
from ark_jax.llm.reply_cache import ReplyCache
from ark_jax.models.retriever import Retriever
from ark_jax.pipeline import engine
from ark_jax.recipes.ark import config, demo
from ark_jax.recipes.ark.estimate_calls import _empty_communities
from ark_jax.recipes.ark.estimate_scoring import Draw
from ark_jax.recipes.ark.recipe import RECIPE, stages
from ark_jax.recipes.ark.recording import REPEATED, Recording
from ark_jax.recipes.ark.rewrite import rewriting_calls
from ark_jax.recipes.common import estimate
from ark_jax.recipes.common.corpus import load_questions, stored_chunks
from ark_jax.runtime.log import Metrics
from ark_jax.train import memory


def tokens_of(c, calls) -> int:
    from ark_jax.text.tokens import load_tokenizer

    return sum(len(load_tokenizer(c.generator.path)(call.turns[0])["input_ids"]) for call in calls)


def works(estimate: plan.Estimate) -> list[tuple[str, str]]:
    return [(x.stage, x.kind) for x in estimate.work]


def test_extraction_is_told_as_it_is_then_asked(run):
    before, calls = calls_of_kind(run.plans["data"], "extract"), run.asked["extract"]
    assert (before.calls, before.total) == (len(calls), len(calls)) and len(calls) > 20
    assert before.input_tokens == tokens_of(run.config, calls)


def test_rewriting_is_told_roughly_before_the_graph_and_exactly_after(run):
    calls = run.asked["rewrite"]
    real = tokens_of(run.config, calls)
    for stage in ("data", "communities"):
        planned = calls_of_kind(run.plans[stage], "rewrite")
        assert planned.calls == len(calls) == 2 * run.plans["data"].inputs["training questions"]
        assert abs(planned.input_tokens / real - 1) < 0.15 and planned.input_tokens != real
        assert any("an estimate until the graph exists" in note for note in run.plans[stage].notes)
    count, _ = llm_calls.token_counter(run.config)
    bare = sum(
        count(
            [
                call.turns[0]
                for call in rewriting_calls(run.context, _empty_communities(run.context))
            ]
        )
    )
    entities = (
        len(calls) / 2 * (20 + 30 / 4 + 3 + 7 / 4)
    )  # a quarter of the way from the least to the most
    assert planned.input_tokens == pytest.approx(
        bare + entities * Recording.read(count).line, abs=1
    )
    assert calls_of_kind(run.plans["rewrite"], "rewrite").input_tokens == real
    assert not any("an estimate until" in note for note in run.plans["rewrite"].notes)


def test_replies_of_the_recording_are_about_as_long_as_told(run):
    replies = {
        row["item"]: reply_cache.reply_text(row["reply"])
        for row in ReplyCache(EMBEDDED / "replies.jsonl").rows.values()
    }
    count, _ = llm_calls.token_counter(run.config)
    planned = calls_of_kind(run.plans["data"], "rewrite").output_tokens
    assert planned == pytest.approx(
        sum(count([replies[call.item] for call in run.asked["rewrite"]])), rel=0.1
    )
    recording = Recording.read(count)
    passages = sum(count([call.fields["passage"] for call in run.asked["extract"]]))
    assert calls_of_kind(run.plans["data"], "extract").output_tokens == pytest.approx(
        recording.written * passages, abs=1
    )


def test_what_is_done_costs_nothing_and_is_shown(run):
    after = run.plans["after"]
    assert after.done == ("data", "candidates", "extract", "graph", "communities", "rewrite")
    assert [(x.calls, x.input_tokens, x.output_tokens, x.cost, x.seconds) for x in after.calls] == [
        (0, 0, 0, 0, 0)
    ] * 2
    embedding = [("candidates", "embedding"), ("graph", "embedding")]
    assert works(run.plans["data"]) == [*embedding, *works(after)]
    assert works(after) == [
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
    shown = plan.format_plan(after).splitlines()
    assert after.disk["checkpoints"] and not any(" 0 B" in line for line in shown)
    assert {tuple(line.split()) for line in shown if line.endswith("done")} == {
        (name, "done") for name in ("extract", "rewrite", "candidates", "graph", "communities")
    }
    inputs = run.plans["data"].inputs
    assert list(inputs) == ["documents", "chunks", "training questions", "held-out questions"]
    assert inputs["documents"] == 3
    assert shown[0] == ", ".join(f"{count} {name}" for name, count in inputs.items())
    assert shown[-1].startswith("total: $0, about ")


def test_a_changed_setting_is_planned_anew(run, mesh):
    c = settings(run.workdir.parent)
    c.graph.rewrites = 5
    planned = plan.estimate(RECIPE, c, run.workdir)
    assert planned.done == ("data", "candidates", "extract", "graph", "communities")
    assert calls_of_kind(planned, "rewrite").output_tokens == pytest.approx(
        calls_of_kind(run.plans["data"], "rewrite").output_tokens / 2, rel=0.01
    )


def test_a_corpus_is_embedded_once_for_each_model(world, mesh, tmp_path):
    c = settings(world)
    c.data.pool, c.data.candidates = "corpus", 6
    planned = plan.estimate(RECIPE, c, tmp_path / "run")
    embedding = lambda made: {x.stage: x.tokens for x in made.work if x.kind == "embedding"}
    tokens = embedding(planned)
    asked = tokens["baselines"]  # base has its vectors from the candidates
    assert 0 < asked < tokens["candidates"] / 5
    corpus = tokens["evaluate"] - 3 * asked  # mining had those of all stages but the last
    assert corpus > 2 * asked and tokens["mine2"] > corpus and tokens["mine3"] > corpus
    c.evaluate.fusion = "chosen"
    chosen = embedding(plan.estimate(RECIPE, c, tmp_path / "run"))
    assert list(chosen).index("fusion") == list(chosen).index("evaluate") - 1
    assert chosen["fusion"] == tokens["candidates"]  # the corpus and the training questions
    assert chosen["evaluate"] == 3 * asked  # with the vectors that the fusion was chosen by
    c.evaluate.fusion = "ranks"
    chunks = planned.inputs["chunks"]
    c.data.pool = "documents"
    graph = plan.estimate(RECIPE, c, tmp_path / "run").disk["vectors"]
    width = json.loads((world / "retriever" / "config.json").read_text())["hidden_size"]
    assert planned.disk["vectors"] >= 4 * 4 * width * chunks and graph < planned.disk["vectors"]

    c.data.pool = "corpus"
    for stage in ("data", "candidates"):
        context = engine.Context(c, tmp_path / "run", Metrics(tmp_path / "metrics.jsonl"))
        engine.run(stages(c), context, only=stage)
    begun = embedding(plan.estimate(RECIPE, c, tmp_path / "run"))
    later = ("mine2", "mine3", "baselines", "evaluate")
    assert [begun[stage] for stage in later] == [tokens[stage] for stage in later]
    shutil.rmtree(tmp_path / "run" / "vectors")
    lost = embedding(plan.estimate(RECIPE, c, tmp_path / "run"))
    assert lost == begun | {"baselines": asked + corpus}  # what else needed base is done


def test_a_plan_writes_nothing(run, mesh, tmp_path):
    seen = lambda: {path: path.stat().st_mtime_ns for path in run.workdir.rglob("*")}
    before = seen()
    plan.estimate(RECIPE, run.config, run.workdir)
    assert seen() == before
    plan.estimate(RECIPE, run.config, tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_calls_that_would_cost_too_much_are_refused(world, mesh):
    c = settings(world, "openai")
    c.llm.price = (10.0, 10.0)
    planned = plan.estimate(RECIPE, c)
    extract, rewrite = calls_of_kind(planned, "extract"), calls_of_kind(planned, "rewrite")
    c.llm.max_cost = planned.cost * 1.001
    plan.check_cost(RECIPE, c, world / "nowhere")
    c.llm.max_cost = planned.cost * 0.999
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


def test_questions_that_are_not_kept_are_not_trained_on(run, mesh):
    c, planned = settings(run.workdir.parent), {}
    for keep in (1.0, 0.5):
        c.score.keep = keep
        planned[keep] = {x.stage: x.tokens for x in plan.estimate(RECIPE, c, run.workdir).work}
    assert (
        0.3 < planned[0.5]["stage2"] / planned[1.0]["stage2"] < 0.7
        and planned[0.5]["mine2"] < planned[1.0]["mine2"]
    )


def test_marked_evidence_keeps_every_question_and_rewrites_none(run, mesh):
    c = settings(run.workdir.parent)
    c.train.stages, c.train.batch, c.train.order, c.score.keep = (0,), 1, "question", 0.5
    questions, _ = questions_and_chunks(run)
    mining = {}
    for supervision, by in (("alignment", "rewritten"), ("gold", "rewritten"), ("gold", "bm25")):
        c.score.supervision, c.mine.by = supervision, by
        planned = plan.estimate(RECIPE, c, run.workdir)
        share = 1 if supervision == "gold" else 0.5
        steps = sum(c.train.epochs) * math.ceil(share * len(questions))
        assert f"updates of the weights: {steps:,} in stage0" in planned.notes
        mining[supervision, by] = sum(x.tokens for x in planned.work if x.stage == "mine0")
    assert mining["gold", "bm25"] < mining["alignment", "rewritten"] < mining["gold", "rewritten"]


def test_a_graph_that_no_stage_reads_is_not_planned(world, mesh):
    """Nor is the model opened that would extract it."""
    c = settings(world)
    c.mine.by, c.llm.backend, c.llm.path = "question", "local", str(world / "nowhere")
    planned = plan.estimate(RECIPE, c)
    assert not planned.calls and not {"extract", "graph", "rewrite"} & set(planned.stages)
    assert "graph" not in {work.stage for work in planned.work}
    assert "no stage reads a graph, so none is built" in planned.notes
    page = plan.format_plan(planned)
    assert "LLM" not in page and "device" in page
    finished = dataclasses.replace(planned, work=(), done=planned.stages)
    assert "stages to run: none" in plan.format_plan(finished)


def test_a_plan_says_how_steps_are_computed_and_why(run, mesh, monkeypatch):
    c = settings(run.workdir.parent)

    def memory_notes() -> list[str]:
        shown = plan.format_plan(plan.estimate(RECIPE, c, run.workdir)).splitlines()
        return [line for line in shown if line.startswith("- memory of ")]

    def training_flops() -> float:
        works = plan.estimate(RECIPE, c, run.workdir).work
        return sum(work.flops for work in works if work.kind == "training")

    fitting, flops = memory_notes(), training_flops()
    assert fitting[0].startswith("- memory of stage1")
    assert "stage3" in fitting[-1]
    assert all(": remat=products, 1 piece: about " in note for note in fitting)
    assert all(note.endswith(": the fastest, and it fits") for note in fitting)
    monkeypatch.setattr(memory, "device_memory", lambda: 1.0)
    assert all(note.endswith(": nothing fits, and this takes least") for note in memory_notes())
    assert 1.2 < training_flops() / flops < 2
    c.train.remat, c.train.chunks = "products", 1
    assert all(": as the config says" in note for note in memory_notes())
    assert training_flops() == flops


def test_distillation_reads_every_scored_chunk_of_every_question(run, mesh):
    c, tokens = settings(run.workdir.parent), {}
    c.train.stages, c.train.batch, c.train.order, c.score.keep = (1,), 1, "question", 0.5
    questions, chunks = questions_and_chunks(run)
    for loss in ("info_nce", "distil"):
        c.train.loss = loss
        planned = plan.estimate(RECIPE, c, run.workdir)
        share = 1 if loss == "distil" else 0.5
        steps = c.train.epochs[0] * math.ceil(share * len(questions))
        assert f"updates of the weights: {steps:,} in stage1" in planned.notes
        (tokens[loss],) = [x.tokens / steps for x in planned.work if x.stage == "stage1"]
    pools = [sum(len(chunks[document]) for document in q.documents) for q in questions]
    candidates = min(c.score.candidates or max(pools), max(pools))
    ratio = candidates / c.score.positives
    assert ratio > 1 and 0.5 * ratio < tokens["distil"] / tokens["info_nce"] < 1.5 * ratio


def test_likelihoods_of_answers_read_what_answers_do_and_the_references(run, mesh):
    c = settings(run.workdir.parent)
    c.train.stages, c.evaluate.max_new_tokens = (1,), 8
    c.evaluate.answers = ("answer_f1", "answer_likelihood")
    both = plan.estimate(RECIPE, c, run.workdir)
    assert works(both)[-2:] == [("evaluate", "reading"), ("evaluate", "likelihoods")]
    reading, scored = both.work[-2:]
    held_out = load_questions(run.context, "held_out")
    lm = device_time.RecordingScorer.from_model(model(run.workdir.parent, "generator"))
    ids = lambda text: lm.tokenizer(text, add_special_tokens=False)["input_ids"]
    replies = [len(ids(text)) + 1 for q in held_out for text in dict.fromkeys(q.answers)]
    prompts = 1.15 * len(held_out)  # base, and the 0.15 that stage1 changes
    least = reading.tokens + prompts * (sum(replies) / len(held_out) - 8)
    # Scoring may compute anew, for each prompt, what all prompts begin with.
    _, head = estimate.reader_prompts(run.context, lm, held_out, stored_chunks(run.context))
    assert 0 < head < 100 and scored.seconds > 0
    assert least - 1 <= scored.tokens <= least + prompts * head
    c.evaluate.answers = ("answer_likelihood",)
    alone = plan.estimate(RECIPE, c, run.workdir)
    assert works(alone)[-2:] == [("evaluate", "embedding"), ("evaluate", "likelihoods")]
    assert alone.work[-1] == scored
    note = next(note for note in alone.notes if note.startswith("reading"))
    assert note.endswith("often find the same passages")


def test_what_systems_agree_on_is_read_once(run, mesh):
    c, read = settings(run.workdir.parent), {}
    c.evaluate.passages = 2
    for trained in ((1,), (1, 2, 3)):
        c.train.stages = trained
        planned = plan.estimate(RECIPE, c, run.workdir)
        read[len(trained)] = next(x.tokens for x in planned.work if x.kind == "reading")
    assert read[3] / read[1] == pytest.approx(
        (1 + 3 * 0.2775) / 1.2775, rel=0.01
    )  # 1 - 0.85²; what all begin with is read once
    n = planned.inputs["held-out questions"]
    assert any(
        f"reading: about {1.8325 * n:.0f} of {4 * n} prompts" in note for note in planned.notes
    )
    c.evaluate.read = 2
    assert any(" of 8 prompts" in note for note in plan.estimate(RECIPE, c, run.workdir).notes)
    c.evaluate.read = 0
    planned = plan.estimate(RECIPE, c, run.workdir)
    assert not any(x.kind == "reading" for x in planned.work) and not any(
        note.startswith("reading") for note in planned.notes
    )


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
    drawn = Draw.from_chunks(q, chunks, c)
    assert (len(drawn.candidates), len(drawn.positives), len(drawn.negatives)) == (
        4,
        2,
        6,
    )  # three for each of two versions
    assert set(drawn.positives) <= {x.id for x in drawn.candidates} and not set(
        drawn.positives
    ) & set(drawn.negatives)
    assert Draw.from_chunks(q, chunks, c) == drawn
    c.score.candidates, c.graph.rewrites = 0, 10
    drawn = Draw.from_chunks(q, chunks, c)
    assert (len(drawn.candidates), len(drawn.negatives)) == (10, 8)


def test_disk_by_hand(run, world, mesh):
    planned, base = run.plans["data"], model(world, "retriever")
    c = run.config
    steps = [
        math.ceil(planned.inputs["training questions"] / c.train.batch) * epochs
        for epochs in c.train.epochs
    ]
    assert (
        planned.disk["checkpoints"] == 3 * 12 * base.parameters and max(steps) > 3
    )  # one a step, two kept and one being written
    assert planned.disk["models"] == 3 * base.bytes and planned.disk["export"] == base.bytes
    pairs = sum(3 * len(q.answers) for q in questions_and_chunks(run)[0])
    assert planned.disk["scores"] == 32 * pairs
    assert planned.disk["vectors"] % (4 * tiny.WIDTH) == 0
    c = settings(run.workdir.parent)
    c.train.lora_rank, c.train.lora_targets, c.train.save_every = 2, ("q", "down"), 3
    adapter = tiny.LAYERS * 2 * ((tiny.WIDTH + tiny.WIDTH) + (tiny.FFN + tiny.WIDTH))
    assert device_time.trainable_parameters(base, c.train) == adapter
    assert (
        plan.estimate(RECIPE, c, run.workdir).disk["checkpoints"]
        == min(max(steps) // 3, 3) * 12 * adapter
    )


def test_a_reranker_by_hand(run, world, mesh):
    """It reads all pairs of an epoch, and at the end one for each chunk found."""
    c = settings(world)
    c.reranker.path = str(world / "retriever")
    c.train.kind, c.reranker.epochs, c.reranker.candidates = "cross", 3, 2
    planned, base = plan.estimate(RECIPE, c, run.workdir), model(world, "retriever")
    plain = plan.estimate(RECIPE, run.config, run.workdir)
    assert planned.disk["models"] == plain.disk["models"] + base.bytes
    assert planned.disk["export"] == 2 * base.bytes
    (work,) = [x for x in planned.work if x.stage == "reranker"]
    retriever = Retriever.from_pretrained(str(world / "retriever"))
    count = lambda texts, kind: list(map(len, retriever.tokenize(texts, kind=kind)))
    questions, chunks = questions_and_chunks(run)
    questions = questions[: math.ceil(c.score.keep * len(questions))]
    asked = count([q.question for q in questions], "query")
    pairs = []
    for q, tokens in zip(questions, asked, strict=True):
        pool = [x for document in q.documents for x in chunks[document]]
        drawn = Draw.from_chunks(q, pool, c).candidates[:2]
        passages = count([x.passage for x in drawn], "document")
        pairs += [tokens + n for n in passages]
    assert work.kind == "training" and work.tokens == 3 * sum(pairs) > 0
    assert work.flops == pytest.approx((3 * base.text_flops(pairs) * (3, 3.5)).sum())
    tokens = lambda made: sum(x.tokens for x in made.work if x.stage == "evaluate")
    held_out = load_questions(run.context, "held_out")
    most = len(held_out) * 20 * 2 * 64  # tokens of a pair of texts, each cut at 64
    assert 0.3 * most < tokens(planned) - tokens(plain) <= most


@pytest.mark.slow
def test_checkpoints_are_as_large_as_told(run, mesh, tmp_path, monkeypatch):
    """What training leaves before it clears up: two.

    Three are planned, since the last is written before the first is deleted.
    """
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


def test_a_model_that_is_not_here_is_named_with_the_fix(world, mesh):
    c = settings(world)
    c.generator.path = "nobody/no-such-model"
    with pytest.raises(
        ValueError,
        match=r"generator.path='nobody/no-such-model' is not on this machine"
        r".*hf download nobody/no",
    ):
        plan.estimate(RECIPE, c)
    c.generator.path = str(world / "absent")
    with pytest.raises(FileNotFoundError, match="no such folder"):
        plan.estimate(RECIPE, c)
    c.generator.path = str(world / "retriever")
    with pytest.raises(ValueError, match="generates no text"):
        plan.estimate(RECIPE, c)


def test_a_known_model_that_is_not_here_is_planned_from_its_sizes(
    world, mesh, tmp_path, monkeypatch
):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    c = settings(world)
    c.retriever.path = "BAAI/bge-small-en-v1.5"
    c.generator.path = "mistralai/Mistral-7B-Instruct-v0.2"
    made = plan.estimate(RECIPE, c)
    for note, name in zip(made.notes, (c.retriever.path, c.generator.path), strict=False):
        assert note.startswith(f"{name} is not on this machine: planned from its published sizes")
    assert made.disk["export"] == 4 * 33_212_160
    flops = {(x.stage, x.kind): x.flops / x.tokens for x in made.work}
    # Twice the parameters that multiply each token; attention comes on top.
    assert flops["candidates", "embedding"] == pytest.approx(2 * 21.3e6, rel=0.15)
    assert flops["score", "likelihoods"] == pytest.approx(2 * 7.0e9, rel=0.15)
    assert not any(tmp_path.iterdir())


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
        "a question searches its own documents" in lines[0]
        and lines[1].startswith("3 documents, ")
        and lines[-1].startswith("total: $")
        and lines[-1].endswith(" of disk")
    )


@pytest.mark.parametrize(
    ("verb", "flags", "planned"),
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
def test_what_is_refused_is_one_clear_line(ark, verb, flags, planned):
    status, _, wrong = ark(verb, *flags)
    assert (
        status == 1 and planned in wrong and wrong.startswith("error: ") and wrong.count("\n") == 1
    )


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
    c = demo.demo()
    planned = plan.estimate(RECIPE, c)
    assert list(planned.inputs.values()) == [11, 153, 72, 60]
    assert [(x.label, x.calls) for x in planned.calls] == [("extract", 84), ("rewrite", 144)]
    assert calls_of_kind(planned, "rewrite").input_tokens == pytest.approx(
        92_915, rel=0.05
    )  # with the communities of a finished demo
    replies = {
        row["item"]: reply_cache.reply_text(row["reply"])
        for row in ReplyCache(EMBEDDED / "replies.jsonl").rows.values()
    }
    count, _ = llm_calls.token_counter(c)
    for x in planned.calls:
        real = sum(count([text for item, text in replies.items() if item.startswith(x.label)]))
        assert x.output_tokens == pytest.approx(real, rel=0.03)
    assert (c.data.chunk_tokens / (c.data.chunk_tokens - c.data.chunk_overlap)) == REPEATED
    assert (
        planned.disk["checkpoints"]
        == 6
        // 4
        * 12
        * device_work.WeightlessModel.from_folder(
            real_models["retriever"], compute="float32", batch=0, head=False
        ).parameters
    )
