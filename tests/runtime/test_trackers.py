"""Trackers get what metrics.jsonl and the training curves hold, each value once."""

import importlib.machinery
import importlib.util
import json
import os
import struct
import subprocess
import sys
import types
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ark_jax.recipes.ark import config
from ark_jax.runtime import trackers
from ark_jax.runtime.log import Metrics
from ark_jax.train.fit import Curve

ROW = {"loss": 2.5, "learning_rate": 1e-5, "gradient_norm": 0.75}


def settings_of(*names: str):
    c = config.ark()
    c.log.to = names
    return c


@contextmanager
def tracked_metrics(workdir: Path, *names: str):
    """The metrics of a run with these trackers."""
    with trackers.open_trackers(settings_of(*names), workdir) as opened:
        yield Metrics(workdir / "metrics.jsonl", opened)


def write_run(metrics: Metrics) -> None:
    metrics.write(
        "extract",
        seconds=1.5,
        llm={"calls": 3, "cost": 0.25},
        model="m",
        quarantine_reasons={"no record: x": 1},
    )
    for step in (1, 2):
        metrics.step("stage1", {"step": step, **ROW, "loss": 2.5 / step})
    metrics.write("stage1", steps=2, seconds=4.0)


TRACKED = [
    (
        "extract",
        {"seconds": 1.5, "llm/calls": 3, "llm/cost": 0.25, "quarantine_reasons/no record: x": 1},
        1,
    ),
    ("stage1", ROW, 1),
    ("stage1", {**ROW, "loss": 1.25}, 2),
    ("stage1", {"steps": 2, "seconds": 4.0}, 3),
]


def test_trackers_receive_metrics_with_stage_and_step(tmp_path):
    tracked = []
    write_run(Metrics(tmp_path / "metrics.jsonl", [lambda *row: tracked.append(row)]))
    assert tracked == TRACKED
    assert [
        json.loads(line)["stage"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()
    ] == ["extract", "stage1"]


def test_no_tracker_is_opened_by_default(tmp_path):
    with trackers.open_trackers(config.ark(), tmp_path / "w") as opened:
        assert opened == [] and not (tmp_path / "w").exists()


def test_only_the_first_process_opens_trackers(tmp_path, monkeypatch):
    monkeypatch.setattr(trackers, "is_first_process", lambda: False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    with trackers.open_trackers(settings_of(*trackers.TRACKERS), tmp_path / "w") as opened:
        assert opened == [] and not (tmp_path / "w").exists()


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            ("mlflow", "tensorboard"),
            "config.log.to: 'mlflow' is not among tensorboard, wandb, trackio",
        ),
        (
            ("tensorboard,wandb",),
            r"config.log.to asks for tensorboard, but tensorboardX is not installed: "
            r"pip install 'ark",
        ),
        (("wandb",), "asks for wandb, but wandb is not installed"),
    ],
)
def test_an_unknown_or_missing_tracker_is_refused_before_the_run(
    names, message, tmp_path, monkeypatch
):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with (
        pytest.raises(ValueError, match=message),
        trackers.open_trackers(settings_of(*names), tmp_path / "w"),
    ):
        pytest.fail("opened")
    assert not (tmp_path / "w").exists()


# --- a resumed stage ---


@settings(deadline=None, max_examples=60)
@given(
    kills=st.lists(st.tuples(st.integers(1, 9), st.booleans()), max_size=4), every=st.integers(1, 4)
)
def test_each_step_is_tracked_once_despite_kills(kills, every, tmp_path_factory):
    """A run of 9 steps with several kills, which may cut off the last row."""
    path, tracked, saved = tmp_path_factory.mktemp("stage") / "curve.jsonl", [], 0
    for kill, cut in [*kills, (9, False)]:
        curve = Curve(path, saved)
        assert [row["step"] for row in curve.rows] == list(range(1, saved + 1))
        for step in range(saved + 1, max(kill, saved) + 1):
            curve.add({"step": step})
            if step > curve.reported:
                tracked.append(step)
            saved = step if step % every == 0 else saved
        if cut:
            with path.open("a") as file:
                file.write('{"step"')
    curve.finish()
    assert tracked == list(range(1, 10)) and [p.name for p in path.parent.iterdir()] == [
        "curve.jsonl"
    ]


# --- TensorBoard ---


def events(folder: Path) -> list[tuple[str, float, int]]:
    """(tag, value, step) as TensorBoard shows them.

    A file that starts at a step removes the values of earlier files from that step on.
    """
    proto = pytest.importorskip("tensorboardX.proto.event_pb2", reason="needs tensorboardX")
    rows = []
    for path in sorted(
        folder.glob("events.*"), key=lambda path: (path.stat().st_mtime_ns, path.name)
    ):
        data, position = path.read_bytes(), 0
        while position < len(data):
            length = struct.unpack_from("<Q", data, position)[0]
            event = proto.Event.FromString(data[position + 12 : position + 12 + length])
            position += 16 + length
            if event.session_log.status == event.session_log.START:
                rows = [row for row in rows if row[2] < event.step]
            rows += [(value.tag, value.simple_value, event.step) for value in event.summary.value]
    return rows


