"""A reranker or the retriever learns alignment scores: lists, stages, and what is refused."""

import json
import math
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from support import pairs, tiny

from ark_jax.data.records import Chunk, Question
from ark_jax.data.spool import save_chunks
from ark_jax.models.pairs import CrossEncoder
from ark_jax.models.retriever import Retriever
from ark_jax.pipeline import engine
from ark_jax.pipeline.manifest import read_manifest
from ark_jax.pipeline.tables import save_json, save_rows
from ark_jax.recipes.ark import config, train
from ark_jax.recipes.ark.recipe import check_ark, stages
from ark_jax.recipes.documents.corpus import POOL_FILE
from ark_jax.runtime import preemption
from ark_jax.runtime.log import Metrics
from ark_jax.train import example_files, fit

pytestmark = pytest.mark.usefixtures("mesh")
WORDS = ("tide", "lamp", "salt", "wool", "bell")
TEXTS = [*(f"the clerk kept the {word}" for word in WORDS), "the clerk kept the lamp"]
CHUNKS = [Chunk(f"a#{i}", "a", i, i + 1, 5, text) for i, text in enumerate(TEXTS)]
QUESTIONS = [
    Question(f"q{i}", f"who kept the {w}?", ("the clerk",), ("a",)) for i, w in enumerate(WORDS)
]
BEFORE = ("data", "positives", "mine3", "stage3")


def store_inputs(context: engine.Context, folder: Path) -> dict:
    """Stands in for the stages before: question 4 is not kept, chunk 5 is a copy of 1."""
    save_chunks(CHUNKS, folder)
    save_json({"pool": "documents"}, folder / POOL_FILE)
    save_rows(QUESTIONS, folder / "questions_train.parquet")
    rows = [
        {
            "question": question.id,
            "chunk": f"a#{j % 6}",
            "score": -1.0 - (j - i) / 2,
            "positive": j == i and i < 4,
        }
        for i, question in enumerate(QUESTIONS)
        for j in (i + 2, i, i + 1, *((5,) if i == 0 else ()))
    ]
    save_rows(rows, folder / "positives.parquet")
    mined = [{"question": q.id, "chunk": f"a#{(i + 3) % 6}"} for i, q in enumerate(QUESTIONS)]
    save_rows(mined, folder / "negatives.parquet")
    if folder.name.startswith("stage3"):
        shutil.copytree(context.config.retriever.path, folder / "model")
    return {}


@pytest.fixture(scope="module")
def retriever(tmp_path_factory):
    folder = tiny.write(tmp_path_factory.mktemp("retriever"), "bert", tokenizer="cls")
    return tiny.sentence_transformer(folder, pooling="mean", max_seq_length=40)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    return pairs.write_classifier(tmp_path_factory.mktemp("classifier"), "bert")


def settings(retriever: Path, classifier: Path):
    c = config.ark()
    c.train.stages = (1, 2, 3)
    c.retriever.path, c.mesh, c.train.kind = str(retriever), (1, 1, 1), "cross"
    c.reranker.path = str(classifier)
    c.train.batch, c.train.save_every = 2, 16
    c.reranker.epochs, c.reranker.learning_rate, c.train.teacher_temperature = 20, 3e-3, 0.7
    return c


def run(c, workdir: Path, name: str = "reranker") -> engine.Context:
    ordered = [engine.Stage(name, store_inputs) for name in BEFORE]
    ordered += [stage for stage in stages(c) if stage.name == name]
    context = engine.Context(c, workdir, Metrics(workdir / "metrics.jsonl"))
    engine.run(ordered, context)
    return context


@pytest.fixture(scope="module")
def finished(retriever, classifier, tmp_path_factory):
    """The config's context after its reranker was trained."""
    return run(settings(retriever, classifier), tmp_path_factory.mktemp("finished"))


