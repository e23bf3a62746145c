"""The baselines stage measures untrained systems and doubts that training helps."""

import pytest
from support.ranking import QUESTIONS

from ark_jax.pipeline.tables import load_json, load_rows
from ark_jax.recipes.ark import config
from ark_jax.recipes.ark.recipe import stages
from ark_jax.recipes.core import baselines
from ark_jax.recipes.core.baselines import stored_doubts
from ark_jax.recipes.documents import evaluate
from ark_jax.recipes.documents.retrieve import ranked_file


@pytest.fixture
def measured(run, capsys):
    """The folder of the finished stage, and what it said."""
    run.c.evaluate.baselines, run.c.evaluate.hybrids = (), ()
    folder = run.folder / "w" / baselines.STAGE
    folder.mkdir()
    evaluate.measure_baselines(run.context, folder)
    return folder, capsys.readouterr().out


def test_bm25_base_and_both_are_measured_whatever_the_final_table_has(measured):
    folder, said = measured
    stored = load_json(folder / baselines.FILE)
    assert [row["system"] for row in stored["table"]] == ["base", "bm25", "bm25+base"]
    words = load_rows(ranked_file(folder, "bm25"))
    assert [row["ranked"][0] for row in words] == ["a#1", "b#1"]
    assert stored["table"][1]["values"]["mrr"]["mean"] == 1.0
    for row in stored["table"]:
        assert f"\n  {row['system']} " in said
    assert f"{len(QUESTIONS)} held-out questions: a test would likely miss" in said


def test_doubts_are_stored_printed_and_noted_in_a_plan(measured, run):
    folder, said = measured
    doubts = stored_doubts(folder)
    ceiling, few = doubts
    assert ceiling.startswith("base reaches 1.000 in recall@10: ") and "larger pool" in ceiling
    assert few.startswith("2 questions miss most gains below 0.48") and "sweep=folds" in few
    assert all(f"  {doubt}\n" in said for doubt in doubts)
    notes = evaluate.notes_for_plan(run.context, {"data", baselines.STAGE})
    assert notes[0].startswith("without training nDCG@10 is base ") and notes[1:] == doubts
    assert not evaluate.notes_for_plan(run.context, {"data"})
    (folder / baselines.FILE).unlink()  # as a run of an earlier version leaves it
    assert not evaluate.notes_for_plan(run.context, {"data", baselines.STAGE})


def test_baselines_come_before_the_costly_stages():
    c = config.ark()
    c.retriever.path = c.generator.path = "a-name/that-is-not-fetched"
    names = lambda: [stage.name for stage in stages(c)]
    assert names()[:3] == ["data", "baselines", "candidates"]
    c.search.expand, c.llm.backend = "hyde", "local"  # whose passages a language model writes
    assert names()[:5] == ["data", "candidates", "extract", "graph", "baselines"]
    c.search.expand, c.questions.source = "none", "written"
    at = names().index("questions")
    assert names()[at : at + 3] == ["questions", "baselines", "candidates"]
