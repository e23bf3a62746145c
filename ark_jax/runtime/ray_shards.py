"""A map over shards on a Ray cluster that the user has; Ray retries what a lost node worked on."""

import collections
import contextlib
import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

Shard = TypeVar("Shard")
Result = TypeVar("Result")
ADDRESS = "RAY_ADDRESS"
RETRIES = 3  # of a shard whose worker or node is lost
AHEAD = 2  # shards for each core of the cluster that are sent before their results are needed


def map_on_ray(
    work: Callable[..., Result], arguments: tuple, prepare: Callable, shards: Iterator[Shard]
) -> Iterator[Result]:
    """`work(*arguments, key, [reference to prepare], shard)` for each shard, in order.

    Args:
        work: a function of a module, which every node must have.
        arguments: small values, which are sent with every shard.
        prepare: sent once to each node that asks Ray for it; `key` names it.

    Raises:
        RuntimeError: there is no Ray or no cluster, or a shard lost its worker more than `RETRIES`
            times.
        Exception: what the work raises, for the first shard that it fails on.
    """
    ray = _connect()
    remote = ray.remote(num_cpus=1, max_retries=RETRIES)(work)
    reference = ray.put(prepare)
    ahead, number = collections.deque(), 1
    try:
        while True:
            cores = max(int(ray.cluster_resources().get("CPU", 1)), 1)  # they come and go
            for shard in itertools.islice(shards, max(AHEAD * cores - len(ahead), 0)):
                ahead.append(remote.remote(*arguments, reference.hex(), [reference], shard))
            if not ahead:
                return
            try:
                result = ray.get(ahead.popleft())
            except ray.exceptions.RayTaskError as error:
                raise error.cause from error
            except ray.exceptions.RayError as error:
                raise RuntimeError(
                    f"shard {number}: Ray lost its worker more than {RETRIES} times "
                    f"({type(error).__name__}), for memory perhaps: see `ray status` and the logs "
                    "of its nodes, then run the same command again to go on"
                ) from error
            number += 1
            yield result
    finally:
        for pending in ahead:
            ray.cancel(pending, force=True)


def _connect():
    """Connects to the cluster unless the program has, and returns the module `ray`.

    Raises:
        RuntimeError: the package is not installed, or there is no cluster.
    """
    if not os.environ.get(ADDRESS) and not _is_running():
        raise RuntimeError(
            f"config.data.engine=ray: ${ADDRESS} names no cluster; set it to that of yours, such "
            "as HOST:6379, or take config.data.engine=local"
        )
    try:
        with _keep_sigterm_handler():
            import ray

            if not ray.is_initialized():
                ray.init(log_to_driver=False, logging_level="WARNING")
    except ImportError as error:
        raise RuntimeError(
            f"config.data.engine=ray needs the package ray ({error}): pip install 'ark-jax[ray]'"
        ) from None
    except ConnectionError as error:
        reason = " ".join(str(error).split())
        raise RuntimeError(
            f"config.data.engine=ray: no cluster at ${ADDRESS}={os.environ.get(ADDRESS)} "
            f"({reason[:200]}); start it or correct the address"
        ) from error
    return ray


def _is_running() -> bool:
    """Whether the program has already connected to a cluster."""
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()


@contextlib.contextmanager
def _keep_sigterm_handler() -> Iterator[None]:
    """Restores the run's SIGTERM handler, which saves its work, after Ray has replaced it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)
