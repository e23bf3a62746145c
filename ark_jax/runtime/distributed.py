"""Runs one program on several JAX processes (SPMD).

Every process runs the same code on the same host data and holds its own shards of each array.
Process 0 alone reads and writes the workdir; the others receive its decisions (`on_first_process`).
Expensive host work, such as tokenizing, is divided among the processes (`split_and_gather`).

`ARK_COORDINATOR=HOST:PORT`, `ARK_PROCESSES` and `ARK_PROCESS` describe the processes; the scripts
in launch/ set them. Under Slurm or on a TPU pod, `ARK_COORDINATOR=auto` is enough. Without it there
is one process.
"""

import contextlib
import functools
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

from ark_jax.runtime.shown import printable

Value = TypeVar("Value")
Item = TypeVar("Item")
Key = TypeVar("Key")
HEARTBEAT_TIMEOUT = 30  # seconds without a heartbeat after which a process counts as dead
# Milliseconds that the others wait for process 0, which may work alone for hours.
BARRIER_TIMEOUT = 7 * 24 * 3600 * 1000
# int32 values gathered at once. A fixed size compiles one program and needs little device memory.
GATHER_BLOCK = 1 << 16
_broadcast_ids = itertools.count()
# What process 0 does after its turn and the others do before they go on; see `share_files`.
_sharing: list[tuple[Callable[[], dict], Callable[[dict], None]]] = []


def is_first_process() -> bool:
    """Whether this is process 0, which alone prints and writes files. Does not start jax."""
    jax = sys.modules.get("jax")
    return jax is None or jax.process_index() == 0


def is_multi_process() -> bool:
    """Whether the run has more than one process. Does not start jax."""
    jax = sys.modules.get("jax")
    return jax is not None and jax.distributed.is_initialized() and jax.process_count() > 1


@contextlib.contextmanager
def join_processes() -> Iterator[None]:
    """Connects to the processes that the environment describes.

    Call it before anything asks for a device. An error inside the block is printed and ends this
    process at once with status 1: a normal exit would wait for the other processes, while they
    wait for this one.

    Raises:
        ValueError: `ARK_PROCESSES` or `ARK_PROCESS` is not a number.
    """
    coordinator = os.environ.get("ARK_COORDINATOR")
    if not coordinator:
        yield
        return
    import jax
    from jax.experimental import multihost_utils

    addresses = {} if coordinator == "auto" else _initialize_arguments(coordinator)
    # jax's own preemption service would catch SIGTERM, and a process told to stop would not stop.
    jax.config.update("jax_enable_preemption_service", False)
    jax.distributed.initialize(**addresses, heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT)
    try:
        # gloo connects at the first collective and gives up after 30 s. Connect now, before one
        # process compiles for longer than another.
        multihost_utils.sync_global_devices("together")
        yield
    except Exception as error:
        _exit_with(error)


def _initialize_arguments(coordinator: str) -> dict[str, str | int]:
    """The keyword arguments of `jax.distributed.initialize` for the address of a coordinator."""
    return {
        "coordinator_address": coordinator,
        "num_processes": _environment_number("ARK_PROCESSES"),
        "process_id": _environment_number("ARK_PROCESS"),
    }


def _environment_number(name: str) -> int:
    """An environment variable as a number; raises ValueError if it is none."""
    try:
        return int(os.environ[name])
    except (KeyError, ValueError):
        raise ValueError(
            f"{name}={os.environ.get(name, '')!r}: must be a number where ARK_COORDINATOR is an "
            "address; the scripts in launch/ set it"
        ) from None


def _exit_with(error: Exception) -> None:
    """Prints `error` and exits with status 1, without waiting for the other processes."""
    import jax

    if not isinstance(error, ValueError | RuntimeError | OSError | FloatingPointError):
        print(printable(traceback.format_exc()), file=sys.stderr)
    process = f"process {jax.process_index()} of {jax.process_count()}"
    prefix = "" if is_first_process() else f"{process}: "
    print(
        f"error: {prefix}{printable(str(error)).strip() or type(error).__name__}\n"
        f"{process} exits. If another process failed first, its message is the cause. "
        "Finished work is kept: run the same command again to go on",
        file=sys.stderr,
    )
    sys.stdout.flush()
    sys.stderr.flush()
    if is_first_process():
        time.sleep(2)  # jax aborts the others once process 0 is gone; let them print their error
    os._exit(1)


