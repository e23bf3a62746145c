"""Lines of the table that `accelerator.py` writes, its sizes, and its clocks."""

import contextlib
import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator, Mapping

import jax

from ark_jax.train import flops

FAILED = "FAILED"


@dataclasses.dataclass(frozen=True)
class Sizes:
    """How much is computed."""

    checkpoint: Mapping[str, int]  # constants of support.tiny in place of its own
    texts: int
    tokens: int  # of the longest text
    heads: tuple[int, int, int]  # query heads, key heads, numbers a head
    product: tuple[int, int, int]
    nodes: int
    keys: int
    rounds: int


FULL = Sizes(
    {
        "VOCAB": 4096,
        "WIDTH": 1024,
        "LAYERS": 8,
        "HEADS": 16,
        "KV_HEADS": 8,
        "HEAD_DIM": 128,
        "FFN": 3072,
    },
    texts=32,
    tokens=512,
    heads=(16, 8, 128),
    product=(16384, 1024, 3072),
    nodes=100_000,
    keys=200_000,
    rounds=7,
)
TINY = Sizes({"LAYERS": 2}, 6, 24, (4, 2, 16), (64, 64, 64), 200, 500, 1)


@dataclasses.dataclass(frozen=True)
class Row:
    """A line of the table; `verdict` is "ok", FAILED, "" for a mere figure, or why there is none.

    A figure that nothing was compared with has no `peer`.
    """

    part: str
    what: str
    ours: str
    peer: str = ""
    verdict: str = ""


def judged(part: str, what: str, error: float, limit: float) -> Row:
    verdict = "ok" if error <= limit else f"{FAILED}: the limit is {limit:.0e}"  # NaN fails
    return Row(part, what, f"error {error:.1e}", "", verdict)


def turns(contenders: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median seconds of contenders that take turns, after one run each. They must block."""
    for run in contenders.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(samples) for name, samples in seconds.items()}


@contextlib.contextmanager
def counted_programs() -> Iterator[list[float]]:
    """A list that gets the seconds of each compilation."""
    compiled: list[float] = []

    def record(event: str, seconds: float, **_) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(seconds)

    jax.monitoring.register_event_duration_secs_listener(record)
    try:
        yield compiled
    finally:
        jax.monitoring.unregister_event_duration_listener(record)


def against(seconds: Mapping[str, float], ours: str = "ours") -> str:
    """Peers' times, and how many times faster ours is."""
    peers = [
        f"{name} {x * 1e3:,.1f} ms ({x / seconds[ours]:.2f} x)"
        for name, x in seconds.items()
        if name != ours
    ]
    return ", ".join(peers) or "torch does not see this device"


def failure(part: str, what: str, error: Exception) -> Row:
    message = f"{type(error).__name__}: {error}".splitlines()[0][:160].replace("|", "/")
    return Row(part, what, "", "", f"{FAILED}: {message}")


def speed(model_flops: float, tokens: int, seconds: float) -> str:
    """Milliseconds, tokens and FLOPs a second, and MFU if the peak is known."""
    pace = {"tokens_a_second": tokens / seconds, "flops_a_second": model_flops / seconds}
    if peak := flops.peak(jax.devices()[0].device_kind):
        pace["mfu"] = model_flops / seconds / len(jax.devices()) / peak
    return f"{seconds * 1e3:,.1f} ms, {flops.describe(pace)}"
