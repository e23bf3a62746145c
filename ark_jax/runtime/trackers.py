"""Sends a run's numbers to TensorBoard, Weights & Biases or Trackio, if the config asks for it.

A tracker is a function of a stage, its numbers by name, and a step; each stage counts its own
steps. The libraries read keys and addresses from the environment: WANDB_API_KEY, WANDB_MODE,
HF_TOKEN, TRACKIO_SPACE_ID, TRACKIO_DIR.
"""

import contextlib
import importlib.util
import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from ark_jax.runtime import mirror
from ark_jax.runtime.distributed import is_first_process

Tracker = Callable[[str, dict[str, float], int], None]


@contextlib.contextmanager
def tensorboard(workdir: Path, run_id: str, config) -> Iterator[Tracker]:
    """Writes event files in `DIR/tensorboard/STAGE`, so that one chart shows all stages' losses."""
    from tensorboardX import SummaryWriter

    writers: dict[str, SummaryWriter] = {}
    with contextlib.ExitStack() as stack:

        def open_writer(stage: str, step: int) -> SummaryWriter:
            """A writer for a stage, which drops earlier values from `step` on."""
            writer = SummaryWriter(
                str(workdir / "tensorboard" / stage),
                purge_step=step,  # a stage that runs again replaces its earlier values
                flush_secs=1,
                filename_suffix=f".{uuid.uuid4().hex}",  # the library names files by the second
            )
            return stack.enter_context(writer)

        def track(stage: str, values: dict[str, float], step: int) -> None:
            if stage not in writers:
                writers[stage] = open_writer(stage, step)
            for name, value in values.items():
                writers[stage].add_scalar(re.sub(r"[^\w./-]", "_", name), value, step)

        yield track


@contextlib.contextmanager
def wandb(workdir: Path, run_id: str, config) -> Iterator[Tracker]:
    """Logs to one Weights & Biases run per workdir, which a resumed run continues."""
    import wandb

    with wandb.init(
        project=config.log.project,
        name=_name(workdir),
        id=run_id,
        resume="allow",
        dir=workdir,
        config=config.to_dict(),
        settings=wandb.Settings(console="off"),
    ) as run:

        def track(stage: str, values: dict[str, float], step: int) -> None:
            # wandb's own step may never go back, but a resumed stage repeats steps.
            run.define_metric(f"{stage}/*", step_metric=f"{stage}/step")
            run.log({f"{stage}/{name}": value for name, value in {**values, "step": step}.items()})

        yield track


@contextlib.contextmanager
def trackio(workdir: Path, run_id: str, config) -> Iterator[Tracker]:
    """Logs to one Trackio run per workdir.

    The run is stored in this machine's database, or in the Space that the environment names.
    """
    import trackio

    run = trackio.init(
        config.log.project,
        name=f"{_name(workdir)}-{run_id}",
        resume="allow",
        config=config.to_dict(),
        embed=False,
    )

    def track(stage: str, values: dict[str, float], step: int) -> None:
        run.log({f"{stage}/{name}": value for name, value in values.items()}, step=step)

    try:
        yield track
    finally:
        trackio.finish()


TRACKERS = {  # name -> how it is opened, and the package it needs
    "tensorboard": (tensorboard, "tensorboardX"),
    "wandb": (wandb, "wandb"),
    "trackio": (trackio, "trackio"),
}


@contextlib.contextmanager
def open_trackers(config, workdir: Path) -> Iterator[list[Tracker]]:
    """Opens the trackers that `config.log.to` names, if there is such a field.

    Only process 0 has any.

    Raises:
        ValueError: a tracker is unknown or not installed.
        RuntimeError: a tracker does not start, for example because its key is missing.
    """
    names = tracker_names(config)
    for name in names:
        check_installed(name)
    with contextlib.ExitStack() as stack:
        opened = []
        for name in names if is_first_process() else ():
            open_tracker, _ = TRACKERS[name]
            try:
                tracker = open_tracker(workdir, _read_or_make_id(workdir), config)
                opened.append(stack.enter_context(tracker))
            except Exception as error:  # each library raises its own classes
                raise RuntimeError(f"config.log.to: {name} does not start: {error}") from error
        yield opened


def tracker_names(config) -> list[str]:
    """The names in `config.log.to`; empty if there is no such field."""
    listed = config.log.to if "log" in config else ()
    return [name.strip() for names in listed for name in names.split(",")]


def check_installed(name: str) -> None:
    """Raises ValueError if a tracker is unknown or not installed."""
    if name not in TRACKERS:
        raise ValueError(f"config.log.to: {name!r} is not among {', '.join(TRACKERS)}")
    _, package = TRACKERS[name]
    if importlib.util.find_spec(package) is None:
        raise ValueError(
            f"config.log.to asks for {name}, but {package} is not installed: "
            f"pip install 'ark-jax[{name}]', or remove it from config.log.to; metrics.jsonl is "
            "written in any case"
        )


def _name(workdir: Path) -> str:
    """The last part of the name that users know a workdir by."""
    return mirror.address(workdir).rpartition("/")[2]


def _read_or_make_id(workdir: Path) -> str:
    """The run's id. It is drawn once per workdir, so that a resumed run continues its charts."""
    path = workdir / ".tracked"
    if not path.is_file() or not path.read_text():  # a kill may leave it empty
        workdir.mkdir(parents=True, exist_ok=True)
        path.write_text(uuid.uuid4().hex[:8])
    return path.read_text()
