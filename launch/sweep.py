"""A sweep: one run for each named set of settings in a config file, and one table of the results.

    python launch/sweep.py --config=configs/ark.py:sweep=NAME --config.data.path=FILE --workdir=DIR

SWEEPS of the config file says which: sweep -> run -> {field: value}. A run `base` without changes
is always added to compare with, unless all runs are folds (data.fold). Fields given here
(--config.train.batch=32) hold for all runs. Run the same command again to resume; finished runs do
nothing.

    DIR/runs/NAME       a run's workdir, as of `ark-jax run`
    DIR/shared          finished stages by their inputs: each is made once, and every run has it as
                        hard links; may be deleted when the sweep is over
    DIR/logs/NAME.log   what the run printed
    DIR/results.*       .parquet, .md and .html: best first by --metric, failed runs last
    DIR/pooled          of folds: every question once, and all systems by metrics

On GPUs each slot gets its share of CUDA_VISIBLE_DEVICES:

    CUDA_VISIBLE_DEVICES=0,1,2,3 python launch/sweep.py --slots=4 ...

On SLURM (experimental, never run) each run is a task of an array. Resources are sbatch's own flags,
or its environment (SBATCH_GPUS, SBATCH_TIMELIMIT):

    python launch/sweep.py --slurm --config=... --workdir=DIR | sbatch --gpus=1 --time=8:00:00

A run waits while another makes a stage that both need. Where idle nodes cost money, run
`--only=base` first.
"""

import argparse
import collections
import dataclasses
import json
import os
import re
import runpy
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ark_jax.pipeline import store
from ark_jax.pipeline.recipe import Recipe, recipe_of
from ark_jax.report.sweep_table import Comparison, SweepRun, write_results, write_text
from ark_jax.runtime.log import duration

GRACE = 1.0  # seconds that a run has to end when it is told to; a killed one loses only time


def main(args: Sequence[str]) -> int:
    """Runs a sweep, or prints the script of its Slurm array; returns the exit status."""
    flags, fields = _parse(args)
    try:
        sweep = read_sweep(flags.config, flags.workdir)
        flags.metric = metric = flags.metric or sweep.recipe.headline
        if metric not in sweep.recipe.metrics:
            known = ", ".join(sweep.recipe.metrics) or "none"
            raise ValueError(f"--metric={metric}: recipe {sweep.recipe.name} has {known}")
        names = flags.only.split(",") if flags.only else [run.name for run in sweep.runs]
        if unknown := set(names) - {run.name for run in sweep.runs}:
            known = ", ".join(run.name for run in sweep.runs)
            raise ValueError(f"--only: {sweep.name} has no run {min(unknown)!r}, but {known}")
        chosen = [run for run in sweep.runs if run.name in names]
        devices = shares_of_devices(os.environ.get("CUDA_VISIBLE_DEVICES", ""), max(flags.slots, 1))
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if flags.slurm:
        print(slurm_script(sweep.name, chosen, flags, fields), end="")
        return 0
    shared = flags.workdir / "shared"
    command = lambda run: _command(run, flags.config, shared, fields)
    pool = sweep.recipe.pool if sweep.has_folds else None
    comparison = Comparison(metric, sweep.recipe.metrics, sweep.recipe.outcome, pool)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as SLURM and others stop a job
    try:
        work(chosen, command, devices, sorted(fields))
    except KeyboardInterrupt:
        print("interrupted: nothing is lost, run the same command again to go on", file=sys.stderr)
        return 130
    finally:
        rows = write_results(f"Sweep {sweep.name}", sweep.runs, flags.workdir, comparison)
    if all(row["state"] == "done" for row in rows):
        store.clear(shared)
    print((flags.workdir / "results.md").read_text(encoding="utf-8"))
    return int(any(row["state"] != "done" for row in rows if row["run"] in names))


