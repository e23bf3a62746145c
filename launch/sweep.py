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

    python launch/sweep.py --slurm --config=... --workdir=DIR > sweep.sbatch && sbatch --gpus=1 --time=8:00:00 sweep.sbatch

A run waits while another makes a stage that both need; where idle nodes cost, let `--only=base` make those first.
"""

import argparse
import collections
import dataclasses
import fcntl
import importlib.resources
import importlib.util
import json
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ark_jax.evaluate import figures, page, retrieval
from ark_jax.log import duration, read_rows
from ark_jax.pipeline import read_manifest
from ark_jax.stages.outcome import METRICS, NAMES

GRACE = 1.0  # seconds that a run has to end when it is told to; a killed one loses nothing but time


@dataclasses.dataclass(frozen=True)
class Run:
    name: str
    changes: dict
    sweep: Path  # the folder of the whole sweep

    @property
    def workdir(self) -> Path:
        return self.sweep / "runs" / self.name

    @property
    def log(self) -> Path:
        return self.sweep / "logs" / f"{self.name}.log"

    @property
    def outcome(self) -> Path:
        """{"error": "" if it is done, "seconds": ...}; none while it is under way."""
        return self.workdir / "outcome.json"


def main(args: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("launch/sweep.py", description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", required=True, metavar="FILE:sweep=NAME")
    parser.add_argument("--workdir", required=True, type=lambda path: Path(path).expanduser().absolute())
    parser.add_argument("--slots", type=int, default=0, help="runs at once; default 1, on SLURM as many as there is room for")
    parser.add_argument("--metric", choices=METRICS, default="ndcg@10", help="what the table is sorted by")
    parser.add_argument("--only", default="", metavar="NAME,...", help="start these runs only")
    parser.add_argument("--slurm", action="store_true", help="print an sbatch script instead of running")
    parser.add_argument("--submit", action="store_true", help="hand that script to sbatch")
    given, fields = parser.parse_known_args(args)
    for field in fields:
        if not re.match(r"--config\.[\w.]+=", field):
            parser.error(f"unexpected {field!r}; fields of the config are written --config.name=value")
    try:
        sweep, runs = read_sweep(given.config, given.workdir)
        names = given.only.split(",") if given.only else [run.name for run in runs]
        unknown = set(names) - {run.name for run in runs}
        if unknown:
            raise ValueError(f"--only: {sweep} has no run {min(unknown)!r}, but {', '.join(run.name for run in runs)}")
        wanted = [run for run in runs if run.name in names]
        if given.slurm or given.submit:
            script = slurm_script(sweep, wanted, given, fields)
            if given.submit:
                return subprocess.run(["sbatch"], input=script, text=True, check=False).returncode
            print(script, end="")
            return 0
        devices = shares_of_devices(os.environ.get("CUDA_VISIBLE_DEVICES", ""), max(given.slots, 1))
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as SLURM and others stop a job
    try:
        work(wanted, lambda run: command(run, given.config, fields), devices)
    except KeyboardInterrupt:
        print("interrupted: nothing is lost, run the same command again to go on", file=sys.stderr)
        return 130
    finally:
        rows = report(sweep, runs, given.metric)
    print((given.workdir / "results.md").read_text(encoding="utf-8"))
    return int(any(row["state"] != "done" for row in rows if row["run"] in names))


def read_sweep(config: str, folder: Path) -> tuple[str, list[Run]]:
    """The sweep's name and its runs, `base` first.

    Raises:
        ValueError: the config names no sweep, one that its file has not, or a run whose name is no name of a folder.
    """
    path, _, words = config.partition(":")
    named = re.search(r"(?:^|,)sweep=([^,]*)", words)
    spec = importlib.util.spec_from_file_location("swept_config", path)
    if not spec or not Path(path).is_file():
        raise ValueError(f"--config={path}: no such Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sweeps = getattr(module, "SWEEPS", {})
    if not named or named[1] not in sweeps:
        raise ValueError(f"--config={config}: give one of the sweeps of {path} as --config={path}:sweep=NAME; "
                         f"there are {', '.join(sweeps) or 'none: it has no SWEEPS'}")
    changes = {"base": {}} | sweeps[named[1]]
    for name in changes:
        if not re.fullmatch(r"\w[\w.+-]*", name):
            raise ValueError(f"{path}: sweep {named[1]}: run {name!r}: letters, digits and _ . + - make a name")
    return named[1], [Run(name, fields, folder) for name, fields in changes.items()]


def command(run: Run, config: str, fields: Sequence[str]) -> list[str]:
    """`ark-jax run` with what the run changes after what holds for all."""
    return [sys.executable, "-m", "ark_jax", "run", f"--config={config}", f"--workdir={run.workdir}",
            f"--store={run.sweep / 'shared'}", *fields, *(f"--config.{field}={value}" for field, value in run.changes.items())]


def shares_of_devices(visible: str, slots: int) -> list[str]:
    """What each slot sees of the devices in CUDA_VISIBLE_DEVICES; of none, none."""
    devices = list(filter(None, visible.split(",")))
    if devices and len(devices) < slots:
        raise ValueError(f"--slots={slots}, but CUDA_VISIBLE_DEVICES={visible} has {len(devices)} device(s)")
    return [",".join(devices[slot::slots]) for slot in range(slots)]


def work(runs: Sequence[Run], command: Callable[[Run], list[str]], devices: Sequence[str]) -> None:
    """Brings the runs to their ends, as many at once as there are shares of devices. However it ends, none is left over."""
    waiting = collections.deque(enumerate(runs, 1))
    under_way: dict[int, tuple[Run, subprocess.Popen, int, float]] = {}
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
                    seconds = time.monotonic() - began
                    error = why(process.returncode, run.log, at)
                    write(run.outcome, json.dumps({"error": error, "seconds": round(seconds, 3)}))
                    print(f"  {run.name}: {f'failed: {error}' if error else 'done'} ({duration(seconds)})", flush=True)
    finally:
        for _, process, *_ in under_way.values():
            process.terminate()
        deadline = time.monotonic() + GRACE
        for _, process, *_ in under_way.values():
            try:
                process.wait(max(deadline - time.monotonic(), 0))
            except subprocess.TimeoutExpired:
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


def slurm_script(sweep: str, runs: Sequence[Run], given: argparse.Namespace, fields: Sequence[str]) -> str:
    """An array job whose task i works on the i-th run."""
    again = [sys.executable, str(Path(__file__).absolute()), f"--config={given.config}", f"--workdir={given.workdir}",
             f"--metric={given.metric}", *fields]
    most = f"%{given.slots}" if given.slots else ""
    return f"""#!/bin/bash
