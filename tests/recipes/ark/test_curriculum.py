"""The stages of the curriculum on a tiny retriever: train, embed again, mine with it, train on.

Positives and rewrites are written by hand.
"""

import dataclasses
import json
import math
import re
import runpy
from pathlib import Path

import jax
import numpy as np
import pytest
from support import tiny
from support.paths import REPOSITORY

from ark_jax.data.records import Chunk, Question
from ark_jax.data.spool import save_chunks
from ark_jax.demo import models
from ark_jax.layout import make_mesh
from ark_jax.models.retriever import Retriever
from ark_jax.pipeline import engine
from ark_jax.pipeline.manifest import read_manifest
from ark_jax.pipeline.tables import load_rows, save_json, save_rows
from ark_jax.recipes.ark import config, train
from ark_jax.recipes.ark.recipe import RECIPE, stages
from ark_jax.recipes.documents.corpus import POOL_FILE
from ark_jax.runtime.log import Metrics, read_rows
from ark_jax.train import example_files, optim

WORDS = ("tide", "lamp", "salt", "lathe", "wool", "pilot", "bell", "ledger", "strike", "harbour")
# Two documents of five chunks; the last of each reads alike.
CHUNKS = [
    Chunk(
        f"{document}#{i}",
        document,
        0,
        0,
        9,
        f"the clerk kept every {WORDS[5 * d + i]} at the quay"
        if i < 4
        else f"Nothing is said of  it{'' if d else '  '}",
    )
    for d, document in enumerate("ab")
    for i in range(5)
]
QUESTIONS = [
    Question(f"q{5 * d + i}", f"who kept the {WORDS[5 * d + i]}?", ("the clerk",), (document,))
    for d, document in enumerate("ab")
    for i in range(4)
]
POSITIVES = {
    q.id: [
        f"{q.documents[0]}#{int(q.id[1]) % 5}",
        *([f"{q.documents[0]}#4"] if q.id in ("q0", "q5") else []),
    ]
    for q in QUESTIONS
}
REWRITTEN = [
    {"question": q.id, "size": size, "text": f"{start} {q.question}"}
    for q in QUESTIONS
    for size, start in (
        ("large", "in the year of the surge,"),
        ("large", "at the quay,"),
        ("small", "tell me"),
    )
]
ARK = runpy.run_path(str(REPOSITORY / "configs" / "ark.py"))
pytestmark = pytest.mark.usefixtures("mesh")


def store_inputs(context: engine.Context, folder: Path) -> dict:
    """Stands in for the stages before training."""
    save_chunks(CHUNKS, folder)
    save_json({"pool": "documents"}, folder / POOL_FILE)
    save_rows(QUESTIONS, folder / "questions_train.parquet")
    save_rows(REWRITTEN, folder / "rewritten.parquet")
    texts = {
        q.id: [x.id for x in CHUNKS if x.document == q.documents[0] and x.id not in POSITIVES[q.id]]
        for q in QUESTIONS
    }
    save_rows(
        [
            {"question": q, "chunk": chunk, "score": float(-i), "positive": chunk in positives}
            for q, positives in POSITIVES.items()
            for i, chunk in enumerate([*positives, *texts[q]])
        ],
        folder / "positives.parquet",
    )
    return {}


def settings(retriever: Path):
    c = config.ark()
    c.train.stages = (1, 2, 3)
    c.retriever.path, c.mesh = str(retriever), (1, 1, 1)
    c.mine.by, c.mine.top, c.mine.negatives = "rewritten", 3, 2
    c.mine.margin = 0.0  # a random model finds all chunks alike
    c.train.batch, c.train.epochs, c.train.learning_rates, c.train.order = (
        3,
        (2, 1, 1),
        (1e-3, 8e-4, 4e-4),
        "question",
    )
    return c


def run(c, workdir: Path) -> dict[str, dict]:
    """Runs the minings and trainings of a config; returns what each counted."""
    before = [engine.Stage(name, store_inputs) for name in ("data", "rewrite", "positives")]
    training = [stage for stage in stages(c) if stage.name.startswith(("mine", "stage"))]
    engine.run([*before, *training], engine.Context(c, workdir, Metrics(workdir / "metrics.jsonl")))
    return {
        stage.name: json.loads((workdir / stage.name / "manifest.json").read_text())["counts"]
        for stage in training
    }


