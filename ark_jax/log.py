"""What the user sees while a run works: plain lines, progress with rate and time left, metrics.jsonl."""

import contextlib
import fcntl
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path


def primary() -> bool:
    """Whether this process speaks and writes for all. Asks jax only if something has started it."""
    jax = sys.modules.get("jax")
    return jax is None or jax.process_index() == 0


def say(message: str) -> None:
    """One line on standard output, from process 0 only."""
    if primary():
        print(message, flush=True)


def duration(seconds: float) -> str:
    """`75` -> `1m15s`."""
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds}s"
    minutes, seconds = divmod(seconds, 60)
    return f"{minutes}m{seconds:02d}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02d}m"


class Progress:
    """Counts work done and says, now and then, how fast it goes and how long it will take.

    On a terminal one line is rewritten; elsewhere a plain line is written every `interval` seconds, so
    that logs of a pod stay readable.
    """

    def __init__(self, label: str, total: int, unit: str, interval: float = 10.0):
        self.label, self.total, self.unit, self.done = label, total, unit, 0
        self._tty = sys.stdout.isatty()
        self._interval = 0.2 if self._tty else interval
        self._start = self._last = time.monotonic()

    def add(self, n: int = 1, note: str = "") -> None:
        self.done += n
        now = time.monotonic()
        if now - self._last < self._interval or not primary():
            return
        self._last = now
        rate = self.done / (now - self._start)
        left = (self.total - self.done) / max(rate, 1e-9)
        line = (f"  {self.label}: {self.done:,}/{self.total:,} {self.unit}, {rate:,.1f}/s, "
                f"{duration(left)} left{', ' + note if note else ''}")
        print(f"\r\x1b[K{line}" if self._tty else line, end="" if self._tty else "\n", flush=True)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_) -> None:
        if self._tty and primary():
            print("\r\x1b[K", end="", flush=True)


def progress(items: Iterable, label: str, total: int, unit: str) -> Iterator:
    """Iterates over `items` under a `Progress`."""
    with Progress(label, total, unit) as bar:
        for item in items:
            yield item
            bar.add()


def append_row(row: object, path: Path, *, sync: bool = True) -> None:
    """Adds one JSON line, whole or not at all, whoever else is appending; synced, it outlives a power cut too."""
    line = (json.dumps(row) + "\n").encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if file.tell() and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n":
            line = b"\n" + line  # a killed process left half a row: keep it from swallowing this one
        file.write(line)
        file.flush()
        if sync:
            os.fsync(file.fileno())


def read_rows(path: Path) -> Iterator:
    """The whole rows of a file that `append_row` filled; what a kill cut off is passed over."""
    if not path.is_file():
        return
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        with contextlib.suppress(ValueError):
            yield json.loads(line)


class Metrics:
    """Appends rows to `metrics.jsonl`: one JSON object a line, with the wall-clock time. Trackers hear the numbers too."""

    def __init__(self, path: Path, trackers: Sequence[Callable[[str, dict, int], None]] = ()):
        self.path, self.trackers = Path(path), trackers

    def write(self, stage: str, **values: object) -> None:
        if primary():
            append_row({"time": round(time.time(), 3), "stage": stage, **values}, self.path)
            self._track(stage, dict(_numbers(values)), values.get("steps", 0) + 1)  # after the steps of a training stage

    def step(self, stage: str, row: dict) -> None:
        """A row of a training curve, which has a file of its own: for the trackers alone."""
        if primary():
            self._track(stage, {name: value for name, value in row.items() if name != "step"}, row["step"])

    def _track(self, stage: str, values: dict, step: int) -> None:
        for log in self.trackers:
            log(stage, values, step)


def _numbers(values: dict, prefix: str = "") -> Iterator[tuple[str, float]]:
    """The numbers of nested dicts: `{"llm": {"calls": 3}}` has `("llm/calls", 3)`."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _numbers(value, f"{prefix}{name}/")
        elif isinstance(value, int | float):
            yield prefix + name, value
