"""What a stage is, and what it sees while it runs."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ark_jax.runtime.log import Metrics
from ark_jax.schema import to_json_value

if TYPE_CHECKING:
    from ark_jax.pipeline.reads import Reads, View  # it imports this module
    from ark_jax.schema import ConfigDict


class Interrupted(RuntimeError):
    """A stage cannot run yet; the message says what to do first."""


@dataclasses.dataclass(frozen=True)
class Stage:
    """One step of a pipeline, which fills a folder of its name.

    It declares nothing of what it depends on: `pipeline.reads` records what it reads.

    Attributes:
        name: the folder in the workdir, and the verb of the command line.
        run: `run(context, folder)` fills `folder` and returns counts for the manifest. It may be a
            `functools.partial` with keywords, which are recorded as reads are.
        alone: whether the first process runs it for all; else each runs it, to use its devices.
        shared: whether the runs of a sweep may share its output; not so for a report on one run.
        doubts: its finished folder -> reasons against going on, in sentences; empty if none.
    """

    name: str
    run: Callable[["Context", Path], dict]
    alone: bool = False
    shared: bool = True
    doubts: Callable[[Path], Sequence[str]] = lambda folder: ()

    @property
    def purpose(self) -> str:
        """What it does, in words: the first sentence that documents its function."""
        function = self.run
        while isinstance(function, functools.partial):
            function = function.func
        sentence = " ".join((inspect.getdoc(function) or "").split()).partition(". ")[0]
        return sentence[:1].lower() + sentence[1:].removesuffix(".")

    @property
    def arguments(self) -> dict[str, object]:
        """The keyword arguments of `run` that are not functions, as JSON values.

        Raises:
            TypeError: an argument has no name, or is neither a function nor a JSON value, so it
                cannot be recorded.
        """
        if not isinstance(self.run, functools.partial):
            return {}
        if unnamed := [value for value in self.run.args if not callable(value)]:
            raise TypeError(f"stage {self.name}: give {unnamed[0]!r} to its function by keyword")
        bound = self.run.keywords
        return {name: to_json_value(value) for name, value in bound.items() if not callable(value)}


@dataclasses.dataclass
class Context:
    """What a running stage sees.

    Attributes:
        config: the settings; while a stage runs, a view that records what it reads.
        metrics: gets rows about its progress.
        store: the folder where runs share finished stages (`pipeline.store`), if they do.
        models: role -> (options, model) in memory, which the next stage may use again.
        reads: what the running stage has read; None outside a run.
    """

    config: "ConfigDict | View"
    workdir: Path
    metrics: Metrics
    store: Path | None = None
    models: dict = dataclasses.field(default_factory=dict)
    reads: "Reads | None" = None

    def __truediv__(self, stage: str) -> Path:
        """The folder of a finished stage, which is recorded as read.

        Raises:
            Interrupted: the stage is not up to date.
        """
        if self.reads:
            self.reads.note("inputs", stage)
        return self.workdir / stage

    def is_fresh(self, name: str) -> bool:
        """Whether `name` is a stage that is up to date, so that it may be read."""
        return self.reads is not None and self.reads.is_fresh(name)

    def model(self, role: str, open_model: Callable, path: str | Path, **options: object):
        """A model on the mesh; the last one opened for a role with the same options is kept.

        All options are given at every call, so that a stage reads them even if the model is there.
        """
        self.enter_mesh()
        opened = (path, options)
        if role not in self.models or self.models[role][0] != opened:
            self.models.pop(role, None)  # memory may not hold two
            self.models[role] = (opened, open_model(path, **options))
        return self.models[role][1]

    def enter_mesh(self) -> None:
        """Sets the config's mesh unless one is set; `engine.run` restores the former one."""
        from ark_jax import layout

        layout.enter_mesh(self.config.mesh)
