"""A sweep: one run for each named set of settings in a config file, and one table of what came of them.

    python launch/sweep.py --config=configs/ark.py:sweep=temperature --config.data.path=FILE --workdir=DIR

The file's SWEEPS say which: sweep -> run -> {field: value}; a run `base` without changes is always there to compare with.
Fields given here (--config.train.batch=32) hold for all runs. Run again to resume; what is finished does nothing.

    DIR/runs/NAME       a run's workdir, as of `ark-jax run`
    DIR/shared          finished stages by their inputs: each is made once, and lies in every run as hard links. May be
                        deleted when the sweep is over
    DIR/logs/NAME.log   what the run said
    DIR/results.*       .parquet, .md and .html: best first by --metric of the last stage, what failed at the end

On GPUs each slot gets its share of CUDA_VISIBLE_DEVICES: CUDA_VISIBLE_DEVICES=0,1,2,3 python launch/sweep.py --slots=4 ...
On SLURM each run is a task of an array. Resources are sbatch's own flags, or its environment (SBATCH_GPUS, SBATCH_TIMELIMIT):

    python launch/sweep.py --slurm --config=... --workdir=DIR | sbatch --gpus=1 --time=8:00:00

A run waits while another makes a stage that both need; where idle nodes cost, let `--only=base` make those first.
"""

import argparse
import collections
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

from ark_jax import share
from ark_jax.log import duration
from ark_jax.stages.compare import Run, report, write
from ark_jax.stages.outcome import METRICS

GRACE = 1.0  # seconds that a run has to end when it is told to; a killed one loses nothing but time