def _parse(args: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The flags of a sweep, and the fields of the config that hold for all runs."""
    parser = argparse.ArgumentParser(
        "launch/sweep.py",
        description=__doc__,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    folder = lambda path: Path(path).expanduser().absolute()
    slots = "runs at once; default 1, on SLURM as many as there is room for"
    metric = "what the table is sorted by; default: the recipe's own (ARK: ndcg@10)"
    parser.add_argument("--config", required=True, metavar="FILE:sweep=NAME")
    parser.add_argument("--workdir", required=True, type=folder)
    parser.add_argument("--slots", type=int, default=0, help=slots)
    parser.add_argument("--metric", default="", help=metric)
    parser.add_argument("--only", default="", metavar="NAME,...", help="start these runs only")
    parser.add_argument(
        "--slurm", action="store_true", help="print an sbatch script instead of running"
    )
    flags, fields = parser.parse_known_args(args)
    for field in fields:
        if not re.match(r"--config\.[\w.]+=", field):
            parser.error(
                f"unexpected {field!r}; fields of the config are written --config.name=value"
            )
    return flags, fields


def _command(run: SweepRun, config: str, shared: Path, fields: Sequence[str]) -> list[str]:
    changes = [f"--config.{name}={value}" for name, value in run.changes.items()]
    paths = [f"--config={config}", f"--workdir={run.workdir}", f"--store={shared}"]
    return [sys.executable, "-m", "ark_jax", "run", *paths, *fields, *changes]


@dataclasses.dataclass(frozen=True)
class Sweep:
    """A named series of runs and the recipe that they follow.

    `base` comes first. If each run holds out a fold of the questions, there is no `base`.
    """

    name: str
    runs: list[SweepRun]
    recipe: Recipe
    has_folds: bool


def read_sweep(config: str, folder: Path) -> Sweep:
    """The sweep that `--config=FILE:sweep=NAME` names.

    Raises:
        ValueError: the config names no sweep, or one that its file lacks, or a run's name is not
            fit for a folder, or the recipe cannot pool folds.
    """
    path, _, words = config.partition(":")
    named = re.search(r"(?:^|,)sweep=([^,]*)", words)
    module = runpy.run_path(path)
    sweeps = module.get("SWEEPS", {})
    if not named or named[1] not in sweeps:
        raise ValueError(
            f"--config={config}: give one of the sweeps of {path} as --config={path}:sweep=NAME; "
            f"there are {', '.join(sweeps) or 'none: it has no SWEEPS'}"
        )
    runs, changes_of = [], sweeps[named[1]]
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


def shares_of_devices(visible: str, slots: int) -> list[str]:
    """What each slot sees of the devices in CUDA_VISIBLE_DEVICES, which may be empty."""
    devices = list(filter(None, visible.split(",")))
    if devices and len(devices) < slots:
        raise ValueError(
            f"--slots={slots}, but CUDA_VISIBLE_DEVICES={visible} has {len(devices)} device(s)"
        )
    return [",".join(devices[slot::slots]) for slot in range(slots)]


def slurm_script(
    sweep: str, runs: Sequence[SweepRun], flags: argparse.Namespace, fields: Sequence[str]
) -> str:
    """An array job whose task i works on the i-th run."""
    script = [sys.executable, str(Path(__file__).absolute())]
    places = [f"--config={flags.config}", f"--workdir={flags.workdir}"]
    task = [*script, *places, f"--metric={flags.metric}", *fields]
    return f"""#!/bin/bash
#SBATCH --job-name=ark-{sweep}
#SBATCH --array=0-{len(runs) - 1}{f"%{flags.slots}" if flags.slots else ""}
set -euo pipefail
runs=({" ".join(shlex.quote(run.name) for run in runs)})
cd {shlex.quote(str(Path.cwd()))}
exec {shlex.join(task)} --only="${{runs[$SLURM_ARRAY_TASK_ID]}}"
"""


@dataclasses.dataclass
class Process:
    """A run under way: `log_start` is the size of its log when it began."""

    run: SweepRun
    handle: subprocess.Popen
    log_start: int
    began: float


def work(
    runs: Sequence[SweepRun],
    command: Callable[[SweepRun], list[str]],
    devices: Sequence[str],
    fields: Sequence[str],
) -> None:
    """Brings the runs to their ends, as many at once as there are shares of devices.

    However it ends, no process is left.
    """
    waiting = collections.deque(enumerate(runs, 1))
    under_way: dict[int, Process] = {}
    earlier = {run.name: _seconds(run) for run in runs}
    try:
        while waiting or under_way:
            free = sorted(set(range(len(devices))) - set(under_way))
            for slot in free[: len(waiting)]:
                number, run = waiting.popleft()
                print(f"[{number}/{len(runs)}] {run.name}: {run.log}", flush=True)
                under_way[slot] = _start(run, command(run), devices[slot])
            time.sleep(0.05)
            for slot, process in list(under_way.items()):
                if process.handle.poll() is not None:
                    del under_way[slot]
                    _finish(process, earlier[process.run.name], fields)
    finally:
        _end([process.handle for process in under_way.values()])


def _seconds(run: SweepRun) -> float | None:
    """How long a run took that ended earlier."""
    if not run.result_file.is_file():
        return None
    return json.loads(run.result_file.read_text())["seconds"]


def _start(run: SweepRun, command: list[str], devices: str) -> Process:
    for folder in (run.workdir, run.log.parent):
        folder.mkdir(parents=True, exist_ok=True)
    run.result_file.unlink(missing_ok=True)
    visible = {"CUDA_VISIBLE_DEVICES": devices} if devices else {}
    with run.log.open("ab") as log:
        log_start, began = log.tell(), time.monotonic()
        handle = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **visible}
        )
    return Process(run, handle, log_start, began)


def _finish(process: Process, earlier: float | None, fields: Sequence[str]) -> None:
    """Writes how a run ended; a run that had nothing to do has the time of its earlier end."""
    run, seconds = process.run, time.monotonic() - process.began
    error = why_failed(process.handle.returncode, run.log, process.log_start)
    log = run.log.read_bytes()[process.log_start :]
    idle = not error and b"\nall stages: up to date" in b"\n" + log
    taken = earlier if idle and earlier is not None else seconds
    result = {"error": error, "seconds": round(taken, 3), "fields": fields}
    write_text(run.result_file, json.dumps(result))
    state = f"failed: {error}" if error else "done"
    print(f"  {run.name}: {state} ({duration(seconds)})", flush=True)


def _end(handles: Sequence[subprocess.Popen]) -> None:
    deadline = time.monotonic() + GRACE
    for handle in handles:
        handle.terminate()
    while time.monotonic() < deadline and any(handle.poll() is None for handle in handles):
        time.sleep(0.02)
    for handle in handles:
        handle.kill()
        handle.wait()


def why_failed(code: int, log: Path, log_start: int) -> str:
    """The last line of a run's log if the run did not come to its end; "" if it did."""
    output = log.read_bytes()[log_start:].decode(errors="replace")
    # A run that was told to stop ends with status 0 too, so the status is not enough.
    if not code and re.search("^(done in |all stages: up to date)", output, re.MULTILINE):
        return ""
    lines = [line.strip() for line in output.split("\n") if line.strip()]
    last = lines[-1] if lines else f"exit status {code}"
    cause = f"killed by {signal.Signals(-code).name}: " if code < 0 else ""
    return cause + last.removeprefix("error: ")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
