"""Work is never lost: SIGTERM, other meshes, damaged checkpoints, numbers that are not finite, a full disk."""

import contextlib
import functools
import json
import os
import resource
import shutil
import signal
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from ark_jax import Retriever, layout, preemption
from ark_jax.data import curriculum
from ark_jax.data.curriculum import Example
from ark_jax.log import append_row, read_rows
from ark_jax.train import loop
from ark_jax.train.checkpoints import Checkpoints

WORDS = ["tide", "lamp", "salt", "lathe", "wool", "pilot", "strike", "harbour", "bell", "ledger"]
EXAMPLES = [Example(f"q{i}", f"d{i // 2}", (f"c{i}",), (f"c{(i + 3) % 10}",)) for i in range(10)]
PLAN = loop.Plan(epochs=5, learning_rate=1e-3, warmup=0.1, weight_decay=0.01, clip=1.0, batch=4, chunks=1, temperature=0.05,
                 matryoshka=(), denominator="batch", order="document",
                 save_every=3, remat="products", seed=1, use_negatives=True, lora_rank=0,
                 lora_alpha=4.0, lora_targets=())
STEPS = 13
ONE = (1, 1, 1)
pytestmark = pytest.mark.usefixtures("quick_step")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tiny.write(tmp_path_factory.mktemp("bert"), "bert", tokenizer="cls")
    return tiny.sentence_transformer(folder, pooling="mean", max_seq_length=32)


def train(base: Path, folder: Path, mesh=ONE, **changes) -> list[dict]:
    """Thirteen steps, from where `folder` stands; the model lies there too. Returns the curve."""
    folder.mkdir(exist_ok=True)
    with jax.set_mesh(layout.make_mesh(mesh)):
        questions = {f"q{i}": f"who kept the {word}?" for i, word in enumerate(WORDS)}
        # As long as each other but for one, which decides the shapes.
        passages = {f"c{i}": f"every {word} was in the care of the clerk" + " and of his wife" * (i == 4)
                    for i, word in enumerate(WORDS)}
        plan = loop.dataclasses.replace(PLAN, **changes)
        tuned, _, curve = loop.train(Retriever.from_pretrained(base), EXAMPLES, questions, passages, plan, folder, "stage 1",
                                     tell=lambda row: append_row(row, folder / "told.jsonl"))
        tuned.save_pretrained(folder / "model")
    return curve


@pytest.fixture
def at(monkeypatch):
    """`at(step, action)`: what happens while the row of that step is written down."""
    add = loop.Curve.add

    def set_(step: int, action) -> None:
        def instead(curve, row):
            add(curve, row)
            if row["step"] == step:
                action()
        monkeypatch.setattr(loop.Curve, "add", instead)
    yield set_
    monkeypatch.setattr(loop.Curve, "add", add)


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def stopped_at(step: int, base: Path, folder: Path, at, **changes) -> Path:
    at(step, terminate)
    with pytest.raises(preemption.Stopped, match=f"stage 1: step {step} of {STEPS} is saved"):
        train(base, folder, **changes)
    at(0, None)
    return folder


@pytest.fixture(scope="module")
def whole(base, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    train(base, folder)
    return folder


def rows(folder: Path) -> list[dict]:
    return list(map(json.loads, (folder / "curve.jsonl").read_text().splitlines()))


def steps_of(folder: Path) -> list[str]:
    return sorted((path.name for path in (folder / "checkpoints").iterdir()), key=lambda name: int(name.split(".")[0]))


def same_outcome(one: Path, other: Path) -> None:
    assert [row["step"] for row in rows(one)] == list(range(1, STEPS + 1))
    told = [row["step"] for row in read_rows(one / "told.jsonl")]
    assert told == sorted(set(told)) and told[-1] == STEPS  # never twice, though what a kill interrupts may not be told
    for name in ("curve.jsonl", "model/model.safetensors"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


# --- SIGTERM ---------------------------------------------------------------------------------------------------------

def test_sigterm_finishes_the_step_saves_it_and_what_goes_on_is_bitwise_the_same(base, whole, at, tmp_path, capsys):
    before = signal.getsignal(signal.SIGTERM)
    stopped_at(5, base, tmp_path, at)
    assert signal.getsignal(signal.SIGTERM) is before
    assert steps_of(tmp_path) == ["3", "5"] and len(rows(tmp_path)) == 5 and not (tmp_path / "model").exists()
    train(base, tmp_path)
    assert f"goes on after step 5 of {STEPS}" in capsys.readouterr().out
    assert steps_of(tmp_path) == ["9", "12"]
    same_outcome(tmp_path, whole)


def test_a_signal_after_the_last_question_is_not_lost():
    heard = []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
    try:
        with preemption.deferred() as asked:
            assert not asked()
            terminate()
            assert not heard
        assert heard == [1]
        with preemption.deferred() as asked:
            terminate()
            assert asked() and asked()
        assert heard == [1]
    finally:
        signal.signal(signal.SIGTERM, before)


# --- other meshes ----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("first", "then"), [
    (ONE, (2, 2, 2)), ((2, 2, 2), ONE), pytest.param(ONE, (1, 8, 1), marks=pytest.mark.slow),
    pytest.param((1, 8, 1), ONE, marks=pytest.mark.slow), pytest.param((2, 2, 2), (4, 1, 2), marks=pytest.mark.slow)], ids=str)
