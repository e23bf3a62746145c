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

GRACE = 1.0  # seconds that a run has to end when it is told to; a killed one loses only time


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


def shares_of_devices(visible: str, slots: int) -> list[str]:
    """What each slot sees of the devices in CUDA_VISIBLE_DEVICES, which may be empty."""
    devices = list(filter(None, visible.split(",")))
    if devices and len(devices) < slots:
        raise ValueError(
            f"--slots={slots}, but CUDA_VISIBLE_DEVICES={visible} has {len(devices)} device(s)"
        )
    return [",".join(devices[slot::slots]) for slot in range(slots)]
