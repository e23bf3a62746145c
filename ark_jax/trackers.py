"""Where else a run's numbers go, if asked: TensorBoard, Weights & Biases, Trackio.

A tracker is called with a stage, its numbers by name and the step they belong to, each stage counting its own. Keys and addresses
are those the libraries read from the environment: WANDB_API_KEY, WANDB_MODE, HF_TOKEN, TRACKIO_SPACE_ID, TRACKIO_DIR.
"""

import contextlib
import importlib.util
import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from ark_jax.log import primary

Tracker = Callable[[str, dict[str, float], int], None]


@contextlib.contextmanager
def tensorboard(workdir: Path, id: str, config) -> Iterator[Tracker]:
    """Event files in `DIR/tensorboard/STAGE`, so that the losses of all stages share a chart."""
    from tensorboardX import SummaryWriter

    writers: dict[str, SummaryWriter] = {}
    with contextlib.ExitStack() as stack:
        def log(stage: str, values: dict[str, float], step: int) -> None:
            if stage not in writers:
                # Of a stage that is made again, what was written before counts no longer. Files of one second must not be one.
                writers[stage] = stack.enter_context(SummaryWriter(
                    str(workdir / "tensorboard" / stage), purge_step=step, flush_secs=1, filename_suffix=f".{uuid.uuid4().hex}"))
            for name, value in values.items():
                writers[stage].add_scalar(re.sub(r"[^\w./-]", "_", name), value, step)

        yield log


@contextlib.contextmanager
def wandb(workdir: Path, id: str, config) -> Iterator[Tracker]:
    """One run a workdir, also when it is resumed."""
    import wandb

    with wandb.init(project=config.log.project, name=workdir.name, id=id, resume="allow", dir=workdir, config=config.to_dict(),
                    settings=wandb.Settings(console="off")) as run:
        def log(stage: str, values: dict[str, float], step: int) -> None:
            run.define_metric(f"{stage}/*", step_metric=f"{stage}/step")  # wandb's own step must never go back
            run.log({f"{stage}/{name}": value for name, value in {**values, "step": step}.items()})

        yield log


@contextlib.contextmanager
def trackio(workdir: Path, id: str, config) -> Iterator[Tracker]:
    """One run a workdir, in the database of this machine or the Space that the environment names."""
    import trackio

    run = trackio.init(config.log.project, name=f"{workdir.name}-{id}", resume="allow", config=config.to_dict(), embed=False)
    try:
        yield lambda stage, values, step: run.log({f"{stage}/{name}": value for name, value in values.items()}, step=step)
    finally:
        trackio.finish()


TRACKERS = {"tensorboard": (tensorboard, "tensorboardX"), "wandb": (wandb, "wandb"), "trackio": (trackio, "trackio")}


@contextlib.contextmanager
def opened(config, workdir: Path) -> Iterator[list[Tracker]]:
    """The trackers that `config.log.to` names, on process 0; the others have none.

    Raises:
        ValueError: one is unknown or not installed.
        RuntimeError: one does not start, for want of a key, say.
    """
    names = [name.strip() for several in config.log.to for name in several.split(",")]
    for name in names:
        if name not in TRACKERS:
            raise ValueError(f"config.log.to: {name!r} is not among {', '.join(TRACKERS)}")
        package = TRACKERS[name][1]
        if importlib.util.find_spec(package) is None:
            raise ValueError(f"config.log.to asks for {name}, but {package} is not installed: pip install 'ark-jax[{name}]', or "
                             "leave it out; metrics.jsonl is written in any case")
    with contextlib.ExitStack() as stack:
        out = []
        for name in names if primary() else ():
            try:
                out.append(stack.enter_context(TRACKERS[name][0](workdir, _id(workdir), config)))
            except Exception as error:  # each library has errors of its own
                raise RuntimeError(f"config.log.to: {name} does not start: {error}") from error
        yield out


def _id(workdir: Path) -> str:
    """Of the run that this workdir holds: drawn once, so that what is resumed here goes on there."""
    path = workdir / ".tracked"
    if not path.is_file() or not path.read_text():  # a kill may leave it empty
        workdir.mkdir(parents=True, exist_ok=True)
        path.write_text(uuid.uuid4().hex[:8])
    return path.read_text()
