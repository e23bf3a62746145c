"""What a stage is, and what it sees while it runs."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

from ark_jax.runtime.log import Metrics


class Interrupted(RuntimeError):
    """A stage cannot run yet; the message says what to do first."""


@dataclasses.dataclass(frozen=True)
class Stage:
    """One step of a pipeline, which fills a folder of its name.

    Attributes:
        name: the folder in the workdir, and the verb of the command line.
        after: the stages whose outputs it reads.
        settings: dotted config fields that decide its output.
        run: `run(context, folder)` fills `folder` and returns counts for the manifest.
        external: `external(config)` returns fingerprints of what it reads outside the workdir.
        alone: of several processes the first runs it for all; else each does, to use its devices.
    """

    name: str
    after: tuple[str, ...]
    settings: tuple[str, ...]
    run: Callable[["Context", Path], dict]
    external: Callable[[object], dict] = lambda config: {}
    alone: bool = False


@dataclasses.dataclass
class Context:
    """What a running stage sees.

    Attributes:
        metrics: where it writes rows about its progress.
        store: the folder where runs share finished stages (`pipeline.store`), if they do.
        models: models in memory, which the next stage may use again.
    """

    config: object
    workdir: Path
    metrics: Metrics
    store: Path | None = None
    models: dict = dataclasses.field(default_factory=dict)

    def __truediv__(self, stage: str) -> Path:
        """The folder of a finished stage."""
        return self.workdir / stage

    def enter_mesh(self) -> None:
        """Sets the mesh of the config unless one is set; `engine.run` takes it away at its end."""
        from ark_jax import layout

        layout.enter_mesh(self.config.mesh)


def setting(config, field: str):
    """`setting(c, "train.epochs.0")` is `c.train.epochs[0]`, as plain JSON values."""
    value = config
    for part in field.split("."):
        value = value[int(part) if isinstance(value, tuple | list) else part]
    value = value.to_dict() if hasattr(value, "to_dict") else value
    return json.loads(json.dumps(value, default=list))
