"""Signals are raised or deferred, and never lost."""

import contextlib
import functools
import gc
import os
import random
import signal
import subprocess
import sys
import time

import pytest
from support.paths import REPOSITORY

from ark_jax.runtime import preemption


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_a_signal_after_the_last_call_is_raised_at_the_end():
    signals = []
    previous_handler = signal.signal(signal.SIGTERM, lambda *_: signals.append(1))
    try:
        with preemption.defer_signals() as is_stop_requested:
            assert not is_stop_requested()
            terminate()
            assert not signals
        assert signals == [1]
        with preemption.defer_signals() as is_stop_requested:
            terminate()
            assert is_stop_requested() and is_stop_requested()
        assert signals == [1]
    finally:
        signal.signal(signal.SIGTERM, previous_handler)


@contextlib.contextmanager
def raises(error):
    """As `pytest.raises`; nothing is raised again once it was caught."""
    try:
        yield
    except KeyboardInterrupt as raised:
        preemption.stop_retrying()
        assert type(raised) is error
    else:
        pytest.fail(f"no {error.__name__}")


def test_ctrl_c_is_not_deferred_outside_a_program():
    with pytest.raises(KeyboardInterrupt), preemption.defer_signals() as is_stop_requested:
        signal.raise_signal(signal.SIGINT)
    assert not is_stop_requested()


@pytest.mark.parametrize(
    ("number", "error"),
    [(signal.SIGTERM, preemption.Preempted), (signal.SIGINT, KeyboardInterrupt)],
)
def test_both_signals_are_raised_and_can_be_deferred(number, error):
    with preemption.raise_signals():
        with raises(error):
            signal.raise_signal(number)
        assert preemption.exit_status() == (0 if number == signal.SIGTERM else 130)
    with preemption.raise_signals():
        with preemption.defer_signals() as is_stop_requested:
            signal.raise_signal(number)
            time.sleep(2 * preemption.RETRY)
            assert is_stop_requested()
        preemption.stop_retrying()
        preemption._signals.forget()
        # It comes after the last call.
        with raises(error), preemption.defer_signals():
            signal.raise_signal(number)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


class Dropping:
    """Receives a signal where Python drops exceptions."""

    def __del__(self):
        signal.raise_signal(signal.SIGTERM)


def drop_in_a_callback(phase, info):
    gc.callbacks.remove(drop_in_a_callback)  # before a later collection would end the process
    signal.raise_signal(signal.SIGTERM)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("place", ["finaliser", "callback"])
def test_a_dropped_exception_is_raised_again(place):
    with preemption.raise_signals():
        began = time.monotonic()
        with raises(preemption.Preempted):
            if place == "finaliser":
                Dropping()
            else:
                gc.callbacks.append(drop_in_a_callback)
                gc.collect(0)  # a whole heap may take longer than GRACE
            while time.monotonic() < began + 5:
                time.sleep(0.01)
        assert time.monotonic() - began < preemption.GRACE


class Failing:
    def __del__(self):
        signal.raise_signal(signal.SIGTERM)
        raise ValueError("dropped")


def test_the_hook_for_dropped_exceptions_is_not_interrupted(monkeypatch):
    """Python drops what is raised in it."""
    finished = []

    def hook(dropped, *, seen):
        time.sleep(3 * preemption.RETRY)
        seen.append(str(dropped.exc_value))

    monkeypatch.setattr(sys, "unraisablehook", functools.partial(hook, seen=finished))
    with preemption.raise_signals(), raises(preemption.Preempted):
        Failing()
        time.sleep(5)
    assert finished == ["dropped"]


def test_a_finally_block_is_not_interrupted():
    with preemption.raise_signals():
        with raises(KeyboardInterrupt):
            try:
                signal.raise_signal(signal.SIGINT)
            finally:
                time.sleep(3 * preemption.RETRY)
                cleaned = True
        assert cleaned


CHILD = """
import signal, sys, time
from ark_jax.runtime import preemption
with preemption.raise_signals():
    try:
        print("ready", flush=True)
        time.sleep(60)
    finally:
        print("cleaning", flush=True)
        time.sleep(60)
"""


@pytest.mark.parametrize(
    ("first", "second", "status"),
    [
        (signal.SIGINT, signal.SIGINT, 130),
        (signal.SIGTERM, signal.SIGINT, 130),
        (signal.SIGTERM, None, 0),
        (signal.SIGINT, None, 130),
    ],
)
def test_a_second_signal_or_an_expired_grace_period_ends_the_process(first, second, status):
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    process.send_signal(first)
    assert process.stdout.readline() == "cleaning\n"
    began = time.monotonic()
    if second:
        process.send_signal(second)
    _, said = process.communicate(timeout=30)
    assert process.returncode == status
    assert ("stopped at once" if second else "run the same command again") in said
    assert time.monotonic() - began < (2 if second else 2 * preemption.GRACE)


# Works as a stage does, with small programs and much garbage, and reports every interrupt.
STRUCK = """
import gc, signal, sys, time
import jax, jax.numpy as jnp
from ark_jax.runtime import preemption
step = jax.jit(lambda x: x @ x / 2)
jax.block_until_ready(step(jnp.ones((8, 8))))
for i in range(int(sys.argv[1])):
    with preemption.raise_signals():
        try:
            print("ready", flush=True)
            while True:
                for _ in range(50):
                    cycle = [step(jnp.ones((8, 8)))]
                    cycle.append(cycle)
                gc.collect(0)  # a whole heap may take longer than GRACE
        except KeyboardInterrupt as error:
            preemption.stop_retrying()
            print(type(error).__name__, flush=True)
"""


@pytest.mark.slow
def test_none_of_200_signals_at_random_moments_is_lost():
    draw = random.Random(5)
    process = subprocess.Popen(
        [sys.executable, "-c", STRUCK, "200"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # Python reports what it dropped
        text=True,
        cwd=REPOSITORY,
    )
    for _ in range(200):
        assert process.stdout.readline() == "ready\n"
        time.sleep(draw.uniform(0, 0.05))
        number = draw.choice([signal.SIGTERM, signal.SIGINT])
        began = time.monotonic()
        process.send_signal(number)
        name = "Preempted" if number == signal.SIGTERM else "KeyboardInterrupt"
        assert process.stdout.readline() == f"{name}\n"
        assert time.monotonic() - began < 5
    assert process.wait(30) == 0
