"""The training loop: state, compiled step, checkpoints, curve and pace.

`train` minimises an `Objective` over the batches of a `MakeBatch`, as a config says; it knows
neither the loss nor how texts become batches. A method's trainer consists of these three.

A run that is stopped at any moment continues bitwise the same from its last checkpoint. On another
mesh it continues with equal losses.

The devices never wait for the host while its work for a step takes less time than theirs: it makes
the next batch while they compute, and reads the metrics of a step once the next one is queued.
"""

import contextlib
import dataclasses
import functools
import json
import math
import os
import typing
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from ark_jax.models import lora
from ark_jax.runtime import distributed, mirror, preemption
from ark_jax.runtime.log import Progress, say
from ark_jax.train import flops, optim
from ark_jax.train.checkpoints import Checkpoints
from ark_jax.train.config import UpdateConfig

NON_FINITE = "non_finite.json"


@typing.runtime_checkable
class Objective(typing.Protocol):
    """A loss over one batch: a function, or a frozen dataclass of settings.

    It must be hashable. Runs with equal objectives, optimizers and shapes share one compiled step.
    """

    def __call__(self, trainable: Any, frozen: Any, batch: Any) -> tuple[jax.Array, dict]:
        """Returns the loss and other scalars for the curve.

        Args:
            trainable: what the step updates: a model, an adapter, or any tree of arrays.
            frozen: the model beside an adapter, which no step changes, or None. `adapted_model`
                gives the model that is trained.
            batch: `TrainingBatch.arrays`.
        """
        ...


@dataclasses.dataclass(frozen=True)
class TrainingBatch:
    """What one step trains on."""

    arrays: Any  # device arrays for the objective, of the same shapes in every batch
    ids: Mapping[str, Sequence[str]]  # ids of the texts by kind, for non_finite.json
    tokens: int  # in all texts, without padding
    flops: float  # that the model asks for in this step, see `flops.training`


# (steps made so far, trainable) -> the next batch. It must depend on nothing else, so that a
# resumed run makes the same batches. Most ignore the second argument; a policy gradient samples its
# texts from it, see `reads_weights` of `train`.
MakeBatch = Callable[[int, Any], TrainingBatch]


@dataclasses.dataclass(frozen=True)
class Run:
    """Where a run writes, and to whom it reports.

    Attributes:
        folder: gets checkpoints/ and curve.jsonl, from which a stopped run continues, and, after a
            discarded step, non_finite.json.
        label: for progress lines and errors.
        on_step: gets each row of the curve once, even if a resumed run makes the step again.
        on_pace: gets the pace as keywords whenever a checkpoint is due, and once at the end. The
            pace is no part of the curve, which is the same in every run.
    """

    folder: Path
    label: str = "train"
    on_step: Callable[[dict], None] = lambda row: None
    on_pace: Callable[..., None] = lambda **pace: None


class Trained(typing.NamedTuple):
    """What training returns."""

    model: Any  # with its adapter merged in
    adapter: Any  # what was trained beside a frozen model; None if that is the model itself
    curve: list[dict]  # a row a step, as in curve.jsonl


@typing.no_type_check  # tree operations put other leaves into it
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """What a checkpoint holds. `step`, the steps made so far, is also the position in the data."""

    step: jax.Array
    trainable: Any
    opt: optax.OptState

    @classmethod
    def create(cls, trainable: Any, optimizer: optax.GradientTransformation) -> "State":
        """The state before the first step."""
        return cls(jnp.zeros((), jnp.int32), trainable, optimizer.init(trainable))


def adapted_model(trainable: Any, frozen: Any) -> Any:
    """The model that is trained: `trainable` itself, or `frozen` with it beside its weights."""
    return trainable if frozen is None else trainable.applied_to(frozen)


_merge = jax.jit(lambda trainable, frozen: lora.merge_weights(adapted_model(trainable, frozen)))


def current_model(trainable: Any, frozen: Any) -> Any:
    """`adapted_model` with whole weights, outside a compiled step.

    Without `frozen`, `trainable` is not copied.
    """
    return trainable if frozen is None else _merge(trainable, frozen)


@functools.partial(jax.jit, static_argnums=(0, 1), donate_argnums=2)
def train_step(
    objective: Objective,
    optimizer: optax.GradientTransformation,
    state: State,
    frozen: Any,
    batch: Any,
    learning_rate: float | jax.Array,
    steps_before: int | jax.Array | None = None,
) -> tuple[State, dict[str, jax.Array]]:
    """One update. `state` is donated: its buffers are gone afterwards.

    If the loss or gradient is NaN or infinite, the state comes back unchanged.

    Args:
        steps_before: the steps that `state` must have made. If an earlier step was discarded it has
            made fewer, and comes back unchanged too.

    Returns:
        The new state, and the scalars `loss`, `gradient_norm` and those of the objective.
    """
    differentiate = jax.value_and_grad(objective, has_aux=True)
    (loss, metrics), gradient = differentiate(state.trainable, frozen, batch)
    updates, opt = optimizer.update(gradient, state.opt, state.trainable)
    updates = jax.tree.map(lambda u: -learning_rate * u, updates)
    gradient_norm = optax.tree.norm(gradient)
    finite = jnp.isfinite(loss) & jnp.isfinite(gradient_norm)
    if steps_before is not None:
        finite &= state.step == steps_before
    updated = State(state.step + 1, optax.apply_updates(state.trainable, updates), opt)
    state = jax.tree.map(lambda new, old: jnp.where(finite, new, old), updated, state)
    return state, {"loss": loss, "gradient_norm": gradient_norm, **metrics}


