"""Readers measured on held-out questions, in a run whose readers have learned a little."""

import jax
import numpy as np
import pytest
from support import bar_world

from ark_jax.evaluate import answers
from ark_jax.evaluate.reading import ReadingPrompt
from ark_jax.layout import make_mesh
from ark_jax.models.language import LanguageModel
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_json, load_rows
from ark_jax.recipes.ark import config as ark_config
from ark_jax.recipes.bar_rag import evaluate, rollouts
from ark_jax.recipes.bar_rag.recipe import RECIPE
from ark_jax.recipes.bar_rag.selectors import PoolVectors
from ark_jax.recipes.documents import reader
from ark_jax.recipes.documents.corpus import stored_chunks
from ark_jax.select.scorer import Selector

pytestmark = pytest.mark.slow

READERS = ["untuned", "warm", "read-1"]


def sets(run: Context, **wanted) -> list[dict]:
    rows = load_rows(run / "evaluate" / "sets.parquet")
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def texts(run: Context) -> dict[str, str]:
    return {id: chunk.passage for id, chunk in stored_chunks(run).by_id.items()}


def test_every_reader_reads_the_same_passages(run):
    questions = evaluate.measured_questions(run)
    pools = {pooled.id: list(pooled.chunk_ids) for pooled in questions}
    assert len(pools) == 4 and {len(ids) for ids in pools.values()} == {4}
    for kind, count in ((evaluate.RETRIEVED, 2), ("top 1", 1), ("top 3", 3)):
        for system in READERS:
            rows = sets(run, system=system, set=kind)
            chunk_ids = {row["question"]: row["chunk_ids"] for row in rows}
            assert chunk_ids == {id: ids[:count] for id, ids in pools.items()}
            assert all(row["answer"] is not None for row in rows)
    passages = texts(run)
    for system in READERS:
        rows = sets(run, system=system, set=evaluate.NEEDED)
        passages_read = {row["question"]: [passages[x] for x in row["chunk_ids"]] for row in rows}
        assert passages_read == {
            pooled.id: [
                f"The bell of {pooled.question.documents[0]} is of {pooled.question.answers[0]}."
            ]
            for pooled in questions
        }


def test_stored_likelihoods_and_answers_equal_those_of_the_model(run):
    rows, passages = sets(run, system="warm", set=evaluate.RETRIEVED), texts(run)
    asked = {pooled.id: pooled.question for pooled in evaluate.measured_questions(run)}
    questions = [asked[row["question"]] for row in rows]
    assert questions
    form = ReadingPrompt.read(run / "warm" / "model")
    with jax.set_mesh(make_mesh((1, 1, 1))):
        lm = LanguageModel.from_pretrained(run / "warm" / "model")
        prompts = [
            form.fill(question.question, form.join([passages[x] for x in row["chunk_ids"]]))
            for question, row in zip(questions, rows, strict=True)
        ]
        words = [f" {question.answers[0]}" for question in questions]
        encoded = lm.tokenizer(words, add_special_tokens=False)["input_ids"]
        scores = lm.token_log_likelihood(
            lm.prompt_ids(prompts), [[*ids, lm.end_id] for ids in encoded]
        )
        replies = lm.generate(prompts, max_new_tokens=3)
    for row, question, score, reply in zip(rows, questions, scores, replies, strict=True):
        assert row["p"] == pytest.approx(np.exp(score.sum()), rel=1e-4)
        assert row["p"] > 0.01  # it has learned that there are two metals
        assert row["answer"] == answers.first_line(reply)
        assert row["exact_match"] == answers.exact_match(row["answer"], question.answers)
        assert row["document"] == question.documents[0]


def test_cited_passages_are_removed_or_kept(run):
    """The warm reader answers with a metal, which some of the passages that it got name."""
    passages, cited = texts(run), 0
    retrieved = sets(run, set=evaluate.RETRIEVED)
    warm = [row["answer"] for row in retrieved if row["system"] == "warm"]
    assert set(warm) <= set(bar_world.METALS)
    for row in retrieved:
        key = {"system": row["system"], "question": row["question"]}
        without = sets(run, set=evaluate.WITHOUT_CITED, **key)
        alone = sets(run, set=evaluate.CITED_ALONE, **key)
        holding = [x for x in row["chunk_ids"] if row["answer"] and row["answer"] in passages[x]]
        assert row["cited"] == holding
        if not holding:
            assert not without and not alone
            continue
        cited += 1
        assert alone[0]["chunk_ids"] == holding and alone[0]["answer"] is not None
        assert without[0]["chunk_ids"] == [x for x in row["chunk_ids"] if x not in holding]
    assert cited


