"""The whole pipeline on tiny models and a part of the embedded corpus: resume, staleness, what a
user meets."""

import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from huggingface_hub import ModelCard
from support.finished_runs import finished_run
from support.paths import REPOSITORY
from support.world import (
    HELD_OUT,
    TRAINING,
    call,
    call_here,
    command,
    environment,
    make_world,
    outputs,
    tiny_config,
)
from tokenizers import Tokenizer

from ark_jax.data.spool import StoredChunks
from ark_jax.pipeline import engine
from ark_jax.pipeline.status import examine
from ark_jax.recipes.ark.recipe import stages
from ark_jax.runtime.log import Metrics


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """An uninterrupted run, by the command line."""
    return finished_run("ark", tmp_path_factory)


@pytest.fixture(scope="module")
def world(run):
    return run.world


@pytest.fixture(scope="module")
def finished(run):
    return run.workdir, run.said


def test_a_run_completes_every_stage(finished):
    workdir, said = finished
    names = [stage.name for stage in stages(tiny_config(workdir.parent))]
    assert names == [
        "data",
        "baselines",
        "candidates",
        "extract",
        "graph",
        "communities",
        "rewrite",
        "score",
        "positives",
        "stage1",
        "mine2",
        "stage2",
        "mine3",
        "stage3",
        "evaluate",
        "choice",
        "export",
        "report",
    ]
    assert all((workdir / name / "manifest.json").is_file() for name in names)
    assert not any((workdir / ".partial").iterdir())
    assert "nDCG@10" in said and "base" in said and "stage3" in said
    page = (workdir / "report.html").read_text()
    assert "<svg" in page and "http://" not in page.replace("http://www.w3.org", "")
    evaluated = json.loads((workdir / "evaluate" / "metrics.json").read_text())["table"]
    assert [row["system"] for row in evaluated] == ["base", "stage1", "stage2", "stage3"]
    for row in evaluated:
        for value in row["values"].values():
            assert 0 <= value["low"] <= value["mean"] <= value["high"] <= 1


def test_every_stage_reports_how_many_texts_it_truncates(world, finished):
    workdir, said = finished
    tokenizer = Tokenizer.from_file(str(world / "retriever" / "tokenizer.json"))
    chunks = StoredChunks(workdir / "data")
    for documents, labels in (
        (TRAINING, {"embed chunks": 3}),
        (HELD_OUT, {"embed chunks, base": 1, "embed chunks, stage3": 1}),
    ):
        lengths = [len(tokenizer.encode(x.text).ids) for x in chunks if x.document in documents]
        cut = sum(n > 64 for n in lengths)
        assert 0 < cut < len(lengths)
        for label, times in labels.items():  # scoring and both minings; evaluation
            assert (
                said.count(
                    f"  {label}: {cut} of {len(lengths)} texts are longer than 64 tokens "
                    "and are cut there\n"
                )
                == times
            )
    manifest = json.loads((workdir / "candidates" / "manifest.json").read_text())
    assert manifest["counts"]["cut_by_the_retriever"] == sum(
        len(tokenizer.encode(x.text).ids) > 64 for x in chunks if x.document in TRAINING
    )
    assert (
        "Training chunks longer than the retriever reads" in (workdir / "report.html").read_text()
    )
    assert (
        len(re.findall(r"  stage \d, chunks: \d+ of \d+ texts are longer than 64 tokens", said))
        == 3
    )


def test_a_second_run_does_nothing(world, finished):
    workdir, _ = finished
    before = outputs(workdir)
    again = call_here(world, workdir)
    assert again.returncode == 0 and "nothing to do" in again.stdout
    assert outputs(workdir) == before
    status = call_here(world, workdir, "status")
    assert status.stdout.split()[1::2] == ["done"] * 18


