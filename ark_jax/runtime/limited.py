"""Work on one item in a process that is killed where it takes too much time or memory."""

import contextlib
import multiprocessing
import os
import resource
import signal
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

from ark_jax.runtime.map_shards import prepare_without_jax, without_script

PATIENCE = 20  # times the seconds of work that a call may wait for a disk or a processor
_idle: list["_Process"] = []  # which the next calls take
os.register_at_fork(after_in_child=_idle.clear)  # they work for the parent


class Exceeded(Exception):
    """Work that was stopped; the message says at which limit."""


def limited(
    work: Callable[..., Iterator], *arguments: object, seconds: float, memory: int
) -> Iterator:
    """What the generator `work(*arguments)` yields in a process of its own.

    Args:
        work: a function of a module, which does not need jax.
        seconds: of a processor. A call that waits may take `PATIENCE` times as long for an item.
        memory: bytes that the work may allocate, where the system keeps count (Linux).

    Raises:
        Exceeded: the work took more, or ended its process.
        Exception: what `work` raises.
    """
    waited, taken = bool(_idle), False
    process = _idle.pop() if waited else _Process()
    try:
        process.pipe.send((work, arguments, seconds, memory))
        while True:
            if not process.pipe.poll(PATIENCE * seconds):
                raise Exceeded(f"takes more than {PATIENCE * seconds:.0f} seconds")
            kind, value = process.pipe.recv()
            if kind == "taken":
                taken = True
                continue
            if kind == "item":
                yield value
                continue
            _idle.append(process)
            process = None
            if kind == "error":
                raise value
            return
    except (EOFError, ConnectionError):
        code = process.end()
        if waited and not taken:  # the system killed it while it waited
            yield from limited(work, *arguments, seconds=seconds, memory=memory)
            return
        reason = f"takes more than {seconds:.0f} seconds of a processor"
        if code != -signal.SIGPROF:
            reason = (
                f"ends its process ({code}), perhaps by more than {memory >> 20:,} MiB of memory"
            )
        raise Exceeded(reason) from None
    finally:
        if process is not None:
            process.end()


class _Process:
    """A process that works on one call after another until this one ends."""

    def __init__(self):
        # Not forked: jax has threads, and a lock that one of them holds would stay locked.
        context = multiprocessing.get_context("spawn")
        self.pipe, end = context.Pipe()
        self._process = context.Process(target=_serve, args=(end,), daemon=True)
        with without_script():
            self._process.start()
        end.close()

    def end(self) -> int | None:
        """Kills the process if it still works; its exit code."""
        self.pipe.close()
        self._process.join(0.5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        return self._process.exitcode


def _serve(pipe: Connection) -> None:
    """Works on what comes through the pipe until its other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that waits
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    silence = os.open(os.devnull, os.O_RDWR)
    os.dup2(silence, 1)  # what libraries print
    os.dup2(silence, 2)
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            work, arguments, seconds, memory = prepare_without_jax(pipe.recv)
            pipe.send(("taken", None))
            pipe.send(_answer(pipe, work, arguments, seconds, memory))


def _answer(pipe: Connection, work: Callable, arguments: tuple, seconds: float, memory: int):
    """Sends each item of the work; ("end", None), or ("error", what it raises)."""
    _limit_memory(memory)
    signal.setitimer(signal.ITIMER_PROF, seconds)  # at its end the system kills this process
    try:
        for item in work(*arguments):
            pipe.send(("item", item))
        return "end", None
    except MemoryError:
        return "error", Exceeded(f"takes more than {memory >> 20:,} MiB of memory")
    except (EOFError, ConnectionError):
        raise
    except Exception as error:
        return "error", error
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        _limit_memory(None)


def _limit_memory(size: int | None) -> None:
    """Limits the memory of this process to what it has and `size` bytes; None: to no limit."""
    _, hard_limit = resource.getrlimit(resource.RLIMIT_DATA)
    limit, counts = hard_limit, Path("/proc/self/statm")
    if size is not None and counts.exists():
        limit = int(counts.read_text().split()[5]) * resource.getpagesize() + size
        limit = limit if hard_limit == resource.RLIM_INFINITY else min(limit, hard_limit)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard_limit))
