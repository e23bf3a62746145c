"""`ark-jax sweep`: one run for each named set of settings, and one table of the results.

SWEEPS of the config file says which: sweep -> run -> {field: value}, or sweep -> a function of the
config that returns its runs, for fields that follow from those of the command line. A run `base`
without changes is always added to compare with, unless all runs are folds (data.fold).

    DIR/runs/NAME       a run's workdir, as of `ark-jax run`
    DIR/shared          finished stages by their inputs: each is made once, and every run has it as
                        hard links; may be deleted when the sweep is over
    DIR/logs/NAME.log   what the run printed
    DIR/results.*       .parquet, .md and .html: best first by --metric, failed runs last
    DIR/pooled          of folds: every question once, and all systems by metrics

On SLURM (experimental, never run) each run is a task of an array. A run waits while another makes a
stage that both need.
"""

import argparse
import dataclasses
import os
import re
import runpy
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from ark_jax.cli import config_files
from ark_jax.cli import flags as config_flags
from ark_jax.cli.arguments import Parser
from ark_jax.cli.sweep_processes import shares_of_devices, work
from ark_jax.cli.words import absolute
from ark_jax.pipeline import store
from ark_jax.pipeline.recipe import Recipe, recipe_of
from ark_jax.report.sweep_table import Comparison, SweepRun, write_results
from ark_jax.runtime.log import show


def sweep(verb: str, args: list[str]) -> int:
    """Runs a sweep, or prints the script of its Slurm array; the exit status is 1 if a run fails.

    Raises:
        ValueError: a bad flag, or a sweep that cannot be run.
    """
    flags, fields = _parse(verb, args)
    series = read_sweep(flags.config, flags.workdir, fields)
    flags.metric = flags.metric or series.recipe.headline
    chosen = _chosen(series, flags)
    devices = shares_of_devices(os.environ.get("CUDA_VISIBLE_DEVICES", ""), max(flags.slots, 1))
    passed_on = [*fields, *(["--yes"] if flags.yes else [])]
    if flags.slurm:
        show(slurm_script(series.name, chosen, flags, passed_on))
        return 0
    shared = flags.workdir / "shared"
    command = lambda run: _command(run, flags.config, shared, passed_on)
    pool = series.recipe.pool if series.has_folds else None
    comparison = Comparison(flags.metric, series.recipe.metrics, series.recipe.outcome, pool)
    try:
        work(chosen, command, devices, sorted(fields))
    finally:
        rows = write_results(f"Sweep {series.name}", series.runs, flags.workdir, comparison)
    if all(row["state"] == "done" for row in rows):
        store.clear(shared)
    show((flags.workdir / "results.md").read_text(encoding="utf-8"))
    names = {run.name for run in chosen}
    return int(any(row["state"] != "done" for row in rows if row["run"] in names))


def _parse(verb: str, args: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The flags of a sweep, and the fields of the config that hold for all runs."""
    parser = Parser(verb)
    parser.add_argument("--config", required=True)
    parser.add_argument("--workdir", required=True)
    parser.add_argument("--slots", type=int, default=0)
    for name in ("--metric", "--only"):
        parser.add_argument(name, default="")
    for name in ("--slurm", "--yes"):
        parser.add_argument(name, action="store_true")
    is_field = re.compile(r"--config\.[\w.]+=")
    fields = [arg for arg in args if is_field.match(arg)]
    values = parser.values([arg for arg in args if not is_field.match(arg)])
    values.workdir = absolute(values.workdir)
    return values, fields


def _chosen(series: "Sweep", flags: argparse.Namespace) -> list[SweepRun]:
    """The runs that the flags name, or all."""
    metrics, runs = series.recipe.metrics, {run.name: run for run in series.runs}
    if flags.metric not in metrics:
        known = ", ".join(metrics) or "none"
        raise ValueError(f"--metric={flags.metric}: recipe {series.recipe.name} has {known}")
    names = flags.only.split(",") if flags.only else list(runs)
    if unknown := set(names) - set(runs):
        raise ValueError(
            f"--only: {series.name} has no run {min(unknown)!r}, but {', '.join(runs)}"
        )
    return [run for name, run in runs.items() if name in names]


def _command(run: SweepRun, config: str, shared: Path, flags: Sequence[str]) -> list[str]:
    changes = [f"--config.{name}={value}" for name, value in run.changes.items()]
    paths = [f"--config={config}", f"--workdir={run.workdir}", f"--store={shared}"]
    return [sys.executable, "-m", "ark_jax", "run", *paths, *flags, *changes]


@dataclasses.dataclass(frozen=True)
class Sweep:
    """A named series of runs and the recipe that they follow.

    `base` comes first. If each run holds out a fold of the questions, there is no `base`.
    """

    name: str
    runs: list[SweepRun]
    recipe: Recipe
    has_folds: bool


def read_sweep(config: str, folder: Path, fields: Sequence[str] = ()) -> Sweep:
    """The sweep that `--config=FILE:sweep=NAME` names.

    Args:
        fields: `--config.name=value`, which hold for all runs.

    Raises:
        ValueError: the config names no sweep, or one that its file lacks, or a run's name is not
            fit for a folder, or the recipe cannot pool folds.
    """
    path, _, words = config.partition(":")
    named = re.search(r"(?:^|,)sweep=([^,]*)", words)
    module = runpy.run_path(config_files.locate(config).partition(":")[0])
    sweeps = module.get("SWEEPS", {})
    if not named or named[1] not in sweeps:
        raise ValueError(
            f"--config={config}: give one of the sweeps of {path} as --config={path}:sweep=NAME; "
            f"there are {', '.join(sweeps) or 'none: it has no SWEEPS'}"
        )
    runs, changes_of = [], sweeps[named[1]]
    if callable(changes_of):
        arguments = [f"--config={config}", *fields]
        changes_of = changes_of(config_flags.parse(config_flags.SHOWS_CONFIG, arguments).config)
    has_folds = bool(changes_of) and all("data.fold" in changes for changes in changes_of.values())
    recipe = recipe_of(module["get_config"](words))
    if has_folds and not recipe.pool:
        raise ValueError(f"{path}: sweep {named[1]}: recipe {recipe.name} cannot pool folds")
    # A run without a fold holds out other questions, so no fold can be compared with it.
    for name, changes in (changes_of if has_folds else {"base": {}} | changes_of).items():
        if not re.fullmatch(r"\w[\w.+-]*", name):
            raise ValueError(
                f"{path}: sweep {named[1]}: run {name!r}: letters, digits and _ . + - make a name"
            )
        runs.append(
            SweepRun(name, changes, folder / "runs" / name, folder / "logs" / f"{name}.log")
        )
    return Sweep(named[1], runs, recipe, has_folds)


def slurm_script(
    sweep: str, runs: Sequence[SweepRun], flags: argparse.Namespace, passed_on: Sequence[str]
) -> str:
    """An array job whose task i works on the i-th run."""
    script = [sys.executable, "-m", "ark_jax", "sweep"]
    places = [f"--config={flags.config}", f"--workdir={flags.workdir}"]
    task = [*script, *places, f"--metric={flags.metric}", *passed_on]
    return f"""#!/bin/bash
#SBATCH --job-name=ark-{sweep}
#SBATCH --array=0-{len(runs) - 1}{f"%{flags.slots}" if flags.slots else ""}
set -euo pipefail
runs=({" ".join(shlex.quote(run.name) for run in runs)})
cd {shlex.quote(str(Path.cwd()))}
exec {shlex.join(task)} --only="${{runs[$SLURM_ARRAY_TASK_ID]}}"
"""
