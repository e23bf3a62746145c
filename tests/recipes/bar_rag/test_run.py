"""A whole run of BAR-RAG with tiny models: what each stage stores, faults, kill and resume."""

import dataclasses
import json
import shutil

import jax
import numpy as np
import pytest
from support import tiny
from support.bar_world import HELD_OUT, PLACES, context_of

from ark_jax.data.records import Question
from ark_jax.estimate import plan
from ark_jax.evaluate.reading import ReadingPrompt
from ark_jax.models.language import LanguageModel
from ark_jax.pipeline.fingerprints import file_digest
from ark_jax.pipeline.manifest import read_manifest
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_json, load_rows, save_rows
from ark_jax.recipes.bar_rag import read, select, selectors
from ark_jax.recipes.bar_rag.reading import Success, likelihoods, reading_prompt
from ark_jax.recipes.bar_rag.recipe import RECIPE
from ark_jax.recipes.bar_rag.rollouts import StepRows
from ark_jax.recipes.documents.reader_training import reading_prompts
from ark_jax.select import zone

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("mesh")]


def rows_of(run: Context, path: str) -> list[dict]:
    return load_rows(run.workdir / path)


def test_pools_hold_the_nearest_chunks_in_order(run):
    rows = rows_of(run, "pool/pool.parquet")
    assert [row["rank"] for row in rows[:4]] == [0, 1, 2, 3]
    parts = {row["question_id"]: row["part"] for row in rows}
    held_out = {id for id, part in parts.items() if part == "held_out"}
    assert held_out == {f"{place}-{form}" for place in HELD_OUT for form in (0, 1)}
    pooled = selectors.load_pools(run, "train")[3]
    assert pooled.number == 3 and list(pooled.cosines) == sorted(pooled.cosines, reverse=True)
    [vectors] = selectors.PoolVectors(run).pools([pooled])
    np.testing.assert_allclose(vectors.passages @ vectors.question, pooled.cosines, atol=1e-6)


def test_the_warm_reader_has_learned_the_possible_answers(run, world):
    """Half of its probability is on either; before, none was."""
    texts = [f"The bell of {place} is of tin." for place in PLACES[:3]]
    form, after = reading_prompt(run.config), []
    for folder in (world / "generator", run.workdir / "warm" / "model"):
        lm = LanguageModel.from_pretrained(folder)
        readings = [(f"Of what is the bell of {place}?", texts) for place in PLACES[:3]]
        prompts = reading_prompts(lm, form, readings, 3)
        assert prompts.cut == 0 and prompts.texts[0].endswith("Arl?\nAnswer:")
        after.append(likelihoods(lm, form, prompts.texts, [["tin", "iron", "tin."]] * 3))
    assert after[0].max() < 1e-3 and 0.3 < after[1].min() <= after[1].max() <= 1
    assert ReadingPrompt.read(run.workdir / "warm" / "model") == form


def test_the_filter_records_a_decision_for_each_question(run):
    rows, sets = rows_of(run, "filter-1/questions.parquet"), rows_of(run, "filter-1/sets.parquet")
    assert len(rows) == 16 and len(sets) == 16 * 4
    p = [one["p"] for one in sets if one["question_id"] == rows[0]["question_id"]]
    assert rows[0]["mean"] == pytest.approx(np.mean(p)) and rows[0]["chance"] == 0
    assert {row["reason"] for row in rows} <= {"", zone.TOO_HARD}
    assert all(row["kept"] == (not row["reason"]) for row in rows)
    stored = load_json(run.workdir / "filter-1" / "histogram.json")
    assert sum(stored["p"]) == len(sets) and stored["kept"] == sum(row["kept"] for row in rows)
    assert len({tuple(one["chunk_ids"]) for one in sets}) > 10
    counts = read_manifest(run.workdir / "filter-1")["counts"]
    assert counts["sets_computed"] + counts["sets_remembered"] == len(sets)


def test_sets_scored_by_the_filter_are_not_computed_again(run):
    """p of a set is one number in a run, wherever it was drawn."""
    known, rows = rows_of(run, "filter-1/sets.parquet"), rows_of(run, "select-1/sets.parquet")
    key = lambda row: (row["question_id"], tuple(row["chunk_ids"]))
    p = {key(row): row["p"] for row in known}
    again = [row for row in rows if key(row) in p]
    assert again and all(row["p"] == p[key(row)] for row in again)
    counts = read_manifest(run.workdir / "select-1")["counts"]
    assert counts["sets_remembered"] >= len(again)
    assert counts["sets_computed"] + counts["sets_remembered"] == len(rows) == 3 * 4 * 3


