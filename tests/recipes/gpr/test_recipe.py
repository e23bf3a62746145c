"""A whole run of GPR on the demo's graph with a tiny retriever, by the command line."""

import json
import signal
import subprocess
import time

import pytest
from support import finished_runs, gpr_world
from support.gpr_world import call, call_here
from support.world import outputs

from ark_jax.models.towers import DualEncoder
from ark_jax.pipeline.manifest import read_manifest
from ark_jax.pipeline.tables import load_rows
from ark_jax.recipes.gpr import config
from ark_jax.recipes.gpr.recipe import RECIPE, stages

STAGES = ["data", "baselines", "questions", "train", "index", "evaluate", "export", "report"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """An uninterrupted run, by the command line."""
    return finished_runs.finished_run("gpr", tmp_path_factory)


@pytest.fixture(scope="module")
def world(run):
    return run.world


@pytest.fixture(scope="module")
def finished(run):
    return run.workdir, run.said


def test_a_run_completes_every_stage(world, finished):
    workdir, said = finished
    assert [stage.name for stage in stages(gpr_world.tiny_config(world))] == STAGES
    counts = {name: read_manifest(workdir / name)["counts"] for name in STAGES}
    lines = (gpr_world.DEMO / "graph.tsv").read_text().splitlines()
    assert counts["data"]["triples"] == len(set(lines)) - 1  # without the heading
    assert counts["data"]["test_questions"] == counts["evaluate"]["questions"] > 100
    assert counts["questions"]["triples"] == 40
    assert counts["index"]["triples"] == counts["data"]["triples"]
    assert "rules word the questions" in said and "1 hop:" in said and "gpr, 3 hops" in said
    page = (workdir / "report.html").read_text()
    assert "All questions: rank of the first triple that bears an answer" in page


def test_a_second_run_does_nothing(world, finished):
    done = call_here(world, finished[0], "status")
    assert done.stdout.count(" done") == len(STAGES), done.stdout


def test_the_export_is_the_trained_towers(finished, mesh):
    workdir, _ = finished
    exported = DualEncoder.from_pretrained(workdir / "export")
    trained = DualEncoder.from_pretrained(workdir / "train" / "model")
    text = ["Lettice Dray | place of birth | Dunmere"]
    vectors = [towers.encode(text, kind="document") for towers in (exported, trained)]
    assert vectors[0].tolist() == vectors[1].tolist()
    card = (workdir / "export" / "README.md").read_text()
    assert "no labelled question was used" in card and "| gpr, 3 hops |" in card


def test_results_of_all_systems_are_stored(finished):
    workdir, _ = finished
    rows = load_rows(workdir / "evaluate" / "questions.parquet")
    systems = dict.fromkeys(row["system"] for row in rows)
    assert list(systems) == ["base", "bm25", "base, 3 hops", "bm25+gpr", "gpr", "gpr, 3 hops"]
    metrics = json.loads((workdir / "evaluate" / "metrics.json").read_text())
    assert set(metrics["groups"]) == {"1 hop", "2 hops"}


def test_untrained_systems_are_measured_first_and_compared_with_at_the_end(world, finished):
    workdir, said = finished
    assert stages(gpr_world.tiny_config(world))[1].doubts(workdir / "baselines") == []
    stored = json.loads((workdir / "baselines" / "metrics.json").read_text())
    systems = [row["system"] for row in stored["table"]]
    assert systems == ["base", "bm25", "base, 3 hops", "bm25+base"]
    closing = json.loads((workdir / "evaluate" / "metrics.json").read_text())["table"]
    for row in stored["table"][:3]:
        again = next(x for x in closing if x["system"] == row["system"])
        assert all(again["values"][m]["mean"] == x["mean"] for m, x in row["values"].items())
    assert (
        "held-out questions: a test would likely miss a difference in answer triple@10 below"
        in said
    )
    ships = "gpr, 3 hops ships, unchosen, "
    assert said.index("  bm25+base ") < said.index("] questions") < said.index(ships)
    for page in ("report.html", "export/README.md"):
        assert ships in (workdir / page).read_text()


def test_a_plan_can_be_made_before_the_run(world):
    done = call_here(world, world / "none", "plan")
    assert (
        "- memory of train: remat=products, 1 piece, 3 forward passes, nothing over " in done.stdout
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rules word them" in done.stdout and "vectors" in done.stdout
    assert not (world / "none").exists()


def test_recorded_wordings_and_a_reader_can_be_used(world):
    """The demo's recording words the relations; the tiny generator reads two questions."""
    flags = (
        "--config.llm.backend=replay",
        f"--config.questions.replies={gpr_world.DEMO / 'wordings.jsonl'}",
        "--config.questions.triples=0",
        "--config.evaluate.read=2",
        "--config.evaluate.triples=2",
        "--config.evaluate.max_new_tokens=3",
        "--config.train.towers=two",
        "--config.train.loss=triplet",
        "--config.train.batch=64",
        "--config.train.save_every=100",
    )
    done = call_here(world, world / "replayed", "run", *flags)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = read_manifest(world / "replayed" / "questions")["counts"]
    assert counts["calls"] == len(list((gpr_world.DEMO / "wordings.jsonl").open()))
    assert "Hit@1" in done.stdout
    assert (world / "replayed" / "export" / "router_config.json").is_file()
    rows = load_rows(world / "replayed" / "evaluate" / "questions.parquet")
    assert sum(row["answer"] is not None for row in rows) == 2 * 7  # the reader alone, too
    assert all(row["first_hit"] <= row["any_hit"] for row in rows if row["answer"] is not None)
    # Figure 2 compares runs by the reader's scores, so a sweep's table must have them.
    outcome = RECIPE.outcome(world / "replayed")
    assert set(outcome.values) == set(RECIPE.metrics) and len(outcome.by_question["list_f1"]) == 2


def test_without_questions_nothing_is_measured(world):
    done = call_here(world, world / "unmeasured", "run", "--config.data.questions=")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing will be measured" in done.stdout and "ships" not in done.stdout
    assert (world / "unmeasured" / "export" / "model.safetensors").is_file()
    assert "Nothing was measured" in (world / "unmeasured" / "report.html").read_text()


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--config.data.path=films.tsv", "films.tsv: does not exist; mend the path"),
        ("--config.data.path=", "config.data.path is empty"),
        ("--config.evaluate.metrics=('answer_triple',)", "each with @k"),
        ("--config.evaluate.hybrids=('bm25+tuned',)", "'tuned' in 'bm25+tuned' is none of"),
        ("--config.data.held_out=0", "is left to measure with"),
        ("--config.train.loss=hinge", "must be triplet, nce or module:function"),
    ],
)
def test_user_errors_are_reported_in_one_line(world, flag, message):
    done = call_here(world, world / "wrong", "run", flag)
    assert done.returncode == 1
    assert message in done.stderr.splitlines()[-1], done.stderr


