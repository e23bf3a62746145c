"""Several processes that work as one. Each runs the same code on the same host data, holds its own shards of arrays, and
follows process 0, which alone looks at the workdir and writes there.

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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from ark_jax.log import primary

Told = TypeVar("Told")
SILENCE = 30  # seconds without a heartbeat after which a process counts as dead
_WEEK = 7 * 24 * 3600 * 1000  # milliseconds: the others wait for process 0 however long it works alone
_numbers = itertools.count()  # of what process 0 told


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

    named = {} if coordinator == "auto" else {
        "coordinator_address": coordinator, "num_processes": _number("ARK_PROCESSES"), "process_id": _number("ARK_PROCESS")}
    # Else its service takes SIGTERM for itself, and a process that is told to end does not.
    jax.config.update("jax_enable_preemption_service", False)
    jax.distributed.initialize(**named, heartbeat_timeout_seconds=SILENCE)
    try:
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
