"""One thread that holds the models and the device, and the requests that wait for it.

A request has items, such as texts. The thread takes one item of each waiting request in turn until
a batch is full: a long request does not keep a short one waiting. If a batch fails, each of its
items is tried alone, so that only the request with the bad item fails.
"""

import collections
import threading
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol


class Busy(Exception):
    """As many items wait as may wait."""


class Lane(Protocol):
    """One kind of work. All methods but `size` are called by the thread."""

    room: int  # cost of the items that are taken at once

    def size(self, request: Any) -> int:
        """How many items a request has."""

    def prepare(self, request: Any) -> list:
        """The items of a request; what it raises is the request's error."""

    def cost(self, item: Any) -> int:
        """What an item takes of `room`."""

    def run(self, items: list) -> Sequence:
        """The result of each item."""


class Calls:
    """The lane of functions that are called as they are.

    Args:
        room: how many are called between the batches of other lanes.
    """

    def __init__(self, room: int):
        self.room = room

    def size(self, request: Callable) -> int:
        return 1

    def prepare(self, request: Callable) -> list[Callable]:
        return [request]

    def cost(self, item: Callable) -> int:
        return 1

    def run(self, items: list[Callable]) -> list:
        return [function() for function in items]


CALLS = Calls(room=32)  # quick ones, such as a search


class _Job:
    """A request that waits or is worked on."""

    def __init__(self, lane: Lane, request: Any):
        self.request, self.size = request, lane.size(request)
        self.future: Future = Future()
        self.items: list | None = None  # until it is prepared
        self.taken = self.finished = 0
        self.results: list = []

    def fail(self, error: BaseException) -> None:
        self._settle(lambda: self.future.set_exception(error))

    def finish(self, position: int, result: Any) -> None:
        """Keeps the result of an item; the last one completes the request."""
        self.results[position] = result
        self.finished += 1
        if self.finished == len(self.items):
            self._settle(lambda: self.future.set_result(self.results))

    def _settle(self, settle: Callable[[], None]) -> None:
        if not self.future.done() and self.future.set_running_or_notify_cancel():
            settle()


Place = tuple[_Job, int]  # an item: its request and its position in it


class Work:
    """The thread and its queue.

    Args:
        set_up: called in the thread before all else, such as to enter a mesh.
        capacity: items that may wait.

    Attributes:
        on_batch: is given lane and number of the items of each finished batch.
    """

    def __init__(self, set_up: Callable[[], object] = lambda: None, *, capacity: int = 4096):
        self.capacity = capacity
        self.on_batch: Callable[[Lane, int], None] = lambda lane, count: None
        self._lanes: dict[Lane, collections.deque[_Job]] = {}
        self._open: set[_Job] = set()  # whose futures are not done
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._main, args=(set_up,), daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Items that are not finished."""
        return sum(job.size for job in tuple(self._open))

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def submit(self, lane: Lane, request: Any) -> Future:
        """Lets a request wait; its results come as a list, one for each item, in order.

        Cancelling the future takes out of the queue what is not worked on yet.

        Raises:
            Busy: too many items wait.
            RuntimeError: the thread has ended.
        """
        job = _Job(lane, request)
        with self._changed:
            if self._closed or not self.alive:
                raise RuntimeError("the server is stopping")
            if self.waiting + job.size > self.capacity:
                raise Busy
            self._open.add(job)
            job.future.add_done_callback(lambda _: self._forget(job))
            self._lanes.setdefault(lane, collections.deque()).append(job)
            self._changed.notify()
        return job.future

    def call(self, function: Callable[[], Any]) -> Any:
        """What a function returns that the thread calls; waits for it."""
        return self.submit(CALLS, function).result()[0]

    def close(self) -> None:
        """Finishes what waits, and ends the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _forget(self, job: _Job) -> None:
        with self._changed:
            self._open.discard(job)

    def _main(self, set_up: Callable[[], object]) -> None:
        error: BaseException = RuntimeError("the server is stopping")
        try:
            set_up()
            while batch := self._next_batch():
                self._work_on(*batch)
        except BaseException as unexpected:
            error = unexpected
            traceback.print_exception(unexpected)
        finally:
            with self._changed:
                self._closed = True
            for job in tuple(self._open):
                job.fail(error)

    def _next_batch(self) -> tuple[Lane, list[Place]] | None:
        """The next items of a lane, the lanes in turn; None when the thread is to end."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or any(self._lanes.values()))
            lane = next((lane for lane, jobs in self._lanes.items() if jobs), None)
            if lane is None:
                return None
            jobs = self._lanes.pop(lane)
            self._lanes[lane] = jobs  # it is the last from now on
        return lane, self._take(lane, jobs)

    def _take(self, lane: Lane, jobs: collections.deque[_Job]) -> list[Place]:
        """One item of each request in turn, until a batch is full."""
        places, cost = [], 0
        while jobs and cost < lane.room:
            job = jobs.popleft()
            if not self._prepare(lane, job):
                continue
            cost += lane.cost(job.items[job.taken])
            places.append((job, job.taken))
            job.taken += 1
            if job.taken < len(job.items):
                jobs.append(job)
        return places

    def _prepare(self, lane: Lane, job: _Job) -> bool:
        """Makes the items of a request, once; whether it is still to be worked on."""
        if job.items is None and not job.future.done():
            try:
                job.items = lane.prepare(job.request)
                job.results = [None] * len(job.items)
            except Exception as error:
                job.fail(error)
        return not job.future.done()

    def _work_on(self, lane: Lane, places: list[Place]) -> None:
        items = [job.items[position] for job, position in places]
        try:
            results = lane.run(items) if items else []
        except Exception as error:
            if len(places) == 1:
                places[0][0].fail(error)
            else:
                for place in places:
                    if not place[0].future.done():
                        self._work_on(lane, [place])
            return
        for (job, position), result in zip(places, results, strict=True):
            job.finish(position, result)
        if items:
            self.on_batch(lane, len(items))
