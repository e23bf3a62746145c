"""Whose answers the report of a run shows, and which it leaves out."""

from pathlib import Path

import pytest
from support import tiny

from ark_jax.data.records import Question
from ark_jax.pipeline.stage import Context
from ark_jax.recipes.ark import config as configs
from ark_jax.recipes.ark.report import answers_shown, cut_answers
from ark_jax.runtime.log import Metrics

QUESTIONS = {id: Question(id, f"Who is {id}?", ("Ann",), ("d",)) for id in ("a", "b", "c")}
REPLIES = {
    ("base", "a"): "the keeper of the lamp",
    ("stage3", "a"): "the keeper of the salt",
    ("base", "b"): "Ann",
    ("stage3", "b"): "the keeper of the quay",
    ("base", "c"): None,
    ("stage3", "c"): None,
}
ROWS = [{"system": s, "question": q, "answer": answer} for (s, q), answer in REPLIES.items()]


@pytest.fixture
def config(tmp_path):
    c = configs.ark()
    c.generator.path = str(tiny.write(tmp_path / "SmolLM", "llama", tokenizer="plain"))
    c.evaluate.max_new_tokens = 4
    return c


def shown(c, rows=ROWS) -> dict:
    is_cut = cut_answers(Context(c, Path(), Metrics(Path("metrics.jsonl"))))
    return answers_shown(c, rows, ("base", "stage3"), QUESTIONS, is_cut)


def test_truncated_answers_are_left_out_of_the_report(config):
    config.evaluate.max_new_tokens = 6
    section = shown(config)
    assert [(row["question"], row["given"]) for row in section["rows"]] == [
        ("Who is b?", {"base": "Ann", "stage3": None})
    ]
    assert section["about"] == (
        "Answers of SmolLM from the passages that each system retrieves. 3 answers that were cut "
        "at 6 tokens are left out."
    )


def test_the_report_explains_how_to_avoid_truncated_answers(config):
    config.evaluate.max_new_tokens = 1
    section = shown(config)
    assert section["rows"] == [] and section["about"] == (
        "No answer is shown: those of SmolLM are all cut at 1 tokens "
        "(config.evaluate.max_new_tokens); config.reader.warm=True teaches it to answer."
    )
    unread = [row | {"answer": None} for row in ROWS]
    assert shown(config, unread) == {}


@pytest.mark.parametrize(
    ("backend", "who"),
    [("openai", "gpt-4.1-mini"), ("replay", "recorded replies"), ("mine:read", "mine:read")],
)
def test_all_answers_of_other_readers_are_shown(config, backend, who):
    config.reader.backend = backend
    section = shown(config)
    assert section["about"] == f"Answers of {who} from the passages that each system retrieves."
    assert [row["given"]["stage3"] for row in section["rows"]] == [
        "the keeper of the salt",
        "the keeper of the quay",
    ]
