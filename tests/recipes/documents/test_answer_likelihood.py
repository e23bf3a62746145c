"""The reader's likelihood of the reference answers: by hand, after a kill, and as a run's only
column of answers."""

from pathlib import Path

import numpy as np
import pytest
from support import world as worlds

from ark_jax.data.records import Question
from ark_jax.evaluate.reading import ReadingPrompt
from ark_jax.models.language import LanguageModel
from ark_jax.pipeline import engine
from ark_jax.pipeline.manifest import read_manifest
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_json, load_rows
from ark_jax.recipes.ark.recipe import stages
from ark_jax.recipes.documents import reader, reader_training
from ark_jax.recipes.documents.corpus import Passages, load_questions, stored_chunks
from ark_jax.recipes.documents.reader_training import answer_likelihoods
from ark_jax.runtime.log import Metrics

TEMPLATE = "{passages}\n\nQuestion: {question}\nAnswer:"
QUESTIONS = [
    Question("a", "Of what is the bell?", ("tin", "iron and tin", "tin "), ("d",)),
    Question("b", "Who keeps the lamp?", ("Ann Holm",), ("d",)),
    Question("c", "Who rings?", (" ", ""), ("d",)),
]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return worlds.make_world(tmp_path_factory.mktemp("likelihood"))


def by_hand(lm: LanguageModel, form: ReadingPrompt, prompt: str, answers) -> float:
    """The best mean over the references, from whole texts that are scored one by one."""
    end = lm.tokenizer.decode([lm.end_id])
    blank = "" if form.chat else " "
    texts = [blank + answer.strip() + end for answer in answers]
    pairs = [(form.for_model(lm, prompt), text) for text in texts]
    return max(float(lm.log_likelihood([pair]).mean[0]) for pair in pairs)


def filled_prompts(form: ReadingPrompt) -> dict[tuple[str, str], str]:
    """Two systems that agree on the first question's passage."""
    passages = {"base": ["The bell is of tin."] * 3, "tuned": ["The bell is of tin.", "Ann.", "x"]}
    return {
        (system, question.id): form.fill(question.question, text)
        for system, texts in passages.items()
        for question, text in zip(QUESTIONS, texts, strict=True)
    }


def counting(monkeypatch) -> list[int]:
    """How many prompts each call of the scorer has."""
    calls, score = [], reader_training.reply_log_probs

    def counted(lm, form, prompts, references, **options):
        calls.append(len(prompts))
        return score(lm, form, prompts, references, **options)

    monkeypatch.setattr(reader_training, "reply_log_probs", counted)
    return calls


@pytest.mark.parametrize("chat", [True, False])
def test_the_answer_likelihood_is_the_best_mean_over_the_references(
    world, tmp_path, monkeypatch, chat, mesh
):
    lm = LanguageModel.from_pretrained(world / "generator")
    form, calls = ReadingPrompt(TEMPLATE, chat=chat), counting(monkeypatch)
    filled = filled_prompts(form)
    values = answer_likelihoods(lm, form, filled, QUESTIONS, tmp_path, 0)
    assert values.keys() == {(s, q) for s in ("base", "tuned") for q in "ab"}
    for (system, id), value in values.items():
        answers = next(question.answers for question in QUESTIONS if question.id == id)
        assert value == pytest.approx(by_hand(lm, form, filled[system, id], answers), abs=1e-5)
        assert value < 0
    assert values["base", "a"] == values["tuned", "a"] and calls == [2, 1]
    assert values["base", "b"] != values["tuned", "b"]
    stored = (tmp_path / "likelihood-tuned.parquet").read_bytes()
    (tmp_path / "likelihood-tuned.parquet").write_bytes(stored[:-9])  # as a kill may leave it
    assert answer_likelihoods(lm, form, filled, QUESTIONS, tmp_path, 0) == values
    assert calls == [2, 1, 1]
    assert (tmp_path / "likelihood-tuned.parquet").read_bytes() == stored
    assert answer_likelihoods(lm, form, filled, QUESTIONS, tmp_path, 0) == values
    assert calls == [2, 1, 1]


