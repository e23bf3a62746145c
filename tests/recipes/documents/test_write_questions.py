"""Questions written from passages: what is asked, what is dropped and why, what survives a kill."""

import dataclasses
import importlib.resources
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.documents_alone import documents_alone, make_world_without_questions, run
from support.paths import REPOSITORY
from support.world import call, environment, outputs

from ark_jax.data.records import Chunk
from ark_jax.data.spool import StoredChunks
from ark_jax.llm.question_pairs import Pair, parse_pairs
from ark_jax.pipeline import engine
from ark_jax.pipeline.tables import load_rows
from ark_jax.recipes.ark.graph import join_by_community
from ark_jax.recipes.documents import filter_questions, written_questions
from ark_jax.recipes.documents.written_questions import Material, materials_to_ask, question_calls
from ark_jax.runtime.log import Metrics
from ark_jax.text import prompts

pytestmark = pytest.mark.usefixtures("mesh")
MILL = Chunk("d#0", "d", 0, 60, 12, "The mill stood on the Lenn. Ada built it in 1790.", "Mills")
FARM = Chunk("e#0", "e", 0, 40, 8, "Ada's farm had nine cows.")
ALONE, BOTH = Material("train", (MILL,)), Material("train", (MILL, FARM))
GOOD = Pair("Who put up the mill?", "Ada", ("Ada built it in 1790.",))


# --- what a pair's words alone tell ---------------------------------------------------------------


@pytest.mark.parametrize(
    "material, changes, words",
    [
        (ALONE, {}, ""),
        (ALONE, {"evidence": ("Ada built it in  1790.",)}, ""),  # blanks may differ
        (ALONE, {"evidence": ("Ada built the mill in 1790.",)}, "not verbatim"),
        (ALONE, {"evidence": (*GOOD.evidence, "It leaks.")}, "not verbatim"),
        (ALONE, {"evidence": ("Mills",)}, "not verbatim"),  # the title is no sentence of the text
        (ALONE, {"answer": "Eve"}, "not in the passage"),
        (ALONE, {"answer": "Ad"}, "not in the passage"),
        (ALONE, {"answer": "mills"}, ""),  # as it is in the title
        (ALONE, {"answer": "The Mill"}, "in the question"),
        (BOTH, {}, "of one passage only"),
        (BOTH, {"evidence": (*GOOD.evidence, "Ada's farm had nine cows.")}, ""),
    ],
)
def test_the_defect_of_a_question_pair_is_named(material, changes, words):
    defect = written_questions.pair_defect(dataclasses.replace(GOOD, **changes), material)
    assert words in defect and bool(words) == bool(defect)


def reply(*pairs: Pair) -> str:
    return json.dumps({"pairs": [dataclasses.asdict(pair) for pair in pairs]})


BAD = dataclasses.replace(GOOD, answer="Eve")


@pytest.mark.parametrize(
    "text, is_cut, words",
    [
        (reply(GOOD), False, None),
        (reply(GOOD, BAD), False, None),  # one that can be used will do
        (reply(), False, None),  # there is nothing to ask
        (reply(BAD), False, "pair 1: the answer is not in the passage"),
        ("I will not.", False, "No question with answer and evidence could be read"),
        ("", True, "broke off before its first pair"),
        (reply(GOOD)[:-2], True, None),
    ],
)
def test_the_model_is_told_why_its_pairs_are_unusable(text, is_cut, words):
    said = written_questions.reply_remark(text, ALONE, is_cut)
    assert said is None if words is None else words in said


# --- a small run ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world_without_questions(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def prepared(world):
    """A run up to the graph."""
    for stage in ("data", "extract", "graph"):
        run(documents_alone(world), world / "prepared", stage)
    return world / "prepared"


@pytest.fixture
def workdir(prepared, tmp_path):
    """A copy of that run by links."""
    for path in prepared.iterdir():
        if path.is_dir() and not path.name.startswith("."):
            (tmp_path / path.name).symlink_to(path)
    return tmp_path


def record(world: Path, workdir: Path, answers: dict[int, list[Pair]], **questions):
    """A config that replays a reply to each material by its number; the others have no pair."""
    c = documents_alone(world, **questions)
    context = engine.Context(c, workdir, Metrics(workdir / "metrics.jsonl"))
    c.questions.replies = str(workdir / "replies.jsonl")  # a model that may see two passages
    materials = materials_to_ask(context, join_by_community)
    rows = []
    for i, request in enumerate(question_calls(context, materials)):
        text = reply(*answers.get(i, [])) if not isinstance(answers.get(i), str) else answers[i]
        message = {"choices": [{"message": {"role": "assistant", "content": text}}]}
        rows.append({"item": request.item, "key": str(i), "reply": message})
    Path(c.questions.replies).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return c


