"""The training side of ARK's released code, and a second round, on a tiny world.

Sources are lines of valleysprings/ARK at a5c127b.
"""

import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from support import compare_workdirs, tiny, world
from support.paths import REPOSITORY

from ark_jax import Retriever, config
from ark_jax.data.records import Question
from ark_jax.data.spool import StoredChunks
from ark_jax.estimate import devices, plan
from ark_jax.pipeline import engine
from ark_jax.pipeline.tables import load_json, load_rows
from ark_jax.recipes.ark import curriculum
from ark_jax.recipes.ark.alignment import load_positives
from ark_jax.recipes.ark.recipe import RECIPE, check_ark, stages
from ark_jax.recipes.ark.train import learned_questions
from ark_jax.recipes.documents.corpus import load_questions
from ark_jax.runtime.log import Metrics
from ark_jax.train import batches, example_files

CHANGES = {
    "data.training_sentences": 1,
    "mine.model": "base",
    "mine.choose": "random",
    "mine.first": "document",
    "mine.margin": 0.0,
    "train.unit": "pair",
    "train.order": "question",
    "train.merge_copies": False,
    "train.stages": (1, 2),
    "train.epochs": (1, 1, 0),
    "train.learning_rates": (3e-2, 3e-2, 0.0),  # so that round 2 finds other candidates
    "train.batch": 16,
    "score.candidates": 6,
    "score.shard": 99,
    "evaluate.read": 0,
    "score.normalise": "minmax",
    "score.short": 10,
    "train.rounds": 2,
}
KEPT = 3  # negatives of a pair


def flags(root: Path) -> list[str]:
    changes = CHANGES | {"score.path": str(root / "other"), "mine.negatives": KEPT}
    return [f"--config.{name}={value}" for name, value in changes.items()]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = world.make_world(tmp_path_factory.mktemp("released"))
    other = tiny.write(folder / "other", "bert", tokenizer="cls")
    tiny.sentence_transformer(other, pooling="cls", max_seq_length=64)
    return folder


@pytest.fixture(scope="module")
def run(root):
    done = world.call(root, root / "w", "run", *flags(root))
    assert done.returncode == 0, done.stdout + done.stderr
    c = world.tiny_config(root)
    c.update_from_flattened_dict(CHANGES | {"score.path": str(root / "other")})
    c.mine.negatives = KEPT
    return engine.Context(c, root / "w", Metrics(root / "w" / "metrics.jsonl"))


def examples(run, stage: str) -> list:
    return example_files.read_examples(run.workdir / stage / "examples")