def test_list_weights_are_the_softmax_of_the_scores(finished):
    lists = train.load_lists(finished, 3)
    assert [one.left for one in lists] == [question.question for question in QUESTIONS[:4]]
    # The positive is 1, the mined chunk 4 was not scored, 2 and 3 score half a nat less each.
    assert lists[1].rights == tuple(TEXTS[i] for i in (1, 4, 2, 3))
    raw = [1, 0, *(math.exp(-gap / 0.7) for gap in (0.5, 1))]
    np.testing.assert_allclose(lists[1].weights, [x / sum(raw) for x in raw], atol=1e-5)
    assert lists[1].weights[1] > 0
    # Of question 4 nothing is learned, of question 0 chunk 5 is no second lamp.
    assert lists[0].rights == tuple(TEXTS[i] for i in (0, 3, 1, 2))


def test_lists_have_at_most_the_configured_length(finished, retriever, classifier, tmp_path):
    c = settings(retriever, classifier)
    c.reranker.candidates = 2
    context = engine.Context(c, finished.workdir, finished.metrics)
    assert [len(one.rights) for one in train.load_lists(context, 3)] == [2] * 4
    c.reranker.candidates = 10
    assert [len(one.rights) for one in train.load_lists(context, None)] == [3, 3, 3, 3]


def test_the_trained_reranker_ranks_like_the_language_model(finished):
    folder = finished / "reranker"
    counts = json.loads((folder / "manifest.json").read_text())["counts"]
    assert counts["lists"] == 4 and counts["steps"] == 20 * 2
    lists = train.load_lists(finished, 3)
    entropy = -np.mean([np.dot(one.weights, np.log(one.weights)) for one in lists])
    assert entropy < counts["last_loss"] < counts["first_loss"] - 0.2
    scorer = CrossEncoder.from_pretrained(folder / "model")
    assert scorer.cfg.head == "linear"
    best = [np.argmax(scorer.score([(x.left, y) for y in x.rights])) for x in lists]
    assert best.count(0) >= 3


def test_a_resumed_reranker_stage_gives_the_same_bytes(
    finished, retriever, classifier, tmp_path, monkeypatch
):
    train_step = fit.train_step

    def step_and_stop(*args):
        if args[-1] + 1 == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        return train_step(*args)

    monkeypatch.setattr(fit, "train_step", step_and_stop)
    c = settings(retriever, classifier)
    with pytest.raises(preemption.Preempted, match="reranker: step 5"), preemption.raise_signals():
        run(c, tmp_path)
    monkeypatch.setattr(fit, "train_step", train_step)
    again = run(c, tmp_path)
    for name in ("curve.jsonl", "model/model.safetensors"):
        bytes_of = [(x / "reranker" / name).read_bytes() for x in (finished, again)]
        assert bytes_of[0] == bytes_of[1], name


def test_reranker_training_can_start_from_a_cross_encoder(retriever, classifier, tmp_path):
    c = settings(retriever, classifier)
    c.reranker.epochs, c.reranker.learning_rate = 1, 0.0
    context = run(c, tmp_path / "w")
    assert read_manifest(context / "reranker")["inputs"].keys() == {"data", "positives", "mine3"}
    asked = [("who?", text) for text in TEXTS]
    exported, base = (
        CrossEncoder.from_pretrained(folder).score(asked)
        for folder in (context / "reranker" / "model", c.reranker.path)
    )
    np.testing.assert_array_equal(exported, base)


def test_a_reranker_can_be_trained_as_an_adapter(retriever, classifier, tmp_path):
    c = settings(retriever, classifier)
    c.reranker.epochs = 1
    c.train.lora_rank, c.train.lora_targets = 2, ("q",)
    context = run(c, tmp_path)
    tuned = CrossEncoder.from_pretrained(context / "reranker" / "model").model.body.blocks
    begun = CrossEncoder.from_pretrained(classifier).model.body.blocks
    assert not np.array_equal(tuned.q[...], begun.q[...])
    np.testing.assert_array_equal(tuned.k[...], begun.k[...])


def test_an_encoder_or_an_unknown_model_may_be_the_base(retriever, classifier):
    c = settings(retriever, classifier)
    train.check_base(c)
    c.reranker.path = "owner/model-that-no-cache-has"
    train.check_base(c)


def test_another_family_is_refused_before_any_work(retriever, classifier, tmp_path):
    c = settings(retriever, classifier)
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    c.reranker.path = str(tmp_path)
    with pytest.raises(ValueError, match=r"config.reranker.path='.*': model_type 't5' cannot"):
        run(c, tmp_path / "w")
    assert not (tmp_path / "w" / "reranker").exists()


