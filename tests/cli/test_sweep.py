"""`ark-jax sweep`: runs that share finished stages."""

import collections
import dataclasses
import functools
import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support import llm_server, pretend_stages
from support.gone import wait_until_gone, wait_until_group_is_gone
from support.paths import REPOSITORY

from ark_jax import __main__
from ark_jax.cli import sweep
from ark_jax.pipeline import engine
from ark_jax.pipeline.status import examine
from ark_jax.recipes.ark import config
from ark_jax.recipes.bar_rag import config as config_of_readers
from ark_jax.runtime.log import Metrics, read_rows
from ark_jax.sweep import processes

UPSTREAM = ("data", "candidates", "extract", "graph", "communities", "rewrite", "score")


def load(path: str):
    spec = importlib.util.spec_from_file_location(Path(path).stem, REPOSITORY / path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


SWEEPS = {
    "mixed": {
        "cold": {"train.temperature": 0.02},
        "hot": {"train.temperature": 0.1},
        "no-F": {"score.forward": 0.0},
        "typo": {"train.temprature": 1.0},
        "diverges": {"train.clip": 666.0},
        "stops": {"train.clip": 143.0},
        "same": {"train.temperature": pretend_stages.BASE},
    },
    "temperature": {"cold": {"train.temperature": 0.02}, "hot": {"train.temperature": 0.1}},
    "unnamed": {"a/b": {}},
    "folds": {"a": {"data.fold": (1, 2)}, "b": {"data.fold": (2, 2)}},
    "one-fold": {"a": {"data.fold": (1, 2)}, "b": {}},
}


CONFIG = """
import sys
sys.path[:0] = [{tests!r}]
from support import pretend_stages
SWEEPS = {sweeps!r}
def get_config(words=""):
    return pretend_stages.pretending({world!r})
"""


def config_of(world: Path) -> Path:
    world.mkdir(exist_ok=True)
    (world / "corpus.jsonl").touch()
    (world / "config.py").write_text(
        CONFIG.format(tests=str(REPOSITORY / "tests"), world=str(world), sweeps=SWEEPS)
    )
    return world / "config.py"


def words(world: Path, sweeps: str, *flags: str) -> list[str]:
    return [f"--config={config_of(world)}:sweep={sweeps}", f"--workdir={world / 'sweep'}", *flags]


def make(world: Path, sweeps: str, *flags: str, **environment: str) -> subprocess.Popen:
    """A sweep in `world/sweep`, in a process group of its own."""
    command = [
        sys.executable,
        str(REPOSITORY / "launch" / "sweep.py"),
        *words(world, sweeps, *flags),
    ]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
        process_group=0,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "NO_PROXY": "127.0.0.1", **environment},
    )


