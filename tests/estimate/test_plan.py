"""The plan against a run, against counts by hand, and what it refuses."""

import itertools
import math
import random
import statistics
import subprocess
import sys

import huggingface_hub
import jax
import pytest
from support.plans import calls_of_kind, device_work, model, settings
from support.world import EMBEDDED, command

from ark_jax import LanguageModel, __main__, config
from ark_jax.estimate import devices, plan, targets
from ark_jax.estimate.work import measure
from ark_jax.llm import reply_cache
from ark_jax.llm.reply_cache import ReplyCache
from ark_jax.models.prefix_groups import group_by_prefix
from ark_jax.recipes.ark import alignment
from ark_jax.recipes.ark.recipe import RECIPE
from ark_jax.recipes.documents.corpus import load_questions, searches_corpus, stored_chunks
from ark_jax.runtime import accelerator
from ark_jax.text.prompts import load_template
from ark_jax.text.tokens import load_tokenizer
from ark_jax.train import batches, memory

PLACES = ("documents", "corpus")  # of a question's chunks


def tokens_of(c, calls) -> int:
    tokenizer = load_tokenizer(c.generator.path)
    return sum(len(tokenizer(call.turns[0])["input_ids"]) for call in calls)


def test_planned_calls_match_the_calls_that_are_made(run):
    """Extraction exactly; rewriting roughly before the graph exists, and exactly after."""
    before, calls = calls_of_kind(run.plans["data"], "extract"), run.asked["extract"]
    assert (before.items, before.total) == (len(calls), len(calls)) and len(calls) > 20
    assert before.items * before.read == pytest.approx(tokens_of(run.config, calls))
    calls = run.asked["rewrite"]
    real = tokens_of(run.config, calls)
    for stage, within in (("data", 0.2), ("communities", 0.2), ("rewrite", 1e-9)):
        planned = calls_of_kind(run.plans[stage], "rewrite")
        assert planned.items == len(calls) == 2 * run.plans["data"].inputs["training questions"]
        assert planned.items * planned.read == pytest.approx(real, rel=within)
    replies = ReplyCache(EMBEDDED / "replies.jsonl").rows.values()
    written = {row["item"]: reply_cache.reply_text(row["reply"]) for row in replies}
    tokenizer = load_tokenizer(run.config.generator.path)
    for label in ("extract", "rewrite"):
        texts = [written[call.item] for call in run.asked[label]]
        told = calls_of_kind(run.plans["data"], label)
        real = sum(len(ids) for ids in tokenizer(texts)["input_ids"])
        assert 0.3 < told.items * told.written / real < 1.5  # of a tiny vocabulary


def test_finished_stages_cost_nothing_in_a_plan(run):
    after = run.plans["after"]
    assert after.done == ("data", "candidates", "extract", "graph", "communities", "rewrite")
    assert not after.calls
    left = list(device_work(after))
    assert list(device_work(run.plans["data"])) == [
        ("baselines", "embedding"),
        ("candidates", "embedding"),
        ("graph", "embedding"),
        *left[1:],
    ]
    assert left == [
        ("baselines", "embedding"),
        ("score", "likelihoods"),
        ("stage1", "training"),
        ("mine2", "embedding"),
        ("stage2", "training"),
        ("mine3", "embedding"),
        ("stage3", "training"),
        ("evaluate", "embedding"),
        ("choice", "embedding"),
        ("evaluate", "reading"),
    ]
    shown = plan.format_plan(after).splitlines()
    inputs = run.plans["data"].inputs
    assert list(inputs) == ["documents", "chunks", "training questions", "held-out questions"]
    assert shown[0] == ", ".join(f"{count} {name}" for name, count in inputs.items())
    assert shown[2].startswith("stages to run: baselines, score, positives, stage1, ")
    assert shown[-1].startswith("total: $0, about ") and not any(" 0 B" in line for line in shown)
    count = inputs["held-out questions"]
    least = 2.8 * 0.24 / math.sqrt(count)
    assert shown[-3] == (
        f"- {count} held-out questions: a test would likely miss a difference in nDCG@10 below "
        f"{least:.2f}"
    )


