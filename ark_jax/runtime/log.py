"""What a run prints and records: lines, progress with rate and time left, `metrics.jsonl`."""

import contextlib
import fcntl
import importlib.util
import json
import logging
import math
import os
import re
import shutil
import socket
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ark_jax.runtime.distributed import is_first_process
from ark_jax.runtime.shown import printable


def prepare_streams() -> None:
    """Prepares the standard streams for a long run, at the start of a program.

    Closed streams are opened on /dev/null. Otherwise the next opened file would get their number,
    and a library's log lines would go into it. A character that the encoding lacks is escaped, and
    log lines and warnings of libraries, which may hold file names, are `printable`.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name) or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        setattr(sys, name, stream)
        if getattr(stream, "errors", "") == "strict":
            stream.reconfigure(errors="backslashreplace")
    logging.setLogRecordFactory(_PrintableRecord)
    format_warning = warnings.formatwarning
    warnings.formatwarning = lambda *facts, **more: printable(format_warning(*facts, **more))


class _PrintableRecord(logging.LogRecord):
    """A line of a library's log, and its traceback."""

    def __init__(self, *facts, **more):
        super().__init__(*facts, **more)
        if self.exc_info:
            self.exc_text = printable(logging.Formatter().formatException(self.exc_info))

    def getMessage(self) -> str:
        return printable(super().getMessage())


_CLEAR = "\r\x1b[K"  # to the start of the line, which is then empty
RED, GREEN, PLAIN = "\x1b[1;31m", "\x1b[1;32m", "\x1b[0m"
_OWN_CODES = re.compile(f"({'|'.join(map(re.escape, (_CLEAR, RED, GREEN, PLAIN)))})")
_is_quiet = False


@contextlib.contextmanager
def quiet(on: bool = True) -> Iterator[None]:
    """Prints neither lines nor progress within the block."""
    global _is_quiet
    setting, _is_quiet = _is_quiet, on
    try:
        yield
    finally:
        _is_quiet = setting


def say(message: str, **facts: object) -> None:
    """Prints a line, from process 0 only. It takes the place of a moving line.

    The journal keeps it, with the facts.
    """
    if not is_first_process():
        return
    _note(text=message, **facts)
    if not _is_quiet:
        show(f"{_CLEAR if sys.stdout.isatty() else ''}{message}\n")


def shows_colour() -> bool:
    """Whether the standard output is a terminal with colour; NO_COLOR and TERM=dumb deny it."""
    return (
        sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    )


def highlight(text: str) -> str:
    """A part of a line that stands out: bold green on a terminal, else in square brackets."""
    return f"{GREEN}{text}{PLAIN}" if shows_colour() else f"[{text}]"


JOURNAL = "log.jsonl"  # what the latest run in a workdir says
_journal: Path | None = None


@contextlib.contextmanager
def keep_journal(workdir: Path) -> Iterator[None]:
    """Keeps the lines and the progress of the block in `JOURNAL`, from process 0 only."""
    global _journal
    if not is_first_process():
        yield
        return
    _journal = workdir / JOURNAL
    _journal.unlink(missing_ok=True)
    try:
        _note(pid=os.getpid(), host=socket.gethostname())
        yield
    finally:
        _note(ended=True)
        _journal = None


def _note(**values: object) -> None:
    """Adds a row to the journal, if there is one; a full disk does not end the run here."""
    if _journal:
        with contextlib.suppress(OSError):
            append_row({"time": round(time.time(), 3), **values}, _journal, sync=False)


def read_journal(workdir: Path) -> tuple[bool, list[dict]]:
    """Whether a run works in the workdir, and the rows of its journal.

    A run on another machine counts as working until it has said nothing for two minutes.
    """
    rows = [row for row in read_rows(workdir / JOURNAL) if isinstance(row, dict)]
    if not rows or "ended" in rows[-1]:
        return False, rows
    if rows[0].get("host") != socket.gethostname():
        return time.time() - rows[-1]["time"] < 120, rows
    try:
        os.kill(rows[0]["pid"], 0)
    except PermissionError:
        pass  # it is another user's
    except (KeyError, ProcessLookupError):
        return False, rows
    return True, rows


