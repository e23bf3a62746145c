"""SIGTERM is deferred, reported, and never lost."""

import os
import signal

from ark_jax.runtime import preemption


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_a_signal_after_the_last_call_is_raised_at_the_end():
    signals = []
    previous_handler = signal.signal(signal.SIGTERM, lambda *_: signals.append(1))
    try:
        with preemption.defer_sigterm() as is_stop_requested:
            assert not is_stop_requested()
            terminate()
            assert not signals
        assert signals == [1]
        with preemption.defer_sigterm() as is_stop_requested:
            terminate()
            assert is_stop_requested() and is_stop_requested()
        assert signals == [1]
    finally:
        signal.signal(signal.SIGTERM, previous_handler)