def materials(world: Path, workdir: Path, **questions) -> list[Material]:
    c = documents_alone(world, **questions)
    c.llm.backend = "openai"  # rules do not join passages
    context = engine.Context(c, workdir, Metrics(workdir / "metrics.jsonl"))
    return materials_to_ask(context, join_by_community)


def sentence(material: Material, number: int = 0) -> str:
    return material.chunks[number].text.split(". ")[0]


def pair_about(material: Material, question: str = "") -> Pair:
    """A pair that passes: its words are those of the passage, which is therefore found."""
    words = sentence(material).split()
    text = question or f"Which word follows {' '.join(words[:-1])}?"
    return Pair(text, words[-1].strip(",;."), (sentence(material),))


def reasons(workdir: Path) -> dict[str, str]:
    dropped = load_rows(workdir / "questions" / "dropped.parquet")
    return {row["question"]: row["reason"] for row in dropped}


def question_texts(workdir: Path) -> list[str]:
    return [row["question"] for row in load_rows(workdir / "questions" / "questions.parquet")]


def held_out_pair(drawn: list[Material]) -> dict[int, list[Pair]]:
    """A pair for the test, without which the stage would end."""
    i = next(i for i, x in enumerate(drawn) if x.part == "held_out")
    return {i: [pair_about(drawn[i])]}


def test_prompts_cover_single_and_joined_training_passages(world, workdir):
    drawn = materials(world, workdir, passages=45, joined=0.25)
    parts = [(x.part, len(x.chunks)) for x in drawn]
    singles = sum(part == ("train", 1) for part in parts)
    assert parts.count(("held_out", 1)) + singles == 45 and singles > 20
    assert 0 < parts.count(("train", 2)) <= round(singles / 3)
    context = engine.Context(
        documents_alone(world, joined=0.25), workdir, Metrics(workdir / "metrics.jsonl")
    )
    requests = question_calls(context, drawn)
    joined = requests[-1].turns[0]
    assert "\n\nPassage 1:\n" in joined and "\n\nPassage 2:\n" in joined
    assert all(chunk.text in joined for chunk in drawn[-1].chunks)
    assert "do not follow them" in joined and "Write up to 3 questions" in joined
    assert {x.document for m in drawn if m.part == "train" for x in m.chunks} <= {
        "tidal-board",
        "salt-company",
    }


def test_joined_passages_share_an_entity_but_do_not_overlap(world, workdir):
    from ark_jax.graph.store import KnowledgeGraph

    graph = KnowledgeGraph.load(workdir / "graph")
    pairs = [x.chunks for x in materials(world, workdir, passages=0, joined=0.3) if x.chunks[1:]]
    assert len(pairs) > 5 and len({(a.id, b.id) for a, b in pairs}) == len(pairs)
    for a, b in pairs:
        assert a.document != b.document or a.end <= b.start or b.end <= a.start
        assert any({a.id, b.id} <= set(chunks) for chunks in graph.chunks)


def test_each_filter_drops_its_questions_with_a_reason(world, workdir):
    drawn = materials(world, workdir)
    first, second = [i for i, x in enumerate(drawn) if x.part == "train" and not x.chunks[1:]][:2]
    good = pair_about(drawn[first])
    elsewhere = pair_about(drawn[first], pair_about(drawn[second]).question)
    answers = held_out_pair(drawn) | {
        first: [
            good,
            dataclasses.replace(good, question="Not verbatim?", evidence=("Never said.",)),
            dataclasses.replace(good, question="No answer?", answer="xylophone"),
            dataclasses.replace(good, question=f"Is it {good.answer}?"),
            dataclasses.replace(good, question=f"{good.question.upper()}!"),
            elsewhere,
            dataclasses.replace(good, question=f"{good.question[:-1]} then?"),
        ]
    }
    # Where nothing is too far away, the words of another passage are found last.
    run(record(world, workdir, answers, round_trip=1000), workdir, "questions")
    rows = load_rows(workdir / "questions" / "questions.parquet")
    ranks = {row["question"]: row["rank"] for row in rows}
    limit = ranks.pop(elsewhere.question) - 1
    assert limit >= max(ranks.values()) and len(reasons(workdir)) == 5
    counts = run(record(world, workdir, answers, round_trip=limit), workdir, "questions")
    assert reasons(workdir) == {
        "Not verbatim?": "the evidence is not verbatim",
        "No answer?": "the answer is not in the passage",
        f"Is it {good.answer}?": "the answer is in the question",
        f"{good.question.upper()}!": "the question is asked already",
        elsewhere.question: "the passage is not found",
        f"{good.question[:-1]} then?": "a near copy",
    }
    assert good.question in question_texts(workdir) and len(question_texts(workdir)) == 2
    assert counts["pairs"] == 8 and counts["dropped"] == 6 and len(counts["drop_reasons"]) == 6
    assert counts["train_questions"] == counts["held_out_questions"] == 1
    run(record(world, workdir, answers, round_trip=0), workdir, "questions")
    assert elsewhere.question in question_texts(workdir)