def on_first_process(function: Callable[[], Value]) -> Value:
    """Calls `function` on process 0 and returns its result on every process.

    The result must be JSON. All processes must call it, and all wait until process 0 is done.

    Raises:
        RuntimeError: `function` failed on process 0. The others raise its message; process 0 raises
            its own error.
    """
    if not is_multi_process():
        value = function()
        for send, _ in _sharing:
            send()
        return value
    from orbax.checkpoint import multihost

    client, error = multihost.get_jax_distributed_client(), None
    key = f"ark/{next(_broadcast_ids)}"
    if is_first_process():
        try:
            message = {"value": function()}
            message["files"] = [send() for send, _ in _sharing]
        except Exception as raised:
            message, error = {"error": str(raised)}, raised
        client.key_value_set(key, json.dumps(message))
    client.wait_at_barrier(key, BARRIER_TIMEOUT)
    message = json.loads(client.blocking_key_value_get(key, BARRIER_TIMEOUT))
    if "error" in message:
        raise error or RuntimeError(message["error"])
    if not is_first_process():
        for (_, receive), files in zip(_sharing, message["files"], strict=True):
            receive(files)
    return message["value"]


@contextlib.contextmanager
def share_files(send: Callable[[], dict], receive: Callable[[dict], None]) -> Iterator[None]:
    """Has the processes share files in the block, where their disks are not the same.

    Args:
        send: is called on process 0 at the end of each `on_first_process`, and says in JSON which
            files have changed.
        receive: gets that on the others, before they go on.
    """
    _sharing.append((send, receive))
    try:
        yield
    finally:
        _sharing.pop()


def gather_from_processes(value: Value) -> list[Value]:
    """The values of all processes, on every process; they must be JSON. All must call it."""
    if not is_multi_process():
        return [value]
    import jax
    from orbax.checkpoint import multihost

    client, key = multihost.get_jax_distributed_client(), f"ark/{next(_broadcast_ids)}"
    client.key_value_set(f"{key}/{jax.process_index()}", json.dumps(value))
    client.wait_at_barrier(key, BARRIER_TIMEOUT)
    return [
        json.loads(client.blocking_key_value_get(f"{key}/{process}", BARRIER_TIMEOUT))
        for process in range(jax.process_count())
    ]


def may_queue_programs() -> bool:
    """Whether a program may be given to the devices before the last one has ended.

    On CPUs of several processes the two would run at the same time, and gloo mixes their messages.
    """
    import jax

    return not is_multi_process() or jax.default_backend() != "cpu"


def on_any_process(flag: bool) -> Callable[[], bool]:
    """Asks whether `flag` is true on any process; returns a function that waits for the answer.

    All processes must call it, and all get the same answer. Devices compute it after the programs
    that they were given before.
    """
    import jax

    sharding, is_any = _flags_sharding_and_any()
    with jax.set_mesh(sharding.mesh):
        flags = jax.make_array_from_callback(
            (jax.process_count(),), sharding, lambda _: np.array([flag])
        )
        answer = is_any(flags)
    if not may_queue_programs():
        answer.block_until_ready()
    return lambda: bool(answer)


@functools.cache
def _flags_sharding_and_any():
    """(sharding of an array with a flag of each process, compiled `any` of such an array)."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    # Ids follow the links between devices, not the processes.
    devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
    devices = np.array(devices).reshape(jax.process_count(), -1)
    mesh = Mesh(devices, ("processes", "devices"))
    return NamedSharding(mesh, P("processes")), jax.jit(
        jnp.any, out_shardings=NamedSharding(mesh, P())
    )


def differing_processes(digest: str) -> list[int]:
    """The numbers of processes whose sha256 (in hex) differs from process 0's; all must call it."""
    if not is_multi_process():
        return []
    from jax.experimental import multihost_utils

    digests = multihost_utils.process_allgather(np.frombuffer(bytes.fromhex(digest), np.uint8))
    return np.flatnonzero((digests != digests[0]).any(axis=1)).tolist()