def test_on_another_mesh_it_goes_on_with_equal_losses(first, then, base, whole, at, tmp_path):
    stopped_at(4, base, tmp_path, at, mesh=first)
    found, expected = train(base, tmp_path, mesh=then), rows(whole)
    assert [row["step"] for row in found] == [row["step"] for row in expected]
    for name in ("loss", "gradient_norm"):
        np.testing.assert_allclose([row[name] for row in found], [row[name] for row in expected], rtol=2e-4)
    assert expected[0]["loss"] > 1.2 * expected[-1]["loss"]


# --- damaged checkpoints ---------------------------------------------------------------------------------------------

DAMAGE = {
    "gone": lambda path: path.unlink(),
    "zero": lambda path: path.write_bytes(b""),
    "half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "flip": lambda path: path.write_bytes(flipped(path.read_bytes())),
}


def flipped(some: bytes) -> bytes:
    at = len(some) // 2
    return some[:at] + bytes([some[at] ^ 1]) + some[at + 1:]


@functools.cache
def small(step: int) -> dict:
    values = np.random.default_rng(step).normal(size=3000).astype(np.float32)
    return {"step": jnp.int32(step), "w": jnp.asarray(values), "half": jnp.asarray(values[:7], jnp.bfloat16)}


def abstract_small():
    everywhere = jax.sharding.NamedSharding(jax.sharding.get_mesh(), jax.sharding.PartitionSpec())
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=everywhere), small(1))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # what Orbax leaves of a reading that failed
def test_whatever_file_is_damaged_however_what_is_restored_was_saved(mesh, tmp_path, capsys):
    with Checkpoints(tmp_path / "good") as good:
        for step in (1, 2, 3):
            good.save(step, small(step))
    paths = [path.relative_to(tmp_path / "good") for path in (tmp_path / "good" / "3").rglob("*") if path.is_file()]
    assert not (tmp_path / "good" / "1").exists() and len(paths) > 5
    fell_back = set()
    for path in paths:
        for kind, damage in DAMAGE.items():
            folder = tmp_path / f"{path}-{kind}".replace("/", "-")
            shutil.copytree(tmp_path / "good", folder)
            damage(folder / path)
            with Checkpoints(folder) as checkpoints:
                state = checkpoints.restore(abstract_small())
                step, said = int(state["step"]), capsys.readouterr().out
                for found, expected in zip(jax.tree.leaves(state), jax.tree.leaves(small(step)), strict=True):
                    np.testing.assert_array_equal(found, expected)
                if step == 2:
                    fell_back.add(kind)
                    assert f"warning: checkpoint {folder / '3'} is damaged" in said and "the one of step 2 is tried" in said
                    assert (folder / "3.damaged").is_dir() and not (folder / "3").exists()
                else:
                    assert step == 3 and not said
                checkpoints.save(step + 1, small(step + 1))  # of a step that was set aside, too
            assert (folder / f"{step + 1}").is_dir()
    assert fell_back == set(DAMAGE)


@pytest.mark.parametrize("spoil", [shutil.rmtree, lambda path: (shutil.rmtree(path), path.write_text(""))])
def test_a_checkpoint_that_is_empty_or_no_folder(spoil, mesh, tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, small(1))
        checkpoints.save(2, small(2))
    spoil(tmp_path / "2" / "state")
    with Checkpoints(tmp_path) as checkpoints:
        assert int(checkpoints.restore(abstract_small())["step"]) == 1


def test_with_its_newest_checkpoint_damaged_a_stage_ends_the_same(base, whole, at, tmp_path, capsys):
    stopped_at(7, base, tmp_path, at)
    assert steps_of(tmp_path) == ["6", "7"]
    (tmp_path / "checkpoints" / "7" / "state" / "manifest.ocdbt").write_bytes(b"")
    train(base, tmp_path)
    assert f"goes on after step 6 of {STEPS}" in capsys.readouterr().out
    same_outcome(tmp_path, whole)