def test_readers_are_compared_with_the_warm_one(run):
    metrics = load_json(run / "evaluate" / "metrics.json")
    assert [row["system"] for row in metrics["table"]] == READERS and metrics["base"] == "warm"
    rows = sets(run, set=evaluate.RETRIEVED)
    for row in metrics["table"]:
        values = [x["p"] for x in rows if x["system"] == row["system"]]
        assert row["values"]["p"]["mean"] == pytest.approx(np.mean(values))
        assert ("against_base" in row["values"]["p"]) == (row["system"] != "warm")
    untuned, warm, _ = (row["values"]["p"] for row in metrics["table"])
    # The questions of two documents have two signs.
    assert untuned["against_base"]["p"] == 0.5
    assert warm["mean"] > 10 * untuned["mean"]
    assert list(metrics["sizes"]) == ["1", "3"]
    for kind, table in (("top 3", metrics["sizes"]["3"]), (evaluate.NEEDED, metrics["needed"])):
        for row in table:
            kind_rows = sets(run, system=row["system"], set=kind)
            for metric in evaluate.METRICS:
                mean = np.mean([x[metric] for x in kind_rows])
                assert row["values"][metric]["mean"] == pytest.approx(mean)
    (few,) = RECIPE.stages(run.config)[2].doubts(run / "baselines")
    assert few.startswith("4 questions miss most gains")
    said = RECIPE.conclusion(run.workdir)
    assert said[0].startswith("read-1 ships, unchosen") and "against untuned +" in said[1]
    for page in ("report.html", "export/README.md"):
        assert said[0] in (run.workdir / page).read_text()
    outcome = RECIPE.outcome(run.workdir)
    assert outcome.system == "read-1" and set(outcome.values) == set(RECIPE.metrics)


def test_ways_to_choose_passages_are_compared_with_one_reader(run):
    ways = load_json(run / "evaluate" / "metrics.json")["ways"]
    assert ways["reader"] == "warm"
    assert [row["system"] for row in ways["table"]] == ["random", "nearest", "selected"]
    for way, counts in ways["histograms"].items():
        rows = sets(run, set=way)
        assert len(rows) == sum(counts) == 4 and {len(row["chunk_ids"]) for row in rows} == {2}
        assert {row["system"] for row in rows} == {"warm"}
    # Both read the two nearest chunks.
    nearest, retrieved = sets(run, set="nearest"), sets(run, system="warm", set="retrieved")
    assert [row["p"] for row in nearest] == [row["p"] for row in retrieved]
    chosen = {row["question"]: row["chunk_ids"] for row in sets(run, set="selected")}
    pools = evaluate.measured_questions(run)
    with jax.set_mesh(make_mesh((1, 1, 1))):
        folder = run / "select-1" / "selector"
        best = Selector.from_pretrained(folder).best(PoolVectors(run).pools(pools), k=2)
    for pooled, one in zip(pools, best, strict=True):
        assert chosen[pooled.id] == [pooled.chunk_ids[place] for place in one.sets[0]]


def test_the_last_reader_is_exported_with_its_prompt(run):
    export, trained = run / "export", run / "read-1" / "model"
    for path in trained.iterdir():
        assert (export / path.name).read_bytes() == path.read_bytes()
    card = (export / "README.md").read_text()
    assert card.startswith("---\n") and card.count("\n# ") == 1 and "| read-1 |" in card
    assert "reading_prompt.json" in card and "AutoModelForCausalLM" in card


def test_ark_uses_the_prompt_of_an_exported_reader(run):
    c = ark_config.ark()
    c.reader.path = str(run / "export")
    form = reader.reading_prompt(c)
    assert form == ReadingPrompt.read(run / "warm" / "model") and not form.chat
    assert form.fill("Who?", form.join(["A.", "B."])) == "A.\n\nB.\n\nQuestion: Who?\nAnswer:"


def test_the_report_page_shows_all_measurements(run):
    page = (run.workdir / "report.html").read_text()
    for head in (
        "exact match by number of passages",
        "The needed passages alone",
        "Without cited passages",
        "All questions",
    ):
        assert head in page
    assert "differences to warm" in page and "the warm reader on the held-out questions" in page
    assert "Reward of select-1" in page and "Reward of read-1" in page
    assert "Answer probability of selected and of random sets" in page
    assert 'id="reward-2-title"' in page and 'id="reward-3-title"' not in page


def test_measured_readers_are_not_loaded_again(run, tmp_path, monkeypatch):
    with jax.set_mesh(make_mesh((1, 1, 1))):
        rows = evaluate.measure_reader(run, "warm", tmp_path)
    assert rows == load_rows(run / "test-warm" / "sets.parquet")
    monkeypatch.setattr(rollouts, "load_reader", None)
    assert evaluate.measure_reader(run, "warm", tmp_path) == rows


def test_without_a_warm_start_only_one_reader_is_measured(run, world, tmp_path):
    """So a reader of another run is measured on other questions."""
    context = bar_world.context_of(world, run.workdir, **{"warm.steps": 0})
    with jax.set_mesh(make_mesh((1, 1, 1))):
        evaluate.measure_warm(context, tmp_path)
    assert not list(tmp_path.glob("sets-*"))
    untuned = load_rows(run / "baselines" / "sets.parquet")
    assert {row["system"] for row in untuned} == {"untuned"}
    assert [row | {"system": "warm"} for row in untuned] == load_rows(tmp_path / "sets.parquet")
