"""What ARK is measured by: training on marked passages, other negatives than its own, a merge with
base, few or no answers."""

import dataclasses
import importlib.util
import json
import os
import runpy
import shutil
import subprocess
import sys

import jax
import numpy as np
import pyarrow.parquet as pq
import pytest
from support.paths import DATA, REPOSITORY
from support.world import make_world, tiny_config

from ark_jax import Retriever
from ark_jax.data import readers
from ark_jax.data.evidence import gold_chunks
from ark_jax.demo import models
from ark_jax.evaluate import answers
from ark_jax.pipeline import engine
from ark_jax.pipeline.tables import load_rows
from ark_jax.recipes.ark import config
from ark_jax.recipes.ark.recipe import stages
from ark_jax.recipes.ark.train import learned_questions, load_examples
from ark_jax.recipes.core.split import split_questions
from ark_jax.recipes.documents.corpus import candidate_chunks, chunks_by_document, load_questions
from ark_jax.report.results import metric_heading
from ark_jax.retrieval import mining
from ark_jax.runtime.log import Metrics

BM25 = "bm25" if importlib.util.find_spec("bm25s") else "random"
ANSWERS = ("exact_match", "answer_f1", *(["rouge_l"] if importlib.util.find_spec("rouge") else []))


@pytest.fixture(scope="module")
def yardstick(tmp_path_factory):
    """A run on marked passages, its negatives by words, merged, with two answers."""
    world = make_world(tmp_path_factory.mktemp("yardstick"))
    c = tiny_config(world)
    c.score.supervision, c.mine.by, c.mine.negatives = "gold", BM25, 3
    c.train.stages, c.train.epochs, c.train.merge, c.evaluate.read = (0,), (1, 0, 0), 0.25, 2
    c.train.save_every = 100
    c.evaluate.answers = ANSWERS
    context = engine.Context(c, world / "work", Metrics(world / "work" / "metrics.jsonl"))
    engine.run(stages(c), context)
    return context


def test_gold_positives_are_the_chunks_of_the_evidence(yardstick):
    chunks = chunks_by_document(yardstick)
    documents = {
        row["id"]: row["text"] for row in load_rows(yardstick / "data" / "documents.parquet")
    }
    wanted = {
        q.id: {
            x
            for gold in gold_chunks(q.evidence, documents, candidate_chunks(q, chunks))
            for x in gold
        }
        for q in load_questions(yardstick, "train")
    }
    rows = [
        row for row in load_rows(yardstick / "positives" / "positives.parquet") if row["positive"]
    ]
    assert {q: {row["chunk"] for row in rows if row["question"] == q} for q in wanted} == wanted
    assert {row["forward_max"] for row in rows} == {None}  # marks alone train: nothing is scored
    assert engine.read_manifest(yardstick / "positives")["counts"]["share_holding_evidence"] == 1
    examples = yardstick / "mine0" / "negatives.parquet"
    assert not {(r["question"], r["chunk"]) for r in rows} & {
        (r["question"], r["chunk"]) for r in load_rows(examples)
    }


def test_a_run_that_reads_no_graph_builds_none(yardstick):
    for stage in ("extract", "graph", "communities", "rewrite"):
        assert not (yardstick / stage).exists()
    page = (yardstick.workdir / "report.html").read_text()
    assert "none: no stage of this run reads one" in page and ">LLM<" not in page
    assert "the question, the passages chosen as positives, and the hard negatives mined." in page
    assert "Extraction records" not in page and "Rewritten" not in page


@pytest.mark.parametrize("loss", ["info_nce", "distil"])
def test_the_learned_questions_are_those_of_the_examples(loss, yardstick):
    c = yardstick.config.copy_and_resolve_references()
    c.train.loss = loss
    context = dataclasses.replace(yardstick, config=c)
    examples, _, _ = load_examples(context, 0)
    assert set(learned_questions(context)) == {example.question for example in examples}


def test_the_merged_model_interpolates_base_and_last_stage(yardstick, mesh):
    path = yardstick.config.retriever.path
    base, last, merged = (
        jax.tree.leaves(Retriever.from_pretrained(folder).model)
        for folder in (path, yardstick / "stage0" / "model", yardstick / "merged" / "model")
    )
    moved = 0
    for a, b, between in zip(base, last, merged, strict=True):
        np.testing.assert_allclose(between, 0.75 * a + 0.25 * b, atol=1e-6)
        moved += bool(np.abs(a - b).max() > 1e-6)
    assert moved > len(base) // 2
    assert (
        json.loads((yardstick / "evaluate" / "metrics.json").read_text())["table"][-1]["system"]
        == "merged"
    )
    exported = (yardstick / "export" / "model.safetensors").read_bytes()
    assert exported == (yardstick / "merged" / "model" / "model.safetensors").read_bytes()


