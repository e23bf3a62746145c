"""What the stages that train a reader share: settings of updates, rows of steps, draws."""

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ark_jax.pipeline.parts import is_whole, store_part, whole_parts
from ark_jax.pipeline.tables import load_rows, read_table, save_rows
from ark_jax.recipes.bar_rag.rollouts import Rollout
from ark_jax.runtime import distributed

STEPS = "step-*.parquet"
Row = TypeVar("Row", bound=Rollout)


def stage_seed(config, stage: str) -> int:
    """The seed of a stage's draws, from 0 to 2**31 - 1."""
    digest = hashlib.sha256(f"{config.seed} {stage}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def steps_for(steps: int, questions: int, batch: int) -> int:
    """`steps`, or those of one pass over the questions if it is 0."""
    return steps or -(-questions // batch)


class StepRows(Generic[Row]):
    """The rows that each step drew. They are on disk before the weights are updated by them.

    So a run that goes on, on another mesh perhaps, learns from the same draws. Each step has a file
    of its own until all are joined.
    """

    def __init__(self, path: Path, kind: type[Row]):
        """`path` is the file of all steps; `kind` is the class of their rows."""
        self._path, self._kind = path, kind
        pattern = path.name if is_whole(path) else STEPS
        self._stored: dict[int, list[Row]] = {}
        names = lambda: [part.name for part in whole_parts(path.parent, pattern)]
        for name in distributed.on_first_process(names):
            for row in load_rows(path.parent / name, kind):
                self._stored.setdefault(row.step, []).append(row)

    @property
    def stored(self) -> list[Row]:
        """The rows of all steps so far."""
        return [row for step in sorted(self._stored) for row in self._stored[step]]

    def rows(self, step: int, make: Callable[[], list[Row]]) -> list[Row]:
        """The rows of a step: those that an interrupted run stored, else new ones."""
        if step not in self._stored:
            rows = [_columns(dataclasses.replace(row, step=step)) for row in make()]
            path = self._path.with_name(STEPS.replace("*", f"{step:06d}"))
            write = functools.partial(save_rows, rows)
            distributed.on_first_process(lambda: store_part(path, write))
            self._stored[step] = load_rows(path, self._kind)
        return self._stored[step]

    def join(self) -> list[Row]:
        """Replaces the files of all steps by one; returns the rows."""

        def replace() -> None:
            parts = whole_parts(self._path.parent, STEPS)
            if parts:
                tables = list(map(read_table, parts))
                table = pa.concat_tables(tables, promote_options="permissive")
                store_part(self._path, functools.partial(pq.write_table, table))
            for part in parts:
                part.unlink()

        if not is_whole(self._path):
            distributed.on_first_process(replace)
        return self.stored


def _columns(row: Rollout) -> dict:
    """The fields of a row that it has."""
    fields = dataclasses.fields(row)
    named = ((field.name, field.default, getattr(row, field.name)) for field in fields)
    return {name: value for name, default, value in named if (default, value) != (None, None)}


def mean(values: Sequence[float]) -> float:
    """The mean to six decimals; 0 if there are no values."""
    return round(float(np.mean(values)), 6) if len(values) else 0.0