@pytest.mark.slow
def test_the_margin_drops_questions_whose_passage_does_not_help(world, workdir):
    drawn = materials(world, workdir)
    answers = {i: [pair_about(x)] for i, x in enumerate(drawn) if not x.chunks[1:]}
    c = record(world, workdir, answers, round_trip=0)
    run(c, workdir, "questions")
    rows = load_rows(workdir / "questions" / "questions.parquet")
    gains = {row["question"]: row["with_passage"] - row["without_passage"] for row in rows}
    expected = scores_by_hand(c, workdir, rows)
    assert gains == pytest.approx(expected, abs=1e-4) and len(gains) == len(answers)
    margin = sorted(gains.values())[1]  # all but one pass
    run(record(world, workdir, answers, round_trip=0, margin=margin), workdir, "questions")
    lowest = min(gains, key=gains.get)
    assert reasons(workdir) == {lowest: "the passage does not help"}


def test_without_a_margin_no_language_model_is_loaded(world, workdir, monkeypatch):
    drawn = materials(world, workdir)
    answers = {i: [pair_about(x)] for i, x in enumerate(drawn) if not x.chunks[1:]}
    monkeypatch.delattr(filter_questions, "load_generator")
    counts = run(record(world, workdir, answers, round_trip=0, margin=-100.0), workdir, "questions")
    rows = load_rows(workdir / "questions" / "questions.parquet")
    assert counts["dropped"] == 0 and len(rows) == len(answers)
    assert {row["with_passage"] for row in rows} == {None}


def scores_by_hand(c, workdir: Path, rows: list[dict]) -> dict[str, float]:
    """question -> the rise of its answer's mean log-likelihood, pair by pair."""
    from ark_jax import LanguageModel

    lm = LanguageModel.from_pretrained(c.generator.path)
    chunks = {x.id: x for x in StoredChunks(workdir / "data")}
    template, gains = prompts.load_template("forward"), {}
    for row in rows:
        [chunk] = row["chunks"]
        values = []
        for passage in (chunks[chunk].passage, ""):
            prompt = template.replace("{passage}", passage).replace("{question}", row["question"])
            pair = (prompt.removesuffix("{answer}"), row["answers"][0])
            values.append(float(lm.log_likelihood([pair]).mean[0]))
        gains[row["question"]] = values[0] - values[1]
    return gains


def test_replies_without_a_pair_are_quarantined(world, workdir):
    drawn = materials(world, workdir)
    train = [i for i, x in enumerate(drawn) if x.part == "train" and not x.chunks[1:]]
    answers = held_out_pair(drawn) | {train[0]: [pair_about(drawn[train[0]])], train[1]: "No."}
    counts = run(record(world, workdir, answers, round_trip=0), workdir, "questions")
    [row] = load_rows(workdir / "questions" / "quarantine.parquet")
    assert counts["quarantined"] == 1 and row["item"] == f"questions/{drawn[train[1]].id}"
    assert row["text"] == "No." and "could be read" in row["reason"]


def test_a_stage_that_keeps_no_question_is_refused_with_the_reason(world, workdir):
    c = documents_alone(world, margin=1e6)
    with pytest.raises(ValueError, match=r"does not help.*lower config\.questions\.margin"):
        run(c, workdir, "questions")


# A process of its own that scores two by two, with time for a kill in between.
SLOW = """
import sys, time
sys.path[:0] = [{tests!r}]
from pathlib import Path
from ark_jax.recipes.documents import filter_questions
from support import documents_alone as here
score, store = filter_questions._score_shard, filter_questions.stored_rows
def tell(context, shard, number):
    print("shard", number, flush=True)
    return score(context, shard, number)
def wait(path, make_rows):
    rows = store(path, make_rows)
    time.sleep({pause})
    return rows
filter_questions.SHARD, filter_questions._score_shard = 2, tell
filter_questions.stored_rows = wait
here.run(here.documents_alone(Path({world!r})), Path({workdir!r}), "questions")
"""


