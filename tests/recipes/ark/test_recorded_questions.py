"""The recorded questions of studies answer today's prompts, hold, and repeat none of the test."""

import json
import runpy
from pathlib import Path

import pytest
from support.paths import DATA, REPOSITORY

from ark_jax.demo import models
from ark_jax.llm import complete
from ark_jax.llm.question_pairs import parse_pairs
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_rows
from ark_jax.recipes.core.ask import llm_settings
from ark_jax.recipes.documents.ingest import ingest
from ark_jax.recipes.documents.written_questions import (
    materials_to_ask,
    pair_defect,
    question_calls,
)
from ark_jax.runtime.log import Metrics

MANUALS = REPOSITORY / "configs" / "recordings" / "manuals"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="needs $ARK_DATA/fairytaleqa")


def same_words(text: str) -> str:
    return " ".join("".join(c if c.isalnum() else " " for c in text.casefold()).split())


def read_study(monkeypatch) -> dict:
    """The names of the config file."""
    monkeypatch.setenv("ARK_DATA", str(DATA))
    return runpy.run_path(str(REPOSITORY / "configs" / "fairytale.py"))


@needs_data
@pytest.mark.slow
@pytest.mark.network
def test_the_recording_answers_all_prompts_for_any_seed(real_models, monkeypatch, tmp_path):
    study = read_study(monkeypatch)
    c = study["get_config"]("recorded")
    (tmp_path / "data").mkdir()
    context = Context(c, tmp_path, Metrics(tmp_path / "metrics.jsonl"))
    counts = ingest(context, tmp_path / "data")
    # The data's questions of training stories take no part, and all of `val` are the test.
    assert counts["train_questions"] == 0 and counts["held_out_questions"] == 1025
    materials = materials_to_ask(context, None)
    stories = {material.chunks[0].document for material in materials}
    assert stories == set(study["STORIES"][: study["TRAINING_STORIES"]])
    c.seed = 1
    assert [x.id for x in materials_to_ask(context, None)] == [x.id for x in materials]
    calls = question_calls(context, materials)
    settings = llm_settings(c, "questions")
    answers = complete.complete(calls, settings, tmp_path / "none.jsonl", "questions")
    assert answers.drifted == [] and len(calls) == 126
    asked = []
    for call, material in zip(calls, materials, strict=True):
        pairs = parse_pairs(*answers.texts[call.item])
        assert [pair_defect(pair, material) for pair in pairs] == [""] * len(pairs)
        asked += [same_words(pair.question) for pair in pairs]
    assert len(set(asked)) == len(asked) == 373
    test = load_rows(tmp_path / "data" / "questions_held_out.parquet")
    assert [x for row in test if (x := same_words(row["question"])) in asked] == []


@needs_data
def test_each_arm_of_the_study_uses_the_questions_of_its_name(monkeypatch):
    monkeypatch.setattr(models, "demo_models", lambda: {"retriever": "a", "generator": "b"})
    study = read_study(monkeypatch)
    for name, changes in study["SWEEPS"]["questions"].items():
        c = study["get_config"]()
        c.update_from_flattened_dict(changes)
        source = name.split("-")[0]
        assert c.questions.source == (source if source in ("given", "both") else "written")
        assert bool(c.questions.replies) == (source in ("recorded", "both"))
        assert (c.score.supervision == "alignment") == ("scored" in name or source == "both")
        assert c.data.held_out_documents == study["HELD_OUT"]


@pytest.mark.parametrize("name", ["git", "postgresql", "python"])
def test_a_manual_is_trained_on_other_questions_than_its_test(name, monkeypatch):
    monkeypatch.setattr(models, "demo_models", lambda: {"retriever": "a", "generator": "b"})
    config = runpy.run_path(str(REPOSITORY / "configs" / "manuals.py"))["get_config"](name)
    read = lambda path: list(map(json.loads, Path(path).read_text(encoding="utf-8").splitlines()))
    replies, test = read(config.questions.replies), read(config.data.questions)
    texts = [row["reply"]["choices"][0]["message"]["content"] for row in replies]
    pairs = [pair for text in texts for pair in parse_pairs(text)]
    asked = {same_words(pair.question) for pair in pairs}
    assert len(replies) == config.questions.passages and len(asked) == len(pairs) >= 98
    assert asked.isdisjoint(same_words(row["question"]) for row in test)
    assert all(row["answers"] and row["evidence"] for row in test)
