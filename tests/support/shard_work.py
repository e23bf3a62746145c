"""Work on shards that tests hand to worker processes."""

import functools
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path

from ark_jax.runtime import map_shards


def observer():
    """Work that tells the shard, the process, and whether it has jax."""
    import bm25s  # noqa: F401, which imports jax where it finds it

    print("a worker says this")

    def observe(shard):
        print("and this")
        time.sleep(0.05 * (shard % 3))  # so that later shards are done earlier
        return shard, os.getpid(), "jax" in sys.modules

    return observe


def node_observer():
    """Work of a third of a second that tells shard, process, Ray's node, and whether it has jax."""
    import ray

    print("a worker says this")

    def observe(shard):
        time.sleep(0.3)
        return shard, os.getpid(), ray.get_runtime_context().get_node_id(), "jax" in sys.modules

    return observe


def mortal(folder: str, fatal: int, times: int):
    """Work whose process is killed at shard `fatal`, as many times as said."""

    def work(shard):
        deaths = len(list(Path(folder).iterdir()))
        if shard == fatal and deaths < times:
            Path(folder, str(deaths)).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return shard * shard

    return work


def with_a_kill(items, place):
    """The items; a worker process of this one is killed when that at `place` is asked for."""
    for i, item in enumerate(items):
        if i == place:
            multiprocessing.active_children()[0].kill()
        yield item


def refuser():
    def refuse(shard):
        if shard > 2:
            raise ValueError(f"documents.jsonl:{shard}: text: is empty; fill it in")
        return shard

    return refuse


def packer():
    return lambda shard: bytes(shard)


def sleeper():
    def work(shard):
        print(os.getpid(), file=sys.stderr, flush=True)
        time.sleep(60)

    return work


def by_kind(kind: str):
    """Yields its process; then does what the kind says, or yields the kind."""
    yield os.getpid()
    if kind == "spin":
        while True:
            pass
    if kind == "fill":
        yield len(bytearray(1 << 32))
    if kind == "crash":
        os.abort()
    if kind == "fault":
        raise ValueError("no such row")
    yield kind


# A script as users write it: without a guard around what it does.
SCRIPT = """
from support import shard_work
from ark_jax.runtime.map_shards import map_shards
print("begun", flush=True)
for _ in map_shards(shard_work.sleeper, range(8), processes=2):
    pass
"""


def pool(prepare, shards, *arguments):
    """The results of two workers."""
    prepare = functools.partial(prepare, *arguments) if arguments else prepare
    return list(map_shards.map_shards(prepare, shards, processes=2))