def curve(workdir: Path, stage: str) -> list[dict]:
    return list(map(json.loads, (workdir / stage / "curve.jsonl").read_text().splitlines()))


@pytest.fixture(scope="module")
def retriever(tmp_path_factory):
    folder = tiny.write(tmp_path_factory.mktemp("retriever"), "bert", tokenizer="cls")
    return tiny.sentence_transformer(folder, pooling="mean", max_seq_length=64)


@dataclasses.dataclass
class Finished:
    workdir: Path
    counts: dict[str, dict]
    encoded: list[tuple[str, str, int]]  # (kind, label, texts) of every call


@pytest.fixture(scope="module")
def finished(retriever, tmp_path_factory):
    """The whole curriculum, and what was embedded on the way."""
    workdir, encoded, encode = tmp_path_factory.mktemp("finished"), [], Retriever.encode_batches

    def heard(self, texts, *, kind, label="", **settings):
        encoded.append((kind, label, len(texts)))
        return encode(self, texts, kind=kind, label=label, **settings)

    with pytest.MonkeyPatch.context() as patch, jax.set_mesh(make_mesh((1, 1, 1))):
        patch.setattr(Retriever, "encode_batches", heard)
        return Finished(workdir, run(settings(retriever), workdir), encoded)


def test_each_stage_mines_with_the_model_of_the_previous_stage(retriever, finished):
    assert list(finished.counts) == ["stage1", "mine2", "stage2", "mine3", "stage3"]
    assert [finished.counts[name]["model"] for name in ("mine2", "mine3")] == ["stage1", "stage2"]
    for stage, model, sizes in ((2, "stage1", ("large",)), (3, "stage2", ("small",))):
        opened = Retriever.from_pretrained(str(finished.workdir / model / "model"))
        assert mined(finished.workdir, f"mine{stage}") == by_hand(opened, sizes)


def mined(workdir: Path, stage: str) -> dict[str, list[tuple]]:
    out: dict[str, list[tuple]] = {}
    for row in load_rows(workdir / stage / "negatives.parquet"):
        out.setdefault(row["question"], []).append(
            (row["chunk"], pytest.approx(row["mined_by"], abs=1e-5))
        )
    return out


def by_hand(opened: Retriever, sizes: tuple[str, ...]) -> dict[str, list[tuple]]:
    """question -> its two best chunks, of the three that are nearest to each of its rewrites."""
    out = {}
    for q in QUESTIONS:
        pool = [x for x in CHUNKS if x.document == q.documents[0]]
        rewrites = [r["text"] for r in REWRITTEN if r["question"] == q.id and r["size"] in sizes]
        cosines = (
            opened.encode(rewrites, kind="query")
            @ opened.encode([x.text for x in pool], kind="document").T
        )
        best: dict[str, float] = {}
        for row in cosines:
            for i in np.argsort(-row)[:3]:
                best[pool[i].id] = max(best.get(pool[i].id, -1.0), float(row[i]))
        out[q.id] = sorted(
            ((x, s) for x, s in best.items() if x not in POSITIVES[q.id]), key=lambda pair: -pair[1]
        )[:2]
    return out


def test_every_mining_embeds_each_chunk_once(finished):
    documents = [(label, texts) for kind, label, texts in finished.encoded if kind == "document"]
    assert documents == [("embed chunks", len(CHUNKS))] * 2
    questions = [(label, texts) for kind, label, texts in finished.encoded if kind == "query"]
    assert questions == [
        ("embed questions", 8),
        ("embed rewritten questions", 16),
        ("embed questions", 8),
        ("embed rewritten questions", 8),
    ]