def test_the_selector_reward_is_highest_at_the_boundary(run):
    rows = rows_of(run, "select-1/sets.parquet")
    for row in rows:
        assert row["boundary"] == pytest.approx(min(row["p"], 1 - row["p"]) / 0.5)
        assert row["reward"] == pytest.approx(row["boundary"] + 0.2 * row["relevance"])
        assert row["penalty"] == 0
    assert any(row["live"] for row in rows) and any(row["advantage"] for row in rows)


def test_the_reader_learns_from_its_own_answers(run):
    rows, sets = rows_of(run, "read-1/answers.parquet"), rows_of(run, "evidence-1/sets.parquet")
    assert len(rows) == 3 * 4 * 6 and {row["step"] for row in rows} == {0, 1, 2}
    question_ids = {
        row["question_id"] for row in rows_of(run, "filter-1/questions.parquet") if row["kept"]
    }
    assert {row["question_id"] for row in sets} == question_ids
    assert all(len(set(row["chunk_ids"])) == 2 for row in sets)
    for row in rows:
        assert len(row["ids"]) <= 3 and (row["ids"][-1] == 1) == row["ended"]
        assert row["reward"] == pytest.approx(0.7 * row["f1"] + 0.3 * row["em"])
        assert bool(row["advantage"]) <= row["live"]
    assert {1.0, 0.0} <= {row["em"] for row in rows}
    before, after = (
        LanguageModel.from_pretrained(run.workdir / name / "model").model
        for name in ("warm", "read-1")
    )
    changes = jax.tree.map(lambda a, b: float(abs(a - b).max()), before, after)
    assert 0 < max(jax.tree.leaves(changes)) < 0.1


@pytest.mark.parametrize("by", ["retrieved", "random"])
def test_other_evidence_needs_no_selector(run, world, tmp_path, by):
    context = context_of(world, run.workdir, **{"read.evidence": by, "filter.reader": False})
    counts = read.choose_evidence(context, tmp_path, iteration=1)
    sets = {row["question_id"]: row["chunk_ids"] for row in load_rows(tmp_path / "sets.parquet")}
    pools = selectors.load_pools(run, "train")
    assert counts["questions"] == len(sets) == 16
    first = [sets[pooled.id] == list(pooled.chunk_ids[:2]) for pooled in pools]
    assert all(first) if by == "retrieved" else not all(first)
    assert all(set(sets[pooled.id]) <= set(pooled.chunk_ids) for pooled in pools)


# Faults.


def test_a_filter_that_keeps_no_question_is_refused_with_advice(run, world, tmp_path):
    changes = {"filter.low": 0.98, "filter.high": 1.0, "filter.questions": 3}
    context = context_of(world, run.workdir, **changes)
    with pytest.raises(ValueError, match=r"none of 3 questions .* 0\.\d: \d.*longer before"):
        select.filter_questions(context, tmp_path, iteration=1)


def test_questions_without_a_usable_answer_are_left_out(run, world, tmp_path):
    workdir = tmp_path / "other"
    shutil.copytree(run.workdir / "data", workdir / "data")
    path = workdir / "data" / "questions_train.parquet"
    questions = [*load_rows(path, Question)[:2], Question("x", "which?", ("the", "..."), ())]
    save_rows(questions, path, Question)
    context = context_of(world, workdir)
    (workdir / "pool").mkdir()
    counts = selectors.find_pools(context, workdir / "pool")
    assert counts["questions_without_usable_answer"] == 1
    assert [pooled.number for pooled in selectors.load_pools(context, "train")] == [0, 1]
    save_rows(questions[2:], path, Question)
    with pytest.raises(ValueError, match="no training question has a reference answer with a word"):
        selectors.find_pools(context, tmp_path)


