"""A whole run of STAR on the demo's graph with a tiny retriever, by the command line."""

import json
import signal
import subprocess
import time

import pytest
from support import finished_runs, star_world
from support.star_world import call, call_here
from support.world import outputs

from ark_jax.graph.path_retriever import StepSettings
from ark_jax.models.pairs import CrossEncoder
from ark_jax.pipeline.manifest import read_manifest
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_rows
from ark_jax.recipes.star import config
from ark_jax.recipes.star.data import load_questions, load_steps
from ark_jax.recipes.star.recipe import RECIPE, stages
from ark_jax.recipes.star.search import BIASES, STANDARD, beam_search, measure

STAGES = ["data", "paths", "baselines", "mine", "train", "evaluate", "export", "report"]
SYSTEMS = ["base", "frequent", "shortest", "star"]
# STAR, section 5.1: "a 90:10 and 95:5 train/validation split".
CHOSEN = ("--config.data.validation=0.2", "--config.data.held_out=0", "--config.train.epochs=3")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """An uninterrupted run, by the command line."""
    return finished_runs.finished_run("star", tmp_path_factory)


@pytest.fixture(scope="module")
def world(run):
    return run.world


@pytest.fixture(scope="module")
def finished(run):
    return run.workdir, run.said


def test_a_run_completes_every_stage(world, finished):
    workdir, said = finished
    assert [stage.name for stage in stages(star_world.tiny_config(world))] == STAGES
    counts = {name: read_manifest(workdir / name)["counts"] for name in STAGES}
    assert counts["data"]["train_questions"] == 24
    assert counts["data"]["test_questions"] == counts["evaluate"]["questions"] > 12
    # The world looks for paths of two relations; some answers lie three away.
    assert counts["paths"]["train_paths"] and counts["paths"]["train_out_of_reach"]
    assert counts["evaluate"]["pairs"] > 100
    assert "1 hop:" in said and "paths rare in training" in said and "path hit@1" in said
    page = (workdir / "report.html").read_text()
    assert "All questions: rank of the first shortest path to an answer" in page


def test_a_second_run_does_nothing(world, finished):
    done = call_here(world, finished[0], "status")
    assert done.stdout.count(" done") == len(STAGES), done.stdout


def test_the_export_is_the_trained_scorer(finished, mesh):
    workdir, _ = finished
    exported = CrossEncoder.from_pretrained(workdir / "export")
    trained = CrossEncoder.from_pretrained(workdir / "train" / "model")
    pairs = [("Where was Lettice Dray born?", "Lettice Dray, place of birth, end")]
    assert exported.score(pairs).tolist() == trained.score(pairs).tolist()
    # Its body is a retriever, by which a later run's search can preselect.
    body = CrossEncoder.from_pretrained(workdir / "export" / "body", head="cosine")
    assert body.score(pairs).tolist() == exported.score(pairs).tolist()
    assert StepSettings.read(workdir / "export") == StepSettings(inverse=True, by="last")
    assert (workdir / "export" / "path_steps.json").is_file()
    card = (workdir / "export" / "README.md").read_text()
    assert "ark.PathRetriever.from_pretrained" in card and "| star |" in card
    assert card.count("\n# ") == 1 and card.startswith("---\n")


def test_results_of_all_systems_are_stored(world, finished):
    workdir, _ = finished
    rows = load_rows(workdir / "evaluate" / "questions.parquet")
    assert list(dict.fromkeys(row["system"] for row in rows)) == SYSTEMS
    metrics = json.loads((workdir / "evaluate" / "metrics.json").read_text())
    assert {"1 hop", "2 hops"} < set(metrics["groups"])
    assert all(row["detour@1"] + row["path_hit@1"] == row["hit@1"] for row in rows)
    untrained = json.loads((workdir / "baselines" / "metrics.json").read_text())
    assert [row["system"] for row in untrained["table"]] == SYSTEMS[:-1]
    (few,) = stages(star_world.tiny_config(world))[2].doubts(workdir / "baselines")
    assert few.startswith("24 questions miss most gains below") and few in finished[1]
    ships = "star ships, unchosen, below base in hit rate@1:"
    assert ships in finished[1] and ships in (workdir / "export" / "README.md").read_text()
    assert ships in (workdir / "report.html").read_text()
    outcome = RECIPE.outcome(workdir)
    assert outcome.system == "star" and set(outcome.values) == {*STANDARD, *BIASES}
    assert set(RECIPE.metrics) > set(outcome.values)
    for row in rows:  # section 5.3: errors of either bias, and of both together
        assert row["wrong"] == 1 - row["hit@1"]
        assert row["shortcut"] == row["wrong"] * row["similar"]
        assert row["long_tail"] == row["wrong"] * row["rare"]
        assert row["union"] == max(row["shortcut"], row["long_tail"])
    page = (workdir / "report.html").read_text()
    assert "Errors and their biases" in page and "shortcut error" in page


