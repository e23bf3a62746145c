"""Obeys SIGTERM, which a scheduler sends before it takes a machine back, and Ctrl-C.

A signal raises an exception wherever the main thread is, since the files hold all progress.
Training defers it to the end of the step, saves, and then raises.

Python drops an exception that is raised inside a callback of its garbage collector, and JAX has
such a callback, or inside `sys.unraisablehook`. So the exception is raised again and again until it
gets through.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

from ark_jax.runtime import distributed

RETRY = 0.1  # seconds between two attempts to raise
SOON = 2e-4  # seconds after which a callback that drops exceptions may be over
GRACE = 4.0  # seconds that cleaning up may take after a signal; then the process ends
TWICE = 1.0  # seconds within which a scheduler may send SIGTERM twice and mean one
DROPPING = ("__del__", "_xla_gc_callback")  # functions whose exceptions Python prints and drops


class Preempted(KeyboardInterrupt):
    """Raised once a signal has come and the work so far is on disk.

    A KeyboardInterrupt, so that `except Exception` does not catch it.
    """


class _Signals:
    """The signal that this process has received, and whether its exception must wait."""

    def __init__(self):
        self.number: int | None = None
        self.since = 0.0  # when it came, or when its deferral ended
        self.raising = False  # inside `raise_signals`
        self.terminated = 0  # the status after SIGTERM
        self.deferred = 0  # blocks of `defer_signals` that are open

    def receive(self, number: int, frame: FrameType | None) -> None:
        """The handler of SIGINT and SIGTERM. A second signal ends the process, see `TWICE`."""
        if self.number is not None:
            if number == signal.SIGINT or time.monotonic() - self.since > TWICE:
                _exit_now("stopped at once", 128 + number)
            return
        self.number, self.since = number, time.monotonic()
        if self.raising:
            signal.setitimer(signal.ITIMER_REAL, RETRY, RETRY)
        self.interrupt(frame)

    def retry(self, _: int, frame: FrameType | None) -> None:
        """The handler of the timer: raises again, or ends the process after GRACE seconds."""
        if self.number is None:  # the timer went off while it was being stopped
            return
        if not self.deferred and time.monotonic() - self.since > GRACE:
            _exit_now("stopped: run the same command again to go on", exit_status())
        self.interrupt(frame)

    def interrupt(self, frame: FrameType | None) -> None:
        """Raises the signal's exception, unless it is deferred, handled, or would be dropped."""
        if self.deferred or _is_unwinding():
            return
        if _would_be_dropped(frame):
            if self.raising:
                signal.setitimer(signal.ITIMER_REAL, SOON, RETRY)
            return
        raise Preempted if self.number == signal.SIGTERM else KeyboardInterrupt

    def forget(self) -> None:
        """Stops the timer and forgets the signal."""
        stop_retrying()
        self.number = None


_signals = _Signals()


def exit_status() -> int:
    """The status to end with: after SIGTERM as `raise_signals` was told, 130 after Ctrl-C."""
    return 130 if _signals.number == signal.SIGINT else _signals.terminated


def stop_retrying() -> None:
    """Stops the timer that raises the exception again; call it once that is caught for good."""
    signal.setitimer(signal.ITIMER_REAL, 0)


def _is_unwinding() -> bool:
    """Whether the main thread is already handling an interrupt."""
    error = sys.exception()
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def _would_be_dropped(frame: FrameType | None) -> bool:
    """Whether Python would drop an exception that is raised in this frame."""
    hook = sys.unraisablehook  # gets dropped exceptions; its own are dropped too
    function = getattr(hook, "func", hook)  # it may be a functools.partial
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    while frame is not None:
        if frame.f_code.co_name in DROPPING or frame.f_code is code:
            return True
        frame = frame.f_back
    return False


def _exit_now(message: str, status: int) -> None:
    """Prints `message` and ends the process at once; all progress is on disk."""
    with contextlib.suppress(OSError):
        os.write(2, f"\n{message}\n".encode())
    os._exit(status)


@contextlib.contextmanager
def raise_signals(terminated: int = 0) -> Iterator[None]:
    """In the block, SIGTERM raises Preempted and Ctrl-C raises KeyboardInterrupt, in any case.

    A second signal ends the process at once, and so does a clean-up of more than GRACE seconds. A
    program's main thread calls it around everything. Code that catches the exception inside the
    block calls `stop_retrying` in its `except`: later the exception may be raised again.

    Args:
        terminated: the status to end with after SIGTERM: 0, as schedulers expect of a run that can
            go on, or 143 for a command whose work is not done.
    """
    handlers = {signal.SIGTERM: _signals.receive, signal.SIGALRM: _signals.retry}
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # a job in the background ignores it
        handlers[signal.SIGINT] = _signals.receive
    previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    _signals.raising, _signals.terminated = True, terminated
    try:
        yield
    finally:
        _signals.forget()
        _signals.raising = False
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def defer_signals() -> Iterator[Callable[[], bool]]:
    """Keeps signals from interrupting the block. Yields a function that returns whether one came.

    It defers SIGTERM always, and Ctrl-C only inside `raise_signals`: a notebook is interrupted at
    once. With several processes a signal to any of them counts for all. All must call the function
    equally often, and all get the same answer: that of the call before, since a new answer waits
    for all programs on their devices. A signal that no answer reports is raised when the block
    ends.
    """
    # Only the main thread gets signals.
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    previous_handler = signal.signal(signal.SIGTERM, _signals.receive)
    _signals.deferred += 1
    reported = False
    answer_of_last_call = lambda: False

    def is_stop_requested() -> bool:
        """Whether a signal has come; with several processes, by the time of the last call."""
        nonlocal reported, answer_of_last_call
        reported = _signals.number is not None
        if distributed.is_multi_process():
            answer = distributed.on_any_process(reported)
            reported, answer_of_last_call = answer_of_last_call(), answer
        return reported

    try:
        yield is_stop_requested
    finally:
        _signals.deferred -= 1
        _signals.since = time.monotonic()
        signal.signal(signal.SIGTERM, previous_handler)
        pending = _signals.number is not None and not reported
        if _signals.raising and pending:
            _signals.interrupt(None)
        elif not _signals.raising:
            _signals.forget()
            if pending:
                signal.raise_signal(signal.SIGTERM)