def test_the_hardness_of_negatives_is_measured_and_logged(finished):
    opened = Retriever.from_pretrained(str(finished.workdir / "stage1" / "model"))
    texts = {x.id: x.text for x in CHUNKS}
    gaps = []
    for q in QUESTIONS:
        vector = opened.encode([q.question], kind="query")[0]
        cosine = lambda x, vector=vector: float(
            opened.encode([texts[x]], kind="document")[0] @ vector
        )
        nearest = max(map(cosine, POSITIVES[q.id]))
        gaps.append([nearest - cosine(x) for x, _ in mined(finished.workdir, "mine2")[q.id]])
    hardest = [min(question_gaps) for question_gaps in gaps]
    counts = finished.counts["mine2"]
    assert counts["mean_gap_to_hardest"] == pytest.approx(np.mean(hardest), abs=1e-4)
    assert counts["gap_to_hardest"] == {
        f"p{p}": pytest.approx(np.percentile(hardest, p), abs=1e-4) for p in (10, 50, 90)
    }
    assert counts["share_above_the_positive"] == pytest.approx(
        np.mean(np.concatenate(gaps) < 0), abs=1e-4
    )
    rows = load_rows(finished.workdir / "mine2" / "negatives.parquet")
    assert (
        counts["negatives"] == len(rows) == len(np.concatenate(gaps))
        and counts["questions_without"] == 0
    )
    assert (
        counts["holding_the_answer"] == sum("the clerk" in texts[row["chunk"]] for row in rows) > 0
    )
    assert counts["dropped"] == {"copies": 0, "margin": 0, "aligned": 0}
    logged = {row["stage"]: row for row in read_rows(finished.workdir / "metrics.jsonl")}
    for name in ("mine2", "mine3"):
        assert logged[name].items() >= finished.counts[name].items()


def test_every_stage_has_a_learning_rate_schedule_of_its_own_length(finished):
    for stage, epochs, peak in ((1, 2, 1e-3), (2, 1, 8e-4), (3, 1, 4e-4)):
        steps = math.ceil(8 * epochs / 3)
        rate = optim.schedule(peak, steps, 0.1)
        rows = curve(finished.workdir, f"stage{stage}")
        assert [row["learning_rate"] for row in rows] == pytest.approx(
            [float(rate(i)) for i in range(steps)]
        )
        assert finished.counts[f"stage{stage}"]["steps"] == steps


def test_the_curve_has_the_mean_cosines_of_positives_and_negatives(retriever, tmp_path):
    """Before the first update, in a batch of all questions with their own negatives."""
    c = settings(retriever)
    c.train.stages, c.train.batch, c.train.denominator, c.train.merge_copies = (2,), 8, "own", False
    run(c, tmp_path)
    opened = Retriever.from_pretrained(str(retriever))
    texts = {x.id: x.text for x in CHUNKS}
    cosines = {"positives": [], "negatives": []}
    for e in example_files.read_examples(tmp_path / "stage2" / "examples"):
        asked = next(q.question for q in QUESTIONS if q.id == e.question)
        query = opened.encode([asked], kind="query")[0]
        for kind, own in cosines.items():
            chunks = [texts[x] for x in getattr(e, kind)]
            own += (opened.encode(chunks, kind="document") @ query).tolist()
    row = curve(tmp_path, "stage2")[0]
    assert row["positive_cosine"] == pytest.approx(np.mean(cosines["positives"]), abs=1e-4)
    assert row["negative_cosine"] == pytest.approx(np.mean(cosines["negatives"]), abs=1e-4)


@pytest.mark.parametrize(
    ("positive", "negative", "warns"),
    [
        ((0.44, 0.50), (0.26, 0.36), False),  # stage 1 on FairytaleQA, and stage 2
        ((0.49, 0.48), (0.30, 0.29), False),
        ((0.80, 0.60), (0.60, 0.30), False),  # negatives fall further
        ((0.80, 0.60), (0.60, 0.45), True),
        ((0.80, 0.78), (0.60, 0.60), False),  # too little
    ],
)
def test_falling_positives_that_gain_nothing_are_warned_of(positive, negative, warns, capsys):
    ramp = lambda ends: np.interp(range(20), (4, 15), ends).tolist()
    rows = [
        {"positive_cosine": p, "negative_cosine": n}
        for p, n in zip(ramp(positive), ramp(negative), strict=True)
    ]
    train._warn_of_falling_positives([*rows[:9], {"loss": 1.0}, *rows[9:]], "stage 1")
    said = capsys.readouterr().out
    assert ("warning: stage 1: the mean cosine of positives fell from 0.80" in said) == warns
    train._warn_of_falling_positives(rows[:3], "stage 1")  # too few to compare


