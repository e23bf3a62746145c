"""What a stage reads is recorded by itself, and decides when it runs again."""

import dataclasses
import functools
import json
import pickle
import threading

import pytest
from ml_collections import ConfigDict

from ark_jax import schema
from ark_jax.pipeline import engine
from ark_jax.pipeline.reads import Reads, element, empty_record
from ark_jax.pipeline.stage import Context, Interrupted, Stage
from ark_jax.pipeline.status import examine
from ark_jax.runtime.log import Metrics


@dataclasses.dataclass(frozen=True)
class Training:
    """A section."""

    rate: float = schema.field(0.5, "A rate.")
    epochs: tuple[int, ...] = schema.field((3, 4), "Epochs of two stages.")
    workers: int = schema.field(2, "Processes.", affects_output=False)
    loss: str = schema.field("nce", "A loss.", choices=("nce",), importable=True)
    prompt: str = schema.field("", "A prompt.", content="file")


@dataclasses.dataclass(frozen=True)
class Whole:
    """A config."""

    seed: int = schema.field(0, "A seed.")
    train: Training = Training()


def reading(config, kept=None) -> Reads:
    keep = kept.append if kept is not None else lambda read: None
    return Reads(empty_record({}), config, {"data": "print"}, pytest.fail, keep)


def recorded(read, config=None) -> dict:
    """What `read(view)` leaves in the record."""
    reads = reading(config or schema.to_config_dict(Whole))
    read(reads.view(Whole))
    return reads.record["config"] | reads.record["external"]


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        (lambda c: c.train.rate, {"train.rate": 0.5}),
        (lambda c: c["train"]["rate"], {"train.rate": 0.5}),
        (lambda c: c.train, {}),
        (lambda c: c.train.workers, {}),
        (lambda c: "rate" in c.train and len(c.train) and [*c.train], {}),
        (lambda c: c.train.get("none", 7), {}),
        (lambda c: c.train.get("rate", 7), {"train.rate": 0.5}),
        (lambda c: sum(c.train.epochs), {"train.epochs": [3, 4]}),
        (lambda c: element(c.train, "epochs", 1), {"train.epochs.1": 4}),
        (lambda c: c.train.loss, {"train.loss": "nce"}),
        (lambda c: c.train.prompt, {"file train.prompt": ""}),
        (
            lambda c: dataclasses.asdict(c.train),
            {
                "train.rate": 0.5,
                "train.epochs": [3, 4],
                "train.loss": "nce",
                "file train.prompt": "",
            },
        ),
    ],
)
def test_reading_a_field_records_its_value_unless_marked_otherwise(read, expected):
    assert recorded(read) == expected


def test_a_config_view_is_an_immutable_instance_of_its_schema():
    view = reading(schema.to_config_dict(Whole)).view(Whole)
    assert isinstance(view, Whole) and isinstance(view.train, Training)
    with pytest.raises(dataclasses.FrozenInstanceError):
        view.seed = 3
    with pytest.raises(AttributeError, match="no field 'rat'"):
        _ = view.train.rat
    with pytest.raises(TypeError, match="pass on its values"):
        pickle.dumps(view.train)
    assert element(schema.to_config_dict(Whole).train, "epochs", 1) == 4  # without a record