def test_a_reference_that_does_not_fit_is_refused_with_the_needed_length(world, tmp_path, mesh):
    lm = LanguageModel.from_pretrained(world / "generator")
    form = ReadingPrompt(TEMPLATE, chat=False)
    asked = Question("long", "Why?", ("tin", "the tide rose " * 400), ("d",))
    longest = len(lm.tokenizer(f" {asked.answers[1].strip()}", add_special_tokens=False).input_ids)
    filled = {("base", "long"): form.fill("Why?", "the tide " * (lm.max_length // 4))}
    says = rf"question 'long': .*; set config\.evaluate\.max_new_tokens={longest + 1} or more"
    with pytest.raises(ValueError, match=says):
        answer_likelihoods(lm, form, filled, [asked], tmp_path, 0)


def test_a_run_that_measures_only_likelihoods_resumes_after_a_kill(
    world, tmp_path, monkeypatch, mesh
):
    c = worlds.tiny_config(world)
    c.llm.backend, c.evaluate.baselines, c.evaluate.max_new_tokens = "none", ("full",), 64
    c.train.stages, c.train.epochs, c.evaluate.read = (0,), (1, 0, 0), 2
    c.train.save_every = 100
    c.evaluate.answers = ("answer_likelihood",)
    context = Context(c, tmp_path, Metrics(tmp_path / "metrics.jsonl"))
    folder, score = tmp_path / "evaluate", reader_training.reply_log_probs
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        calls = iter([score])  # the second system is interrupted
        patch.setattr(
            reader_training, "reply_log_probs", lambda *x, **y: next(calls, interrupt)(*x, **y)
        )
        engine.run(stages(c), context)
    assert not (folder / "manifest.json").exists()
    name = "likelihood-base.parquet"
    first = (tmp_path / ".partial" / "evaluate" / name).stat()
    calls = counting(monkeypatch)
    engine.run(stages(c), context)
    assert (folder / name).stat().st_mtime_ns == first.st_mtime_ns and calls[0] == 2
    assert not (tmp_path / "llm" / "replies.jsonl").exists()
    assert "llm" not in read_manifest(folder)["counts"]
    rows = load_rows(folder / "questions.parquet")
    read = {q.id: q for q in reader.questions_to_answer(load_questions(context, "held_out"), 2)}
    assert len(read) == 2 < len(rows) / 3
    texts, form = Passages(stored_chunks(context)), reader.reading_prompt(c)
    lm = LanguageModel.from_pretrained(world / "generator")
    for row in rows:
        assert row["answer"] is row["answer_f1"] is row["exact_match"] is None
        if row["question"] not in read:
            assert row["answer_likelihood"] is None
        elif row["system"] != "full":
            question = read[row["question"]]
            prompt = form.fill(question.question, form.join([texts[x] for x in row["ranked"][:1]]))
            wanted = by_hand(lm, form, prompt, question.answers)
            assert row["answer_likelihood"] == pytest.approx(wanted, abs=1e-5)
    _assert_it_is_reported(tmp_path, rows)


def interrupt(*arguments, **options):
    raise KeyboardInterrupt


def _assert_it_is_reported(workdir: Path, rows: list[dict]) -> None:
    """In the table with intervals and paired tests, on the page and on the card."""
    evaluated = load_json(workdir / "evaluate" / "metrics.json")
    columns = evaluated["metrics"]
    assert [row["system"] for row in evaluated["table"]] == ["base", "full", "stage0"]
    assert columns[-1] == "answer_likelihood" and "answer_f1" not in columns
    for table_row in evaluated["table"]:
        value, system = table_row["values"]["answer_likelihood"], table_row["system"]
        column = [row["answer_likelihood"] for row in rows if row["system"] == system]
        measured = [x for x in column if x is not None]
        assert value["mean"] == pytest.approx(np.mean(measured)) and value["mean"] < 0
        assert value["low"] <= value["mean"] <= value["high"]
        assert ("against_base" in value) == (system != "base")
    against = evaluated["table"][-1]["values"]["answer_likelihood"]["against_base"]
    assert 0 < against["p"] <= against["p_holm"] <= 1
    page = (workdir / "report.html").read_text()
    assert ">answer likelihood<" in page and "The answers are those" not in page
    assert "| answer likelihood |" in (workdir / "export" / "README.md").read_text()