def test_only_the_requested_number_of_questions_is_answered(yardstick):
    rows = pq.read_table(yardstick / "evaluate" / "questions.parquet").to_pylist()
    for name in ("base", "stage0", "merged"):
        of_system = [row for row in rows if row["system"] == name]
        assert sum(row["answer"] is not None for row in of_system) == 2 < len(of_system)
        assert all((row["answer"] is None) == (row["answer_f1"] is None) for row in of_system)
    table = {
        row["system"]: row["values"]
        for row in json.loads((yardstick / "evaluate" / "metrics.json").read_text())["table"]
    }
    answered = [row for row in rows if row["system"] == "base" and row["answer"] is not None]
    references = {q.id: q.answers for q in load_questions(yardstick, "held_out")}
    page = (yardstick / "report" / "report.html").read_text()
    for metric in ANSWERS:
        answer_counts = [
            answers.ANSWER_METRICS[metric](row["answer"], references[row["question"]])
            for row in answered
        ]
        assert table["base"][metric]["mean"] == pytest.approx(np.mean(answer_counts))
        assert "against_base" in table["merged"][metric]
        assert f">{metric_heading(metric)}<" in page
    assert "The answers are those of" in page


def test_retrieval_is_measured_without_reading_answers(yardstick, tmp_path):
    c = yardstick.config.copy_and_resolve_references()
    c.evaluate.read = 0
    workdir = shutil.copytree(yardstick.workdir, tmp_path / "unread")
    context = engine.Context(c, workdir, Metrics(workdir / "metrics.jsonl"))
    engine.run(stages(c), context)
    evaluated = json.loads((workdir / "evaluate" / "metrics.json").read_text())
    assert (
        "answer_f1" not in evaluated["metrics"]
        and "answer_f1" not in evaluated["table"][0]["values"]
    )
    assert evaluated["table"][0]["values"]["ndcg@10"]["mean"] > 0
    assert "The answers are those" not in (workdir / "report" / "report.html").read_text()
    assert "answer F1" not in (workdir / "export" / "README.md").read_text()


def test_random_negatives_do_not_depend_on_other_questions():
    texts, pools = [f"text {i}" for i in range(9)], {"q0": range(3, 9), "q1": range(3)}
    candidates = mining.baseline_candidates("random", {"q0": "?", "q1": "?"}, pools, texts, top=4)
    assert {q: len(set(chunks)) for q, chunks in candidates.items()} == {"q0": 4, "q1": 3}
    assert all(set(candidates[q]) <= set(pools[q]) for q in candidates)
    assert (
        mining.baseline_candidates("random", {"q0": "!"}, pools, texts, top=4)["q0"]
        == candidates["q0"]
    )
    assert candidates["q0"] != sorted(candidates["q0"])


def test_a_preset_can_be_expressed_as_a_run_of_a_sweep():
    c = config.ark()
    assert config.differences(c, "default") == {}
    c.train.epochs, c.score.shard = (9, 9, 9), 7
    differences = config.differences(c, "official")
    assert (
        differences["train.epochs"] == (3, 4, 3)
        and differences["mine.top"] == 10
        and differences["graph.floor"] == 0.0
    )
    assert not {"score.shard", "score.references"} & set(differences)
    c.update_from_flattened_dict(differences)
    for section in config.METHOD_SECTIONS:
        assert {
            k: v for k, v in c[section].items() if f"{section}.{k}" not in config.INCIDENTAL_FIELDS
        } == {
            k: v
            for k, v in config.ark("official")[section].items()
            if f"{section}.{k}" not in config.INCIDENTAL_FIELDS
        }


@pytest.mark.skipif(not DATA.is_dir(), reason="the real data are not at hand (ARK_DATA)")
@pytest.mark.parametrize(
    ("name", "trained_on", "held_out"), [("musique", 70, 30), ("fairytale", 359, 1025)]
)
def test_a_study_does_not_tune_on_its_test_questions(name, trained_on, held_out, monkeypatch):
    monkeypatch.setenv("ARK_DATA", str(DATA))
    monkeypatch.setattr(models, "demo_models", lambda: {"retriever": "a", "generator": "b"})
    study = runpy.run_path(str(REPOSITORY / "configs" / f"{name}.py"))
    parts = {}
    for words in ("", "tune", "gold", "sweep=study"):
        c = study["get_config"](words)
        split = split_questions(readers.load(c.data.path).questions, (), c)
        parts[words] = {
            part: {q.id for q in getattr(split, part)} for part in ("train", "held_out", "unused")
        }
    assert [len(parts[""][part]) for part in ("train", "held_out")] == [trained_on, held_out]
    assert parts["gold"] == parts["sweep=study"] == parts[""]
    tuned = parts["tune"]
    assert tuned["held_out"] and not (tuned["train"] | tuned["held_out"]) & parts[""]["held_out"]
    assert tuned["train"] | tuned["held_out"] <= parts[""]["train"]
    for changes in [x for sweep in study["SWEEPS"].values() for x in sweep.values()]:
        c = study["get_config"]()
        c.update_from_flattened_dict(changes)
        stages(c)
    for word in study["VARIANTS"]:
        stages(study["get_config"](word))
    with pytest.raises(ValueError, match="'nope': must be one of paper, official, gold"):
        study["get_config"]("nope")


@pytest.mark.parametrize("name", ["musique", "fairytale"])
def test_a_study_without_its_data_names_the_expected_folder(name, tmp_path):
    command = [
        sys.executable,
        "-m",
        "ark_jax",
        "status",
        f"--config=configs/{name}.py",
        f"--workdir={tmp_path}",
    ]
    done = subprocess.run(
        command,
        cwd=REPOSITORY,
        env=os.environ | {"ARK_DATA": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert (
        str(tmp_path) in done.stderr
        and "is not there: name the folder that holds it in $ARK_DATA" in done.stderr
    )
