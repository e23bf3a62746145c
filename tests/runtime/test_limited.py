"""Work within limits of time and memory, in a process that is killed beyond them."""

import os
import signal
import time

import pytest
from support.shard_work import by_kind

from ark_jax.runtime.limited import Exceeded, limited


def run(kind: str) -> list:
    return list(limited(by_kind, kind, seconds=0.5, memory=1 << 28))


@pytest.mark.parametrize(
    ("kind", "message"),
    [("spin", "0 seconds of a processor"), ("fill", "256 MiB of memory"), ("crash", "-6")],
)
def test_work_beyond_a_limit_is_ended_and_other_work_goes_on(kind, message):
    start = time.monotonic()
    with pytest.raises(Exceeded, match=message):
        run(kind)
    assert run("well")[1] == "well" and time.monotonic() - start < 30


def test_one_process_works_on_one_call_after_another():
    (first, _), (second, _) = run("well"), run("well")
    assert first == second != os.getpid()
    with pytest.raises(ValueError, match="no such row"):
        run("fault")
    assert run("well")[0] == first


def test_a_process_that_was_killed_while_it_waited_is_replaced():
    first, _ = run("well")
    os.kill(first, signal.SIGKILL)
    second, item = run("well")
    assert (second != first, item) == (True, "well")


def test_calls_at_the_same_time_have_processes_of_their_own():
    first, second = (limited(by_kind, "well", seconds=5, memory=1 << 28) for _ in range(2))
    assert next(first) != next(second)
    first.close()  # before its end: its process is killed
    assert list(second) == ["well"]
