"""Handles SIGTERM, which a scheduler sends before it takes a machine back.

The run saves its work and exits with status 0.
"""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator

import numpy as np

from ark_jax.runtime import distributed


class Preempted(KeyboardInterrupt):
    """Raised once SIGTERM has come and the work so far is on disk.

    A KeyboardInterrupt, so that `except Exception` does not catch it.
    """


def raise_preempted(*_) -> None:
    """Signal handler for a process whose files hold all its progress: it may stop anywhere."""
    raise Preempted


@contextlib.contextmanager
def defer_sigterm() -> Iterator[Callable[[], bool]]:
    """Keeps SIGTERM from interrupting the block. Yields a function that says whether one has come.

    With several processes a signal to any of them counts for all. All must call the function
    equally often, and all get the same answer. A signal that comes after the last call is raised
    when the block ends.
    """
    if (
        threading.current_thread() is not threading.main_thread()
    ):  # only the main thread gets signals
        yield lambda: False
        return
    received = threading.Event()
    previous_handler = signal.signal(signal.SIGTERM, lambda *_: received.set())
    reported = False

    def is_stop_requested() -> bool:
        nonlocal reported
        reported = received.is_set()
        if distributed.is_multi_process():
            from jax.experimental import multihost_utils

            reported = bool(np.any(multihost_utils.process_allgather(np.array(reported))))
        return reported

    try:
        yield is_stop_requested
    finally:
        signal.signal(signal.SIGTERM, previous_handler)
        if received.is_set() and not reported:
            signal.raise_signal(signal.SIGTERM)