@pytest.fixture
def sweep_here(tool, monkeypatch):
    """A sweep of which only the runs are other processes."""
    for name, value in {"PYTHONPATH": str(REPOSITORY), "NO_PROXY": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    return lambda world, sweeps, *flags: tool("sweep", *words(world, sweeps, *flags))


def done(process: subprocess.Popen) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def witness(world: Path) -> list[list]:
    """What stage functions were called: (stage, run, process, devices)."""
    return list(read_rows(world / "witness"))


def until(sign, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 120
    while not sign():
        assert process.poll() is None and time.monotonic() < deadline, "the moment never came"
        time.sleep(0.01)


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A sweep of eight runs, two at a time, three of which do not come to their ends."""
    world = tmp_path_factory.mktemp("swept")
    code, out, err = done(make(world, "mixed", "--slots=2", CUDA_VISIBLE_DEVICES="4,5,6"))
    assert code == 1 and not err, out + err
    return world, out


def test_stages_that_runs_share_are_computed_once(swept):
    world, out = swept
    times = collections.Counter(stage for stage, *_ in witness(world))
    assert times == {
        **dict.fromkeys(UPSTREAM, 1),
        "positives": 2,
        "stage1": 6,
        "mine2": 5,
        "stage2": 5,
        "mine3": 4,
        "stage3": 4,
        "baselines": 1,
        "evaluate": 4,
        "choice": 4,
        "export": 4,
        "report": 5,
    }
    runs = [path for path in (world / "sweep" / "runs").iterdir() if path.name != "typo"]
    rows = [row for path in runs for row in read_rows(path / "metrics.jsonl")]
    for stage in UPSTREAM:
        assert sum(row["stage"] == stage and "seconds" in row for row in rows) == 1
        assert sum(row["stage"] == stage and "taken" in row for row in rows) == len(runs) - 1 == 6
        assert len({(path / stage / "manifest.json").read_text() for path in runs}) == 1
    assert re.search(
        r"for all 8 runs: data 1, baselines 1, candidates 1, extract 1, graph 1, communities 1, "
        r"rewrite 1, score 1, positives 2, stage1 5",
        out,
    )
    assert {devices for *_, devices in witness(world)} == {"4,6", "5"}


def test_each_run_of_a_sweep_is_complete_on_its_own(swept, tmp_path):
    run = swept[0] / "sweep" / "runs" / "hot"
    assert not any(path.is_symlink() for path in run.rglob("*")) and not any(
        (run / ".partial").iterdir()
    )
    (shared,) = (swept[0] / "sweep" / "shared").glob("score-*")
    assert (run / "score" / "deep" / "file").samefile(shared / "deep" / "file")
    moved = tmp_path / "elsewhere"
    subprocess.run(["cp", "-r", run, moved], check=True)
    c = pretend_stages.pretending(str(swept[0]))
    c.train.temperature = 0.1
    assert {status.state for status in examine(pretend_stages.pretend_stages(c), c, moved)} == {
        "done"
    }


def test_the_sweep_table_lists_the_best_first_and_failures_last(swept):
    world, out = swept
    rows = pq.read_table(world / "sweep" / "results.parquet").to_pylist()
    assert [row["run"] for row in rows][:1] == ["cold"] and {row["run"] for row in rows[1:3]} == {
        "base",
        "same",
    }
    assert [row["run"] for row in rows][3:] == ["hot", "no-F", "typo", "diverges", "stops"]
    by_run = {row["run"]: row for row in rows}
    assert by_run["cold"]["mean"] == pytest.approx(0.635) and by_run["cold"]["system"] == "stage3"
    assert by_run["cold"]["recall@10"] == pytest.approx(0.835)
    assert json.loads(by_run["cold"]["changes"]) == {"train.temperature": 0.02}
    assert by_run["cold"]["difference"] == pytest.approx(0.135)
    # Paired: the questions differ by 0.2 among themselves, their gains by 0.07.
    assert 0.1 < by_run["cold"]["difference_low"] < 0.135 < by_run["cold"]["difference_high"] < 0.17
    assert by_run["same"]["difference"] == 0 and by_run["base"]["difference"] is None
    assert by_run["no-F"]["difference"] == pytest.approx(-0.3)
    assert [row["state"] for row in rows] == ["done"] * 5 + ["failed"] * 3 and by_run["typo"][
        "mean"
    ] is None
    text = (world / "sweep" / "results.md").read_text()
    assert text in out
    assert (
        text.index("| cold | 0.635 [0.500, 0.770] | +0.135 [")
        < text.index("| base | 0.500")
        < text.index("typo")
    )
    assert "| hot | " in text and "| −0.065 [" in text and "| untouched model | 0.400" in text
    page = (world / "sweep" / "results.html").read_text()
    assert '<a href="runs/hot/report.html">hot</a>' in page
    assert "cold has the highest nDCG@10 of 5 runs, 0.635:" in page
    assert (
        page.count('class="point"') == 5 + 1 + 4  # means, one untrained, differences to base
        and "http://" not in page
        and "stage 2: step 3 gave loss nan" in page
    )


def test_a_crashed_run_stops_no_other_and_its_error_is_kept(swept):
    rows = {
        row["run"]: row for row in pq.read_table(swept[0] / "sweep" / "results.parquet").to_pylist()
    }
    assert rows["diverges"]["error"] == "stage 2: step 3 gave loss nan"
    assert rows["stops"]["error"] == "stopped: run the same command again to go on"
    assert "temprature" in rows["typo"]["error"] and "\n" not in rows["typo"]["error"]
    assert (
        "error: stage 2: step 3 gave loss nan"
        in (swept[0] / "sweep" / "logs" / "diverges.log").read_text()
    )


def test_repeating_a_sweep_reruns_only_failed_runs(swept, tmp_path, sweep_here):
    world = shutil.copytree(swept[0], tmp_path / "again")
    before, files_before = (
        witness(world),
        (world / "sweep" / "runs" / "cold" / "evaluate").stat().st_ino,
    )
    again = sweep_here(world, "mixed", "--only=cold,diverges", "--slots=2", "--metric=mrr")
    assert again.returncode == 1, again
    assert [row[0] for row in witness(world)[len(before) :]] == ["stage2"]
    assert (world / "sweep" / "runs" / "cold" / "evaluate").stat().st_ino == files_before
    rows = pq.read_table(world / "sweep" / "results.parquet").to_pylist()
    assert (
        rows[0]["run"] == "cold"
        and rows[0]["metric"] == "mrr"
        and rows[0]["mean"] == pytest.approx(0.535)
    )
    assert len(rows) == 8 and {row["run"] for row in rows if row["state"] == "failed"} == {
        "typo",
        "diverges",
        "stops",
    }
    assert sweep_here(world, "mixed", "--only=cold").returncode == 0
    assert "nothing to do" in (world / "sweep" / "logs" / "cold.log").read_text()


def test_another_run_resumes_the_stage_of_a_killed_one(tmp_path, sweep_here):
    """All processes die at once in the middle of a stage; another run continues where it stood."""
    (tmp_path / "hold").touch()
    process = make(tmp_path, "temperature", "--only=cold")
    until(lambda: any(row[0] == "score" for row in witness(tmp_path)), process)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert not list((tmp_path / "sweep" / "runs" / "cold").glob("score"))
    (tmp_path / "hold").unlink()
    left = tmp_path / "sweep" / "shared" / ".partial" / "score-of-other-settings"
    left.mkdir()
    resumed = sweep_here(tmp_path, "temperature", "--only=hot")
    assert resumed.returncode == 0, resumed
    assert left.is_dir()  # the others may go on with it
    assert [(stage, run) for stage, run, *_ in witness(tmp_path)][7:10] == [
        ("score", "cold"),
        ("score resumed", "hot"),
        ("positives", "hot"),
    ]
    rows = pq.read_table(tmp_path / "sweep" / "results.parquet").to_pylist()
    assert [(row["run"], row["state"]) for row in rows] == [
        ("hot", "done"),
        ("base", "unfinished"),
        ("cold", "unfinished"),
    ]
    assert sweep_here(tmp_path, "temperature").returncode == 0
    assert collections.Counter(row[0] for row in witness(tmp_path))["data"] == 1
    assert not any((tmp_path / "sweep" / "shared" / ".partial").iterdir())


@pytest.mark.parametrize(
    ("sign", "status", "message"),
    [(signal.SIGINT, 130, "nothing is lost"), (signal.SIGTERM, 0, "run the same command again")],
)
def test_an_interrupt_stops_all_runs(tmp_path, sign, status, message):
    (tmp_path / "hold").touch()
    process = make(tmp_path, "temperature", "--slots=2")
    until(lambda: any(row[0] == "score" for row in witness(tmp_path)), process)
    holder = next(pid for stage, _, pid, _ in witness(tmp_path) if stage == "score")
    process.send_signal(sign)
    wait_until_gone(holder)
    code, _, err = done(process)
    assert code == status and message in err
    wait_until_group_is_gone(process.pid)
    assert (
        "- base unfinished: run again to go on" in (tmp_path / "sweep" / "results.md").read_text()
    )


def test_runs_of_a_sweep_do_not_pay_for_a_reply_twice(tmp_path, sweep_here, monkeypatch):
    """Not by two runs at once, and not after a kill, whichever run goes on."""
    pytest.importorskip(
        "openai", reason="the live backend needs the openai client: pip install 'ark-jax[llm]'"
    )
    with llm_server.serving(lambda messages: "so it is", latency=0.3) as server:
        flags = (
            "--config.llm.backend=openai",
            f"--config.llm.base_url={server.url}",
            "--config.llm.model=toy",
            "--config.llm.key_env=ARK_TEST_KEY",
            "--config.llm.concurrency=1",
        )
        process = make(tmp_path, "temperature", "--only=cold", *flags, ARK_TEST_KEY="sk-test")
        until(lambda: len(server.delivered) >= 2, process)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        replies = len(
            (tmp_path / "sweep" / "runs" / "cold" / "llm" / "replies.jsonl")
            .read_text()
            .splitlines()
        )
        asked_before = len(server.requests)
        assert 1 <= replies < 10
        monkeypatch.setenv("ARK_TEST_KEY", "sk-test")
        others = sweep_here(tmp_path, "temperature", "--slots=2", "--only=hot,base", *flags)
        assert others.returncode == 0, others
        prompts = collections.Counter(request.prompt for request in server.requests)
    assert set(prompts) == {f"{stage} {i}" for stage in ("extract", "rewrite") for i in range(5)}
    assert sum(prompts.values()) == asked_before + 10 - replies
    assert (
        len(
            (tmp_path / "sweep" / "runs" / "hot" / "llm" / "replies.jsonl").read_text().splitlines()
        )
        == 10
    )


def test_the_slurm_script_has_one_task_per_run(tmp_path, capsys):
    world = tmp_path / "a b"
    flags = words(world, "mixed", "--slurm", "--slots=3", "--config.data.path=it's here")
    assert __main__._main(["sweep", *flags]) == 0
    script = capsys.readouterr().out
    assert "#SBATCH --array=0-7%3\n" in script and "#SBATCH --job-name=ark-mixed\n" in script
    path = tmp_path / "sweep.sbatch"
    path.write_text(script)
    subprocess.run(["bash", "-n", path], check=True)
    path.write_text(script.replace(f"exec {shlex.quote(sys.executable)}", "exec printf '%s\\n'"))
    for i, name in enumerate(["base", *SWEEPS["mixed"]]):
        said = subprocess.run(
            ["bash", path],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "SLURM_ARRAY_TASK_ID": str(i)},
        ).stdout.splitlines()
        assert (
            said[-1] == f"--only={name}"
            and "--config.data.path=it's here" in said
            and "--slurm" not in said
        )
        assert said[:3] == ["-m", "ark_jax", "sweep"] and f"--workdir={world / 'sweep'}" in said
    assert not (world / "sweep").exists()


@pytest.mark.parametrize(
    ("sweeps", "flags", "message"),
    [
        ("nope", (), "there are mixed, temperature, unnamed, folds, one-fold"),
        ("unnamed", (), "run 'a/b'"),
        ("mixed", ("--only=cold,warm",), "mixed has no run 'warm', but base, cold, hot"),
        ("mixed", ("--confg.train.batch=3",), "unrecognized arguments: --confg.train.batch=3"),
        ("mixed", ("--config.train.batch", "3"), "unrecognized arguments: --config.train.batch 3"),
        ("mixed", ("--metric=accuracy",), "accuracy"),
        ("mixed", ("--slots=3",), "CUDA_VISIBLE_DEVICES=0,1 has 2 device(s)"),
    ],
)
def test_an_invalid_sweep_is_refused_before_any_run(
    tmp_path, sweeps, flags, message, capsys, monkeypatch
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    code = __main__._main(["sweep", *words(tmp_path / "world", sweeps, *flags)])
    assert (
        code == 1
        and message in capsys.readouterr().err
        and not (tmp_path / "world" / "sweep").exists()
    )


def test_folds_need_a_recipe_that_can_pool_them(tmp_path, monkeypatch):
    config_file = config_of(tmp_path)
    names = lambda name: [
        run.name for run in sweep.read_sweep(f"{config_file}:sweep={name}", tmp_path).runs
    ]
    assert names("folds") == ["a", "b"] and names("one-fold") == ["base", "a", "b"]
    poolless = dataclasses.replace(pretend_stages.RECIPE, pool=None)
    monkeypatch.setattr(pretend_stages, "RECIPE", poolless)
    assert names("one-fold") == ["base", "a", "b"]
    with pytest.raises(ValueError, match="sweep folds: recipe pretend cannot pool folds"):
        names("folds")


def test_the_arms_of_a_sweep_follow_the_command_line_fields(tmp_path):
    """The study of readers gives supervised steps as much time as the reinforced ones get."""
    config_file = tmp_path / "mine.py"
    config_file.write_text(
        "from ark_jax.recipes.bar_rag import config\nSWEEPS = {'study': config.study}\n"
        "def get_config(words=''): return config.bar_rag()\n"
    )
    fields = ["--config.read.steps=7"]
    series = sweep.read_sweep(f"{config_file}:sweep=study", tmp_path, fields)
    steps = {run.name: run.changes.get("read.steps") for run in series.runs}
    assert steps["supervised-selected-seed2"] == 7 * config_of_readers.SUPERVISED_STEPS
    assert steps["base"] is steps["grpo-random"] is None


@pytest.mark.parametrize(
    ("log_text", "status", "error"),
    [
        # The log begins with 26 characters of an earlier call, which do not count.
        ("", -9, "killed by SIGKILL: exit status -9"),
        ("some\n\nerror: no such thing\n \n", 1, "no such thing"),
        ("some\n\nerror: no such thing\n \n", -15, "killed by SIGTERM: no such thing"),
        ("[1/2] data\ndone in 3s\nException ignored in: some library\n", 0, ""),
    ],
)
def test_the_error_of_a_run_is_the_last_line_of_its_log(log_text, status, error, tmp_path):
    log = tmp_path / "log"
    log.write_text("error: of an earlier call\n" + log_text)
    assert processes.failure_reason(status, log, 26) == error


def test_a_failed_run_without_an_error_line_is_described_by_its_last_line(tmp_path):
    log = tmp_path / "log"
    log.write_text("[1/2] data\ndone in 3s\nException ignored in: some library\n")
    assert processes.failure_reason(1, log, 0).startswith("Exception ignored")


def test_each_training_stage_depends_only_on_its_own_epochs_and_rate(tmp_path):
    """Not on those of later stages, nor on which of them there are; and on the stage before it."""
    config_of(tmp_path)
    c = pretend_stages.pretending(str(tmp_path))
    plain = c.train.to_dict()

    def made(name: str, **train) -> list[str]:
        before = len(witness(tmp_path)) if (tmp_path / "witness").exists() else 0
        c.train.update({**plain, **train})
        engine.run(
            pretend_stages.pretend_stages(c),
            engine.Context(c, tmp_path / name, Metrics(tmp_path / "metrics"), tmp_path / "shared"),
        )
        return [stage for stage, *_ in witness(tmp_path)[before:]]

    closing, third = ["evaluate", "choice", "export", "report"], ["mine3", "stage3"]
    assert len(made("base")) == 18
    assert made("longer", epochs=(3, 4, 9)) == [*third[1:], *closing]
    assert made("slower", learning_rates=(1e-5, 8e-6, 1e-6)) == [*third[1:], *closing]
    assert made("slower second", learning_rates=(1e-5, 1e-6, 4e-6)) == ["stage2", *third, *closing]
    assert made("two", stages=(1, 2)) == closing and made("one and three", stages=(1, 3)) == [
        *third,
        *closing,
    ]
    assert made("at once", stages=(0,)) == ["mine0", "stage0", *closing]
    assert made("at once, for longer", stages=(0,), epochs=(3, 4, 9)) == ["stage0", *closing]
    c.train.update({**plain, "stages": (3,)})
    why = {
        status.stage: status.why
        for status in examine(pretend_stages.pretend_stages(c), c, tmp_path / "base")
    }
    assert why["mine3"] == "was made with before=stage2, is with base"
    assert (
        made("base", stages=(3,)) == [*third, *closing]
        and made("base", stages=(3,), epochs=(9, 9, 3)) == []
    )


@pytest.mark.parametrize("file", ["configs/ark.py", "configs/demo.py"])
def test_packaged_sweeps_change_existing_fields(file):
    swept, c = load(file).SWEEPS, config.ark()
    assert {"temperature", "lambda"} <= set(swept)
    for name, runs in swept.items():
        assert all(re.fullmatch(r"\w[\w.+-]*", run) for run in runs)
        assert len({json.dumps(changes) for changes in runs.values()}) == len(runs)
        for changes in runs.values():
            assert changes
            for field, value in changes.items():
                was = functools.reduce(lambda part, name: part[name], field.split("."), c)
                assert type(value) is type(was)


def test_a_config_accepts_a_sweep_name_next_to_its_preset():
    get_config = load("configs/ark.py").get_config
    assert get_config("paper,sweep=lambda").to_dict() == config.ark("paper").to_dict()
    assert (
        get_config("sweep=lambda").to_dict()
        == get_config("").to_dict()
        == config.ark("default").to_dict()
    )


@pytest.mark.slow
def test_a_real_sweep_extracts_and_scores_once(tmp_path):
    """Three temperatures and weights on tiny models: the real stages, two runs at a time."""
    from support.world import make_world, outputs

    world = make_world(tmp_path)
    (world / "config.py").write_text(f"""
import sys
sys.path[:0] = [{str(REPOSITORY / "tests")!r}]
from pathlib import Path
from support import world
SWEEPS = {{"t": {{"cold": {{"train.temperature": 0.02}}, "hot": {{"train.temperature": 0.2}}}},
          "lambda": {{"no-F": {{"score.forward": 0.0}}, "no-V": {{"score.retriever": 0.0}}}}}}
def get_config(words=""):
    c = world.tiny_config(Path({str(world)!r}))
    c.train.stages, c.train.epochs = (0,), (1, 0, 0)
    return c
""")
    for name in ("t", "lambda"):
        subprocess.run(
            [
                sys.executable,
                "launch/sweep.py",
                f"--config={world / 'config.py'}:sweep={name}",
                "--slots=2",
                f"--workdir={world / 'sweep'}",
            ],
            cwd=REPOSITORY,
            check=True,
            timeout=1500,
            env={**os.environ, "ARK_CACHE": str(world / "cache"), "PYTHONPATH": str(REPOSITORY)},
        )
    runs = {path.name: path for path in (world / "sweep" / "runs").iterdir()}
    assert set(runs) == {"base", "cold", "hot", "no-F", "no-V"}
    assert (
        pq.read_table(world / "sweep" / "results.parquet").column("state").to_pylist()
        == ["done"] * 3
    )
    rows = [row for path in runs.values() for row in read_rows(path / "metrics.jsonl")]
    stage_counts = collections.Counter(row["stage"] for row in rows if "seconds" in row)
    assert {stage: stage_counts[stage] for stage in UPSTREAM} == dict.fromkeys(UPSTREAM, 1)
    assert stage_counts["stage0"] == 5
    files_of = {name: outputs(path) for name, path in runs.items()}
    assert len({json.dumps(files_of[name]["stage0"]) for name in ("base", "cold", "hot")}) == 3
    assert all(files_of[name]["score"] == files_of["base"]["score"] for name in runs)


@pytest.mark.slow
def test_a_real_sweep_of_folds_is_pooled(tmp_path):
    """Two folds on tiny models: every question is measured once, by a model that never saw it."""
    from support.world import environment, make_world

    world = make_world(tmp_path)
    (world / "config.py").write_text(f"""
import sys
sys.path[:0] = [{str(REPOSITORY / "tests")!r}]
from pathlib import Path
from support import world
SWEEPS = {{"folds": {{"a": {{"data.fold": (1, 2)}}, "b": {{"data.fold": (2, 2)}}}}}}
def get_config(words=""):
    c = world.tiny_config(Path({str(world)!r}))
    c.data.held_out_documents = ()
    c.train.stages, c.train.epochs = (1,), (2, 1, 1)
    c.train.learning_rates = (0.01, 0.01, 0.01)
    return c
""")
    command = [
        sys.executable,
        "launch/sweep.py",
        f"--config={world / 'config.py'}:sweep=folds",
        f"--workdir={world / 'sweep'}",
    ]
    variables = {**environment(world), "PYTHONPATH": str(REPOSITORY)}
    make_folds = lambda *flags: subprocess.run(
        [*command, *flags],
        cwd=REPOSITORY,
        check=True,
        timeout=1500,
        env=variables,
        capture_output=True,
        text=True,
    )
    printed = make_folds("--only=a").stdout
    assert "the folds are pooled when all are done" in printed
    assert not (world / "sweep" / "pooled").exists()
    printed = make_folds().stdout
    runs = {path.name: path for path in (world / "sweep" / "runs").iterdir()}
    assert set(runs) == {"a", "b"}

    read = lambda path: pq.read_table(path).to_pylist()
    asked = {
        json.loads(line)["id"]
        for line in (world / "corpus" / "questions.jsonl").read_text().splitlines()
    }
    rows = read(world / "sweep" / "pooled" / "questions.parquet")
    assert len(rows) == 2 * len(asked)
    assert {(row["system"], row["question"]) for row in rows} == {
        (system, id) for system in ("base", "stage1") for id in asked
    }
    for name, path in runs.items():
        trained = {row["id"] for row in read(path / "data" / "questions_train.parquet")}
        measured = [row for row in rows if row["run"] == name]
        assert {row["question"] for row in measured} == asked - trained
        fold_rows = read(path / "evaluate" / "questions.parquet")
        assert [{"run": name, **row} for row in fold_rows] == measured

    results = json.loads((world / "sweep" / "pooled" / "metrics.json").read_text())
    assert [row["system"] for row in results["table"]] == ["base", "stage1"]
    text = (world / "sweep" / "results.md").read_text()
    page = (world / "sweep" / "results.html").read_text()
    assert text in printed and "difference to base" not in text
    assert f"All {len(asked)} questions of 2 folds" in text and f"{len(asked)} held-out" in text
    for row in results["table"]:
        for metric in results["metrics"]:
            values = [x[metric] for x in rows if x["system"] == row["system"]]
            values = [x for x in values if x is not None]
            mean = sum(values) / len(values)
            assert row["values"][metric]["mean"] == pytest.approx(mean)
            assert f"{mean:.3f} [" in text and f"{mean:.3f}" in page
    by_id = lambda system: {x["question"]: x["ndcg@10"] for x in rows if x["system"] == system}
    base, tuned = by_id("base"), by_id("stage1")
    assert base != tuned
    moved = sum(tuned[id] - base[id] for id in base) / len(base)
    tested = results["table"][1]["values"]["ndcg@10"]["against_base"]
    assert tested["difference"] == pytest.approx(moved) and 0 < tested["p"] <= 1
