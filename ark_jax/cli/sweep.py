"""`ark-jax sweep`: one run for each named set of settings, and one table of the results.

    DIR/runs/NAME       a run's workdir, as of `ark-jax run`
    DIR/shared          finished stages by their inputs: each is made once, and every run has it as
                        hard links; may be deleted when the sweep is over
    DIR/logs/NAME.log   what the run printed
    DIR/results.*       .parquet, .md and .html: best first by --metric, failed runs last
    DIR/pooled          of folds: every question once, and all systems by metrics

A config of `papers/` declares a table of a paper: its runs need no name, and the table is in
DIR/table.md, with the published figures set apart.

On SLURM (experimental, never run) each run is a task of an array. A run waits while another makes a
stage that both need.
"""

import dataclasses
import os
import re
import runpy
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ark_jax.cli.config_flags import FIELDS, WORKDIR, YES, ConfigFlags, locate_config
from ark_jax.cli.flags import Flags, bad_flag, flag
from ark_jax.runtime.log import say, show

if TYPE_CHECKING:
    from ark_jax.report.paper_table import PaperTable
    from ark_jax.report.sweep_table import SweepRun
    from ark_jax.sweep.series import Series


class Sweep(Flags):
    """Runs a sweep, or prints the script of its Slurm array; 1 if a run fails."""

    config: str = flag(
        "--config=CONFIG", "names the sweep after the colon: ark:sweep=temperature; or papers/TABLE"
    )
    fields: tuple[str, ...] = flag(FIELDS, "a field of all runs", ())
    workdir: Path | None = flag("--workdir=DIR", f"{WORKDIR}; run it again to resume", None)
    check: bool = flag(
        "--check", "of papers/TABLE: reads the data, and says who publishes what is missing", False
    )
    slots: int = flag("--slots=N", "runs at once, which share out CUDA_VISIBLE_DEVICES: 1", 0)
    metric: str = flag(
        "--metric=NAME", "what the table is sorted by; default: the recipe's own (ARK: ndcg@10)", ""
    )
    only: str = flag("--only=NAME,...", "starts these runs only", "")
    slurm: bool = flag(
        "--slurm", "prints an array job for sbatch instead; experimental, never run", False
    )
    yes: bool = flag("--yes", YES, False)

    example = "ark-jax sweep --config=ark:sweep=temperature --config.data.path=FILE --workdir=DIR"
    needed = ("workdir",)
    prints = False

    def run(self) -> int:
        from ark_jax.pipeline import store
        from ark_jax.recipes.papers.sources import missing
        from ark_jax.report.paper_table import as_markdown
        from ark_jax.report.sweep_table import Comparison, write_results, write_text
        from ark_jax.sweep.processes import run_all, split_devices

        if bad := [word for word in self.fields if not re.match(r"--config\.[\w.]+=", word)]:
            raise bad_flag(self.verb, f"unrecognized arguments: {' '.join(bad)}")
        table = read_table(self.config)
        if self.check:
            return self._check_data(table)
        if self.workdir is None:
            raise bad_flag(self.verb, "--workdir=DIR is missing")
        if table and (absent := missing(table.sources)):
            raise ValueError("\n".join(absent))
        series = read_sweep(self.config, self.workdir, self.fields, table)
        flags = dataclasses.replace(self, metric=self.metric or series.recipe.headline)
        chosen = _chosen_runs(series, flags)
        devices = split_devices(os.environ.get("CUDA_VISIBLE_DEVICES", ""), max(self.slots, 1))
        passed_on = [*self.fields, *(["--yes"] if self.yes else [])]
        if self.slurm:
            show(slurm_script(series.name, chosen, flags, passed_on))
            return 0
        shared = self.workdir / "shared"
        # The models and readers that a table names can be replaced by flags.
        command = lambda run: _run_command(run, self.config, shared, passed_on, bool(table))
        pool = series.recipe.pool if series.has_folds else None
        comparison = Comparison(flags.metric, series.recipe.metrics, series.recipe.outcome, pool)
        try:
            run_all(chosen, command, devices, sorted(self.fields))
        finally:
            rows = write_results(f"Sweep {series.name}", series.runs, self.workdir, comparison)
        if all(row["state"] == "done" for row in rows):
            store.clear(shared)
        if table:
            names_done = {row["run"] for row in rows if row["state"] == "done"}
            finished = {run.name: run.workdir for run in series.runs if run.name in names_done}
            write_text(self.workdir / "table.md", as_markdown(table, finished))
        shown = "table.md" if table else "results.md"
        show((self.workdir / shown).read_text(encoding="utf-8"))
        names = {run.name for run in chosen}
        return int(any(row["state"] != "done" for row in rows if row["run"] in names))

    def _check_data(self, table: "PaperTable | None") -> int:
        """Prints what data a table needs and has; 1 if some are missing or broken."""
        from ark_jax.recipes.papers.sources import look

        if not table:
            raise bad_flag(self.verb, "--check is for the tables of papers: --config=papers/NAME")
        lines, is_good = look(table.sources)
        say("\n".join(lines))
        return int(not is_good)


def _chosen_runs(series: "Series", flags: Sweep) -> list["SweepRun"]:
    """The runs that --only names, or all. Raises ValueError on an unknown run or metric."""
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


def _run_command(
    run: "SweepRun", config: str, shared: Path, flags: Sequence[str], flags_win: bool
) -> list[str]:
    """The command line of one run, whose own settings override the flags of all, or give way."""
    changes = [f"--config.{name}={value}" for name, value in run.changes.items()]
    paths = [f"--config={config}", f"--workdir={run.workdir}", f"--store={shared}"]
    settings = [*changes, *flags] if flags_win else [*flags, *changes]
    return [sys.executable, "-m", "ark_jax", "run", *paths, *settings]


def read_table(config: str) -> "PaperTable | None":
    """The table of a paper that a config declares, of the parts after the colon; else None."""
    from ark_jax.recipes.core.presets import named

    file, _, words = locate_config(config).partition(":")
    table = runpy.run_path(file).get("TABLE")
    return table.choose(named(words)) if table else None


def read_sweep(
    config: str, folder: Path, fields: Sequence[str] = (), table: "PaperTable | None" = None
) -> "Series":
    """The sweep that `--config=FILE:sweep=NAME` names, or a table's, for runs with these fields."""
    from ark_jax.pipeline.recipe import recipe_of
    from ark_jax.sweep.series import Series, read_series, sweep_run

    named = ConfigFlags(verb="sweep", config=config, fields=tuple(fields))
    open_config = lambda: named.open_plain()[0]
    if table:
        runs = [sweep_run(name, changes, folder) for name, changes in table.runs.items()]
        return Series("table", runs, recipe_of(open_config()), has_folds=False)
    return read_series(config, locate_config(config).partition(":")[0], folder, open_config)


def slurm_script(
    sweep: str, runs: Sequence["SweepRun"], flags: Sweep, passed_on: Sequence[str]
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
