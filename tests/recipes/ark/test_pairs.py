"""ARK on pairs and triplets: questions without answers, no language model, no graph."""

import json
import runpy
from pathlib import Path

import pytest
from support.world import make_world, tiny_config

from ark_jax import new_config
from ark_jax.data.formats.beir import write_beir
from ark_jax.data.records import Corpus, Document, Question
from ark_jax.estimate import devices, plan
from ark_jax.pipeline import engine
from ark_jax.pipeline.manifest import read_manifest
from ark_jax.pipeline.tables import load_rows
from ark_jax.recipes.ark import curriculum
from ark_jax.recipes.ark.alignment import load_positives
from ark_jax.recipes.ark.recipe import RECIPE, stages
from ark_jax.recipes.ark.train import learned_questions
from ark_jax.recipes.documents import choice
from ark_jax.recipes.documents.corpus import load_questions, stored_chunks
from ark_jax.runtime.log import Metrics

WORDS = ("tide", "lamp", "salt", "lathe", "wool", "pilot", "bell", "ledger", "strike", "harbour")
TEXTS = [f"The clerk kept every {word} of the town at the old quay." for word in WORDS]


def write_triplets(path: Path) -> Path:
    """A question for each text; the next text is its negative, and so is a copy of its own."""
    rows = [
        {
            "query": f"who kept the {word}?",
            "pos": [text],
            "neg": [TEXTS[(i + 1) % len(TEXTS)], text.replace(" ", "  ", 1)],
        }
        for i, (word, text) in enumerate(zip(WORDS, TEXTS, strict=True))
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def config_of(world: Path, data: Path):
    """The config that `ark-jax init` writes, with tiny models."""
    path = world / "pairs_config.py"
    path.write_text(new_config.config_text(new_config.draft_config(str(data), {}), str(path)))
    written = runpy.run_path(str(path))["get_config"]()
    c = tiny_config(world)
    c.data.path, c.data.held_out_documents = written.data.path, ()
    c.score.supervision, c.mine.by = written.score.supervision, written.mine.by
    assert written.questions.source == "given" and written.score.development == 0
    c.generator.path = str(world / "no-such-model")  # nothing opens it
    return c


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    root = tmp_path_factory.mktemp("pairs")
    c = config_of(make_world(root), write_triplets(root / "pairs.jsonl"))
    c.score.development = 0.4
    context = engine.Context(c, root / "w", Metrics(root / "w" / "metrics.jsonl"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choice, "ENOUGH", 1)
        engine.run(stages(c), context)
    return context


def learned_from(run) -> list[Question]:
    learned = learned_questions(run)
    return [question for question in load_questions(run, "train") if question.id in learned]


def test_training_on_pairs_needs_no_language_model_or_graph(run):
    names = [stage.name for stage in stages(run.config)]
    assert not {"extract", "graph", "communities", "rewrite"} & {*names}
    assert all((run.workdir / name / "manifest.json").is_file() for name in names)
    assert (run.workdir / "export" / "model.safetensors").is_file()
    counts = lambda stage: read_manifest(run / stage)["counts"]
    assert counts("score")["scored"] == 0 and counts("data")["pool"] == "corpus"
    assert counts("stage3")["steps"] > 0
    assert counts("evaluate")["answered"] == 0
    assert "generator" not in run.models


def test_positives_are_the_marked_documents(run):
    questions = learned_from(run)
    assert questions and not any(question.answers for question in questions)
    by_document = stored_chunks(run).by_document
    positives = load_positives(run / "positives")
    assert positives == {
        q.id: [chunk.id for d in q.documents for chunk in by_document[d]] for q in questions
    }


@pytest.mark.parametrize("stage", [2, 3])
def test_given_negatives_come_first_without_copies_of_a_positive(run, stage):
    negatives = curriculum.load_negatives(run / curriculum.mine_name(stage))
    chunks = stored_chunks(run).by_id
    for question in learned_from(run):
        given, copy = question.negatives
        assert chunks[negatives[question.id][0]].document == given
        assert copy not in {chunks[id].document for id in negatives[question.id]}


def test_the_page_has_the_systems_that_questions_set_aside_choose_from(run):
    aside = len(load_questions(run, "train")) - len(learned_from(run))
    page = (run.workdir / "report.html").read_text(encoding="utf-8")
    assert aside and f"Means over {aside} training questions that trained nothing" in page
    assert "Systems that may ship" in page


def test_relevance_of_held_out_questions_is_judged_by_documents(run):
    rows = load_rows(run / "evaluate" / "questions.parquet")
    assert {row["system"] for row in rows} >= {"base", "stage1", "stage2", "stage3"}
    assert all(row["ndcg@10"] is not None and row["answer"] is None for row in rows)
    card = (run / "export" / "README.md").read_text(encoding="utf-8")
    assert "Relevant are the documents of the question. Each question searches the whole" in card


def test_a_beir_folder_without_answers_trains_on_whole_documents(tmp_path):
    texts = {word: " ".join([text] * 9) for word, text in zip(WORDS, TEXTS, strict=True)}
    documents = [Document(word, "", text) for word, text in texts.items()]
    questions = [Question(f"q-{word}", f"who kept the {word}?", (), (word,)) for word in WORDS]
    write_beir(Corpus(documents, questions, "beir"), tmp_path / "beir")
    c = config_of(make_world(tmp_path), tmp_path / "beir")
    context = engine.Context(c, tmp_path / "w", Metrics(tmp_path / "w" / "metrics.jsonl"))
    for name in ("data", "candidates", "score", "positives"):
        engine.run(stages(c), context, only=name)
    positives, trained = load_positives(context / "positives"), load_questions(context, "train")
    assert positives.keys() == {question.id for question in trained}
    assert all(len(chunks) > 1 for chunks in positives.values())
    assert {id.removeprefix("q-") for id in positives} == {
        stored_chunks(context).by_id[chunk].document for own in positives.values() for chunk in own
    }
    c.score.development = 0.4
    engine.run(stages(c), context, only="positives")
    learned = load_positives(context / "positives")  # the others choose what ships
    assert learned and learned.keys() < positives.keys()
    assert learned == {id: positives[id] for id in learned}
    assert {*learned} == {*learned_questions(context)}


def test_a_question_of_the_corpus_is_neither_its_candidate_nor_its_negative(tmp_path):
    asked = {word: f"Is the {word} of the town kept?" for word in WORDS}
    documents = [Document(word, "", text) for word, text in zip(WORDS, TEXTS, strict=True)]
    documents += [Document(f"q-{word}", "", text) for word, text in asked.items()]
    questions = [Question(f"q-{word}", text, (), (word,)) for word, text in asked.items()]
    write_beir(Corpus(documents, questions, "beir"), tmp_path / "beir")
    c = config_of(make_world(tmp_path), tmp_path / "beir")
    c.train.stages, c.mine.negatives, c.mine.margin = (0,), len(documents), 0.0
    context = engine.Context(c, tmp_path / "w", Metrics(tmp_path / "w" / "metrics.jsonl"))
    for name in ("data", "candidates", "score", "positives", "mine0"):
        engine.run(stages(c), context, only=name)
    by_id = stored_chunks(context).by_id
    candidates = load_rows(context / "candidates" / "candidates.parquet")
    mined = load_rows(context / "mine0" / "negatives.parquet")
    documents_of = lambda rows: {(x["question"], by_id[x["chunk"]].document) for x in rows}
    other = {f"q-{word}" for word in WORDS}
    for found in (documents_of(candidates), documents_of(mined)):
        assert found and not any(question == document for question, document in found)
        assert other & {document for _, document in found}


def test_a_plan_for_pairs_contains_only_embedding_and_training(run, tmp_path, monkeypatch, mesh):
    monkeypatch.setattr(devices, "product_speed", lambda *_: 1e9)
    root = run.workdir.parent
    c = config_of(root, root / "pairs.jsonl")
    c.generator.path = str(root / "generator")  # a plan opens the tokenizer of each model
    planned = plan.estimate(RECIPE, c, tmp_path)
    assert planned.inputs["training questions"] == len(load_questions(run, "train"))
    works = [cost.work for cost in planned.costs]
    assert {work.kind for work in works} == {"embedding", "training"}
    assert not any(work.stage == "score" for work in works)
