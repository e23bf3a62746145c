"""Checkpoints that are damaged, and a disk that is full."""

import contextlib
import functools
import resource
import shutil
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath
from support import bucket
from support.short_run import STEPS, assert_same_outcome, checkpoint_names, train, train_until

from ark_jax.train.checkpoints import Checkpoints, _set_aside

DAMAGE = {
    "gone": lambda path: path.unlink(),
    "zero": lambda path: path.write_bytes(b""),
    "half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "flip": lambda path: path.write_bytes(flip_bit(path.read_bytes())),
}


def flip_bit(content: bytes) -> bytes:
    """One bit in the middle is the other one."""
    i = len(content) // 2
    return content[:i] + bytes([content[i] ^ 1]) + content[i + 1 :]


@functools.cache
def small_state(step: int) -> dict:
    values = np.random.default_rng(step).normal(size=3000).astype(np.float32)
    return {
        "step": jnp.int32(step),
        "w": jnp.asarray(values),
        "half": jnp.asarray(values[:7], jnp.bfloat16),
    }


def abstract_small_state():
    everywhere = jax.sharding.NamedSharding(jax.sharding.get_mesh(), jax.sharding.PartitionSpec())
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=everywhere), small_state(1)
    )


def test_states_are_stored_uncompressed_and_without_a_warning(mesh, tmp_path, caplog):
    zeros = {"w": jnp.zeros(10**6)}
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, zeros)
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) > 4e6
    assert not caplog.records


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # what Orbax leaves of a reading that failed
def test_any_damage_to_a_checkpoint_falls_back_to_a_saved_state(mesh, tmp_path, capsys):
    with Checkpoints(tmp_path / "good") as good:
        for step in (1, 2, 3):
            good.save(step, small_state(step))
    paths = [
        path.relative_to(tmp_path / "good")
        for path in (tmp_path / "good" / "3").rglob("*")
        if path.is_file()
    ]
    assert not (tmp_path / "good" / "1").exists() and len(paths) > 5
    fell_back = set()
    for path in paths:
        for kind, damage in DAMAGE.items():
            folder = tmp_path / f"{path}-{kind}".replace("/", "-")
            shutil.copytree(tmp_path / "good", folder)
            damage(folder / path)
            with Checkpoints(folder) as checkpoints:
                state = checkpoints.restore(abstract_small_state())
                step, output = int(state["step"]), capsys.readouterr().out
                for restored, expected in zip(
                    jax.tree.leaves(state), jax.tree.leaves(small_state(step)), strict=True
                ):
                    np.testing.assert_array_equal(restored, expected)
                if step == 2:
                    fell_back.add(kind)
                    assert (
                        f"warning: checkpoint {folder / '3'} is damaged" in output
                        and "the one of step 2 is tried" in output
                    )
                    assert (folder / "3.damaged").is_dir() and not (folder / "3").exists()
                else:
                    assert step == 3 and not output
                checkpoints.save(
                    step + 1, small_state(step + 1)
                )  # of a step that was set aside, too
            assert (folder / f"{step + 1}").is_dir()
    assert fell_back == set(DAMAGE)


def test_a_state_is_stored_as_it_is_without_buffers_of_a_compressor(mesh, tmp_path):
    state = {"w": jnp.zeros(1 << 20)}
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state)
    sizes = [path.stat().st_size for path in (tmp_path / "1").rglob("*") if path.is_file()]
    assert state["w"].nbytes < sum(sizes) < state["w"].nbytes + 100_000


@pytest.mark.parametrize(
    "spoil", [shutil.rmtree, lambda path: (shutil.rmtree(path), path.write_text(""))]
)
def test_a_missing_or_misplaced_state_falls_back_to_the_step_before(spoil, mesh, tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, small_state(1))
        checkpoints.save(2, small_state(2))
    spoil(tmp_path / "2" / "state")
    with Checkpoints(tmp_path) as checkpoints:
        assert int(checkpoints.restore(abstract_small_state())["step"]) == 1


def test_a_damaged_newest_checkpoint_does_not_change_the_result(
    base, uninterrupted, at_step, tmp_path, capsys
):
    train_until(7, base, tmp_path, at_step)
    assert checkpoint_names(tmp_path) == ["6", "7"]
    (tmp_path / "checkpoints" / "7" / "state" / "manifest.ocdbt").write_bytes(b"")
    train(base, tmp_path)
    assert f"goes on after step 6 of {STEPS}" in capsys.readouterr().out
    assert_same_outcome(tmp_path, uninterrupted)