@pytest.mark.parametrize("rank", [0, 2])
def test_a_decoder_learns_a_table_of_scores_without_other_stages(rank, retriever, tmp_path):
    rows = [
        {"question": question.question, "passage": text, "score": float(j == 2) - j / 10}
        for question in QUESTIONS
        for j, text in enumerate(TEXTS[:5])
    ]
    (tmp_path / "scores.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    c = settings(retriever, pairs.write_yes_no(tmp_path / "decoder"))
    c.reranker.scores, c.reranker.candidates = str(tmp_path / "scores.jsonl"), 4
    c.score.supervision, c.train.teacher_temperature, c.reranker.epochs = "gold", 0.3, 8
    c.train.lora_rank = rank
    check_ark(c)
    context = engine.Context(c, tmp_path / "w", Metrics(tmp_path / "metrics.jsonl"))
    engine.run(stages(c), context, only="reranker")
    manifest = read_manifest(context / "reranker")
    assert not manifest["inputs"] and manifest["counts"]["lists"] == len(QUESTIONS)
    assert manifest["counts"]["last_loss"] < manifest["counts"]["first_loss"] - 0.1
    lists = train.load_lists(context, None)
    assert lists[1].rights == tuple(TEXTS[j] for j in (2, 0, 1, 3))
    scorer = CrossEncoder.from_pretrained(context / "reranker" / "model")
    best = [np.argmax(scorer.score([(x.left, y) for y in x.rights])) for x in lists]
    assert scorer.cfg.head == "answer" and best.count(0) >= 3


def test_distillation_trains_the_retriever_on_all_scored_chunks(retriever, classifier, tmp_path):
    """Of question 4 too, which is not kept; chunk 5 counts as chunk 1."""
    c = settings(retriever, classifier)
    c.train.kind, c.train.loss, c.train.teacher_temperature = "bi", "distil", 0.7
    c.train.stages, c.train.epochs, c.train.learning_rates = (1,), (12, 1, 1), (3e-3,) * 3
    folder = run(c, tmp_path, "stage1") / "stage1"
    raw = np.exp(-np.array([1, 0, 0.5]) / 0.7)
    candidates = [(2, 0, 1), (3, 1, 2), (4, 2, 3), (1, 3, 4), (0, 4, 1)]
    examples = example_files.read_examples(folder / "examples")
    assert [e.question for e in examples] == [question.id for question in QUESTIONS]
    for example, chunks in zip(examples, candidates, strict=True):
        assert example.positives == tuple(f"a#{k}" for k in chunks) and not example.negatives
        np.testing.assert_allclose(example.shares, raw / raw.sum(), rtol=1e-6)
    counts = json.loads((folder / "manifest.json").read_text())["counts"]
    assert counts["steps"] == 12 * 5 / 2 and counts["last_loss"] < counts["first_loss"] - 0.2
    tuned = Retriever.from_pretrained(folder / "model")
    queries = tuned.encode([question.question for question in QUESTIONS], kind="query")
    cosines = queries @ tuned.encode(TEXTS, kind="document").T
    for cosine, chunks in zip(cosines, candidates, strict=True):
        assert np.argmax(cosine[list(chunks)]) == 1


@pytest.mark.parametrize(
    ("train", "field", "value", "message"),
    [
        ("kind=cross", "score.supervision", "gold", "config.train.kind=cross learns alignment"),
        ("loss=distil", "score.supervision", "gold", "config.train.loss=distil learns alignment"),
        (
            "kind=cross",
            "reranker.path",
            "",
            "config.train.kind=cross begins as a cross-encoder: name",
        ),
        ("kind=cross", "evaluate.rerank", "a/b", "config.evaluate.rerank='a/b': config.train.kind"),
    ],
)
def test_contradictory_settings_are_refused(train, field, value, message):
    c = config.ark()
    name, _, chosen = train.partition("=")
    c.train[name] = chosen
    check_ark(c)
    c.update_from_flattened_dict({field: value})
    with pytest.raises(ValueError, match=message):
        check_ark(c)