@pytest.mark.parametrize("chosen", [(2, 3), (2,), (3,)], ids=str)
def test_starting_from_an_earlier_stage_gives_the_same_bytes(chosen, retriever, finished, tmp_path):
    """From what an earlier stage left, with the settings of the stages by their numbers."""
    c = settings(finished.workdir / f"stage{chosen[0] - 1}" / "model")
    c.train.stages = chosen
    counts = run(c, tmp_path)
    assert counts[f"mine{chosen[0]}"]["model"] == "base" and not (tmp_path / "stage1").exists()
    for stage in chosen:
        assert curve(tmp_path, f"stage{stage}") == curve(finished.workdir, f"stage{stage}")
        for file in (f"mine{stage}/negatives.parquet", f"stage{stage}/model/model.safetensors"):
            assert (tmp_path / file).read_bytes() == (finished.workdir / file).read_bytes(), file


def test_without_a_curriculum_one_stage_uses_all_negatives(retriever, tmp_path):
    c = settings(retriever)
    ARK["VARIANTS"]["no_curriculum"](c)
    counts = run(c, tmp_path)
    assert list(counts) == ["mine0", "stage0"] and counts["mine0"]["model"] == "base"
    assert mined(tmp_path, "mine0") == by_hand(
        Retriever.from_pretrained(str(retriever)), ("large", "small")
    )
    steps = math.ceil(8 * 4 / 3)
    rate = optim.schedule(1e-3, steps, 0.1)
    assert [row["learning_rate"] for row in curve(tmp_path, "stage0")] == pytest.approx(
        [float(rate(i)) for i in range(steps)]
    )
    examples = example_files.read_examples(tmp_path / "stage0" / "examples")
    assert all(len(e.negatives) == 2 and set(e.positives) for e in examples)


def test_a_batch_can_count_pairs_of_question_and_positive(retriever, tmp_path):
    """Steps of 3 pairs."""
    c = settings(retriever)
    c.train.unit, c.train.stages, c.train.epochs = "pair", (1,), (2, 0, 0)
    run(c, tmp_path)
    pairs = sum(map(len, POSITIVES.values()))
    assert pairs > len(POSITIVES)
    assert len(curve(tmp_path, "stage1")) == math.ceil(2 * pairs / 3)
    examples = example_files.read_examples(tmp_path / "stage1" / "examples")
    assert [(e.question, *e.positives) for e in examples] == [
        (question, chunk if chunk != "b#4" else "a#4")  # its copy
        for question, chunks in sorted(POSITIVES.items())
        for chunk in chunks
    ]


def test_presets_and_variants_follow_the_colon_of_a_config_path():
    get, as_dict = ARK["get_config"], lambda c: c.to_dict()
    assert as_dict(get()) == as_dict(get("default")) == as_dict(config.ark())
    assert as_dict(get("paper")) == as_dict(config.ark("paper"))
    best = get("best")
    assert (best.retriever.vectors, best.evaluate.fusion) == ("tokens", "chosen")
    assert get("official").train.denominator == "batch"
    assert get("no_curriculum").train.stages == (0,) and get("stage=2").train.stages == (2,)
    fetched = models.demo_model_at(get("multilingual").retriever.path)
    assert fetched.published == "multilingual-e5-small"


def test_a_preset_and_a_variant_can_be_joined_in_a_config_path():
    both = ARK["get_config"]("official,stage=3")
    assert both.train.stages == (3,)
    assert both.mine.model == "base" and both.train.epochs == (3, 4, 3)