def test_files_and_functions_are_recorded_by_their_content(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompt.txt").write_text("one")
    (tmp_path / "own_loss.py").write_text("def loss(): ...\n")
    config = schema.to_config_dict(Whole)
    config.train.update(prompt="prompt.txt", loss="own_loss:loss")
    read = lambda c: (c.train.prompt, c.train.loss)
    before = recorded(read, config)
    assert before["train.loss"] == "own_loss:loss" and "train.prompt" not in before
    (tmp_path / "copy.txt").write_text("one")
    config.train.prompt = "copy.txt"
    assert recorded(read, config) == before
    (tmp_path / "copy.txt").write_text("two")
    (tmp_path / "own_loss.py").write_text("def loss(): return 1\n")
    after = recorded(read, config)
    differing = {name for name in before if after[name] != before[name]}
    assert differing == {"file train.prompt", "function train.loss"}


def test_concurrent_reads_record_a_field_once():
    kept: list = []
    view = reading(schema.to_config_dict(Whole), kept).view(Whole)
    threads = [threading.Thread(target=lambda: view.train.rate) for _ in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert kept == [["config", "train.rate", 0.5]]


# --- in a run ---


def run(root, stages, **changes) -> dict[str, str]:
    """Brings the stages up to date; returns why each had to run before, or nothing."""
    config = ConfigDict({"a": 1, "b": 2, "c": 3} | changes)
    workdir = root / "work"
    why = {s.stage: s.why or s.state for s in examine(stages, config, workdir) if s.state != "done"}
    engine.run(stages, Context(config, workdir, Metrics(workdir / "metrics.jsonl")))
    return why


def stage(name: str, read) -> Stage:
    def work(context, folder):
        (folder / "read").write_text(json.dumps(read(context)))
        return {}

    return Stage(name, work)


def test_a_stage_reruns_only_if_something_it_read_has_changed(tmp_path):
    stages = [
        stage("one", lambda run: run.config.a),
        stage("two", lambda run: run.config.c if run.config.b > 2 else (run / "one").name),
    ]
    assert run(tmp_path, stages) == {"one": "missing", "two": "missing"}
    assert run(tmp_path, stages, c=4) == {}
    assert run(tmp_path, stages, c=4, b=3) == {"two": "config.b was 2, is 3"}
    assert run(tmp_path, stages, c=5, b=3) == {"two": "config.c was 4, is 5"}
    # Now it reads nothing of the first stage any more.
    assert run(tmp_path, stages, c=5, b=3, a=7) == {"one": "config.a was 1, is 7"}


def test_equal_outputs_do_not_rerun_later_stages(tmp_path):
    stages = [
        stage("one", lambda run: run.config.a > 0),
        stage("two", lambda run: str(run / "one")),
    ]
    run(tmp_path, stages)
    assert run(tmp_path, stages, a=2)["two"] == "one has to run first"
    assert run(tmp_path, stages, a=2) == {}
    manifest = json.loads((tmp_path / "work" / "two" / "manifest.json").read_text())
    assert manifest["inputs"].keys() == {"one"}
    seconds = [
        row["stage"]
        for row in map(json.loads, (tmp_path / "work" / "metrics.jsonl").read_text().splitlines())
    ]
    assert seconds == ["one", "two", "one"]


def test_a_resumed_stage_keeps_the_reads_of_its_killed_run(tmp_path):
    """A run that goes on need not read again what decided the work that is there."""

    def work(run, folder):
        if not (folder / "half").exists():
            (folder / "half").write_text(str(run.config.a))
            raise KeyboardInterrupt
        return {}

    stages = [Stage("one", work)]
    for changes in ({}, {"a": 2}):
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, stages, **changes)
    run(tmp_path, stages)
    assert (tmp_path / "work" / "one" / "half").read_text() == "1"
    assert run(tmp_path, stages, a=2) == {"one": "config.a was 1, is 2"}
    assert (tmp_path / "work" / "one" / "half").read_text() == "2"


def test_reading_a_later_stage_is_refused(tmp_path):
    stages = [stage("one", lambda run: str(run / "later")), stage("later", lambda run: 1)]
    with pytest.raises(LookupError, match="reads later, which is not a stage before it"):
        run(tmp_path, stages)


def test_running_a_stage_without_its_input_is_refused(tmp_path):
    stages = [stage("one", lambda run: 1), stage("two", lambda run: str(run / "one"))]
    context = Context(ConfigDict({}), tmp_path / "w", Metrics(tmp_path / "m"))
    with pytest.raises(Interrupted, match="two needs one, which is missing; run `ark-jax one`"):
        engine.run(stages, context, only="two")


def test_a_damaged_stage_that_is_read_for_the_first_time_is_rebuilt(tmp_path):
    stages = [
        stage("one", lambda run: 1),
        stage("two", lambda run: (run / "one" / "read").read_text() if run.config.b > 2 else ""),
    ]
    run(tmp_path, stages)
    (tmp_path / "work" / "one" / "read").write_text("2")
    with pytest.raises(Interrupted, match="two reads one, but read is damaged: run the same"):
        run(tmp_path, stages, b=3)
    assert run(tmp_path, stages, b=3)
    assert json.loads((tmp_path / "work" / "two" / "read").read_text()) == "1"


def test_keyword_arguments_of_a_stage_are_recorded_without_functions():
    work = functools.partial(do_nothing, number=2, names=("a", "b"), code=print)
    assert Stage("one", work).arguments == {"number": 2, "names": ["a", "b"]}


def test_a_positional_argument_of_a_stage_is_refused():
    with pytest.raises(TypeError, match="stage one: give 2 to its function by keyword"):
        _ = Stage("one", functools.partial(do_nothing, 2)).arguments


def test_a_stage_argument_that_cannot_be_stored_is_refused():
    with pytest.raises(TypeError, match="not iterable"):
        _ = Stage("one", functools.partial(do_nothing, config=object())).arguments


def do_nothing(*parts, **given):
    return {}
