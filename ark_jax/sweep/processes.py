"""The processes of a sweep: starts runs, as many at once as there are slots, and ends them."""

import collections
import dataclasses
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ark_jax.report.sweep_table import SweepRun, write_text
from ark_jax.runtime.log import duration

GRACE = 1.0  # seconds between SIGTERM and SIGKILL; a killed run can be resumed


@dataclasses.dataclass
class Process:
    """A running run. `log_start` is the size of its log, in bytes, when it began."""

    run: SweepRun
    handle: subprocess.Popen
    log_start: int
    began: float


def run_all(
    runs: Sequence[SweepRun],
    command: Callable[[SweepRun], list[str]],
    devices: Sequence[str],
    fields: Sequence[str],
) -> None:
    """Runs all, as many at once as `devices` has entries; leaves no process behind.

    Args:
        command: gives the command line of a run.
        devices: CUDA_VISIBLE_DEVICES of each slot; empty: not set.
        fields: flags of all runs, which are kept with each result.
    """
    waiting = collections.deque(enumerate(runs, 1))
    running: dict[int, Process] = {}
    earlier = {run.name: _earlier_seconds(run) for run in runs}
    try:
        while waiting or running:
            free = sorted(set(range(len(devices))) - set(running))
            for slot in free[: len(waiting)]:
                number, run = waiting.popleft()
                print(f"[{number}/{len(runs)}] {run.name}: {run.log}", flush=True)
                running[slot] = _start(run, command(run), devices[slot])
            time.sleep(0.05)
            for slot, process in list(running.items()):
                if process.handle.poll() is not None:
                    del running[slot]
                    _record_result(process, earlier[process.run.name], fields)
    finally:
        _terminate([process.handle for process in running.values()])


def _earlier_seconds(run: SweepRun) -> float | None:
    """Seconds that a finished earlier attempt took; None if there is none."""
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


def _record_result(process: Process, earlier: float | None, fields: Sequence[str]) -> None:
    """Writes a run's error and seconds; those of the earlier attempt if it had nothing to do."""
    run, seconds = process.run, time.monotonic() - process.began
    error = failure_reason(process.handle.returncode, run.log, process.log_start)
    log = run.log.read_bytes()[process.log_start :]
    idle = not error and b"\nall stages: up to date" in b"\n" + log
    taken = earlier if idle and earlier is not None else seconds
    result = {"error": error, "seconds": round(taken, 3), "fields": fields}
    write_text(run.result_file, json.dumps(result))
    state = f"failed: {error}" if error else "done"
    print(f"  {run.name}: {state} ({duration(seconds)})", flush=True)


def _terminate(handles: Sequence[subprocess.Popen]) -> None:
    """Ends processes: SIGTERM, then SIGKILL after `GRACE`."""
    deadline = time.monotonic() + GRACE
    for handle in handles:
        handle.terminate()
    while time.monotonic() < deadline and any(handle.poll() is None for handle in handles):
        time.sleep(0.02)
    for handle in handles:
        handle.kill()
        handle.wait()


def failure_reason(code: int, log: Path, log_start: int) -> str:
    """The last line of a run's log if the run failed or was stopped; "" if it finished."""
    output = log.read_bytes()[log_start:].decode(errors="replace")
    # A run that was asked to stop also ends with status 0, so the status is not enough.
    if not code and re.search("^(done in |all stages: up to date)", output, re.MULTILINE):
        return ""
    lines = [line.strip() for line in output.split("\n") if line.strip()]
    last = lines[-1] if lines else f"exit status {code}"
    cause = f"killed by {signal.Signals(-code).name}: " if code < 0 else ""
    return cause + last.removeprefix("error: ")


def split_devices(visible: str, slots: int) -> list[str]:
    """CUDA_VISIBLE_DEVICES of each slot: `visible` dealt out in turn, "" if it is empty."""
    devices = list(filter(None, visible.split(",")))
    if devices and len(devices) < slots:
        raise ValueError(
            f"--slots={slots}, but CUDA_VISIBLE_DEVICES={visible} has {len(devices)} device(s)"
        )
    return [",".join(devices[slot::slots]) for slot in range(slots)]