def main(args: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("launch/sweep.py", description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", required=True, metavar="FILE:sweep=NAME")
    parser.add_argument("--workdir", required=True, type=lambda path: Path(path).expanduser().absolute())
    parser.add_argument("--slots", type=int, default=0, help="runs at once; default 1, on SLURM as many as there is room for")
    parser.add_argument("--metric", choices=METRICS, default="ndcg@10", help="what the table is sorted by")
    parser.add_argument("--only", default="", metavar="NAME,...", help="start these runs only")
    parser.add_argument("--slurm", action="store_true", help="print an sbatch script instead of running")
    given, fields = parser.parse_known_args(args)
    for field in fields:
        if not re.match(r"--config\.[\w.]+=", field):
            parser.error(f"unexpected {field!r}; fields of the config are written --config.name=value")
    try:
        sweep, runs = read_sweep(given.config, given.workdir)
        names = given.only.split(",") if given.only else list(runs)
        if unknown := set(names) - set(runs):
            raise ValueError(f"--only: {sweep} has no run {min(unknown)!r}, but {', '.join(runs)}")
        wanted = [run for name, run in runs.items() if name in names]
        devices = shares_of_devices(os.environ.get("CUDA_VISIBLE_DEVICES", ""), max(given.slots, 1))
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if given.slurm:
        print(slurm_script(sweep, wanted, given, fields), end="")
        return 0
    store = given.workdir / "shared"
    command = lambda run: [sys.executable, "-m", "ark_jax", "run", f"--config={given.config}", f"--workdir={run.workdir}",
                           f"--store={store}", *fields, *(f"--config.{name}={value}" for name, value in run.changes.items())]
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as SLURM and others stop a job
    try:
        work(wanted, command, devices, sorted(fields))
    except KeyboardInterrupt:
        print("interrupted: nothing is lost, run the same command again to go on", file=sys.stderr)
        return 130
    finally:
        rows = report(f"Sweep {sweep}", list(runs.values()), given.workdir, given.metric)
    if all(row["state"] == "done" for row in rows):
        share.clear(store)
    print((given.workdir / "results.md").read_text(encoding="utf-8"))
    return int(any(row["state"] != "done" for row in rows if row["run"] in names))


def read_sweep(config: str, folder: Path) -> tuple[str, dict[str, Run]]:
    """The sweep's name and its runs by theirs, `base` first.

    Raises:
        ValueError: the config names no sweep, one that its file has not, or a run whose name is no name of a folder.
    """
    path, _, words = config.partition(":")
    named = re.search(r"(?:^|,)sweep=([^,]*)", words)
    sweeps = runpy.run_path(path).get("SWEEPS", {})
    if not named or named[1] not in sweeps:
        raise ValueError(f"--config={config}: give one of the sweeps of {path} as --config={path}:sweep=NAME; "
                         f"there are {', '.join(sweeps) or 'none: it has no SWEEPS'}")
    changes = {"base": {}} | sweeps[named[1]]
    for name in changes:
        if not re.fullmatch(r"\w[\w.+-]*", name):
            raise ValueError(f"{path}: sweep {named[1]}: run {name!r}: letters, digits and _ . + - make a name")
    return named[1], {name: Run(name, fields, folder / "runs" / name, folder / "logs" / f"{name}.log")
                      for name, fields in changes.items()}


def shares_of_devices(visible: str, slots: int) -> list[str]:
    """What each slot sees of the devices in CUDA_VISIBLE_DEVICES; of none, none."""
    devices = list(filter(None, visible.split(",")))
    if devices and len(devices) < slots:
        raise ValueError(f"--slots={slots}, but CUDA_VISIBLE_DEVICES={visible} has {len(devices)} device(s)")
    return [",".join(devices[slot::slots]) for slot in range(slots)]


def slurm_script(sweep: str, runs: Sequence[Run], given: argparse.Namespace, fields: Sequence[str]) -> str:
    """An array job whose task i works on the i-th run."""
    again = [sys.executable, str(Path(__file__).absolute()), f"--config={given.config}", f"--workdir={given.workdir}",
             f"--metric={given.metric}", *fields]
    return f"""#!/bin/bash
#SBATCH --job-name=ark-{sweep}
#SBATCH --array=0-{len(runs) - 1}{f"%{given.slots}" if given.slots else ""}
set -euo pipefail
runs=({" ".join(shlex.quote(run.name) for run in runs)})
cd {shlex.quote(str(Path.cwd()))}
exec {shlex.join(again)} --only="${{runs[$SLURM_ARRAY_TASK_ID]}}"
"""


def work(runs: Sequence[Run], command: Callable[[Run], list[str]], devices: Sequence[str], fields: Sequence[str]) -> None:
    """Brings the runs to their ends, as many at once as there are shares of devices. However it ends, none is left over."""
    waiting = collections.deque(enumerate(runs, 1))
    under_way: dict[int, tuple[Run, subprocess.Popen, int, float]] = {}
    took = {run.name: json.loads(run.outcome.read_text())["seconds"] for run in runs if run.outcome.is_file()}
    try:
        while waiting or under_way:
            for slot in sorted(set(range(len(devices))) - set(under_way))[: len(waiting)]:
                number, run = waiting.popleft()
                print(f"[{number}/{len(runs)}] {run.name}: {run.log}", flush=True)
                for folder in (run.workdir, run.log.parent):
                    folder.mkdir(parents=True, exist_ok=True)
                run.outcome.unlink(missing_ok=True)
                seen = {"CUDA_VISIBLE_DEVICES": devices[slot]} if devices[slot] else {}
                with run.log.open("ab") as log:
                    at, began = log.tell(), time.monotonic()
                    process = subprocess.Popen(command(run), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                               env={**os.environ, **seen})
                    under_way[slot] = run, process, at, began
            time.sleep(0.05)
            for slot, (run, process, at, began) in list(under_way.items()):
                if process.poll() is not None:
                    del under_way[slot]
                    seconds, error = time.monotonic() - began, why(process.returncode, run.log, at)
                    idle = not error and b"\nall stages: up to date" in b"\n" + run.log.read_bytes()[at:]
                    kept = took.get(run.name, seconds) if idle else seconds  # of the run, not of a look at it
                    write(run.outcome, json.dumps({"error": error, "seconds": round(kept, 3), "fields": fields}))
                    print(f"  {run.name}: {f'failed: {error}' if error else 'done'} ({duration(seconds)})", flush=True)
    finally:
        left, deadline = [process for _, process, *_ in under_way.values()], time.monotonic() + GRACE
        for process in left:
            process.terminate()
        while time.monotonic() < deadline and any(process.poll() is None for process in left):
            time.sleep(0.02)
        for process in left:
            process.kill()
            process.wait()


def why(code: int, log: Path, at: int) -> str:
    """Why a run did not come to its end, as its last line after byte `at` of its log has it; "" if it did."""
    said = log.read_bytes()[at:].decode(errors="replace")
    # One that was told to stop ends well too, so the exit status is not enough.
    if not code and re.search("^(done in |all stages: up to date)", said, re.MULTILINE):
        return ""
    last = next((line.strip() for line in reversed(said.split("\n")) if line.strip()), f"exit status {code}")
    return (f"killed by {signal.Signals(-code).name}: " if code < 0 else "") + last.removeprefix("error: ")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
