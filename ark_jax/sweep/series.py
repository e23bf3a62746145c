"""The runs of a sweep.

SWEEPS of the config file defines them: sweep -> run -> {field: value}, or sweep -> a function of
the config that returns its runs, for values that depend on the command line. Sweeps that the file
lacks are those of its recipe's own config. A run `base` without changes is always added to compare
with, unless all runs are folds (data.fold).
"""

import dataclasses
import importlib
import re
import runpy
from collections.abc import Callable, Mapping
from pathlib import Path

from ark_jax.pipeline.recipe import Recipe, recipe_of
from ark_jax.report.sweep_table import SweepRun


@dataclasses.dataclass(frozen=True)
class Series:
    """A named series of runs and the recipe that they follow.

    `base` comes first. If each run holds out a fold of the questions, there is no `base`.
    """

    name: str
    runs: list[SweepRun]
    recipe: Recipe
    has_folds: bool


def read_series(config: str, file: str, folder: Path, open_config: Callable[[], object]) -> Series:
    """The sweep that `--config=FILE:sweep=NAME` names.

    Args:
        config: FILE:sweep=NAME, as it was written.
        file: that config file.
        open_config: gives the config with the fields that hold for all runs.

    Raises:
        ValueError: the config names no sweep, or one that its file lacks, or a run's name cannot
            name a folder, or the recipe cannot pool folds.
    """
    path, _, words = config.partition(":")
    named = re.search(r"(?:^|,)sweep=([^,]*)", words)
    declared, opened = runpy.run_path(file).get("SWEEPS", {}), open_config()
    recipe = recipe_of(opened)
    sweeps = declared | {
        name: runs
        for name, runs in _packaged(opened.get("recipe", "ark")).items()
        if name not in declared
    }
    if not named or named[1] not in sweeps:
        raise ValueError(
            f"--config={config}: give one of the sweeps of {path} as --config={path}:sweep=NAME; "
            f"there are {', '.join(sweeps) or 'none: it has no SWEEPS'}"
        )
    runs, changes_of = [], sweeps[named[1]]
    if callable(changes_of):
        changes_of = changes_of(opened)
    has_folds = bool(changes_of) and all("data.fold" in changes for changes in changes_of.values())
    if has_folds and not recipe.pool:
        raise ValueError(f"{path}: sweep {named[1]}: recipe {recipe.name} cannot pool folds")
    # A run without a fold holds out other questions, so no fold can be compared with it.
    for name, changes in (changes_of if has_folds else {"base": {}} | changes_of).items():
        if not re.fullmatch(r"\w[\w.+-]*", name):
            raise ValueError(
                f"{path}: sweep {named[1]}: run {name!r}: letters, digits and _ . + - make a name"
            )
        runs.append(sweep_run(name, changes, folder))
    return Series(named[1], runs, recipe, has_folds)


def sweep_run(name: str, changes: Mapping[str, object], folder: Path) -> SweepRun:
    """A run of the sweep in a folder."""
    return SweepRun(name, dict(changes), folder / "runs" / name, folder / "logs" / f"{name}.log")


def _packaged(recipe: str) -> Mapping[str, object]:
    """The sweeps of a recipe of the package; none of another recipe."""
    name = f"ark_jax.recipes.{recipe}.config"
    try:
        return importlib.import_module(name).SWEEPS
    except ModuleNotFoundError as error:
        if error.name and name.startswith(error.name):
            return {}
        raise