def test_a_non_finite_likelihood_names_its_question(run, world):
    context = context_of(world, run.workdir)
    lm = LanguageModel.from_pretrained(run.workdir / "warm" / "model")
    broken = dataclasses.replace(lm, model=jax.tree.map(lambda x: x * np.nan, lm.model))
    settings = run.config.generator
    options = {"compute": settings.dtype, "attention": settings.attention}
    context.models["generator"] = ((str(run.workdir / "warm" / "model"), options), broken)
    one = selectors.load_pools(run, "train")[2]
    with pytest.raises(ValueError, match=f"question {one.id}: its log-likelihood is nan"):
        Success(context, "warm").p([(one, one.chunk_ids[:2])])


def test_a_generator_without_an_end_token_is_refused(run, world, tmp_path):
    folder = tiny.write(
        tmp_path / "endless", "llama", tokenizer="plain", changes={"eos_token_id": None}
    )
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    settings.pop("eos_token")
    path.write_text(json.dumps(settings))
    context = context_of(world, run.workdir, **{"generator.path": str(folder)})
    with pytest.raises(ValueError, match="names a token that ends a text"):
        read.train_warm(context, tmp_path)


def test_a_warm_start_without_gold_passages_is_refused(run, world, tmp_path):
    workdir = tmp_path / "other"
    for name in ("data", "pool"):
        shutil.copytree(run.workdir / name, workdir / name)
    gold = load_json(workdir / "pool" / "gold.json")
    (workdir / "pool" / "gold.json").write_text(json.dumps({id: [] for id in gold}))
    with pytest.raises(ValueError, match=r"none of 16 training questions .*warm\.steps=0"):
        read.train_warm(context_of(world, workdir), tmp_path)


def test_dead_groups_do_not_change_the_weights(run, world, tmp_path, capsys):
    """The references are no answer that a reader of this world gives."""
    workdir = tmp_path / "other"
    for name in ("data", "pool", "warm", "filter-1", "evidence-1"):
        shutil.copytree(run.workdir / name, workdir / name)
    path = workdir / "data" / "questions_train.parquet"
    questions = load_rows(path, Question)
    save_rows([dataclasses.replace(x, answers=("zinc",)) for x in questions], path, Question)
    context = context_of(world, workdir, **{"read.steps": 2})
    counts = read.train_reader(context, tmp_path, iteration=1)
    assert counts["live_share"] == 0 and "has learned nothing" in capsys.readouterr().out
    before, after = (
        LanguageModel.from_pretrained(folder / "model").model
        for folder in (workdir / "warm", tmp_path)
    )
    jax.tree.map(np.testing.assert_array_equal, before, after)


class Killed(RuntimeError):
    """What the tests put in the place of a kill."""


@pytest.mark.parametrize("stage", ["select-1", "read-1"])
def test_an_interrupted_stage_resumes_with_the_same_bytes(run, world, tmp_path, monkeypatch, stage):
    """It stops when the draws of a step are on disk and the weights do not know of them yet."""
    train = {"select-1": select.train_selector, "read-1": read.train_reader}[stage]
    whole_step = StepRows.rows

    def stop_at_last_step(rows, step, make):
        drawn = whole_step(rows, step, make)
        if step == 2:
            raise Killed
        return drawn

    with monkeypatch.context() as patch:
        patch.setattr(StepRows, "rows", stop_at_last_step)
        with pytest.raises(Killed):
            train(context_of(world, run.workdir), tmp_path, iteration=1)
    assert len(list(tmp_path.glob("step-*.parquet"))) == 3 and not (tmp_path / "model").exists()
    train(context_of(world, run.workdir), tmp_path, iteration=1)
    outputs = read_manifest(run.workdir / stage)["outputs"]
    assert {name: file_digest(tmp_path / name) for name in outputs} == {
        name: digest for name, (_, digest) in outputs.items()
    }


def test_sampled_success_rates_are_reproducible(run, world, tmp_path):
    changes = {"success.by": "samples", "success.answers": 6, "filter.questions": 3}
    changes |= {"filter.low": 0.0, "filter.chance": False}
    context = context_of(world, run.workdir, **changes)
    select.filter_questions(context, tmp_path, iteration=1)
    rows = load_rows(tmp_path / "sets.parquet")
    assert {row["p"] * 6 for row in rows} <= set(range(7)) and any(row["p"] for row in rows)
    pools = {pooled.id: pooled for pooled in selectors.load_pools(run, "train")}
    last = [(pools[row["question_id"]], row["chunk_ids"]) for row in rows[-2:]]
    assert Success(context, "warm").p(last) == [row["p"] for row in rows[-2:]]


