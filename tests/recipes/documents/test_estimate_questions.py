"""What `ark-jax plan` foresees of written questions, and what is asked in the end."""

import pytest
from support.documents_alone import documents_alone, make_world_without_questions, run
from support.plans import RATE, calls_of_kind, device_work

from ark_jax.estimate import devices, plan
from ark_jax.recipes.ark.recipe import RECIPE

pytestmark = pytest.mark.usefixtures("mesh")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world_without_questions(tmp_path_factory.mktemp("world"))


def test_a_plan_estimates_questions_that_are_not_written_yet(world, tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "product_speed", lambda *_: RATE)
    c = documents_alone(world, joined=0.5)
    c.llm.backend, c.llm.price = "openai", (1.0, 10.0)
    before = plan.estimate(RECIPE, c, tmp_path)
    assert not list(tmp_path.iterdir())  # a plan writes nothing
    questions = calls_of_kind(before, "questions")
    asked = before.inputs["training questions"] + before.inputs["held-out questions"]
    held_out = before.inputs["held-out questions"] // 3  # passages, at three questions each
    assert questions.items == asked / 3 == 12 + (12 - held_out) and 0 < held_out < 12
    assert questions.read > questions.written > 0 and questions.cost > 0
    assert calls_of_kind(before, "rewrite").items == 2 * before.inputs["training questions"]
    kinds = lambda made: [kind for stage, kind in device_work(made) if stage == "questions"]
    assert kinds(before) == ["embedding", "likelihoods"]
    assert any("as if no written question were dropped" in note for note in before.notes)
    c.questions.margin = -100.0  # nothing is scored
    assert kinds(plan.estimate(RECIPE, c, tmp_path)) == ["embedding"]
    c.questions.source = "both"  # without any question of the input the same
    assert calls_of_kind(plan.estimate(RECIPE, c, tmp_path), "questions") == questions


def test_a_plan_counts_questions_that_are_already_written(world, tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "product_speed", lambda *_: RATE)
    c = documents_alone(world)
    for stage in ("data", "extract", "graph", "questions"):
        counts = run(c, tmp_path, stage)
    after = plan.estimate(RECIPE, c, tmp_path)
    assert after.inputs["training questions"] == counts["train_questions"]
    assert after.inputs["held-out questions"] == counts["held_out_questions"]
    assert not any(x.work.stage == "questions" for x in after.costs)