def test_a_plan_can_be_made_before_the_run(world):
    done = call_here(world, world / "none", "plan")
    assert (
        "- memory of train: remat=products, 1 piece, 3 forward passes, nothing over " in done.stdout
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "lists to train on, at most" in done.stdout and "checkpoints" in done.stdout
    assert "to choose an epoch" not in done.stdout
    done = call_here(world, world / "none", "plan", *CHOSEN)
    assert "pairs to choose an epoch by, at most" in done.stdout, done.stdout + done.stderr
    assert not (world / "none").exists()


@pytest.mark.slow
def test_the_tiny_generator_answers_from_paths(world, finished):
    """With the publication's head; two questions are read."""
    flags = (
        "--config.train.head=star",
        "--config.mine.pool=all",
        "--config.evaluate.read=2",
        "--config.evaluate.paths=1",
        "--config.evaluate.max_new_tokens=3",
    )
    done = call_here(world, world / "read", "run", *flags)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Hit@1" in done.stdout
    rows = load_rows(world / "read" / "evaluate" / "questions.parquet")
    assert sum(row["answer"] is not None for row in rows) == 2 * (len(SYSTEMS) + 1)  # alone, too


@pytest.mark.slow
def test_without_held_out_questions_nothing_is_measured(world):
    done = call_here(world, world / "unmeasured", "run", "--config.data.held_out=0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing will be measured" in done.stdout and "ships" not in done.stdout
    assert (world / "unmeasured" / "export" / "README.md").is_file()
    assert "Nothing was measured" in (world / "unmeasured" / "report.html").read_text()


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--config.data.path=films.tsv", "films.tsv: does not exist; mend the path"),
        ("--config.data.questions=", "config.data.questions is empty"),
    ],
)
def test_user_errors_are_reported_in_one_line(world, flag, message):
    done = call_here(world, world / "wrong", "run", flag)
    assert done.returncode == 1
    assert message in done.stderr.splitlines()[-1], done.stderr


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"evaluate.metrics": ("hit",)}, "with @k"),
        ({"data.held_out": 1.0}, "leaves no question to train on"),
        ({"train.weight_range": (2.0, 0.5)}, "swap them"),
        ({"train.head": "cross"}, "must be cosine, linear or star"),
        ({"prompts.triple_reader": "none.txt"}, "config.prompts.triple_reader"),
    ],
)
def test_invalid_config_values_are_refused(world, changes, message):
    c = star_world.tiny_config(world)
    c.update_from_flattened_dict(changes)
    with pytest.raises(ValueError, match=message):
        stages(c)


@pytest.fixture(scope="module")
def chosen(world):
    """A run that chooses among three epochs."""
    done = call(world, world / "chosen", "run", *CHOSEN)
    assert done.returncode == 0, done.stdout + done.stderr
    return world / "chosen", done.stdout


def test_the_first_epoch_with_the_most_validation_hits_gives_the_scorer(world, chosen, mesh):
    workdir, said = chosen
    hits = json.loads((workdir / "train" / "epochs" / "hits.json").read_text())
    counts = read_manifest(workdir / "train")["counts"]
    best = 1 + hits.index(max(hits))
    assert len(hits) == 3 and (counts["chosen_epoch"], counts["validation_hit"]) == (
        best,
        max(hits),
    )
    assert [path.name for path in (workdir / "train" / "epochs").iterdir()] == ["hits.json"]
    assert f"epoch {best}: hit@1 {max(hits):.3f} of " in said
    context = Context(star_world.tiny_config(world), workdir, None)
    scorer = CrossEncoder.from_pretrained(workdir / "train" / "model")
    steps, validation = load_steps(context), load_questions(context, "validation")
    found = beam_search(context, validation, steps, scorer).paths
    values = [measure(steps, q, (), found[q.id], ("hit@1",))["hit@1"] for q in validation]
    assert sum(values) / len(values) == pytest.approx(max(hits))


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(), CHOSEN])
def test_a_killed_and_resumed_run_gives_the_same_bytes(world, finished, flags, request):
    """SIGKILL at moments spread over the run; stage outputs equal those of the whole run."""
    whole = request.getfixturevalue("chosen")[0] if flags else finished[0]
    workdir, began = world / f"killed{len(flags)}", time.monotonic()
    seconds = 2.0
    for _ in range(12):
        try:
            done = call(world, workdir, "run", *flags, timeout=seconds)
            assert done.returncode in (0, -signal.SIGKILL), done.stderr
            break
        except subprocess.TimeoutExpired:  # the process was killed
            seconds *= 1.4
    else:
        done = call(world, workdir, "run", *flags)
    assert done.returncode == 0 and time.monotonic() - began > 2
    assert outputs(workdir) == outputs(whole)


def test_presets_and_studies_are_valid(world):
    base = star_world.tiny_config(world)
    paper = {"paper": config.PRESETS["paper"]}
    runs = config.study(base) | config.switches(base) | config.ABLATIONS | paper
    for changes in runs.values():
        changed = base.copy_and_resolve_references()
        changed.update_from_flattened_dict(changes)
        assert [stage.name for stage in stages(changed)] == STAGES


def test_the_paper_preset_has_the_values_of_its_source():
    expected = {
        # Section 5.1: "STAR [...] is implemented using SimCSE backbone", with its own head.
        "retriever.path": "princeton-nlp/sup-simcse-roberta-base",
        "train.head": "star",
        # The same: "a 90:10 and 95:5 train/validation split", "50 epochs on WebQSP/GrailQA".
        "data.validation": 0.1,
        "train.epochs": 50,
        "paths.hops": 2,  # Table 1, WebQSP
        "mine.positives": "similar",  # Algorithm 1
        "mine.pool": "all",  # "sampled from the entire relation set"
        # Section 4.2: both classes weigh, by inverse counts.
        "train.weights": "both",
        "train.weight_scale": "inverse",
        "search.k": 7,  # Table 6: k = 1, 3, 5, 7
        "evaluate.paths": 1,  # Section 5.1: "select the top-1 path for answer generation"
    }
    flat = config.star("paper").to_dict()
    values = {name: flat[name.split(".")[0]][name.split(".")[1]] for name in expected}
    assert values == expected