def test_a_graph_of_one_triple_is_refused(world):
    (world / "one.tsv").write_text("a\tr\tb\n")
    done = call_here(world, world / "one", "run", f"--config.data.path={world / 'one.tsv'}")
    assert done.returncode == 1 and "the graph has only 1 triple" in done.stderr


@pytest.mark.slow
def test_a_killed_and_resumed_run_gives_the_same_bytes(world, finished):
    """SIGKILL at moments spread over the run; stage outputs equal those of the whole run."""
    workdir, began = world / "killed", time.monotonic()
    seconds = 2.0
    for _ in range(12):
        try:
            done = call(world, workdir, timeout=seconds)
            assert done.returncode in (0, -signal.SIGKILL), done.stderr
            break
        except subprocess.TimeoutExpired:  # the process was killed
            seconds *= 1.4
    else:
        done = call(world, workdir)
    assert done.returncode == 0 and time.monotonic() - began > 2
    assert outputs(workdir) == outputs(finished[0])


def test_presets_and_studies_are_valid(world):
    base = gpr_world.tiny_config(world)
    paper = {"paper": config.PRESETS["paper"]}
    runs = config.study(base) | config.switches(base) | config.TRIPLES | paper
    for changes in runs.values():
        changed = base.copy_and_resolve_references()
        changed.update_from_flattened_dict(changes)
        if changed.questions.by == "triples":
            with pytest.raises(ValueError, match=r"set --config\.llm\.backend=.*=gpr:default"):
                stages(changed)
            changed.llm.backend = "openai"
        assert [stage.name for stage in stages(changed)] == STAGES


def test_the_paper_preset_has_the_values_of_its_source():
    expected = {
        # Appendix B: "two distilbert-base-uncased encoders".
        "retriever.path": "distilbert/distilbert-base-uncased",
        "train.towers": "two",
        # The same: "5 epochs using AdamW, with a batch size of 512 and a learning rate of 2e-5".
        "train.epochs": 5,
        "train.batch": 512,
        "train.learning_rate": 2e-5,
        # The same: "Margins gamma_1 and gamma_2 in Eq. 5 are both set to 0.5".
        "train.loss": "triplet",
        "train.margins": (0.5, 0.5),
        # Eq. 1 to 3: a question of each masked triple; any triple that shares an entity is a
        # neighbour; one negative is drawn.
        "questions.by": "triples",
        "questions.triples": 0,
        "questions.triples_per_prompt": 1,  # "For each triplet [...] we mask one entity"
        "train.siblings": "neighbour",
        "train.neighbours": "triple",
        "train.negatives": "random",
        # Section 3: the top K triples by cosine.
        "search.hops": 1,
    }
    flat = config.gpr("paper").to_dict()
    values = {name: flat[name.split(".")[0]][name.split(".")[1]] for name in expected}
    assert values == expected
