"""Several processes that work as one. Each runs the same code on the same host data, holds its own shards of arrays, and
follows process 0, which alone looks at the workdir and writes there. What is dear on the host, each does a share of.

`ARK_COORDINATOR=HOST:PORT` with `ARK_PROCESSES` and `ARK_PROCESS` names them, as the scripts in launch/ do; where Slurm or a
TPU pod know it all themselves `ARK_COORDINATOR=auto` is enough. Without it there is one process.
"""

import contextlib
import itertools
import json
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from ark_jax.log import primary

Told, Item, Key = TypeVar("Told"), TypeVar("Item"), TypeVar("Key")
SILENCE = 30  # seconds without a heartbeat after which a process counts as dead
_WEEK = 7 * 24 * 3600 * 1000  # milliseconds: the others wait for process 0 however long it works alone
_numbers = itertools.count()  # of what process 0 told
BLOCK = 1 << 16  # numbers of a process that are sent at once: one shape, compiled once, of little room on the devices


def several() -> bool:
    """Whether there are other processes. Asks jax only if something has started it."""
    jax = sys.modules.get("jax")
    return jax is not None and jax.distributed.is_initialized() and jax.process_count() > 1


@contextlib.contextmanager
def together() -> Iterator[None]:
    """Joins the processes that the environment names; must come before anything asks for a device.

    An error inside ends the process at once and with a message, so that the others learn of it and end too: the usual way out
    of an interpreter would wait for them, who wait for this one.
    """
    coordinator = os.environ.get("ARK_COORDINATOR")
    if not coordinator:
        yield
        return
    import jax
    from jax.experimental import multihost_utils

    named = {} if coordinator == "auto" else {
        "coordinator_address": coordinator, "num_processes": _number("ARK_PROCESSES"), "process_id": _number("ARK_PROCESS")}
    # Else its service takes SIGTERM for itself, and a process that is told to end does not.
    jax.config.update("jax_enable_preemption_service", False)
    jax.distributed.initialize(**named, heartbeat_timeout_seconds=SILENCE)
    try:
        # Where the first program takes one process longer to compile than another, gloo would wait half a minute and give up.
        multihost_utils.sync_global_devices("together")
        yield
    except Exception as error:
        if not isinstance(error, ValueError | RuntimeError | OSError | FloatingPointError):
            traceback.print_exc()
        which = "" if primary() else f"process {jax.process_index()} of {jax.process_count()}: "
        print(f"error: {which}{str(error).strip() or type(error).__name__}\n"
              f"process {jax.process_index()} ends here. If another one ended first, what that one says is the cause. What is "
              "finished is kept: run the same command again to go on", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        if primary():
            time.sleep(2)  # jax aborts the others as soon as this one is gone; they may have the same to say
        os._exit(1)


def _number(name: str) -> int:
    try:
        return int(os.environ[name])
    except (KeyError, ValueError):
        raise ValueError(f"{name}={os.environ.get(name, '')!r}: must be a number where ARK_COORDINATOR is an address; "
                         "the scripts in launch/ set it") from None


def first(make: Callable[[], Told]) -> Told:
    """What `make` returns on process 0, on all of them, as JSON has it. Nobody goes on before it is done.

    Raises:
        RuntimeError: elsewhere, what was raised on process 0.
    """
    if not several():
        return make()
    from orbax.checkpoint import multihost

    client, key, failed = multihost.get_jax_distributed_client(), f"ark/{next(_numbers)}", None
    if primary():
        try:
            told = {"value": make()}
        except Exception as error:
            told, failed = {"error": str(error)}, error
        client.key_value_set(key, json.dumps(told))
    client.wait_at_barrier(key, _WEEK)
    told = json.loads(client.blocking_key_value_get(key, _WEEK))
    if "error" in told:
        raise failed or RuntimeError(told["error"])
    return told["value"]


class Lookup(Sequence[Item]):
    """`find(key)` for each of `keys`, found where it is asked for: what others are to `spread` is not read here."""

    def __init__(self, find: Callable[[Key], Item], keys: Sequence[Key]):
        self._find, self._keys = find, keys

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, at: int | slice) -> "Item | Lookup[Item]":
        return Lookup(self._find, self._keys[at]) if isinstance(at, slice) else self._find(self._keys[at])


def spread(make: Callable[[Sequence[Item]], list[np.ndarray]], items: Sequence[Item]) -> list[np.ndarray]:
    """`make(items)`, an int32 array `[any]` for each of them: every process makes those of its share and is sent the others'.

    All must call it, with the same items, which may be a `Lookup`. Which share is whose must not matter to `make`.
    """
    if not several():
        return make(items)
    import jax

    count, out = jax.process_count(), [None] * len(items)
    mine = make(items[jax.process_index() :: count])  # dealt in turn: what lies side by side is often as long
    sizes, numbers = _gathered([len(row) for row in mine]), _gathered(np.concatenate([np.zeros(0, np.int32), *mine]))
    for process in range(count):
        out[process::count] = np.split(numbers[process], np.cumsum(sizes[process]))[:-1]
    return out


def _gathered(mine: Sequence[int]) -> list[np.ndarray]:
    """What each process gave, int32 `[any]`, on all of them."""
    from jax.experimental import multihost_utils

    sizes = multihost_utils.process_allgather(np.int32(len(mine)))
    blocks = np.zeros((1 + int(sizes.max()) // BLOCK, BLOCK), np.int32)
    blocks.reshape(-1)[: len(mine)] = mine
    found = np.concatenate([multihost_utils.process_allgather(block) for block in blocks], axis=1)
    return [row[:size] for row, size in zip(found, sizes, strict=True)]


@contextlib.contextmanager
def own(path: Path) -> Iterator[Path]:
    """A file that grows while all go by what it held at first: itself on process 0, elsewhere a copy to be thrown away."""
    first(lambda: None)  # process 0 has written what it wrote before
    with tempfile.TemporaryDirectory() as folder:
        mine = path if primary() else Path(folder, path.name)
        if path.is_file() and not primary():
            shutil.copyfile(path, mine)
        first(lambda: None)  # the others have read
        yield mine