def test_training_changed_the_weights(finished):
    workdir, _ = finished
    weights = [
        json.loads((workdir / f"stage{i}" / "manifest.json").read_text())["outputs"][
            "model/model.safetensors"
        ]
        for i in (1, 2, 3)
    ]
    assert len({sha for _, sha in weights}) == 3
    chosen = json.loads((workdir / "choice" / "choice.json").read_text())["model"]
    made = workdir / ("choice" if chosen == "base" else chosen) / "model" / "model.safetensors"
    assert (workdir / "export" / "model.safetensors").read_bytes() == made.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_running_stage_by_stage_equals_one_run(dtype, request, tmp_path):
    """Stopping at every boundary changes nothing: each stage runs alone, reading its inputs from
    disk; what was rounded on its
    way there, too."""
    if dtype == "float32":
        world, whole = request.getfixturevalue("world"), request.getfixturevalue("finished")[0]
    else:
        world, whole = make_world(tmp_path, dtype), tmp_path / "whole"
        assert call(world, whole).returncode == 0
    # In a process like a user's: this one has eight devices, whose threads round differently.
    code = (
        f"import sys; sys.path[:0] = [{str(REPOSITORY / 'tests')!r}]\n"
        "from pathlib import Path\nfrom support import world\n"
        f"world.stage_by_stage(Path({str(world)!r}), Path({str(tmp_path / 'stages')!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=600,
        env=environment(world),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert outputs(tmp_path / "stages") == outputs(whole)


def test_a_stage_alone_requires_its_inputs(world, tmp_path):
    done = call_here(world, tmp_path, "score")
    assert done.returncode == 1
    assert "stage score needs data" in done.stderr and "Traceback" not in done.stderr


class Missed(AssertionError):
    """The moment to strike passed unseen."""


def struck(process: subprocess.Popen, sign, how: signal.Signals) -> int:
    """Sends a running process a signal as soon as `sign()` is true; its exit status."""
    deadline = time.monotonic() + 300
    while process.poll() is None and not sign():
        assert time.monotonic() < deadline, "the moment to strike never came"
        time.sleep(0.005)
    if process.poll() is not None:
        raise Missed("the run ended before it could be struck")
    process.send_signal(how)
    return process.wait(timeout=120)


def kill_when(world: Path, workdir: Path, sign) -> None:
    """Starts a run and kills it, without any warning, as soon as `sign()` is true."""
    struck(
        subprocess.Popen(
            command(world, workdir),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=REPOSITORY,
            env=environment(world),
        ),
        sign,
        signal.SIGKILL,
    )


MOMENTS = {
    "inside scoring": lambda w: any((w / ".partial" / "score").glob("shard-*.parquet")),
    "inside training": lambda w: (
        (w / ".partial" / "stage1" / "curve.jsonl").is_file()
        and (w / ".partial" / "stage1" / "curve.jsonl").read_text().count("\n") >= 2
    ),
    "inside the second stage of training": lambda w: (
        (w / ".partial" / "stage2" / "curve.jsonl").is_file()
        and (w / ".partial" / "stage2" / "curve.jsonl").read_text().count("\n") >= 1
    ),
    "inside the baselines": lambda w: any((w / ".partial" / "baselines").glob("ranked-*.parquet")),
    "inside evaluation": lambda w: any((w / ".partial" / "evaluate").glob("ranked-*.parquet")),
}


def in_time(strike, folder: Path) -> tuple[Path, object]:
    """The workdir of a run that `strike(workdir)` met, and what that gave: on a busy machine a
    moment of milliseconds may pass
    unseen, so other runs are tried."""
    for i in range(5):
        try:
            return folder / str(i), strike(folder / str(i))
        except Missed:
            continue
    raise Missed("the moment passed unseen in five runs")


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_and_resumed_run_gives_the_same_bytes(world, finished, tmp_path, moment):
    def kill(workdir: Path) -> None:
        kill_when(world, workdir, lambda: MOMENTS[moment](workdir))

    workdir, _ = in_time(kill, tmp_path)
    done = call(world, workdir)
    assert done.returncode == 0, done.stdout + done.stderr
    assert outputs(workdir) == outputs(finished[0])


@pytest.mark.slow
def test_a_run_killed_at_random_moments_gives_the_same_bytes(world, finished, tmp_path):
    """No matter how and when it is stopped, and how often."""
    seed = random.randrange(1 << 32)
    draw, statuses = random.Random(seed), []
    for _ in range(6):
        process = subprocess.Popen(
            command(world, tmp_path / "w"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
            env=environment(world),
        )
        how = draw.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(draw.uniform(1, 12))
        process.send_signal(how)
        _, said = process.communicate(timeout=60)
        statuses.append((how.name, process.returncode))
        is_early = process.returncode == -signal.SIGINT  # Python itself has a trace for that
        assert is_early or "Traceback" not in said, f"seed {seed}: {said}"
    # A signal may come before the program has its handlers, or after its end.
    expected = {"SIGKILL": (-9, 0), "SIGTERM": (0, -15), "SIGINT": (130, -2, 0)}
    assert all(status in expected[name] for name, status in statuses), f"seed {seed}: {statuses}"
    done = call(world, tmp_path / "w")
    assert done.returncode == 0, f"seed {seed}: {done.stdout}{done.stderr}"
    assert outputs(tmp_path / "w") == outputs(finished[0]), f"seed {seed}"


THREADS = [
    {"OPENBLAS_NUM_THREADS": "2"},
    {"OMP_NUM_THREADS": "2", "OPENBLAS_CORETYPE": "Haswell"},  # which sums in another order
]


@pytest.mark.slow
@pytest.mark.parametrize("variables", THREADS, ids=["two threads", "other sums"])
def test_the_bytes_do_not_depend_on_how_blas_sums(world, finished, tmp_path, variables):
    done = call(world, tmp_path / "w", **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    assert outputs(tmp_path / "w") == outputs(finished[0])


@pytest.mark.slow
def test_damage_to_the_scores_of_a_killed_run_is_detected(world, finished, tmp_path):
    """A flipped bit often leaves a table that can be read, with another score."""

    def kill(workdir: Path) -> None:
        without(finished, workdir, "score")
        kill_when(world, workdir, lambda: MOMENTS["inside scoring"](workdir))

    workdir, _ = in_time(kill, tmp_path)
    path = sorted((workdir / ".partial" / "score").glob("shard-*.parquet"))[0]
    content = bytearray(path.read_bytes())
    content[len(content) // 4] ^= 1
    path.write_bytes(content)
    done = call(world, workdir, "score")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{path.name} has been damaged: it is made again" in done.stdout
    assert outputs(workdir)["score"] == outputs(finished[0])["score"]


def stop_when(world: Path, workdir: Path, sign, verb: str = "run", *flags: str) -> str:
    """Starts a run and asks it to stop, as a scheduler does, as soon as `sign()` is true; what it
    said."""
    with (world / "said.txt").open("w+") as said:
        process = subprocess.Popen(
            command(world, workdir, verb, *flags),
            stdout=said,
            stderr=said,
            cwd=REPOSITORY,
            env=environment(world),
        )
        status = struck(process, sign, signal.SIGTERM)
        said.seek(0)
        output = said.read()
    assert status == 0, output
    assert (
        "run the same command again to go on" in output.splitlines()[-1]
        and "Traceback" not in output
    )
    return output.splitlines()[-1]


def without(finished, workdir: Path, stage: str) -> Path:
    """A finished run that has to begin again at `stage`."""
    names = [x.name for x in stages(tiny_config(finished[0].parent))]
    shutil.copytree(finished[0], workdir)
    for name in names[names.index(stage) :]:
        shutil.rmtree(workdir / name)
    return workdir


def test_sigterm_during_training_saves_the_step_and_exits_with_0(world, finished, tmp_path):
    workdir = without(finished, tmp_path / "w", "stage1")
    curve = workdir / ".partial" / "stage1" / "curve.jsonl"
    flag = "--config.train.save_every=1000"  # or there is a checkpoint anyway
    last = stop_when(
        world,
        workdir,
        curve.is_file,  # the first step is being compiled
        "stage1",
        flag,
    )
    step = re.fullmatch(
        r"stopped \(stage 1: step (\d+) of \d+ is saved\): run the same command again to go on",
        last,
    )[1]
    assert [path.name for path in (curve.parent / "checkpoints").iterdir()] == [step]
    assert curve.read_text().count("\n") == int(step)
    done = call(world, workdir, "stage1", flag)
    assert done.returncode == 0 and f"goes on after step {step} of" in done.stdout, (
        done.stdout + done.stderr
    )
    assert outputs(workdir)["stage1"] == outputs(finished[0])["stage1"]


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["inside scoring", "inside evaluation"])
def test_sigterm_in_another_stage_exits_with_0(world, finished, tmp_path, moment):
    def stop(workdir: Path) -> str:
        return stop_when(world, workdir, lambda: MOMENTS[moment](workdir))

    workdir, last_line = in_time(stop, tmp_path)
    assert last_line == "stopped: run the same command again to go on"
    assert call(world, workdir).returncode == 0
    assert outputs(workdir) == outputs(finished[0])


@pytest.fixture
def small_disk(tmp_path):
    """A file system of our own, of a few megabytes; `small_disk("option")` mounts it with another
    option."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = lambda *args: (
        subprocess.run(["mount", *args, str(folder)], capture_output=True).returncode
    )
    if mount("-t", "tmpfs", "-o", "size=64m", "tmpfs"):
        pytest.skip("this needs the right to mount a file system")
    yield folder, lambda option: mount("-o", f"remount,{option}")
    subprocess.run(["umount", "-l", str(folder)])


def clear_error(done: subprocess.CompletedProcess) -> str:
    assert (
        done.returncode == 1 and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    ), done.stderr
    return done.stderr


def test_a_read_only_workdir_is_reported_in_one_line(world, finished, small_disk):
    folder, remount = small_disk
    workdir = without(finished, folder / "w", "export")
    assert remount("ro") == 0
    message = clear_error(call_here(world, workdir, "export"))
    assert re.search(
        r"disk/w/\.lock: Read-only file system; make /.*/disk/w writable or give another "
        r"--workdir and run",
        message,
    )
    assert "disk/new writable or give another" in clear_error(
        call_here(world, folder / "new", "data")
    )
    remount("rw")
    assert call_here(world, workdir, "export").returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["data", "score", "stage1", "evaluate", "export"])
def test_a_full_disk_is_reported_in_one_line_and_loses_nothing(stage, world, finished, small_disk):
    folder, _ = small_disk
    workdir = without(finished, folder / "w", stage)
    before = outputs(workdir)
    free = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
    leave = {"stage1": 700_000}.get(stage, 4096)  # of training, the first checkpoint
    (folder / "others").write_bytes(bytes(free - leave))
    message = clear_error(call(world, workdir, stage))
    assert "disk/w" in message and "free some space" in message
    assert outputs(workdir) == before
    (folder / "others").unlink()
    done = call(world, workdir, stage)
    assert done.returncode == 0, done.stdout + done.stderr
    assert outputs(workdir)[stage] == outputs(finished[0])[stage]


@pytest.mark.slow
def test_diverging_training_is_reported_with_its_step(world, finished, tmp_path):
    shutil.copytree(finished[0], tmp_path / "w")
    rates = "--config.train.learning_rates=(1e30,1e30,1e30)"
    done = call_here(world, tmp_path / "w", "stage1", rates, "--yes")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert (
        "error: stage 1: step 2 gave loss" in done.stderr
        and "the state before it is in" in done.stderr
    )
    report = json.loads((tmp_path / "w" / ".partial" / "stage1" / "non_finite.json").read_text())
    assert report["step"] == 2 and len(report["questions"]) == 4 and "#" in report["chunks"][0]


def test_a_changed_setting_reruns_the_stages_that_read_it(world, finished, mesh, tmp_path):
    shutil.copytree(finished[0], tmp_path / "w")
    c = tiny_config(world)
    c.score.forward = 0.5
    states = {s.stage: (s.state, s.why) for s in examine(stages(c), c, tmp_path / "w")}
    assert states["score"] == ("done", "")
    assert states["positives"] == ("stale", "config.score.forward was 1.0, is 0.5")
    assert states["stage1"] == ("stale", "positives has to run first")
    context = engine.Context(c, tmp_path / "w", Metrics(tmp_path / "metrics.jsonl"))
    engine.run(stages(c), context, only="positives")
    assert (
        json.loads((tmp_path / "w" / "positives" / "manifest.json").read_text())["config"][
            "score.forward"
        ]
        == 0.5
    )


@pytest.mark.slow
def test_each_stage_can_train_an_adapter_of_the_previous_model(world, finished, mesh, tmp_path):
    import jax
    import numpy as np

    from ark_jax.models import hf, lora

    workdir = tmp_path / "w"
    shutil.copytree(finished[0], workdir)
    c = tiny_config(world)
    c.train.lora_rank, c.train.lora_targets = 2, ("q", "down")
    why = {s.stage: s.why for s in examine(stages(c), c, workdir)}
    assert why["positives"] == ""
    assert why["stage1"] == "config.train.lora_rank was 0, is 2"  # 0 reads no targets
    c.train.learning_rates = (1e-2, 1e-2, 1e-2)
    context = engine.Context(c, workdir, Metrics(tmp_path / "metrics.jsonl"))
    before, named = world / "retriever", str(world / "retriever")
    for stage in ("stage1", "mine2", "stage2"):
        engine.run(stages(c), context, only=stage)
        if stage == "mine2":
            continue
        folder = workdir / stage
        settings = json.loads((folder / "adapter" / "adapter_config.json").read_text())
        assert (settings["base_model_name_or_path"], settings["r"], settings["lora_alpha"]) == (
            named,
            2,
            32,
        )
        start, cfg, _ = hf.load_model(str(before))
        handed_on, _, _ = hf.load_model(str(folder / "model"))
        merged = lora.merge(start, lora.load_peft(folder / "adapter", before, cfg))
        moved = 0
        for ours, expected, was in zip(
            *map(jax.tree.leaves, (handed_on, merged, start)), strict=True
        ):
            np.testing.assert_allclose(ours, expected, rtol=1e-6, atol=1e-6)
            moved += not np.array_equal(ours, was)
        assert moved == 2
        before, named = folder / "model", f"{stage}/model"


def test_a_damaged_output_is_made_again(world, finished, tmp_path):
    shutil.copytree(finished[0], tmp_path / "w")
    (tmp_path / "w" / "graph" / "nodes.parquet").write_bytes(b"")
    states = {
        s.stage: (s.state, s.why)
        for s in examine(stages(tiny_config(world)), tiny_config(world), tmp_path / "w")
    }
    assert states["graph"] == ("stale", "nodes.parquet is damaged")
    assert states["data"] == ("done", "")


@pytest.mark.parametrize(
    "changes",
    [
        {"forward": 0.0},
        {"backward": 0.0},
        {"retriever": 0.0},
        {"answers": "mean"},
        {"normalise": "minmax"},
        {"positives": 1},
    ],
)
def test_new_score_weights_need_no_model(changes, world, finished):
    """The ablations of the paper's Table 2 among them."""
    c = tiny_config(world)
    c.score.update(changes)
    states = {s.stage: s.state for s in examine(stages(c), c, finished[0])}
    assert (states["score"], states["rewrite"], states["positives"]) == ("done", "done", "stale")


@pytest.mark.slow
def test_a_local_model_writes_the_replies(world, finished, tmp_path):
    """What a random one says is no record: it is asked once more and then kept as it is, and
    nothing is asked again."""
    shutil.copytree(finished[0] / "data", tmp_path / "data")
    reply_file = tmp_path / "llm" / "replies.jsonl"
    asked = sum(x.document in TRAINING for x in StoredChunks(finished[0] / "data"))
    for _ in range(2):
        done = call(
            world, tmp_path, "run", "--config.llm.backend=local", "--config.llm.max_tokens=5"
        )
        assert (
            done.returncode == 1
            and "error: the extraction gave no entity: look at extract/quarantine.parquet"
            in done.stderr
        )
        replies = [json.loads(row) for row in reply_file.read_text().splitlines()]
        assert (
            len({row["item"] for row in replies}) == asked and len(replies) == 2 * asked
        )  # each once more with a remark
    assert len({row["reply"]["choices"][0]["message"]["content"] for row in replies}) > 3
    assert len(pq.read_table(tmp_path / "extract" / "quarantine.parquet")) == asked


def test_a_second_run_on_a_workdir_is_refused(world, tmp_path):
    with engine._lock_workdir(tmp_path):
        done = call_here(world, tmp_path, "data")
    assert done.returncode == 1 and "another run is working here" in done.stderr


def test_the_export_opens_in_sentence_transformers(finished, mesh):
    sentence_transformers = pytest.importorskip(
        "sentence_transformers", reason="extra [reference] is not installed"
    )
    import numpy as np

    from ark_jax import Retriever

    folder = finished[0] / "export"
    card = ModelCard.load(folder / "README.md").data
    assert card.library_name == "sentence-transformers"
    chosen = json.loads((finished[0] / "choice" / "choice.json").read_text())["model"]
    table = json.loads((finished[0] / "evaluate" / "metrics.json").read_text())["table"]
    measured = next(row["values"] for row in table if row["system"] == chosen)
    assert {x.metric_type: x.metric_value for x in card.eval_results} == {
        n: round(x["mean"], 4) for n, x in measured.items()
    }
    text = (folder / "README.md").read_text()
    assert "| stage3 | " in text and "ark-jax index path/to/this/folder" in text
    assert json.loads((folder / "fusion.json").read_text())["by"] == "ranks"
    texts = ["", "tide", "the tide " * 300, "🌊 the tide 🌊", "潮の満ち引き", "  the Board  "]
    theirs = sentence_transformers.SentenceTransformer(str(folder)).encode(texts)
    ours = Retriever.from_pretrained(str(folder)).encode(texts, kind="document")
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_training_data_can_be_exported_for_other_trainers(world, finished):
    # Not above: a config file of these tests must not start jax.
    from ark_jax.train import example_files

    workdir = finished[0]
    done = call_here(world, workdir, "export", "--format=flagembedding")
    assert done.returncode == 0, done.stderr
    for stage in (1, 2, 3):
        rows = [
            json.loads(line)
            for line in (workdir / "export-flagembedding" / f"stage{stage}.jsonl")
            .read_text()
            .splitlines()
        ]
        trained = example_files.read_examples(workdir / f"stage{stage}" / "examples")
        assert rows and [
            (row["question_id"], tuple(row["pos_id"]), tuple(row["neg_id"])) for row in rows
        ] == [(e.question, e.positives, e.negatives) for e in trained if e.negatives or stage == 1]


@pytest.mark.slow
@pytest.mark.network
def test_the_demo_runs_at_reduced_size(tmp_path, real_models):
    """`ark-jax demo` with its own models and recordings, fewer candidates, one epoch a stage."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "ark_jax",
            "demo",
            f"--workdir={tmp_path}",
            "--config.score.candidates=2",
            "--config.train.epochs=(1,1,1)",
        ],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        # Real models compute for longer than they compile.
        env=os.environ | {"XLA_FLAGS": ""},
        timeout=1500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    counts = {
        path.parent.name: json.loads(path.read_text())["counts"]
        for path in tmp_path.glob("*/manifest.json")
    }
    llm = dict.fromkeys(
        ("cached", "asked_again", "retries", "input_tokens", "output_tokens", "cost"), 0
    )
    llm |= {"calls": 84, "requests": 84}
    assert counts["extract"] == {
        "calls": 84,
        "entities": 986,
        "relations": 714,
        "quarantined": 0,
        "quarantine_reasons": {},
        "drifted_prompts": 0,
        "llm": llm,
    }
    assert counts["rewrite"]["drifted_prompts"] == 0 and counts["rewrite"]["rewritten"] == 1440
    table = json.loads((tmp_path / "evaluate" / "metrics.json").read_text())["table"]
    # MiniLM itself, which no setting of ours moves: 60 held-out questions over 69 chunks.
    assert abs(table[0]["values"]["ndcg@10"]["mean"] - 0.5649) < 2e-3