def test_planned_work_and_disk_equal_a_count_by_hand(run, world, mesh):
    planned, base, c = run.plans["data"], model(world, "retriever"), run.config
    questions = planned.inputs["training questions"]
    kept = math.ceil(c.score.keep * questions)
    steps = {f"stage{n}": math.ceil(c.train.epochs[n - 1] * kept / 12) for n in (1, 2, 3)}
    updates = {x.work.stage: x.work.items for x in planned.costs if x.work.kind == "training"}
    assert updates == steps
    counts = ", ".join(f"{count} in {name}" for name, count in steps.items())
    assert any(f"updates of the weights: {counts}" in note for note in planned.notes)
    assert not searches_corpus(run.context)
    by_stage = {x.work.stage: x.work for x in planned.costs if x.work.step}
    # Twelve questions of a few documents: more negatives, but no more than these documents have.
    first, second = (by_stage[name].step[1].count for name in ("stage1", "stage2"))
    assert 2 <= first < second <= planned.inputs["chunks"]
    train = load_questions(run.context, "train")
    pairs = 3 * sum(len(q.answers) for q in train)  # three candidates
    scored = [x.work for x in planned.costs if x.work.kind == "likelihoods"]
    assert scored[1].items == 2 * pairs and planned.disk["scores"] == 32 * pairs
    assert 0 < scored[0].items <= planned.inputs["chunks"]
    assert planned.disk["models"] == 3 * base.bytes and planned.disk["export"] == base.bytes
    kept_at_once = min(max(steps.values()) // c.train.save_every, 3)
    assert planned.disk["checkpoints"] == kept_at_once * 12 * base.parameters > 0


def test_planned_reading_and_training_follow_the_config(run, mesh):
    c = settings(run.workdir.parent)
    tokens = lambda: device_work(plan.estimate(RECIPE, c, run.workdir))
    plain = tokens()
    c.evaluate.passages = 2
    c.evaluate.answers = ("answer_f1", "answer_likelihood")
    both = tokens()
    assert list(both)[-2:] == [("evaluate", "reading"), ("evaluate", "likelihoods")]
    c.evaluate.read = 0
    assert ("evaluate", "reading") not in tokens()
    c.score.keep = 0.5
    ratio = tokens()["stage2", "training"] / plain["stage2", "training"]
    assert 0.4 < ratio < 0.7
    estimated = lambda: plan.estimate(RECIPE, c, run.workdir).costs
    steps = lambda: next(x.work.items for x in estimated() if x.work.stage == "stage1")
    by_question, c.train.unit = steps(), "pair"
    assert steps() == pytest.approx(c.score.positives * by_question, abs=c.score.positives)
    c.train.unit = "question"
    c.score.supervision, c.mine.by = "gold", "bm25"
    planned = plan.estimate(RECIPE, c, run.workdir)
    assert not planned.calls and "LLM" not in plan.format_plan(planned)
    c.score.supervision, c.train.kind = "alignment", "cross"
    c.reranker.path = str(run.workdir.parent / "retriever")
    assert ("reranker", "training") in tokens()


def test_a_plan_explains_its_memory_settings(run, mesh, monkeypatch):
    c = settings(run.workdir.parent)

    def memory_notes() -> list[str]:
        shown = plan.format_plan(plan.estimate(RECIPE, c, run.workdir)).splitlines()
        return [line for line in shown if line.startswith("- memory of ")]

    assert memory_notes()[0].startswith("- memory of stage1")
    assert all(
        ": remat=products, 1 piece, 3 forward passes, nothing over " in note
        for note in memory_notes()
    )
    assert all(note.endswith(": the fastest, and it fits") for note in memory_notes())
    monkeypatch.setattr(memory, "device_memory", lambda: 1.0)
    assert all(note.endswith(": nothing fits, and this takes least") for note in memory_notes())


def test_gleaning_and_hyde_are_planned_as_calls(world, mesh):
    c = settings(world, "openai")
    once = calls_of_kind(plan.estimate(RECIPE, c), "extract")
    c.graph.gleanings, c.search.expand = 2, "hyde"
    planned = plan.estimate(RECIPE, c)
    more = calls_of_kind(planned, "gleaning")
    assert calls_of_kind(planned, "extract") == once
    assert (more.total, more.items) == (2 * once.total, 2 * once.items)
    # The k-th further pass hears all that was said before.
    assert 2 * more.read == pytest.approx(2 * once.read + 3 * once.written)
    assert calls_of_kind(planned, "hyde").items == planned.inputs["held-out questions"]


def test_judging_is_planned_as_calls_that_read_two_prompts_in_both_orders(world, mesh):
    c = settings(world, "openai")
    c.reader.backend = c.judge.backend = "openai"
    c.judge.repeats, c.judge.against = 3, ("base", "stage1")
    planned = plan.estimate(RECIPE, c)
    judged, read = (calls_of_kind(planned, label) for label in ("judge", "reading"))
    readers = read.total // planned.inputs["held-out questions"]
    assert judged.total * readers == 2 * 3 * 2 * read.total
    form = measure(c.generator.path, [load_template("judge", c.prompts.judge)]).mean
    assert judged.read == pytest.approx(form + 2 * read.read)


def test_a_line_of_calls_shows_the_tokens_of_all_calls(world, mesh):
    planned = plan.estimate(RECIPE, settings(world, "openai"))
    extracted = calls_of_kind(planned, "extract")
    lines = plan.format_plan(planned).splitlines()
    shown = next(line for line in lines if line.startswith("extract"))
    for tokens in (extracted.read, extracted.written):
        assert plan.format_amount(extracted.items * tokens) in shown


def test_calls_that_nobody_makes_are_not_planned(world, mesh):
    planned = plan.estimate(RECIPE, settings(world, "none"))
    assert planned.cost == 0 and not planned.calls
    assert "rules extract, rewrite and write; no language model is asked" in planned.notes


@pytest.mark.parametrize("backend", ["replay", "local"])
def test_backends_without_an_endpoint_cost_nothing(world, mesh, backend):
    planned = plan.estimate(RECIPE, settings(world, backend))
    assert planned.cost == 0 and planned.calls
    seconds = [x.seconds for x in planned.costs if x.work.kind == "ask"]
    assert all((x > 0) == (backend == "local") for x in seconds)


def test_an_unknown_price_is_reported_with_the_fix(world, mesh):
    c = settings(world, "openai")
    c.llm.model = "somebody/new-model"
    planned = plan.estimate(RECIPE, c)
    assert planned.cost is None
    fix = "'somebody/new-model' is unknown: give USD of a million tokens in and out"
    assert any(fix in note and "--config.llm.price='(0.3,2.5)'" in note for note in planned.notes)
    assert plan.format_plan(planned).splitlines()[-1].startswith("total: unknown, about ")


def test_a_cost_limit_needs_a_known_price(world, mesh):
    c = settings(world, "openai")
    c.llm.model = "somebody/new-model"
    plan.check_cost(RECIPE, c, world / "nowhere")  # no limit
    c.llm.max_cost = 1.0
    with pytest.raises(ValueError, match=r"max_cost is \$1.00, but the price of .*llm.price"):
        plan.check_cost(RECIPE, c, world / "nowhere")


def test_calls_above_the_cost_limit_are_refused(world, mesh):
    c = settings(world, "openai")
    c.llm.price = (10.0, 10.0)
    planned = plan.estimate(RECIPE, c)
    extract, rewrite = (calls_of_kind(planned, label) for label in ("extract", "rewrite"))
    assert planned.cost == extract.cost + rewrite.cost > 0
    c.llm.max_cost = planned.cost * 1.001
    plan.check_cost(RECIPE, c, world / "nowhere")
    c.llm.max_cost = planned.cost * 0.999
    both = f"the {extract.items + rewrite.items} calls still to be made would cost about "
    with pytest.raises(ValueError, match=both):
        plan.check_cost(RECIPE, c, world / "nowhere")
    for stage in ("extract", "rewrite", "score"):
        plan.check_cost(RECIPE, c, world / "nowhere", stage)
    c.llm.max_cost = extract.cost * 0.999
    with pytest.raises(ValueError, match=f"the {extract.items} calls"):
        plan.check_cost(RECIPE, c, world / "nowhere", "extract")
    c.llm.backend = "none"
    plan.check_cost(RECIPE, c, world / "nowhere")
    assert not (world / "nowhere").exists()


def test_a_plan_writes_nothing(run, mesh, tmp_path):
    seen = lambda: {path: path.stat().st_mtime_ns for path in run.workdir.rglob("*")}
    before = seen()
    plan.estimate(RECIPE, run.config, run.workdir)
    assert seen() == before
    plan.estimate(RECIPE, run.config, tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_model_that_is_not_downloaded_is_named_with_the_fix(world, mesh):
    c = settings(world)
    c.generator.path = "nobody/no-such-model"
    fix = r"generator.path='nobody/no-such-model' is not on this machine.*hf download nobody/no"
    with pytest.raises(ValueError, match=fix):
        plan.estimate(RECIPE, c)
    c.generator.path = str(world / "absent")
    with pytest.raises(FileNotFoundError, match="no such folder"):
        plan.estimate(RECIPE, c)
    c.generator.path = str(world / "retriever")
    with pytest.raises(ValueError, match="generates no text"):
        plan.estimate(RECIPE, c)


def test_a_known_model_is_planned_without_a_download(world, mesh, tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    c = settings(world)
    c.retriever.path = "BAAI/bge-small-en-v1.5"
    c.generator.path = "mistralai/Mistral-7B-Instruct-v0.2"
    made = plan.estimate(RECIPE, c)
    for note, name in zip(made.notes, (c.retriever.path, c.generator.path), strict=False):
        assert note.startswith(f"{name} is not on this machine: planned from its published sizes")
    assert made.disk["export"] == 4 * 33_212_160
    flops = {x.work.kind: x.flops / x.work.tokens for x in made.costs if x.flops}
    # Twice the parameters that multiply each token; attention comes on top.
    assert flops["embedding"] == pytest.approx(2 * 21.3e6, rel=0.15)
    assert flops["likelihoods"] == pytest.approx(2 * 7.0e9, rel=0.15)
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
def test_the_plan_command_prints_its_totals(ark, flags):
    status, said, wrong = ark("plan", *flags)
    lines = said.splitlines()
    assert (status, wrong) == (0, "") and "GFLOP/s" in said and "assuming 60 tokens/s" in said
    assert "a question searches its own documents" in lines[0]
    assert lines[1].startswith("3 documents, ")
    assert lines[-1].startswith("total: $") and lines[-1].endswith(" of disk")


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
def test_invalid_cost_limits_are_refused_in_one_line(ark, verb, flags, planned):
    status, _, wrong = ark(verb, *flags)
    assert (
        status == 1 and planned in wrong and wrong.startswith("error: ") and wrong.count("\n") == 1
    )


def test_numbers_and_prices_are_abbreviated():
    numbers = (0, 7, 999, 1000, 1_234_567, 123_456, 8e12)
    shown = ["0", "7", "999", "1.0 k", "1.2 M", "123 k", "8.0 T"]
    assert [plan.format_amount(n) for n in numbers] == shown
    assert [plan.format_amount(n, "B") for n in (12, 1024, 2_040_109_466)] == [
        "12 B",
        "1.0 KiB",
        "1.9 GiB",
    ]
    prices = (0.0, 0.344, 1234.5, 0.001234, None)
    assert [plan.format_usd(x) for x in prices] == [
        "$0",
        "$0.34",
        "$1,234.50",
        "$0.0012",
        "unknown",
    ]


def test_a_plan_can_be_for_devices_that_are_not_here(run):
    """Its speeds and memory are published."""
    c = settings(run.workdir.parent)
    c.mesh, here = (1, -1, 1), run.plans["after"]
    there = plan.estimate(RECIPE, c, run.workdir, targets.target("v5e-16"))
    assert device_work(there) == device_work(here) and there.seconds < here.seconds / 1e3
    speed, *kinds = [note for note in there.notes if note.startswith(("device", "memory"))]
    assert speed.startswith("device: assumed 16 x TPU v5 lite with 1,260,800 GFLOP/s, 40% of the ")
    assert all(" of 14.9 GiB" in note for note in kinds)
    assert any("score (likelihoods)" in note and note.endswith(": it fits") for note in kinds)
    trained = next(note for note in kinds if note.startswith("memory of stage1"))
    assert "3 forward passes, 0.0 GiB over links: " in trained
    assert trained.endswith(": the fastest, and it fits")
    assert accelerator.device_in_use().platform == jax.default_backend()
    with pytest.raises(ValueError, match="cannot be cut into 64 equal parts"):
        plan.estimate(RECIPE, c, run.workdir, targets.target("v5e-64"))


def test_a_compiler_is_asked_about_each_kind_of_step_once(run, monkeypatch):
    asked = []

    def verify(self, settings, work, choice):
        asked.append(work.stage)
        return "verified: by a test"

    monkeypatch.setattr(devices.WeightlessModel, "verify", verify)
    monkeypatch.setattr(targets, "compiling_for", targets.assumed)
    c = settings(run.workdir.parent)
    made = plan.estimate(RECIPE, c, run.workdir, targets.target("h100"), verify=True)
    notes = [note for note in made.notes if note.startswith("memory of stage")]
    assert asked[0] == "stage1" and len(asked) == sum(": remat=" in note for note in notes)
    assert "memory of stage1: verified: by a test" in notes[1]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--device=v5e-12"], "--device=v5e-12: give a TPU with a power of two of chips"),
        (["--verify"], "--verify: name devices to compile for, as in --device=v5e-256"),
        (["--device=a100", "--verify"], "--verify: no description of NVIDIA A100-SXM4-80GB"),
    ],
    ids=["device", "no-device", "no-compiler"],
)
def test_flags_that_cannot_be_are_refused_in_one_line(flags, message, world, tmp_path):
    done = subprocess.run(command(world, tmp_path, "plan", *flags), capture_output=True, text=True)
    assert done.returncode == 1 and f"error: {message}" in done.stderr.splitlines()[-1]


@pytest.mark.network
def test_the_plan_of_the_demo_matches_its_recorded_run(real_models, mesh):
    planned = plan.estimate(RECIPE, config.demo())
    assert list(planned.inputs.values()) == [11, 153, 72, 60]
    assert [(x.label, x.items) for x in planned.calls] == [("extract", 84), ("rewrite", 144)]
    rewrite = calls_of_kind(planned, "rewrite")
    # With the communities of a finished demo.
    assert rewrite.items * rewrite.read == pytest.approx(92_915, rel=0.05)
    assert [x.items * x.written for x in planned.calls] == pytest.approx([68_322, 44_420], rel=0.05)


def test_planned_scoring_is_near_the_tokens_that_are_computed(run, world, mesh):
    """Against the prefixes that the scorer shares, with chunks drawn for the candidates."""
    c, chunks = run.config, stored_chunks(run.context).by_document
    lm = LanguageModel.from_pretrained(c.generator.path)
    templates, rows = alignment.load_templates({}), []
    for question in load_questions(run.context, "train"):
        pool = [chunk for document in question.documents for chunk in chunks[document]]
        for chunk in random.Random(question.id).sample(pool, c.score.candidates):
            for answer in question.answers:
                parts = {"passage": chunk.passage, "question": question.question, "answer": answer}
                rows += alignment.scored_pairs(templates, **parts)
    ids = lm._encode_pairs(rows)
    cut = [(row, len(row) - target - 1) for row, target in ids]
    real = sum(
        group.prefix_length + sum(len(ids[i][0]) - group.prefix_length for i in group.members)
        for group in group_by_prefix(cut)
    )
    planned = device_work(run.plans["data"])["score", "likelihoods"]
    assert 1 / 1.5 < planned / real < 1.5 and real < 0.6 * sum(len(row) for row, _ in ids)


@pytest.mark.parametrize(
    ("pool", "order"), list(itertools.product(PLACES, ("document", "question")))
)
def test_planned_passages_per_step_are_near_those_of_drawn_batches(run, mesh, pool, order):
    """Against batches of chunks that are drawn at random."""
    c = settings(run.workdir.parent)
    c.score.keep, c.train.order, c.data.pool, c.data.candidates = 1.0, order, pool, 20
    c.score.positives, c.mine.negatives, c.mine.top = 2, 6, 6
    planned = {x.work.stage: x.work for x in plan.estimate(RECIPE, c).costs if x.work.step}
    chunks, examples = stored_chunks(run.context).by_document, []
    everything = [chunk for group in chunks.values() for chunk in group]
    train = load_questions(run.context, "train")
    for question in train:
        own = [chunk for document in question.documents for chunk in chunks[document]]
        drawn = random.Random(question.id).sample(own if pool == "documents" else everything, 8)
        ids = tuple(chunk.id for chunk in drawn)
        documents = "\n".join(question.documents)
        examples.append(batches.Example(question.id, documents, ids[:2], ids[2:]))
    order = batches.shuffled_order(examples, epochs=4, seed=0, by=order)
    steps = [[examples[i] for i in order[j : j + 12]] for j in range(0, len(order), 12)]
    sizes = [len(batches.distinct_chunks(step, use_negatives=True)) for step in steps]
    assert planned["stage2"].items == c.train.epochs[1] * len(train) / 12
    assert planned["stage2"].step[1].count == pytest.approx(statistics.fmean(sizes), rel=0.25)