def test_tensorboard_has_one_folder_per_stage(tmp_path):
    pytest.importorskip("tensorboardX", reason="needs tensorboardX")
    with tracked_metrics(tmp_path, "tensorboard") as metrics:
        write_run(metrics)
    stage = events(tmp_path / "tensorboard" / "stage1")
    assert [x for x in stage if x[0] == "loss"] == [("loss", 2.5, 1), ("loss", 1.25, 2)]
    assert ("gradient_norm", 0.75, 2) in stage and ("seconds", 4.0, 3) in stage
    assert events(tmp_path / "tensorboard" / "extract") == [
        ("seconds", 1.5, 1),
        ("llm/calls", 3.0, 1),
        ("llm/cost", 0.25, 1),
        ("quarantine_reasons/no_record__x", 1.0, 1),
    ]


def test_tensorboard_continues_a_resumed_stage_and_restarts_a_repeated_one(tmp_path):
    pytest.importorskip("tensorboardX", reason="needs tensorboardX")
    losses = lambda: [
        (value, step)
        for tag, value, step in events(tmp_path / "tensorboard" / "stage1")
        if tag == "loss"
    ]
    with tracked_metrics(tmp_path, "tensorboard") as metrics:
        write_run(metrics)
    with tracked_metrics(tmp_path, "tensorboard") as metrics:
        metrics.step("stage1", {"step": 3, "loss": 0.5})
    assert losses() == [(2.5, 1), (1.25, 2), (0.5, 3)]
    with tracked_metrics(tmp_path, "tensorboard") as metrics:
        metrics.step("stage1", {"step": 1, "loss": 8.0})
    assert losses() == [(8.0, 1)]


# --- Trackio, Weights & Biases ---


TRACKIO = """
import json, sys
from pathlib import Path
import test_trackers
with test_trackers.tracked_metrics(Path(sys.argv[1]), "trackio") as metrics:
    test_trackers.write_run(metrics)
with test_trackers.tracked_metrics(Path(sys.argv[1]), "trackio") as metrics:
    metrics.step("stage1", {"step": 3, "loss": 0.5})
from trackio.sqlite_storage import SQLiteStorage
names = SQLiteStorage.get_runs("ark-jax")
print(json.dumps([[name, SQLiteStorage.get_logs("ark-jax", name)] for name in names]))
"""


def test_trackio_has_one_run_per_workdir(tmp_path):
    """Runs in a child process, since trackio reads its database path when it is imported."""
    pytest.importorskip("trackio", reason="needs trackio")
    folder = Path(__file__).parent
    env = {
        **os.environ,
        "TRACKIO_DIR": str(tmp_path / "trackio"),
        "PYTHONPATH": f"{folder}{os.pathsep}{folder.parent}{os.pathsep}{folder.parents[1]}",
        "HF_HUB_OFFLINE": "1",
    }
    env.pop("TRACKIO_SPACE_ID", None)
    done = subprocess.run(
        [sys.executable, "-c", TRACKIO, str(tmp_path / "lamp")],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ((name, rows),) = json.loads(done.stdout.splitlines()[-1])
    assert name.startswith("lamp-")
    assert [(row["step"], row["stage1/loss"]) for row in rows if "stage1/loss" in row] == [
        (1, 2.5),
        (2, 1.25),
        (3, 0.5),
    ]
    assert [row["extract/llm/calls"] for row in rows if "extract/llm/calls" in row] == [3]


class Wandb(types.ModuleType):
    """A fake of the parts of wandb that are used. Records its calls."""

    def __init__(self):
        super().__init__("wandb")
        self.__spec__ = importlib.machinery.ModuleSpec("wandb", None)
        self.Settings, self.inits, self.rows, self.axes, self.ended = dict, [], [], set(), 0

    def init(self, **options):
        self.inits.append(options)
        return self

    def define_metric(self, glob: str, step_metric: str) -> None:
        self.axes.add((glob, step_metric))

    def log(self, row: dict) -> None:
        self.rows.append(row)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.ended += 1


def test_wandb_resumes_one_run_per_workdir_with_the_config(tmp_path, monkeypatch):
    fake = Wandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    for _ in range(2):
        with tracked_metrics(tmp_path / "lamp", "wandb") as metrics:
            write_run(metrics)
    with tracked_metrics(tmp_path / "other", "wandb"):
        pass
    first, again, other = fake.inits
    assert (
        first == again
        and first["resume"] == "allow"
        and first["name"] == "lamp"
        and first["id"] != other["id"]
    )
    assert first["project"] == "ark-jax" and first["config"]["train"]["temperature"] == 0.05
    assert fake.rows[:4] == [
        {f"{stage}/{name}": x for name, x in {**values, "step": step}.items()}
        for stage, values, step in TRACKED
    ]
    assert (
        fake.axes == {("extract/*", "extract/step"), ("stage1/*", "stage1/step")}
        and fake.ended == 3
    )


def test_a_tracker_that_fails_to_start_is_named(tmp_path, monkeypatch):
    fake = Wandb()
    fake.init = lambda **options: (_ for _ in ()).throw(KeyError("api_key not configured (no-tty)"))
    monkeypatch.setitem(sys.modules, "wandb", fake)
    with (
        pytest.raises(RuntimeError, match=r"config\.log\.to: wandb does not start: .*no-tty"),
        tracked_metrics(tmp_path, "wandb"),
    ):
        pytest.fail("opened")