def swap_bits(path) -> None:
    path.write_bytes(flip_bit(path.read_bytes()))


def drop_a_row(path) -> None:
    rows = path.read_text().splitlines(keepends=True)
    path.write_text("".join(rows[:2] + rows[3:]))


@pytest.mark.parametrize(
    "damage", [swap_bits, drop_a_row, lambda path: path.unlink(), lambda path: path.write_text("")]
)
def test_a_damaged_curve_does_not_change_the_result(
    damage, base, uninterrupted, at_step, tmp_path, capsys
):
    train_until(7, base, tmp_path, at_step)
    damage(tmp_path / "curve.jsonl")
    train(base, tmp_path)
    assert "or the run's curve has changed) and set aside" in capsys.readouterr().out
    for name in ("curve.jsonl", "model/model.safetensors"):
        assert (tmp_path / name).read_bytes() == (uninterrupted / name).read_bytes()


@pytest.mark.parametrize("mark", ["", "seven", "\0"])
def test_a_damaged_record_of_reported_steps_does_not_change_the_result(
    mark, base, uninterrupted, at_step, tmp_path
):
    train_until(7, base, tmp_path, at_step)
    (tmp_path / "curve.reported").write_text(mark)
    train(base, tmp_path)
    assert_same_outcome(tmp_path, uninterrupted)


def test_a_checkpoint_of_another_run_is_not_used(base, uninterrupted, at_step, tmp_path, capsys):
    for name, seed in (("mine", 1), ("other", 2)):
        train_until(7, base, tmp_path / name, at_step, seed=seed)
    shutil.rmtree(tmp_path / "mine" / "checkpoints")
    (tmp_path / "other" / "checkpoints").rename(tmp_path / "mine" / "checkpoints")
    train(base, tmp_path / "mine")
    assert "belongs to another run" in capsys.readouterr().out
    assert_same_outcome(tmp_path / "mine", uninterrupted)


def test_a_step_can_be_set_aside_twice(mesh, tmp_path):
    for _ in range(2):
        with Checkpoints(tmp_path) as checkpoints:
            checkpoints.save(1, small_state(1))
            checkpoints.save(2, small_state(2))
        (tmp_path / "2" / "state" / "manifest.ocdbt").write_bytes(b"")
        with Checkpoints(tmp_path) as checkpoints:
            assert int(checkpoints.restore(abstract_small_state())["step"]) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2.damaged", "2.damaged1"]


def test_a_damaged_checkpoint_in_a_bucket_is_renamed(tmp_path, monkeypatch):
    root = bucket.serve(tmp_path / "gs", monkeypatch)
    for _ in range(2):
        (root / "b" / "7" / "state").mkdir(parents=True)
        _set_aside(epath.Path("gs://b/7"))
    assert sorted(path.name for path in (root / "b").iterdir()) == ["7.damaged", "7.damaged1"]
    assert (root / "b" / "7.damaged1" / "state").is_dir()


def test_training_restarts_if_every_checkpoint_is_damaged(
    base, uninterrupted, at_step, tmp_path, capsys
):
    train_until(7, base, tmp_path, at_step)
    for step in "67":
        shutil.rmtree(tmp_path / "checkpoints" / step / "state" / "ocdbt.process_0")
    train(base, tmp_path)
    output = capsys.readouterr().out
    assert (
        output.count("is damaged") == 2
        and "none is left, so training starts anew" in output
        and "goes on" not in output
    )
    assert_same_outcome(tmp_path, uninterrupted)


@contextlib.contextmanager
def files_no_larger_than(size: int):
    """As on a full disk, what is written beyond fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_keeps_the_earlier_checkpoints(base, uninterrupted, at_step, tmp_path):
    with contextlib.ExitStack() as until_then:

        def fill() -> None:
            deadline = time.monotonic() + 60
            while not (tmp_path / "checkpoints" / "6").is_dir():
                assert time.monotonic() < deadline, "step 6 was never saved"
                time.sleep(0.01)
            until_then.enter_context(files_no_larger_than(10_000))

        at_step(8, fill)
        with pytest.raises(
            OSError,
            match=r"checkpoints: a checkpoint could not be written .*free some space there or make",
        ):
            train(base, tmp_path)
    assert {"3", "6"} <= set(checkpoint_names(tmp_path)) and "9" not in checkpoint_names(tmp_path)
    at_step(0, None)
    train(base, tmp_path)
    assert checkpoint_names(tmp_path) == ["9", "12"]
    assert_same_outcome(tmp_path, uninterrupted)