def test_a_second_update_uses_the_stored_reference_policy(run, world, tmp_path):
    """With an adapter, whose frozen weights are the reader before the stage."""
    changes = {"read.updates": 2, "read.kl": "k3", "read.steps": 1, "train.lora_rank": 2}
    context = context_of(world, run.workdir, **changes)
    read.train_reader(context, tmp_path, iteration=1)
    rows = load_rows(tmp_path / "answers.parquet")
    assert all(len(row["old"]) == len(row["policy_reference"]) == len(row["ids"]) for row in rows)
    for row in rows:  # the adapter changes nothing at first
        np.testing.assert_allclose(row["old"], row["policy_reference"], atol=1e-5)
    curve = [json.loads(line) for line in (tmp_path / "curve.jsonl").read_text().splitlines()]
    assert len(curve) == 2 and curve[0]["k1"] == pytest.approx(0, abs=1e-5)
    settings = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert settings["r"] == 2 and settings["base_model_name_or_path"] == "warm/model"
    assert settings["task_type"] == "CAUSAL_LM"


def test_the_reader_can_be_trained_with_supervision(run, world, tmp_path):
    context = context_of(world, run.workdir, **{"read.train": "supervised", "read.steps": 2})
    counts = read.train_reader(context, tmp_path, iteration=1)
    assert counts["steps"] == 2 and counts["questions"] == 8
    assert (tmp_path / "model" / "model.safetensors").is_file()


def test_a_plan_counts_rollouts_in_advance(run):
    config, foreseen = run.config, RECIPE.forecast(run, set())
    assert foreseen.inputs["sets to judge, at most"] == 16 * 4 + 3 * 4 * 3
    assert foreseen.inputs["answers to sample, at most"] == 3 * 4 * 6
    stages = {work.stage for work in foreseen.work}
    learning = {"pool", "warm", "filter-1", "select-1", "read-1"}
    assert stages == learning | {"baselines", "test-warm", "evaluate"}
    assert all(work.tokens > 0 for work in foreseen.work if work.kind != "likelihoods")
    before = plan.estimate(RECIPE, config)
    assert {x.work.stage for x in before.costs} == stages and all(x.flops for x in before.costs)
    (memory,) = [note for note in before.notes if note.startswith("memory of warm")]
    assert ": remat=products, 1 piece, 3 forward passes, nothing over " in memory


def test_a_plan_prices_the_replies_of_an_engine(run, world):
    """The paper's filter, ten answers to each set, by an engine and here."""
    judged = {"success.by": "samples", "success.answers": 10}
    at_engine = {"rollout.backend": "openai", "rollout.base_url": "http://host:8000/v1"}
    at_engine |= {"rollout.model": "/policy", "rollout.price": (0.5, 2.0)}
    local, remote = (
        context_of(world, run.workdir, **judged | changes) for changes in ({}, at_engine)
    )
    here, there = (plan.estimate(RECIPE, context.config) for context in (local, remote))
    filtered = [cost for cost in there.calls if cost.stage == "filter-1"]
    assert [(x.items, x.replies, x.written) for x in filtered] == [(16 * 4, 10, 10 * 3)]
    tokens_in = 16 * 4 * filtered[0].read
    assert filtered[0].cost == pytest.approx((tokens_in * 0.5 + 16 * 4 * 30 * 2.0) / 1e6)
    assert filtered[0].reply_seconds == pytest.approx(3 / 60)
    assert not here.calls and here.cost == 0 < there.cost
    spent = {x.work.stage: x.seconds for x in here.costs}
    assert spent["filter-1"] > 0 and "filter-1" in plan.format_plan(here)
    rows = [line.split() for line in plan.format_plan(there).splitlines()]
    assert [row[1] for row in rows if row[:1] == ["filter-1"]] == ["64"]
    assert any("go to the engine at most 3 times in read-1," in note for note in there.notes)
    remote.config.rollout.price = ()
    unpriced = plan.estimate(RECIPE, remote.config)
    assert unpriced.cost is None and "--config.rollout.price=" in " ".join(unpriced.notes)