#SBATCH --job-name=ark-{sweep}
#SBATCH --array=0-{len(runs) - 1}{most}
set -euo pipefail
runs=({" ".join(shlex.quote(run.name) for run in runs)})
cd {shlex.quote(str(Path.cwd()))}
exec {shlex.join(again)} --only="${{runs[$SLURM_ARRAY_TASK_ID]}}"
"""


def report(sweep: str, runs: Sequence[Run], metric: str) -> list[dict]:
    """Writes the results of all runs, of whichever are there, and returns them."""
    folder = runs[0].sweep
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".results.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tasks of an array may end together: the last one writes what all have done
        rows = results(runs, metric)
        pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), folder / "results.parquet.new")
        os.replace(folder / "results.parquet.new", folder / "results.parquet")
        write(folder / "results.md", as_markdown(sweep, rows, runs))
        write(folder / "results.html", as_html(sweep, rows))
    return rows


def write(path: Path, text: str) -> None:
    """Whole or not at all."""
    path.with_suffix(".new").write_text(text, encoding="utf-8")
    os.replace(path.with_suffix(".new"), path)


SCHEMA = pa.schema([*((name, pa.string()) for name in ("run", "state", "changes", "error", "system", "metric")),
                    *((name, pa.float64()) for name in ("mean", "low", "high", "difference", "difference_low",
                                                        "difference_high", *METRICS, "seconds"))])


def results(runs: Sequence[Run], metric: str) -> list[dict]:
    """A row of SCHEMA for each run, best first, those without a result last. The system is the retriever after its last
    stage; `difference` is that to the run `base`, its interval over questions that both were asked."""
    rows = []
    base = measured(runs[0], metric) if state(runs[0])[0] == "done" else None
    for run in runs:
        now, error, seconds = state(run)
        row = dict.fromkeys(SCHEMA.names) | {"run": run.name, "state": now, "changes": json.dumps(run.changes), "error": error,
                                             "metric": metric, "seconds": seconds}
        if now == "done":
            last = json.loads((run.workdir / "evaluate" / "metrics.json").read_text(encoding="utf-8"))["table"][-1]
            row |= {"system": last["system"], **last["values"][metric], **{m: last["values"][m]["mean"] for m in METRICS}}
            if base is not None and run is not runs[0]:
                row |= difference(row["mean"], measured(run, metric), base, read_manifest(run.workdir / "evaluate")["config"])
        rows.append(row)
    good = lambda row: row["mean"] is not None and math.isfinite(row["mean"])
    return sorted(rows, key=lambda row: (row["state"] != "done", not good(row), -row["mean"] if good(row) else 0.0))


def state(run: Run) -> tuple[str, str, float | None]:
    """done | failed | unfinished, the error, the seconds that its latest call took."""
    try:
        outcome = json.loads(run.outcome.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return "unfinished", "", None
    return "failed" if outcome["error"] else "done", outcome["error"], outcome["seconds"]


def measured(run: Run, metric: str) -> dict[str, float]:
    """question -> the metric of the last stage."""
    table = pq.read_table(run.workdir / "evaluate" / "questions.parquet", columns=["system", "question", metric]).to_pylist()
    return {row["question"]: row[metric] for row in table if row["system"] == table[-1]["system"]}


def difference(mean: float, ours: dict, base: dict, settings: dict) -> dict[str, float]:
    """To the base; the interval is of differences question by question, so there is none if they were asked others."""
    if ours.keys() != base.keys():
        return {"difference": mean - sum(base.values()) / len(base)}
    found = retrieval.interval([ours[q] - base[q] for q in base], draws=settings["evaluate.bootstrap"], seed=settings["seed"])
    return {"difference": found["mean"], "difference_low": found["low"], "difference_high": found["high"]}


def cells(row: dict) -> list[str]:
    """Of a finished run, in words: name, metric, difference, its changes, the other metrics, time."""
    ends = lambda low, high: "" if low is None else f" [{page.number(low)}, {page.number(high)}]"
    moved = "–"
    if row["difference"] is not None:
        sign = "+" if row["difference"] > 0 else ""
        moved = sign + page.number(row["difference"]) + ends(row["difference_low"], row["difference_high"])
    return [row["run"], page.number(row["mean"]) + ends(row["low"], row["high"]), moved,
            ", ".join(f"{field}={value}" for field, value in json.loads(row["changes"]).items()),
            *(page.number(row[name]) for name in METRICS if name != row["metric"]), duration(row["seconds"])]


def heads(metric: str) -> list[str]:
    return ["run", NAMES[metric], "difference to base", "changes", *(NAMES[m] for m in METRICS if m != metric), "time"]


def as_markdown(sweep: str, rows: Sequence[dict], runs: Sequence[Run]) -> str:
    done, metric = [row for row in rows if row["state"] == "done"], rows[0]["metric"]
    table = [heads(metric), ["---"] * len(heads(metric)), *map(cells, done)]
    failed = [f"- {row['run']} {row['state']}: {row['error'] or 'run again to go on'}" for row in rows if row not in done]
    made = ", ".join(f"{stage} {times}" for stage, times in times_made(runs).items())
    told = (f"{NAMES[metric]} of the last stage with 95 % bootstrap intervals over questions, best first. "
            f"How often a stage was run for all {len(runs)} runs: {made or 'never'}.")
    lines = ["| " + " | ".join(line) + " |" for line in table]
    return "\n".join([f"# Sweep {sweep}", "", *lines, "", *failed, *([""] if failed else []), told, ""])


def times_made(runs: Sequence[Run]) -> collections.Counter:
    """stage -> how often any of the runs had to run it, rather than take it from another; in the order of the first times."""
    rows = [row for run in runs for row in read_rows(run.workdir / "metrics.jsonl") if "seconds" in row]
    return collections.Counter(row["stage"] for row in sorted(rows, key=lambda row: row["time"]))


def as_html(sweep: str, rows: Sequence[dict]) -> str:
    """The same table as a page, above a drawing of the intervals."""
    done, metric = [row for row in rows if row["state"] == "done"], rows[0]["metric"]
    body = page.table(f"Sweep {sweep}", heads(metric), [list(map(page.escape, cells(row))) for row in done], "results")
    drawn = [tuple(row[k] for k in ("run", "mean", "low", "high")) for row in done if math.isfinite(row["mean"])]
    if drawn:
        base = next((row["mean"] for row in done if row["run"] == "base"), None)
        plot = figures.interval_plot("runs", f"{NAMES[metric]} of every run", drawn, x_title=NAMES[metric], reference=base)
        body += page.figure(plot, NAMES[metric], "means and 95 % intervals; the dashed line is base")
    for row in rows:
        if row not in done:
            body += f"<p><b>{page.escape(row['run'])}</b> {row['state']}: {page.escape(row['error'] or 'run again to go on')}</p>"
    style = (importlib.resources.files("ark_jax.evaluate") / "report.css").read_text(encoding="utf-8")
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Sweep {page.escape(sweep)}</title>
<style>
{style}main {{ max-width: 62rem; margin: auto; padding: 2rem 1.5rem; }}
</style>
</head>
<body><main><h2>Sweep {page.escape(sweep)}</h2>
{body}
</main></body>
</html>
"""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