class LazySequence(Sequence[Item]):
    """`find(key)` for each of `keys`, called on access.

    Slices are lazy too, so a process that takes its share in `split_and_gather` never reads the
    other items.
    """

    def __init__(self, find: Callable[[Key], Item], keys: Sequence[Key]):
        self._find, self._keys = find, keys

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, index: int | slice) -> "Item | LazySequence[Item]":
        keys = self._keys[index]
        return LazySequence(self._find, keys) if isinstance(index, slice) else self._find(keys)


def split_and_gather(
    make_rows: Callable[[Sequence[Item]], tuple[np.ndarray, np.ndarray]],
    items: Sequence[Item],
    allocate: Callable[[int], np.ndarray] = lambda size: np.empty(size, np.int32),
) -> tuple[np.ndarray, np.ndarray]:
    """Returns `make_rows(items)`, with the work divided among the processes.

    All processes must call it with the same items. The result for an item must not depend on its
    neighbours.

    Args:
        make_rows: maps n items to a row of numbers each, such as token ids: the rows end to end,
            int32 `[any]`, and the length of each, `[n]`.
        items: may be a `LazySequence`.
        allocate: size -> an int32 array for the numbers of all processes.
    """
    if not is_multi_process():
        return make_rows(items)
    import jax

    # Every n-th item, since neighbours are often of similar length: all processes get equal work.
    processes = jax.process_count()
    own_values, own_lengths = make_rows(items[jax.process_index() :: processes])
    lengths = np.zeros(len(items), np.int64)
    for process, start, block in _gathered_blocks(own_lengths):
        lengths[process::processes][start : start + len(block)] = block
    ends = np.cumsum(lengths)
    values = allocate(int(lengths.sum()))
    own_ends = [np.cumsum(lengths[process::processes]) for process in range(processes)]
    for process, start, block in _gathered_blocks(own_values):
        numbers = np.arange(start, start + len(block))
        item = np.searchsorted(own_ends[process], numbers, side="right")
        # From each number to the end of its row it is as far in all rows as in the process's own.
        values[numbers + (ends[process::processes] - own_ends[process])[item]] = block
    return values, lengths


def sum_of_processes(number: int) -> int:
    """The sum of `number` over all processes; all must call it."""
    if not is_multi_process():
        return number
    from jax.experimental import multihost_utils

    return int(multihost_utils.process_allgather(np.int32(number)).sum())


def _gathered_blocks(values: np.ndarray) -> Iterator[tuple[int, int, np.ndarray]]:
    """The int32 `[any]` values of all processes, on every process, a block at a time.

    Yields:
        The process, the place of the block's first value among those of the process, and the block.
    """
    from jax.experimental import multihost_utils

    # In two numbers, since a size may be more than the largest int32.
    own_size = np.array(divmod(len(values), GATHER_BLOCK), np.int32)
    blocks_and_rest = multihost_utils.process_allgather(own_size).astype(np.int64)
    sizes = (blocks_and_rest @ [GATHER_BLOCK, 1]).tolist()
    for start in range(0, max(sizes), GATHER_BLOCK):
        padded = np.zeros(GATHER_BLOCK, np.int32)
        part = values[start : start + GATHER_BLOCK]
        padded[: len(part)] = part
        for process, block in enumerate(multihost_utils.process_allgather(padded)):
            yield process, start, block[: max(sizes[process] - start, 0)]


@contextlib.contextmanager
def file_per_process(path: Path) -> Iterator[Path]:
    """A file that every process may read and append to. All start from the same content.

    It is `path` itself on process 0, and a temporary copy on the others, whose additions are lost.
    """
    on_first_process(lambda: None)  # process 0 has finished its earlier writes
    with tempfile.TemporaryDirectory() as folder:
        process_path = path if is_first_process() else Path(folder, path.name)
        if path.is_file() and not is_first_process():
            shutil.copyfile(path, process_path)
        on_first_process(lambda: None)  # all copies are made before process 0 writes again
        yield process_path
