"""Paired timings: contenders take turns in one process.

Contended samples are dropped; medians and ratios are printed.
"""

import dataclasses
import json
import os
import platform
import re
import resource
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

SHARE = 0.06  # of all cores: what other processes may take of a sample that counts
TICK = os.sysconf("SC_CLK_TCK")
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
    work: str, unit: str, amount: float, timings: Mapping[str, Timing], ours: str = "ark_jax"
) -> None:
    """One line a contender: median, rate, and how many times faster ours is."""
    print(f"\n{work}")
    for name, t in timings.items():
        ratio = "" if name == ours else f"   ours is {t.median / timings[ours].median:.2f} x"
        noise = "" if t.clean else "   (contended: not to be quoted)"
        rate = f"{t.median * 1e3:10,.1f} ms {amount / t.median:12,.0f} {unit}/s"
        print(f"  {name:<30} {rate}   {len(t.seconds)} samples{ratio}{noise}", flush=True)
    if file := os.environ.get(ROWS):
        medians = {name: t.median for name, t in timings.items()}
        clean = all(t.clean for t in timings.values())
        row = {"work": work, "seconds": medians, "ours": ours, "clean": clean}
        with Path(file).open("a") as rows:
            rows.write(json.dumps(row) + "\n")


def machine() -> str:
    """What the figures were taken on."""
    info = Path("/proc/cpuinfo").read_text()
    names = re.findall(r"model name\s*: (.*)", info) or [platform.processor()]
    vectors = "AVX-512" if "avx512f" in info else "AVX2" if "avx2" in info else "no AVX2"
    return f"{names[0]}, {os.cpu_count()} cores, {vectors}, Python {platform.python_version()}"