def show(text: str) -> None:
    """Writes to the standard output, at once, what `printable` leaves and, to a terminal, colours.

    Raises:
        OSError: its reader is gone or its disk is full.
    """
    parts = _OWN_CODES.split(text) if sys.stdout.isatty() else [text]
    shown = "".join(part if i % 2 else printable(part) for i, part in enumerate(parts))
    try:
        print(shown, end="", flush=True)
    except OSError as error:
        raise OSError(error.errno, error.strerror, "standard output") from error


def duration(seconds: float) -> str:
    """Seconds as text: 75 gives `1m15s`."""
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds}s"
    minutes, seconds = divmod(seconds, 60)
    return f"{minutes}m{seconds:02d}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02d}m"


def _notebook_bar(label: str, total: int, unit: str):
    """A bar of tqdm in a notebook that can draw it; None elsewhere."""
    # Without ipywidgets tqdm writes to the standard error.
    is_drawn = "ipykernel" in sys.modules and importlib.util.find_spec("ipywidgets")
    if not is_drawn or not is_first_process():
        return None
    with contextlib.suppress(ImportError):
        from tqdm.notebook import tqdm

        return tqdm(total=total, desc=label, unit=f" {unit}")
    return None


class Progress:
    """Counts finished work and prints, now and then, the rate and the time left.

    A terminal shows one line that is rewritten. Elsewhere a new line appears every `interval`
    seconds, so that log files stay readable. The first batch compiles programs, so rate and time
    left are those of the work after it.

    Args:
        done: work that an earlier run has finished.
    """

    def __init__(self, label: str, total: int, unit: str, interval: float = 10.0, done: int = 0):
        self.label, self.total, self.unit, self.done = label, total, unit, done
        self._tty = sys.stdout.isatty()
        self._interval = min(interval, 0.2) if self._tty and interval < math.inf else interval
        self._bar = _notebook_bar(label, total, unit) if interval < math.inf else None
        self._last = self._noted = time.monotonic()
        self._first: tuple[float, int] | None = None  # end of the first batch, and work until then
        self._left = math.inf  # seconds, as last printed

    def add(self, n: int = 1, note: str = "") -> None:
        """Counts `n` more; the next line printed ends with `note`."""
        self.done += n
        if self._bar is not None:
            self._bar.set_postfix_str(note, refresh=False)
            self._bar.update(n)
            return
        now = time.monotonic()
        if n and self._first is None:
            self._first = now, self.done
        if now - self._last < self._interval or not is_first_process():
            return
        parts = [f"{self.done:,}/{self.total:,} {self.unit}", *self._pace(now), note]
        self._last = now
        line = f"  {self.label}: {', '.join(filter(None, parts))}"
        if now - self._noted >= 1 or not self._tty:
            self._noted = now
            seconds = round(self._left, 1) if self._left < math.inf else None
            counts = [self.done, self.total, self.unit.removesuffix("s")]
            _note(text=line, counts=counts, seconds_left=seconds)
        if _is_quiet:
            return
        width = shutil.get_terminal_size().columns - 1  # a longer line could not be cleared
        show(f"{_CLEAR}{line[:width]}" if self._tty else f"{line}\n")

    def _pace(self, now: float) -> list[str]:
        """Rate and time left, in words; none before a second batch has ended.

        From one line to the next the time left at most doubles, and falls at most to half of what
        it would be by now.
        """
        start, start_count = self._first or (now, self.done)
        if self.done == start_count or now - start < 1:
            return []
        rate = (self.done - start_count) / (now - start)
        seconds = (self.total - self.done) / rate
        if seconds and self._left < math.inf:
            seconds = min(max(seconds, (self._left - (now - self._last)) / 2), 2 * self._left)
        self._left = seconds
        pace = f"{rate:,.1f}/s" if rate >= 0.1 else f"{1 / rate:,.0f} s each"
        return [pace, f"{duration(seconds)} left"]

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_) -> None:
        if self._bar is not None:
            self._bar.close()
        if self._tty and is_first_process() and not _is_quiet:
            show(_CLEAR)


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