def write_slowly(world: Path, workdir: Path, pause: float) -> subprocess.Popen:
    places = {"tests": str(REPOSITORY / "tests"), "world": str(world), "workdir": str(workdir)}
    return subprocess.Popen(
        [sys.executable, "-c", SLOW.format(**places, pause=pause)],
        cwd=REPOSITORY,
        env=environment(world) | {"PYTHONPATH": "."},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_a_killed_question_stage_resumes_with_the_same_bytes(world, workdir):
    process = write_slowly(world, workdir, pause=30.0)
    partial = workdir / ".partial" / "questions"
    try:
        while not list(partial.glob("shards/scored-*.parquet")):
            assert process.poll() is None
            time.sleep(0.05)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    assert len(list(partial.glob("shards/scored-*.parquet"))) == 1
    said, _ = write_slowly(world, workdir, pause=0.0).communicate()
    assert "shard 2\n" in said and "shard 1\n" not in said  # the first is not made again
    uninterrupted = workdir / "whole"
    uninterrupted.mkdir()
    for name in ("data", "extract", "graph"):
        (uninterrupted / name).symlink_to(workdir / name)
    assert "shard 1\n" in write_slowly(world, uninterrupted, pause=0.0).communicate()[0]
    resumed = outputs(workdir)["questions"]
    assert outputs(uninterrupted)["questions"] == resumed
    assert set(resumed) == {"questions.parquet", "dropped.parquet", "quarantine.parquet"}


CONFIG_FILE = """
import sys
sys.path[:0] = [{tests!r}]
from pathlib import Path
from support.documents_alone import documents_alone
def get_config():
    return documents_alone(Path({world!r}), round_trip=3)
"""


@pytest.mark.slow
def test_documents_without_questions_can_be_trained_to_an_export(world):
    """The whole pipeline without a language model and without a question, by the command line."""
    config = world / "alone.py"
    config.write_text(CONFIG_FILE.format(tests=str(REPOSITORY / "tests"), world=str(world)))
    workdir = world / "alone"
    done = subprocess.run(
        [sys.executable, "-m", "ark_jax", "run", f"--config={config}", f"--workdir={workdir}"],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env=environment(world),
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = done.stdout
    assert "such questions are weak" in said
    assert "The held-out questions were written by rules from held-out documents" in said
    page = (workdir / "report.html").read_text()
    assert "not by people" in page and "Written questions" in page
    assert "the passage is not found" in page  # a reason, with its count
    assert (workdir / "export" / "model.safetensors").is_file()
    written = load_rows(workdir / "questions" / "questions.parquet")
    by_part = {p: {r["id"] for r in written if r["part"] == p} for p in ("train", "held_out")}
    card = " ".join((workdir / "export" / "README.md").read_text().split())
    trained, measured = (len(by_part[part]) for part in ("train", "held_out"))
    scores = load_rows(workdir / "positives" / "positives.parquet")
    count = len({row["question"] for row in scores if row["positive"]})
    assert f"on {count} of the {trained} training questions of the data set corpus;" in card
    assert f"measured on {measured} held-out questions over documents it never saw" in card
    assert "not by people" in card and "a marked section counts once" in card
    scored = load_rows(workdir / "score" / "scores.parquet")
    measured = load_rows(workdir / "evaluate" / "questions.parquet")
    assert {row["question"] for row in scored} == by_part["train"]
    assert {row["question"] for row in measured} == by_part["held_out"]


def test_a_corpus_without_questions_is_refused_with_the_setting(world, tmp_path):
    done = call(world, tmp_path / "w", "data", "--config.data.held_out_documents=()")
    assert done.returncode == 1 and "config.questions.source=written" in done.stderr


# --- the demo's recording -------------------------------------------------------------------------


def test_all_recorded_question_pairs_of_the_demo_are_valid():
    """Every recorded pair but for its filters by models: read, verbatim, no answer given away."""
    folder = importlib.resources.files("ark_jax.demo")
    read = lambda name: map(json.loads, (folder / name).read_text(encoding="utf-8").splitlines())
    documents = {row["id"]: row["text"] for row in read("documents.jsonl")}
    held_out = {"salt-company", "observatory", "lathom-library", "dunmere-hospital"}
    held_out |= {"marrowgate-courier"}
    asked, rows = set(), list(read("question_replies.jsonl"))
    for row in rows:
        names = [x.partition("#")[0] for x in row["item"].removeprefix("questions/").split("+")]
        assert held_out.isdisjoint(names)
        chunks = tuple(Chunk(name, name, 0, 0, 0, documents[name]) for name in dict.fromkeys(names))
        pairs = parse_pairs(row["reply"]["choices"][0]["message"]["content"])
        assert [written_questions.pair_defect(x, Material("train", chunks)) for x in pairs] == [
            ""
        ] * len(pairs)
        asked |= {x.question for x in pairs}
    assert len(rows) == 50 and len(asked) == 133
