"""ARK's reader, trained on the training questions' own evidence."""

import pytest
from support import world as worlds

from ark_jax.evaluate.reading import ReadingPrompt
from ark_jax.models.language import LanguageModel
from ark_jax.pipeline import engine
from ark_jax.pipeline.manifest import read_manifest
from ark_jax.pipeline.stage import Context
from ark_jax.recipes.ark.recipe import stages
from ark_jax.recipes.core import ask
from ark_jax.recipes.documents import reader
from ark_jax.runtime.log import Metrics

STAGES = ("data", "candidates", "warm")


def tiny_config(world):
    c = worlds.tiny_config(world)
    c.reader.warm, c.reader.steps, c.reader.batch, c.reader.learning_rate = True, 8, 2, 1e-2
    c.llm.backend, c.evaluate.passages, c.evaluate.gold = "none", 2, "answers"
    return c


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Context:
    """The stages up to a trained reader."""
    root = worlds.make_world(tmp_path_factory.mktemp("reader"))
    c = tiny_config(root)
    context = Context(c, root / "w", Metrics(root / "w" / "metrics.jsonl"))
    engine.run([stage for stage in stages(c) if stage.name in STAGES], context)
    return context


def test_the_reader_is_trained_only_on_request(tmp_path):
    names = [stage.name for stage in stages(tiny_config(tmp_path))]
    assert names.index("candidates") < names.index("warm") < names.index("evaluate")
    assert "warm" not in {stage.name for stage in stages(worlds.tiny_config(tmp_path))}


@pytest.mark.slow
def test_the_trained_reader_answers_with_its_own_prompt(run, monkeypatch, mesh):
    manifest = read_manifest(run / "warm")
    assert manifest["inputs"].keys() == {"data", "candidates"}
    counts = manifest["counts"]
    assert counts["steps"] == 8 and counts["last_loss"] < counts["first_loss"]
    tuned = LanguageModel.from_pretrained(run / "warm" / "model")
    form = reader.reading_prompt(run.config)
    assert ReadingPrompt.read(run / "warm" / "model") == form and not form.chat
    prompt = form.fill("Who keeps the lamp?", "Ann keeps the lamp.")
    loaded = []
    load = ask.load_generator
    monkeypatch.setattr(ask, "load_generator", lambda *x: loaded.append(x[1]) or load(*x))
    replies, _ = reader.answer_prompts(run, [prompt], form)
    assert loaded == [str(run / "warm" / "model")]
    (direct,) = tuned.generate([tuned.as_data(prompt)], max_new_tokens=4, stop=form.stop)
    assert replies[prompt] == form.parse(direct, 1).answer


@pytest.mark.slow
def test_a_trained_reader_has_its_own_reply_cache(run):
    warm = ask.llm_settings(run.config, "reader", str(run / "warm" / "model"))
    assert warm.model != ask.llm_settings(run.config, "reader").model


@pytest.mark.slow
def test_the_report_mentions_the_trained_reader(run, mesh):
    engine.run(stages(run.config), run)
    page = (run / "report" / "report.html").read_text()
    assert "The answers are those of generator trained in this run." in page
    assert "generator, trained in 8 steps" in page


def test_training_a_remote_reader_is_refused(tmp_path):
    c = tiny_config(tmp_path)
    c.reader.backend = "openai"
    with pytest.raises(ValueError, match="warm=True trains a local reader"):
        stages(c)
