"""Host work that is parallel by document: one map over shards, in a pool of processes or by Ray.

The results come in the order of the shards, so they are those of one process. A worker gets its
work by value and imports what the work needs, which is never jax.
"""

import collections
import contextlib
import contextvars
import io
import itertools
import multiprocessing
import os
import signal
import sys
import threading
import types
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from typing import TypeVar

from ark_jax import __version__
from ark_jax.runtime.ray_shards import map_on_ray

Item = TypeVar("Item")
Shard = TypeVar("Shard")
Result = TypeVar("Result")
Prepare = Callable[[], Callable[[Shard], Result]]
RunShards = Callable[[Prepare, Iterable[Shard]], Iterator[Result]]
SHARD_SIZE = 1 << 22  # characters or bytes of a shard: some seconds of work
FEW = 4  # shards; fewer take less time than to start processes, so this process computes them
ATTEMPTS = 3  # at a shard, if its worker is lost
ENGINES = ("local", "ray")
_engine = contextvars.ContextVar("engine", default="local")


@contextlib.contextmanager
def use_engine(engine: str) -> Iterator[None]:
    """Has the maps in the block run on `engine`, one of `ENGINES`."""
    token = _engine.set(engine)
    try:
        yield
    finally:
        _engine.reset(token)


def shards_of(items: Iterable[Item], size: Callable[[Item], int]) -> Iterator[list[Item]]:
    """Cuts items into shards. A shard ends as soon as the sum of its sizes reaches `SHARD_SIZE`."""
    shard, total = [], 0
    for item in items:
        shard.append(item)
        total += size(item)
        if total >= SHARD_SIZE:
            yield shard
            shard, total = [], 0
    if shard:
        yield shard


def peek_shards(shards: Iterable[Shard]) -> tuple[bool, Iterator[Shard]]:
    """(whether there are fewer than `FEW` shards, an iterator of all shards)."""
    shards = iter(shards)
    first = list(itertools.islice(shards, FEW))
    return len(first) < FEW, itertools.chain(first, shards)


def map_shards(
    prepare: Prepare, shards: Iterable[Shard], *, processes: int | None = None
) -> Generator[Result, None, None]:
    """`work(shard)` for each shard, in order, where `work = prepare()` in each worker.

    This process computes a few shards itself. More go to the engine of `use_engine`: a pool of
    processes on this host, or Ray. What a worker prints is dropped.

    Args:
        prepare: a function of a module, or a `functools.partial` of one.
        shards: read a few ahead of the workers.
        processes: workers of the pool; None: one for each core that this process may use.

    Raises:
        RuntimeError: the worker of a shard was lost again and again, for memory perhaps, or there
            is no Ray cluster.
        Exception: what `work` raises, for the first shard that it fails on.
    """
    peeked, shards = peek_shards(shards)
    if _engine.get() == "ray" and not peeked:
        yield from map_on_ray(_work_on_ray, (__version__,), prepare, shards)
        return
    processes = processes or cores()
    if peeked or processes == 1:
        yield from map(prepare(), shards)
    else:
        yield from _map_in_pool(prepare, shards, processes)


