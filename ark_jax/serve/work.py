"""One thread that holds the models and the device, and the requests that wait for it.

A request has items, such as texts. The thread takes one item of each waiting request until a batch
is full, and further items only while the batch is short: a long request does not keep a short one
waiting. If a batch fails, each of its items is tried alone, so that only the request with the bad
item fails.
"""

import collections
import threading
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol


class Busy(Exception):
    """Too many items wait already."""


class Lane(Protocol):
    """One kind of work. All methods but `size` are called by the thread."""

    room: int  # cost of the items that are taken at once
    turn: int  # the same, of several items of one request

    def size(self, request: Any) -> int:
        """The number of items of a request."""

    def prepare(self, request: Any) -> list:
        """The items of a request, quickly. If it raises an error, the request fails with it."""

    def cost(self, item: Any) -> int:
        """The part of `room` that an item takes."""

    def run(self, items: list) -> Sequence:
        """The result of each item; an error as a result is that of its request."""


class Calls:
    """The lane of functions, which are called without arguments."""

    room = turn = 32  # functions that are called between the batches of other lanes

    def size(self, request: Callable) -> int:
        return 1

    def prepare(self, request: Callable) -> list[Callable]:
        return [request]

    def cost(self, item: Callable) -> int:
        return 1

    def run(self, items: list[Callable]) -> list:
        return [function() for function in items]


CALLS = Calls()


class _Job:
    """A request that waits or is worked on."""

    def __init__(self, lane: Lane, request: Any):
        self.request, self.size = request, lane.size(request)
        self.future: Future = Future()
        self.items: list | None = None  # None until it is prepared
        self.order: list[int] = []  # positions of the items, those of similar cost side by side
        self.taken = self.finished = 0  # numbers of items
        self.results: list = []

    def fail(self, error: BaseException) -> None:
        """Ends the request with an error."""
        self._resolve(lambda: self.future.set_exception(error))

    def finish(self, position: int, result: Any) -> None:
        """Keeps the result of an item; the last one completes the request."""
        self.results[position] = result
        self.finished += 1
        if self.finished == len(self.items):
            self._resolve(lambda: self.future.set_result(self.results))

    def _resolve(self, set_outcome: Callable[[], None]) -> None:
        """Sets the future's outcome, unless it is done or cancelled."""
        if not self.future.done() and self.future.set_running_or_notify_cancel():
            set_outcome()


Place = tuple[_Job, int]  # an item: its request and its position in it


class Work:
    """The thread and its queue.

    Args:
        set_up: called first in the thread, for example to enter a mesh.
        capacity: items that may wait.

    Attributes:
        on_batch: called after each batch, with its lane and number of items.
    """

    def __init__(self, set_up: Callable[[], object] = lambda: None, *, capacity: int = 4096):
        self.capacity = capacity
        self.on_batch: Callable[[Lane, int], None] = lambda lane, count: None
        self._lanes: dict[Lane, collections.deque[_Job]] = {}
        self._open: set[_Job] = set()  # whose futures are not done
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._loop, args=(set_up,), daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Items that are not finished."""
        return sum(job.size for job in tuple(self._open))

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def submit(self, lane: Lane, request: Any) -> Future:
        """Puts a request into the queue. The future gives the list of its items' results.

        If the future is cancelled, items that are not worked on yet leave the queue.

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
        """Calls a function in the thread; waits and returns its value."""
        return self.submit(CALLS, function).result()[0]

    def close(self) -> None:
        """Finishes all waiting requests, and ends the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _forget(self, job: _Job) -> None:
        with self._changed:
            self._open.discard(job)

    def _loop(self, set_up: Callable[[], object]) -> None:
        """Runs batches until `close`; at the end, open requests fail."""
        error: BaseException = RuntimeError("the server is stopping")
        try:
            set_up()
            while batch := self._next_batch():
                self._run_batch(*batch)
        except BaseException as unexpected:
            error = unexpected
            traceback.print_exception(unexpected)
        finally:
            with self._changed:
                self._closed = True
            for job in tuple(self._open):
                job.fail(error)

    def _next_batch(self) -> tuple[Lane, list[Place]] | None:
        """Waits for the next batch; lanes take turns. None after `close`, when nothing waits."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or any(self._lanes.values()))
            lane = next((lane for lane, jobs in self._lanes.items() if jobs), None)
            if lane is None:
                return None
            jobs = self._lanes.pop(lane)
            self._lanes[lane] = jobs  # last in the order of turns
        return lane, self._take_items(lane, jobs)

    def _take_items(self, lane: Lane, jobs: collections.deque[_Job]) -> list[Place]:
        """Takes one item of each request, then others in turn, until a batch is full."""
        places, cost, unseen = [], 0, len(jobs)
        while jobs and cost < (lane.room if unseen > 0 else lane.turn):
            job, unseen = jobs.popleft(), unseen - 1
            if not self._prepare_once(lane, job):
                continue
            position = job.order[job.taken]
            cost += lane.cost(job.items[position])
            places.append((job, position))
            job.taken += 1
            if job.taken < len(job.items):
                jobs.append(job)
        return places

    def _prepare_once(self, lane: Lane, job: _Job) -> bool:
        """Makes the items of a request if it has none; returns whether it still has to run."""
        if job.items is None and not job.future.done():
            try:
                job.items = lane.prepare(job.request)
                job.results = [None] * len(job.items)
                costs = list(map(lane.cost, job.items))
                job.order = sorted(range(len(costs)), key=costs.__getitem__)
            except Exception as error:
                job.fail(error)
        return not job.future.done()

    def _run_batch(self, lane: Lane, places: list[Place]) -> None:
        """Runs items and keeps their results. If the batch fails, it tries each item alone."""
        items = [job.items[position] for job, position in places]
        try:
            results = lane.run(items) if items else []
        except Exception as error:
            if len(places) == 1:
                places[0][0].fail(error)
            else:
                for place in places:
                    if not place[0].future.done():
                        self._run_batch(lane, [place])
            return
        for (job, position), result in zip(places, results, strict=True):
            if isinstance(result, Exception):
                job.fail(result)
            else:
                job.finish(position, result)
        if items:
            self.on_batch(lane, len(items))
