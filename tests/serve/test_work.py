"""The thread that holds the models: turns, failures, limits, and its end."""

import threading
from concurrent.futures import CancelledError

import pytest

from ark_jax.serve.work import CALLS, Busy, Calls, Work


class Lane:
    """Squares numbers, and keeps what it was given. Waits for `gate` before each batch."""

    def __init__(self, room: int = 3):
        self.room, self.batches, self.gate = room, [], threading.Event()
        self.turn = room
        self.entered = threading.Event()

    def size(self, request):
        return len(request)

    def prepare(self, request):
        if "bad request" in request:
            raise ValueError("bad request")
        return list(request)

    def cost(self, item):
        return 1

    def run(self, items):
        self.entered.set()
        assert self.gate.wait(30)
        self.batches.append(list(items))
        return [item**2 for item in items]


@pytest.fixture
def lane():
    return Lane()


@pytest.fixture
def work():
    work = Work(capacity=20)
    yield work
    work.close()


def held(work, lane):
    """A request that is worked on until the gate opens."""
    future = work.submit(lane, [100])
    assert lane.entered.wait(30)
    return future


def test_a_short_request_does_not_wait_for_a_long_one(work, lane):
    first = held(work, lane)
    long, short = work.submit(lane, [1, 2, 3, 4, 5, 6]), work.submit(lane, [7])
    lane.gate.set()
    assert long.result(30) == [1, 4, 9, 16, 25, 36]
    assert short.result(30) == [49] and first.result(30) == [10000]
    assert lane.batches == [[100], [1, 7, 2], [3, 4, 5], [6]]


def test_lanes_take_turns(work, lane):
    other = Lane()
    other.gate.set()
    first = held(work, lane)
    order = []
    futures = [work.submit(lane, [1] * 9), work.submit(other, [1] * 9)]
    for name, future in zip("ab", futures, strict=True):
        future.add_done_callback(lambda _, name=name: order.append(name))
    last = work.submit(CALLS, lambda: order.append("call"))
    lane.gate.set()
    for future in (first, last, *futures):
        future.result(30)
    assert order[0] == "call"  # it waits for one batch of each of the others


def test_a_failing_item_fails_only_its_own_request(work, lane):
    first = held(work, lane)
    good, bad = work.submit(lane, [2, 3]), work.submit(lane, ["x", 4])
    refused, later = work.submit(lane, ["bad request"]), work.submit(lane, [5])
    lane.gate.set()
    assert good.result(30) == [4, 9] and later.result(30) == [25] and first.result(30)
    with pytest.raises(TypeError, match="unsupported operand"):
        bad.result(30)
    with pytest.raises(ValueError, match="bad request"):
        refused.result(30)
    assert work.call(lambda: "alive") == "alive" and work.waiting == 0


def test_items_beyond_the_capacity_are_refused(work, lane):
    first = held(work, lane)
    waiting = work.submit(lane, [1] * 19)
    assert work.waiting == 20
    with pytest.raises(Busy):
        work.submit(lane, [1])
    lane.gate.set()
    assert first.result(30) and waiting.result(30)
    assert work.waiting == 0 and work.submit(lane, [1] * 20).result(30)


def test_cancelled_requests_are_not_computed(work, lane):
    first = held(work, lane)
    gone, kept = work.submit(lane, [1, 2]), work.submit(lane, [3])
    assert gone.cancel() and work.waiting == 2
    lane.gate.set()
    assert kept.result(30) == [9] and first.result(30)
    assert lane.batches == [[100], [3]]
    with pytest.raises(CancelledError):
        gone.result(30)


def test_closing_waits_for_accepted_requests(lane):
    work = Work()
    first, second = held(work, lane), work.submit(lane, [1, 2, 3, 4])
    closing = threading.Thread(target=work.close)
    closing.start()
    lane.gate.set()
    closing.join(30)
    assert first.result(0) == [10000] and second.result(0) == [1, 4, 9, 16]
    assert not work.alive
    with pytest.raises(RuntimeError, match="stopping"):
        work.submit(lane, [1])


def test_every_batch_is_reported_to_its_listener():
    counts = []
    work = Work()
    work.on_batch = lambda lane, count: counts.append((lane, count))
    calls = Calls()
    assert work.submit(calls, lambda: 1).result(30) == [1]
    work.close()
    assert counts == [(calls, 1)]


def test_an_error_while_starting_the_thread_reaches_the_waiting_request(capsys):
    ready = threading.Event()

    def set_up():
        ready.wait(30)
        raise OSError("no device")

    work = Work(set_up)
    future = work.submit(CALLS, lambda: 1)
    ready.set()
    with pytest.raises(OSError, match="no device"):
        future.result(30)
    assert "OSError: no device" in capsys.readouterr().err
