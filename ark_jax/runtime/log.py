"""What a run prints and records: lines, progress with rate and time left, `metrics.jsonl`."""

import contextlib
import fcntl
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ark_jax.runtime.distributed import is_first_process


def prepare_streams() -> None:
    """Prepares the standard streams for a long run, at the start of a program.

    Closed streams are opened on /dev/null. Otherwise the next opened file would get their number,
    and a library's log lines would go into it. A character that the encoding lacks is escaped.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name) or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        setattr(sys, name, stream)
        if getattr(stream, "errors", "") == "strict":
            stream.reconfigure(errors="backslashreplace")


def say(message: str) -> None:
    """Prints a line, from process 0 only."""
    if is_first_process():
        show(message + "\n")


def show(text: str) -> None:
    """Writes to the standard output, at once.

    Raises:
        OSError: its reader is gone or its disk is full.
    """
    try:
        print(text, end="", flush=True)
    except OSError as error:
        raise OSError(error.errno, error.strerror, "standard output") from error


def shows_colour() -> bool:
    """Whether the standard output is a terminal, and $NO_COLOR is not set."""
    return (
        sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    )


def duration(seconds: float) -> str:
    """Seconds as text: 75 gives `1m15s`."""
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds}s"
    minutes, seconds = divmod(seconds, 60)
    return f"{minutes}m{seconds:02d}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02d}m"


def _notebook_bar(label: str, total: int, unit: str):
    """A bar of tqdm in a notebook that has it; None elsewhere."""
    if "ipykernel" not in sys.modules or not is_first_process():
        return None
    with contextlib.suppress(ImportError):
        from tqdm.auto import tqdm

        return tqdm(total=total, desc=label, unit=f" {unit}")
    return None


class Progress:
    """Counts finished work and prints, now and then, the rate and the time left.

    A terminal shows one line that is rewritten. Elsewhere a new line appears every `interval`
    seconds, so that log files stay readable.
    """

    def __init__(self, label: str, total: int, unit: str, interval: float = 10.0):
        self.label, self.total, self.unit, self.done = label, total, unit, 0
        self._tty = sys.stdout.isatty()
        self._interval = 0.2 if self._tty else interval
        self._start = self._last = time.monotonic()
        self._bar = _notebook_bar(label, total, unit) if interval < float("inf") else None

    def add(self, n: int = 1, note: str = "") -> None:
        """Counts `n` more; the next line printed ends with `note`."""
        self.done += n
        if self._bar is not None:
            self._bar.set_postfix_str(note, refresh=False)
            self._bar.update(n)
            return
        now = time.monotonic()
        if now - self._last < self._interval or not is_first_process():
            return
        self._last = now
        rate = self.done / (now - self._start)
        seconds_left = (self.total - self.done) / max(rate, 1e-9)
        line = (
            f"  {self.label}: {self.done:,}/{self.total:,} {self.unit}, {rate:,.1f}/s, "
            f"{duration(seconds_left)} left{', ' + note if note else ''}"
        )
        show(f"\r\x1b[K{line}" if self._tty else f"{line}\n")

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_) -> None:
        if self._bar is not None:
            self._bar.close()
        if self._tty and is_first_process():
            show("\r\x1b[K")


def append_row(row: object, path: Path, *, sync: bool = True) -> int:
    """Appends `row` as one JSON line. Several processes may append to the same file.

    With `sync` the row is on disk when the function returns, so it also survives a power cut.

    Returns:
        The place of its first byte.
    """
    line = (json.dumps(row) + "\n").encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        place = file.seek(0, os.SEEK_END)
        if place:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                line = b"\n" + line  # a killed process left half a row; keep the two apart
                place += 1
        file.write(line)
        file.flush()
        if sync:
            os.fsync(file.fileno())
    return place


def read_rows(path: Path) -> Iterator:
    """The rows of a file that `append_row` wrote. A row that a kill cut short is skipped."""
    if not path.is_file():
        return
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        with contextlib.suppress(ValueError):
            yield json.loads(line)


class Metrics:
    """Writes `metrics.jsonl` and calls the trackers. Each line is a JSON object with its time."""

    def __init__(self, path: Path, trackers: Sequence[Callable[[str, dict, int], None]] = ()):
        self.path, self.trackers = Path(path), trackers

    def write(self, stage: str, **values: object) -> None:
        """Appends a row for a finished stage, and passes its numbers to the trackers."""
        if is_first_process():
            append_row({"time": round(time.time(), 3), "stage": stage, **values}, self.path)
            step = values.get("steps", 0) + 1  # a training stage has tracked its steps already
            self._track(stage, dict(_flat_numbers(values)), step)

    def step(self, stage: str, row: dict) -> None:
        """Passes a row of a training curve to the trackers. The stage writes its own curve file."""
        if is_first_process():
            values = {name: value for name, value in row.items() if name != "step"}
            self._track(stage, values, row["step"])

    def _track(self, stage: str, values: dict, step: int) -> None:
        """Calls all trackers."""
        for tracker in self.trackers:
            tracker(stage, values, step)


def _flat_numbers(values: dict, prefix: str = "") -> Iterator[tuple[str, float]]:
    """The numbers of nested dicts: `{"llm": {"calls": 3}}` gives `("llm/calls", 3)`."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat_numbers(value, f"{prefix}{name}/")
        elif isinstance(value, int | float):
            yield prefix + name, value