@pytest.mark.parametrize("words", ["nope", "best,nope", "stage=4", "no_curriculum,paper"])
def test_an_unknown_preset_in_a_config_path_is_refused(words):
    message = (
        f"preset {words.split(',')[-1]!r}: must be one of default, best, paper, official, "
        "no_curriculum, stage=1"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        ARK["get_config"](words)


@pytest.mark.parametrize(
    ("changes", "builds", "rewrites"),
    [
        ({}, True, True),
        ({"train.stages": (1,)}, False, False),
        ({"train.stages": (0,)}, True, True),
        ({"mine.by": "question"}, False, False),
        ({"llm.backend": "none"}, False, False),
        ({"llm.backend": "none", "mine.by": "rewritten"}, True, True),
        ({"llm.backend": "none", "graph.openie": "records.json"}, True, True),
        ({"score.supervision": "gold"}, False, False),
        ({"mine.by": "random", "questions.source": "written"}, True, False),
        ({"mine.by": "random", "questions.source": "both", "questions.joined": 0.0}, False, False),
        ({"questions.source": "both", "questions.joined": 0.0}, True, True),
        ({"mine.by": "random", "questions.source": "both", "llm.backend": "none"}, False, False),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, dict) else None,
)
def test_a_graph_is_built_only_if_a_stage_reads_it(changes, builds, rewrites, retriever):
    c = settings(retriever)
    c.llm.backend, c.mine.by = "openai", "auto"
    c.update_from_flattened_dict(changes)
    names = [stage.name for stage in stages(c)]
    building, rewriting = {"extract", "graph"}, {"communities", "rewrite"}
    assert (building <= set(names), rewriting <= set(names)) == (builds, rewrites)
    if "questions" in names and "graph" in names:
        assert names.index("graph") < names.index("questions")
    assert ("llm" in RECIPE.roles(c)) == (builds or c.questions.source != "given")
    c.questions.replies, c.questions.joined = "recorded.jsonl", 0.0
    assert ("llm" in RECIPE.roles(c)) == rewrites


def test_both_minings_can_use_the_base_model(retriever, tmp_path):
    c = settings(retriever)
    c.mine.model, c.train.epochs = "base", (1, 1, 1)
    run(c, tmp_path)
    for name in ("mine2", "mine3"):
        inputs = read_manifest(tmp_path / name)["inputs"]
        assert inputs.keys() == {"data", "rewrite", "positives"}


def test_the_margin_and_spare_settings_drop_negatives(retriever, finished, tmp_path):
    """What they take is counted; a question may be left without negatives."""
    c = settings(retriever)
    c.train.stages, c.train.batch = (2,), 8
    c.mine.margin = 1e-6
    counts = run(c, tmp_path)["mine2"]
    assert (
        counts["dropped"]["margin"] > 0
        and counts["questions_without"] == 8
        and "mean_gap_to_hardest" not in counts
    )
    c.mine.margin, c.mine.spare = 0.0, 1
    counts = run(c, tmp_path)["mine2"]
    next_best = {
        q.id: next(
            x.id for x in CHUNKS if x.document == q.documents[0] and x.id not in POSITIVES[q.id]
        )
        for q in QUESTIONS
    }
    mined_rows = mined(tmp_path, "mine2")
    assert counts["dropped"]["aligned"] > 0 and not any(
        next_best[q] in [x for x, _ in negatives] for q, negatives in mined_rows.items()
    )


@pytest.mark.parametrize("merged", [True, False])
def test_copies_of_a_chunk_are_merged_only_if_configured(merged, retriever, tmp_path):
    """The last chunks of both documents read alike and are positives of q0 and q5."""
    c = settings(retriever)
    c.train.stages, c.train.merge_copies, c.train.epochs, c.train.batch = (1,), merged, (1, 1, 1), 8
    run(c, tmp_path)
    examples = {
        e.question: e.positives
        for e in example_files.read_examples(tmp_path / "stage1" / "examples")
    }
    assert examples["q0"] == ("a#0", "a#4") and examples["q5"] == (
        "b#0",
        "a#4" if merged else "b#4",
    )


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (
            "stages",
            (),
            r"config.train.stages=\(\): must hold each of 1, 2 and 3 at most once, or be \(0,\)",
        ),
        ("stages", (1, 4), "config.train.stages"),
        ("stages", (1, 1), "config.train.stages"),
        (
            "epochs",
            (3,),
            r"config.train.epochs=\(3,\): must be a tuple of 3 integers, each at least 0",
        ),
        ("learning_rates", (1e-5, 1e-5), "config.train.learning_rates"),
    ],
)
def test_invalid_stage_settings_are_refused(field, value, message):
    c = config.ark()
    c.train[field] = value
    with pytest.raises(ValueError, match=message):
        stages(c)