def test_the_same_checkpoint_may_be_damaged_twice(mesh, tmp_path):
    for _ in range(2):
        with Checkpoints(tmp_path) as checkpoints:
            checkpoints.save(1, small(1))
            checkpoints.save(2, small(2))
        (tmp_path / "2" / "state" / "manifest.ocdbt").write_bytes(b"")
        with Checkpoints(tmp_path) as checkpoints:
            assert int(checkpoints.restore(abstract_small())["step"]) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2.damaged", "2.damaged1"]


def test_with_every_checkpoint_damaged_a_stage_starts_anew(base, whole, at, tmp_path, capsys):
    stopped_at(7, base, tmp_path, at)
    for step in "67":
        shutil.rmtree(tmp_path / "checkpoints" / step / "state" / "ocdbt.process_0")
    train(base, tmp_path)
    said = capsys.readouterr().out
    assert said.count("is damaged") == 2 and "none is left, so training starts anew" in said and "goes on" not in said
    same_outcome(tmp_path, whole)


# --- not finite ------------------------------------------------------------------------------------------------------

def restored(folder: Path, abstract):
    with Checkpoints(folder / "checkpoints") as checkpoints:
        return checkpoints.restore(abstract)


def test_a_loss_that_is_not_finite_leaves_ids_and_the_state_before_it(base, at, tmp_path, capsys):
    wild = {"learning_rate": 1e30, "warmup": 0.0, "save_every": 50}
    abstracts = []
    keep = loop._abstract
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "_abstract", lambda *given: abstracts.append(keep(*given)) or abstracts[-1])
        for _ in range(2):  # and run again it says the same
            with pytest.raises(FloatingPointError, match=r"stage 1: step 2 gave loss .*non_finite\.json"):
                train(base, tmp_path, **wild)
            assert steps_of(tmp_path) == ["1"] and [row["step"] for row in rows(tmp_path)] == [1]
    assert "goes on after step 1" in capsys.readouterr().out
    told = json.loads((tmp_path / "non_finite.json").read_text())
    data = curriculum.batches(curriculum.order(EXAMPLES, epochs=5, seed=1, by="document"), 4)
    batch = [EXAMPLES[i] for i in data[1]]
    assert told["questions"] == [e.question for e in batch] and told["step"] == 2
    assert told["chunks"] == sorted({c for e in batch for c in (*e.positives, *e.negatives)})
    assert "nan" in (told["loss"], told["gradient_norm"]) or "inf" in (told["loss"], told["gradient_norm"])
    with jax.set_mesh(layout.make_mesh(ONE)):
        kept = restored(tmp_path, abstracts[0])
        expected = restored(stopped_at(1, base, tmp_path / "one", at, **wild), abstracts[0])
    for x, y in zip(jax.tree.leaves(kept), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(x, y)
    assert int(kept.step) == 1 and all(np.isfinite(x).all() for x in jax.tree.leaves(kept.opt))


class Cusp(loop.Objective):
    """Its loss is 0 at the target, and its gradient there is none."""

    def loss(self, model, batch):
        return jnp.sqrt(jnp.abs(model["w"] - batch)).sum()


@pytest.mark.parametrize(("target", "finite"), [(1.0, False), (2.0, True), (np.nan, False)])
def test_a_step_that_is_not_finite_changes_nothing(target, finite, mesh):
    objective = Cusp(None, "", 0, 1, (None, None), 1.0, 0.1, 1.0, ())
    begun = objective.start({"w": jnp.ones(3)})
    copy = jax.tree.map(np.array, begun)
    state, metrics = loop.train_step(objective, begun, None, jnp.full(3, target), 0.5)
    assert bool(np.isfinite(metrics["loss"])) == (not np.isnan(target))
    same = [np.array_equal(x, y) for x, y in zip(jax.tree.leaves(state), jax.tree.leaves(copy), strict=True)]
    assert not any(same) if finite else all(same)


# --- no room ---------------------------------------------------------------------------------------------------------

@contextlib.contextmanager
def files_no_larger_than(size: int):
    """As on a full disk, what is written beyond fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_fills_up_is_told_and_costs_no_earlier_checkpoint(base, whole, at, tmp_path):
    with contextlib.ExitStack() as until_then:
        def fill() -> None:
            deadline = time.monotonic() + 60
            while not (tmp_path / "checkpoints" / "6").is_dir():
                assert time.monotonic() < deadline, "step 6 was never saved"
                time.sleep(0.01)
            until_then.enter_context(files_no_larger_than(10_000))
        at(8, fill)
        with pytest.raises(OSError, match=r"checkpoints: a checkpoint could not be written .*free some space there or make it"):
            train(base, tmp_path)
    assert {"3", "6"} <= set(steps_of(tmp_path)) and "9" not in steps_of(tmp_path)
    at(0, None)
    train(base, tmp_path)
    assert steps_of(tmp_path) == ["9", "12"]
    same_outcome(tmp_path, whole)
