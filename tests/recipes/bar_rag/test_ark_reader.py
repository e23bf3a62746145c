"""ARK's table with a reader that BAR-RAG tuned, or that ARK warms up itself, from end to end."""

import jax
import pytest
from support import world as worlds

from ark_jax.layout import make_mesh
from ark_jax.models.language import LanguageModel
from ark_jax.pipeline import engine
from ark_jax.pipeline.manifest import read_manifest
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_json, load_rows
from ark_jax.recipes.ark.recipe import stages
from ark_jax.recipes.documents import reader
from ark_jax.recipes.documents.corpus import stored_chunks
from ark_jax.runtime.log import Metrics

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return worlds.make_world(tmp_path_factory.mktemp("ark"))


@pytest.mark.parametrize("tuned_by", ["bar_rag", "ark"])
def test_ark_measures_a_tuned_reader(run, corpus, tmp_path, tuned_by):
    c = worlds.tiny_config(corpus)
    c.llm.backend, c.evaluate.gold = "none", "answers"
    if tuned_by == "bar_rag":
        c.reader.path = str(run / "export")
    else:
        c.reader.warm, c.reader.steps, c.reader.batch = True, 4, 2
    context = Context(c, tmp_path, Metrics(tmp_path / "metrics.jsonl"))
    engine.run(stages(c), context)
    folder = c.reader.path if tuned_by == "bar_rag" else tmp_path / "warm" / "model"
    assert ("warm" in {path.name for path in tmp_path.iterdir()}) == (tuned_by == "ark")
    table = load_json(tmp_path / "evaluate" / "metrics.json")["table"]
    assert len(table) > 1 and all("answer_f1" in row["values"] for row in table)
    assert read_manifest(tmp_path / "evaluate")["counts"]["questions"]
    rows = load_rows(tmp_path / "evaluate" / "questions.parquet")
    chunks, form = stored_chunks(context).by_id, reader.reading_prompt(c)
    assert not form.chat and form.template.endswith("Answer:")
    last = table[-1]["system"]
    rankings = [row for row in rows if row["system"] == last and row["answer"] is not None]
    assert rankings
    questions = {
        row["id"]: row["question"]
        for row in load_rows(tmp_path / "data" / "questions_held_out.parquet")
    }
    with jax.set_mesh(make_mesh((1, 1, 1))):
        lm = LanguageModel.from_pretrained(folder)
        prompts = [
            form.for_model(
                lm,
                form.fill(
                    questions[row["question"]],
                    form.join([chunks[x].passage for x in row["ranked"][:1]]),
                ),
            )
            for row in rankings
        ]
        replies = lm.generate(prompts, max_new_tokens=4, stop=form.stop)
    assert [row["answer"] for row in rankings] == [form.parse(x, 1).answer for x in replies]
