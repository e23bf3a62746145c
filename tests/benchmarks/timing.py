"""Paired timings: contenders take turns in one process.

Contended samples are dropped; medians and ratios are printed.
"""

import dataclasses
import functools
import importlib.util
import json
import os
import platform
import re
import resource
import statistics
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

SHARE = 0.06  # of all cores: what other processes may take of a sample that counts
TICK = os.sysconf("SC_CLK_TCK")
FLAGS = {
    "AVX2": "avx2",
    "AVX-512": "avx512f",
    "VNNI": "avx(512)?_vnni",
    "BF16": "avx512_bf16",
    "AMX": "amx_tile",
}
ROWS = "ARK_BENCH_ROWS"  # a file that gets what is reported too, for `all.py`


@dataclasses.dataclass(frozen=True)
class Timing:
    """Seconds of the clean samples of one contender.

    If too few are clean, all samples are here and `clean` is False.
    """

    seconds: list[float]
    clean: bool

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def _busy() -> float:
    """CPU seconds that all processes have used."""
    user, nice, system, _, _, irq, soft = map(int, Path("/proc/stat").read_text().split()[1:8])
    return (user + nice + system + irq + soft) / TICK


def _own_seconds() -> float:
    return sum(
        r.ru_utime + r.ru_stime
        for r in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def _quiet(patience: float = 20.0) -> None:
    """Waits for a moment in which nobody else works."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        before = _busy() - _own_seconds()
        time.sleep(0.25)
        if _busy() - _own_seconds() - before <= 0.25 * SHARE * (os.cpu_count() or 1):
            return


def race(contenders: Mapping[str, Callable[[], object]], *, rounds: int = 7) -> dict[str, Timing]:
    """Runs every contender once to warm up, then `rounds` times in turn.

    A contender must block until its work is done.
    """
    samples: dict[str, list[tuple[float, bool]]] = {name: [] for name in contenders}
    for run in contenders.values():
        run()
    for _ in range(rounds):
        for name, run in contenders.items():
            _quiet()
            others, start = _busy() - _own_seconds(), time.perf_counter()
            run()
            seconds = time.perf_counter() - start
            foreign = (_busy() - _own_seconds() - others) / (seconds * (os.cpu_count() or 1))
            # Ticks are coarse: of a short sample a single one is more than the share.
            samples[name].append((seconds, foreign <= SHARE + 2 / TICK / seconds))
    out = {}
    for name, timed in samples.items():
        good = [seconds for seconds, fine in timed if fine]
        enough = len(good) >= max(3, rounds // 2)
        out[name] = Timing(good if enough else [seconds for seconds, _ in timed], enough)
    return out


def report(
    work: str,
    unit: str,
    amount: float,
    timings: Mapping[str, Timing],
    ours: str = "ark_jax",
    *,
    least: float = 0.0,
    apart: Collection[str] = (),
) -> None:
    """One line a contender: median, rate, and how many times faster ours is.

    The first peer is the one as shipped.

    Args:
        least: seconds of ours if products or memory, which bound it, ran at this machine's rate.
        apart: contenders whose results are others, such as less exact ones.
    """
    roof = least / timings[ours].median
    print(f"\n{work}" + f" ({roof:.0%} of the roof)" * bool(least))
    for name, t in timings.items():
        ratio = "" if name == ours else f"   ours is {t.median / timings[ours].median:.2f} x"
        noise = "" if t.clean else "   (contended: not to be quoted)"
        rate = f"{t.median * 1e3:10,.1f} ms {amount / t.median:12,.0f} {unit}/s"
        print(f"  {name:<30} {rate}   {len(t.seconds)} samples{ratio}{noise}", flush=True)
    if file := os.environ.get(ROWS):
        medians = {name: t.median for name, t in timings.items()}
        clean = all(t.clean for t in timings.values())
        row = {"work": work, "seconds": medians, "ours": ours, "clean": clean}
        row |= {"roof": roof, "apart": sorted(apart)}
        with Path(file).open("a") as rows:
            rows.write(json.dumps(row) + "\n")


def installed(*modules: str) -> bool:
    """Whether a peer can be imported; says so where it cannot."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        print(f"  left out, as it is not installed: {', '.join(missing)}", flush=True)
    return not missing


@functools.cache
def product_rate(rows: int, inner: int, columns: int) -> float:
    """FLOP/s of the fastest plain product in float32, be it XLA's or torch's."""
    import jax
    import jax.numpy as jnp
    import torch

    x, y = jnp.ones((rows, inner)), jnp.ones((inner, columns))
    a, b, product = torch.ones(rows, inner), torch.ones(inner, columns), jax.jit(jnp.dot)
    torch.set_float32_matmul_precision("highest")
    runs = {"XLA": lambda: product(x, y).block_until_ready(), "torch": lambda: a @ b}
    timings = race(runs, rounds=9)
    return 2 * rows * inner * columns / min(min(t.seconds) for t in timings.values())


def machine() -> str:
    """What the figures were taken on."""
    info = Path("/proc/cpuinfo").read_text()
    field = lambda name: (re.findall(rf"{name}\s*: (.*)", info) or [platform.processor()])[0]
    kind = f"{field('model name')} (family {field('cpu family')}, model {field('model')})"
    flags = [
        name if re.search(rf"\b{flag}\b", info) else f"no {name}" for name, flag in FLAGS.items()
    ]
    numba = "numba" if importlib.util.find_spec("numba") else "no numba"
    parts = (kind, f"{os.cpu_count()} cores", *flags, f"Python {platform.python_version()}", numba)
    return ", ".join(parts)
