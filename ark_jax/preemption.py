"""SIGTERM, by which a scheduler asks for its machine back: stop without losing work, and leave with status 0."""

import contextlib
import itertools
import signal
import threading
from collections.abc import Callable, Iterator


class Stopped(KeyboardInterrupt):
    """SIGTERM came and what was done is on disk. Passes, as Ctrl-C does, those who handle errors."""


def stop(*_) -> None:
    """The signal handler of a process whose files are its progress."""
    raise Stopped


# One count for the life of the process: notice that came while nobody was asking is then heard by the next who asks.
_asked = itertools.count(1)


@contextlib.contextmanager
def deferred() -> Iterator[Callable[[], bool]]:
    """Within, SIGTERM does not interrupt; what is yielded says whether one came.

    Under `jax.distributed`, whose own handler is left alone, one process's notice is everybody's: all must ask equally
    often, and all hear True at the same time, a few questions after the signal.
    """
    import jax
    from jax.experimental import multihost_utils

    came = threading.Event()
    if jax.distributed.is_initialized() or threading.current_thread() is not threading.main_thread():
        yield lambda: multihost_utils.reached_preemption_sync_point(next(_asked))
        return
    before = signal.signal(signal.SIGTERM, lambda *_: came.set())
    heard = False

    def asked() -> bool:
        nonlocal heard
        heard = came.is_set()
        return heard

    try:
        yield asked
    finally:
        signal.signal(signal.SIGTERM, before)
        if came.is_set() and not heard:
            signal.raise_signal(signal.SIGTERM)  # after the last question