def train(
    objective: Objective,
    make_batch: MakeBatch,
    config: UpdateConfig,
    run: Run,
    trainable: Any,
    frozen: Any = None,
    *,
    steps: int,
    learning_rate: float,
    decay: str = "linear",
    floor: float = 0.0,
    reads_weights: bool = False,
) -> Trained:
    """Trains a copy of `trainable`, from the last checkpoint in the run's folder if there is one.

    Every process must call it with the same arguments.

    Args:
        trainable, frozen: as the objective takes them, with the shardings they are to keep.
        learning_rate: at its peak.
        decay, floor: how it falls, see `optim.schedule`.
        reads_weights: whether the batches depend on the weights. Then a step is checked before the
            next batch is made, so that none is drawn from the weights before a step that is
            discarded.

    Raises:
        FloatingPointError: a loss or gradient is NaN or infinite. The step is discarded, the last
            good state is saved, and the batch's ids are in non_finite.json.
        preemption.Preempted: a signal came. The current step is finished and saved.
        OSError: a checkpoint could not be written.
    """
    schedule = optim.schedule(learning_rate, steps, config.warmup, decay=decay, floor=floor)
    optimizer = optim.adamw(
        weight_decay=config.weight_decay, clip=config.clip, moments=config.moments
    )
    save_every = config.save_every
    folder = mirror.in_bucket(run.folder / "checkpoints")
    curve_file = run.folder / "curve.jsonl"

    def history(step: int) -> int:
        """The digest of the curve up to a step, the same in every process."""
        return distributed.on_first_process(lambda: _rows_digest(run.label, curve_file, step))

    with preemption.defer_signals() as stop_requested, Checkpoints(folder, history) as checkpoints:
        state = _restore_or_create(checkpoints, trainable, optimizer, run.label, steps)
        start = int(state.step)
        curve, meter = Curve(curve_file, start), flops.Meter()
        (run.folder / NON_FINITE).unlink(missing_ok=True)
        # All at once: a device computes each rate, which would wait for the current step.
        rates = [float(schedule(step)) for step in range(start, steps)]
        queued: _QueuedStep | None = None
        may_queue = distributed.may_queue_programs()

        def finish() -> None:
            """Waits for the queued step, if there is one, writes its row and reports it."""
            nonlocal queued
            if queued is None:
                return
            row = _read_row(run, state, queued, checkpoints)
            _report_step(run, queued, row, curve, meter, bar, save_every)
            queued = None

        with Progress(run.label, steps, "steps", done=start) as bar:
            for step in range(start + 1, steps + 1):
                batch, rate = make_batch(step - 1, state.trainable), rates[step - 1 - start]
                arguments = (frozen, batch.arrays, rate, step - 1)
                state, metrics = train_step(objective, optimizer, state, *arguments)
                finish()
                queued = _QueuedStep(step, dataclasses.replace(batch, arrays=None), rate, metrics)
                if reads_weights or not may_queue:
                    finish()
                is_stopped, is_due = stop_requested(), step % save_every == 0
                if is_stopped or is_due:
                    finish()
                    curve.sync()
                    checkpoints.save(step, state, wait=is_stopped)
                    meter.skip()
                if is_stopped:
                    raise preemption.Preempted(f"{run.label}: step {step} of {steps} is saved")
            finish()
        curve.finish()
    if pace := meter.pace():
        run.on_pace(steps=steps, **pace)
        say(f"  {run.label}: {flops.describe(pace)}")
    trained = state.trainable
    adapter = None if frozen is None else trained
    return Trained(current_model(trained, frozen), adapter, curve.rows)


def _restore_or_create(
    checkpoints: Checkpoints,
    trainable: Any,
    optimizer: optax.GradientTransformation,
    label: str,
    steps: int,
) -> State:
    """The state of the newest checkpoint, which a line reports, or the state before step 1."""
    state = checkpoints.restore(_abstract_state(trainable, optimizer))
    if state is None:
        return _first_state(trainable, optimizer)
    say(f"  {label}: goes on after step {int(state.step)} of {steps}")
    return state


@functools.partial(jax.jit, static_argnums=1)
def _first_state(trainable: Any, optimizer: optax.GradientTransformation) -> State:
    """The state before the first step, with a copy of `trainable`, since the step donates it."""
    return State.create(jax.tree.map(jnp.copy, trainable), optimizer)


