"""SIGTERM, by which a scheduler asks for its machine back: stop without losing work, and leave with status 0."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator

import numpy as np

from ark_jax import hosts


class Stopped(KeyboardInterrupt):
    """SIGTERM came and what was done is on disk. Passes, as Ctrl-C does, those who handle errors."""


def stop(*_) -> None:
    """The signal handler of a process whose files are its progress."""
    raise Stopped


@contextlib.contextmanager
def deferred() -> Iterator[Callable[[], bool]]:
    """Within, SIGTERM does not interrupt; what is yielded says whether one came.

    Of several processes one's notice is everybody's: all must ask equally often, and all hear True at the same time.
    """
    if threading.current_thread() is not threading.main_thread():  # which gets no signals
        yield lambda: False
        return
    came = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: came.set())
    heard = False

    def asked() -> bool:
        nonlocal heard
        heard = came.is_set()
        if hosts.several():
            from jax.experimental import multihost_utils

            heard = bool(np.any(multihost_utils.process_allgather(np.array(heard))))
        return heard

    try:
        yield asked
    finally:
        signal.signal(signal.SIGTERM, before)
        if came.is_set() and not heard:
            signal.raise_signal(signal.SIGTERM)  # after the last question