def test_the_released_switches_are_on_in_official_alone():
    """Each value with its line."""
    paper, official = (config.ark(name) for name in ("paper", "official"))
    # data_generator.py:76-92: 20 random chunks of the same document; alignment.yaml:59-68: at most
    # 20 drawn from the union of what the rewritten questions match, for each positive.
    assert (official.mine.first, official.mine.choose) == ("document", "random")
    assert official.mine.negatives == 20 and official.train.unit == "pair"
    # The evaluated checkpoint is multi_sentence_1_o_0/checkpoint-96: 3 epochs of 400 questions
    # x 10 positives in batches of 128.
    assert official.data.training_sentences == 1
    assert 3 * -(-400 * 10 // official.train.batch) == 96
    # generate_pos.sh:73 ./model/raw/bge-m3; generate_pos.py:580-585 score *= tokens / 10
    assert (official.score.path, official.score.short) == ("BAAI/bge-m3", 10)
    # Section 3.3.1 "the original retriever's similarity score", eq. 7 and 8, no discount.
    assert (paper.mine.first, paper.mine.choose) == ("none", "hardest")
    assert (paper.score.path, paper.score.short, paper.data.training_sentences) == ("", 0, 0)


def test_single_sentences_are_trained_on_and_longer_chunks_searched(run):
    """generate_pos.sh: --chunk_method sentence 1 0; run_inference.py: 512 tokens."""
    searched, trained = (StoredChunks(run / "data" / name) for name in ("", "training"))
    assert max(chunk.text.count(". ") for chunk in searched) > 1
    assert not any(". " in chunk.text for chunk in trained)
    assert np.mean([chunk.text.endswith(".") for chunk in trained]) > 0.5
    texts = {row["id"]: row["text"] for row in load_rows(run / "data" / "documents.parquet")}
    for document, own in trained.by_document.items():
        assert "".join("".join(x.text for x in own).split()) == "".join(texts[document].split())
    ids = set(trained.ids)
    for name in ("mine1", "mine2", "round2-mine2"):
        for kind in ("positives", "negatives"):
            rows = load_rows(run / name / f"{kind}.parquet")
            assert rows and {row["chunk"] for row in rows} <= ids
    ranked = load_rows(run / "evaluate" / "questions.parquet")[0]["ranked"]
    assert set(ranked) <= set(searched.ids)
    facts = {row["chunk"] for row in load_rows(run / "extract" / "entities.parquet")}
    assert facts <= set(searched.ids)


@pytest.mark.parametrize("number", [1, 2])
def test_another_retriever_scores_and_in_round_two_the_tuned_one(run, root, number, mesh):
    """generate_pos.sh:73 scores by bge-m3 what trains Qwen3."""
    name = ("score", "round2-score")[number - 1]
    model = (root / "other", run.workdir / "stage2" / "model")[number - 1]
    retriever = Retriever.from_pretrained(str(model))
    chunks = StoredChunks(run.workdir / "data" / "training").by_id
    asked = {q.id: q.question for q in load_questions(run, "train")}
    rows = load_rows(run.workdir / name / "scores.parquet")[:30:7]
    for row in rows:
        query = retriever.encode([asked[row["question"]]], kind="query")[0]
        text = retriever.encode([chunks[row["chunk"]].passage], kind="document")[0]
        assert row["retriever"] == pytest.approx(query @ text, abs=2e-5)


def test_round_two_takes_the_likelihoods_of_round_one(run):
    first, second = (
        {
            (row["question"], row["chunk"], row["answer"]): (row["forward"], row["backward"])
            for row in load_rows(run / name / "scores.parquet")
        }
        for name in ("score", "round2-score")
    )
    shared = first.keys() & second.keys()
    assert shared and all(first[key] == second[key] for key in shared)
    assert second.keys() - first.keys()  # the tuned retriever finds others, which are scored


def test_negatives_of_the_first_stage_are_drawn_from_the_document(run):
    """data_generator.py:76-92."""
    documents = {q.id: q.documents for q in load_questions(run, "train")}
    positives = load_positives(run / "positives")
    draws: dict[str, list] = {}
    for pair in examples(run, "stage1"):
        assert len(pair.positives) == 1 and len(set(pair.negatives)) == KEPT
        assert not set(pair.negatives) & set(positives[pair.question])
        assert {x.rpartition("#")[0] for x in pair.negatives} <= set(documents[pair.question])
        draws.setdefault(pair.question, []).append(pair.negatives)
    assert Counter(map(len, draws.values())) == {2: len(positives)}
    assert any(one != other for one, other in draws.values())  # fresh for each positive


@pytest.mark.parametrize("number", [1, 2])
def test_negatives_of_later_stages_are_drawn_from_all_that_rewrites_find(run, number):
    """data_generator.py: random.sample of the matched union, not its hardest."""
    union = curriculum.load_negatives(run / curriculum.mine_name(2, number))
    pairs = examples(run, curriculum.stage_name(2, number))
    assert max(map(len, union.values())) > KEPT
    assert all(set(pair.negatives) <= set(union[pair.question]) for pair in pairs)
    hardest = {question: tuple(chunks[:KEPT]) for question, chunks in union.items()}
    assert any(set(pair.negatives) != set(hardest[pair.question]) for pair in pairs)


def test_draws_depend_on_seed_question_and_positive_alone():
    pool = tuple(f"c{i}" for i in range(30))
    pairs = [batches.Example(q, "d", (p,), pool) for q in "ab" for p in "xy"]
    drawn = batches.draw_negatives(pairs, 5, 3)
    assert batches.draw_negatives(pairs[::-1], 5, 3)[::-1] == drawn
    assert len({x.negatives for x in drawn}) == 4 and all(len(x.negatives) == 5 for x in drawn)
    assert batches.draw_negatives(pairs, 5, 4) != drawn
    assert batches.draw_negatives(pairs, 99, 3)[0].negatives != pool  # in a drawn order


def test_a_second_round_goes_on_from_the_first(run):
    names = [stage.name for stage in stages(run.config)]
    own = ["candidates", "score", "positives", "mine1", "stage1", "mine2", "stage2"]
    start = names.index("round2-candidates")
    assert names[start - 1] == "stage2"
    assert names[start : start + len(own)] == [f"round2-{name}" for name in own]
    counts = load_json(run / "round2-mine2" / "manifest.json")["counts"]
    assert counts["model"] == "stage2"  # `mine.model=base`: the retriever that begins the round
    evaluated = load_json(run / "evaluate" / "metrics.json")
    systems = [row["system"] for row in evaluated["table"]]
    tuned = [f"{part}stage{i}" for part in ("", "round2-") for i in (1, 2)]
    assert [name for name in systems if name in tuned] == tuned
    both = {q for name in ("positives", "round2-positives") for q in load_positives(run / name)}
    assert learned_questions(run) == both
    page = (run.workdir / "report.html").read_text(encoding="utf-8")
    assert "Positives of round2-stage1" in page and "Cosines of round2-stage2" in page


def test_a_plan_counts_the_other_retriever_and_both_rounds(run, tmp_path, monkeypatch, mesh):
    monkeypatch.setattr(devices, "product_speed", lambda *_: 1e9)
    planned = plan.estimate(RECIPE, run.config, tmp_path)
    works = [cost.work for cost in planned.costs]
    other = [work for work in works if work.model == "score"]
    assert [(work.stage, work.kind) for work in other] == [("score", "embedding")] * 2
    assert [work.stage for work in works if work.kind == "training"] == [
        f"{part}stage{i}" for part in ("", "round2-") for i in (1, 2)
    ]
    pairs = 2 * len(load_positives(run / "positives"))
    steps = next(work.items for work in works if work.stage == "round2-stage1")
    assert steps == -(-pairs // 16)
    assert "round2-candidates" in {work.stage for work in works}


@pytest.mark.slow
def test_a_killed_second_round_goes_on_to_the_same_bytes(run, root):
    workdir = root / "killed"
    process = subprocess.Popen(
        world.command(root, workdir, "run", *flags(root)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=REPOSITORY,
        env=world.environment(root),
    )
    mark, deadline = workdir / ".partial" / "round2-stage1" / "curve.jsonl", time.monotonic() + 300
    while not (mark.is_file() and mark.read_text().count("\n") >= 1):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=60)
    assert not (workdir / "round2-stage1").exists()
    done = world.call(root, workdir, "run", *flags(root))
    assert done.returncode == 0, done.stdout + done.stderr
    assert compare_workdirs.differences(run.workdir, workdir) == []


def test_scores_below_zero_are_not_lowered_by_a_factor():
    """Where normalize_scores is false, generate_pos.py multiplies, and so raises, one below 0."""
    c = config.ark()
    c.score.short = 10
    with pytest.raises(ValueError, match=r"^config\.score\.short=10 .*normalise=none"):
        check_ark(c)


def test_a_question_without_documents_has_none_to_draw_from():
    question = Question("q7", "who?", ("the clerk",), ())
    with pytest.raises(ValueError, match=r"config\.mine\.first=document .*'q7' names none"):
        curriculum._own_documents([question], {}.__getitem__, {})