def _abstract_state(trainable: Any, optimizer: optax.GradientTransformation) -> State:
    """Shapes, types and shardings of a state, for restoring onto the current mesh."""
    mesh = jax.sharding.get_mesh()

    def place(x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        sharding = NamedSharding(mesh, x.sharding.spec if x.sharding else P())
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    return jax.tree.map(place, _first_state.eval_shape(trainable, optimizer))


class Curve:
    """curve.jsonl, a row a step, of a run that may have been stopped and resumed.

    Attributes:
        rows: the rows in the file.
        reported: the last step that has gone to `on_step`. A resumed run makes the steps after its
            checkpoint again. The file `curve.reported` stores this number, so that the run does not
            report them twice.
    """

    def __init__(self, path: Path, step: int):
        """Opens the file and drops the rows after `step`, the checkpoint to resume from."""
        self.path = path
        self.rows, self.reported = distributed.on_first_process(
            functools.partial(self._drop_later_rows, path, step)
        )

    @staticmethod
    def _drop_later_rows(path: Path, step: int) -> tuple[list[dict], int]:
        """Drops the rows after `step`; returns the others and the last reported step."""
        mark = path.with_suffix(".reported")
        text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        reported = text.count("\n")
        with contextlib.suppress(FileNotFoundError, ValueError):  # damage may report a step twice
            reported = max(reported, int(mark.read_text(encoding="utf-8")))
        lines = text.split("\n")[:step]
        _replace_file(mark, str(reported))
        _replace_file(path, "".join(line + "\n" for line in lines))
        return list(map(json.loads, lines)), reported

    def add(self, row: dict) -> None:
        """Appends a row."""
        self.rows.append(row)
        if distributed.is_first_process():
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")

    def sync(self) -> None:
        """Forces the rows to disk. A checkpoint comes afterwards, so that its rows are there."""
        if distributed.is_first_process():
            with self.path.open("rb") as file:
                os.fsync(file.fileno())

    def finish(self) -> None:
        """Deletes `curve.reported` after the last step."""
        if distributed.is_first_process():
            self.path.with_suffix(".reported").unlink()


def _replace_file(path: Path, content: str) -> None:
    """Replaces a file in one move: a killed process leaves the old file or the new one."""
    new = path.with_suffix(".new")
    new.write_text(content, encoding="utf-8")
    new.replace(path)


@dataclasses.dataclass(frozen=True)
class _QueuedStep:
    """A step that was given to the devices, and whose metrics are not read yet."""

    step: int
    batch: TrainingBatch  # without its arrays, whose memory the devices free
    rate: float
    metrics: Mapping[str, jax.Array]


def _read_row(run: Run, state: State, queued: _QueuedStep, checkpoints: Checkpoints) -> dict:
    """The curve's row of a queued step, once its metrics are computed.

    Args:
        state: after this step or the next one. If this step is discarded, both leave it unchanged.

    Raises:
        FloatingPointError: the step is discarded; state and batch ids are saved.
    """
    step, ids = queued.step, queued.batch.ids
    values = {name: float(value) for name, value in queued.metrics.items()}
    row = {"step": step, "loss": values["loss"], "learning_rate": queued.rate} | values
    if math.isfinite(row["loss"] + row["gradient_norm"]):
        return {
            name: x for name, x in row.items() if math.isfinite(x)
        }  # a mean over nothing is NaN
    checkpoints.save(step - 1, state, wait=True)
    path = run.folder / NON_FINITE
    texts = {name: str(value) for name, value in values.items()}  # JSON has no NaN
    _write_json(path, row | texts | {kind: list(names) for kind, names in ids.items()})
    raise FloatingPointError(
        f"{run.label}: step {step} gave loss {row['loss']}, gradient norm {row['gradient_norm']}; "
        f"the ids of its {' and '.join(ids)} are in {path}, and the state before it is in "
        f"{checkpoints.folder}. Check these texts for mistakes, or lower the learning rate "
        "(config.train.learning_rates)"
    )


def _report_step(
    run: Run,
    queued: _QueuedStep,
    row: dict,
    curve: Curve,
    meter: flops.Meter,
    bar: Progress,
    save_every: int,
) -> None:
    """Adds the row of a finished step to the curve; reports row and pace."""
    meter.add(queued.batch.tokens, queued.batch.flops)
    pace = meter.pace(save_every)
    curve.add(row)
    if queued.step > curve.reported:
        run.on_step(row)
    bar.add(note=f"loss {row['loss']:.3f}, {flops.describe(pace)}")
    if queued.step % save_every == 0:
        run.on_pace(step=queued.step, **pace)


def _write_json(path: Path, content: dict) -> None:
    """Writes `content` in the first process."""
    if distributed.is_first_process():
        text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
        path.write_text(text, encoding="utf-8")


def _rows_digest(label: str, path: Path, step: int) -> int:
    """A uint32 digest of a run's label and the first `step` rows of its curve's file."""
    content = path.read_bytes() if path.is_file() else b""
    rows = content.split(b"\n")[:step]
    return zlib.crc32(b"\n".join([label.encode(), *rows]))