def cores() -> int:
    """Number of cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux has it
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _map_in_pool(prepare: Prepare, shards: Iterator[Shard], processes: int) -> Iterator[Result]:
    """The results of `map_shards` from a pool, which is replaced when a worker is lost.

    Raises:
        RuntimeError: the worker of a shard was lost `ATTEMPTS` times.
    """
    ahead: collections.deque[tuple[Shard, Future]] = collections.deque()
    losses, number = 0, 1
    pool = _Pool(prepare, processes)
    try:
        while True:
            for shard in itertools.islice(shards, 2 * processes - len(ahead)):
                ahead.append((shard, pool.submit(shard)))
            if not ahead:
                pool.finish()
                return
            try:
                result = ahead[0][1].result()
            except BrokenProcessPool as error:
                losses += 1
                if losses == ATTEMPTS:
                    raise RuntimeError(
                        f"shard {number}: its worker process ended {ATTEMPTS} times without a "
                        "word, killed perhaps because memory was full: end other programs or use "
                        "a machine with more memory, then run the same command again to go on"
                    ) from error
                pool.end()
                pool = _Pool(prepare, processes)
                ahead = collections.deque(
                    (shard, future if _is_finished(future) else pool.submit(shard))
                    for shard, future in ahead
                )
                continue
            ahead.popleft()
            losses, number = 0, number + 1
            yield result
    finally:
        pool.end()


def _is_finished(future: Future) -> bool:
    """Whether the work came to its end, with a result or an error of its own."""
    return future.done() and not isinstance(future.exception(), BrokenProcessPool)


class _Pool:
    """Worker processes that end when this one ends, even if it is killed."""

    def __init__(self, prepare: Prepare, processes: int):
        # Not forked: jax has threads, and a lock that one of them holds would stay locked.
        context = multiprocessing.get_context("spawn")
        ending, self._open = context.Pipe(duplex=False)
        self._executor = ProcessPoolExecutor(
            processes, context, initializer=_start_worker, initargs=(prepare, ending)
        )

    def submit(self, shard: Shard) -> Future:
        """Gives a shard to a worker; if the pool is broken, the future holds that error."""
        try:
            with without_script():
                return self._executor.submit(_work_in_pool, shard)
        except BrokenProcessPool as error:
            future = Future()
            future.set_exception(error)
            return future

    def finish(self) -> None:
        """Lets idle workers end in the ordinary way, so that packages free what they hold."""
        self._executor.shutdown()

    def end(self) -> None:
        """Ends the workers at once, and drops their shards."""
        self._open.close()
        self._executor.shutdown(cancel_futures=True)


@contextlib.contextmanager
def without_script() -> Iterator[None]:
    """Hides the main module from processes that are started in the block.

    Each would run the user's script again, up to the line that started the process.
    """
    script = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


class _Worker:
    """The state of this process if it is a worker."""

    prepare: Prepare
    work: Callable | None = None
    key = ""  # of the map that `work` belongs to, under Ray


def _start_worker(prepare: Prepare, ending: Connection) -> None:
    """Makes this process a worker until the other end of `ending` is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that waits for results
    threading.Thread(target=_exit_with_parent, args=(ending,), daemon=True).start()
    _Worker.prepare = prepare


def _exit_with_parent(ending: Connection) -> None:
    """Waits until the other end of `ending` is closed, then ends this process."""
    with contextlib.suppress(EOFError):
        ending.recv_bytes()
    os._exit(1)


def _work_in_pool(shard: Shard) -> Result:
    """The result for a shard, in a worker of the pool; prepares its work at the first shard."""
    with contextlib.redirect_stdout(io.StringIO()):
        # Here, not in `_start_worker`, so that an error reaches the caller like any other.
        _Worker.work = _Worker.work or prepare_without_jax(_Worker.prepare)
        return _Worker.work(shard)


def prepare_without_jax(prepare: Prepare) -> Callable[[Shard], Result]:
    """Calls `prepare` while jax cannot be imported.

    Some packages, such as bm25s, import jax if they find it, and it would take the device's memory.
    """
    if "jax" in sys.modules:  # the user's, in a worker of Ray
        return prepare()
    sys.modules["jax"] = None
    try:
        return prepare()
    finally:
        del sys.modules["jax"]


def _work_on_ray(version: str, key: str, prepare: list, shard: Shard) -> Result:
    """The result for a shard, in a worker of Ray, which may serve several maps.

    Args:
        version: of ark_jax in the calling program.
        key: names the map; the worker prepares its work anew for another one.
        prepare: a list with Ray's reference to the map's `prepare`, which is fetched for the first
            shard only.

    Raises:
        RuntimeError: the node has another version.
    """
    import ray

    if version != __version__:
        raise RuntimeError(
            f"the Ray node {ray.util.get_node_ip_address()} has ark_jax {__version__}, this "
            f"program {version}: install the same on all nodes"
        )
    with contextlib.redirect_stdout(io.StringIO()):
        if _Worker.key != key:
            _Worker.work, _Worker.key = prepare_without_jax(ray.get(prepare[0])), key
        return _Worker.work(shard)
