"""Measures the overhead of LLM calls: `python tests/benchmarks/llm.py [seconds]`.

A server in another process answers 64 requests at once, each after about 1 or 0.25 seconds, so its
capacity is known. `complete` sends 64 requests at once, with the official client, rate limits,
claims and the cache on disk. The benchmark prints calls per second, including start and end, the
share of the server's capacity, and processor time.
"""

import os
import resource
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from support.llm_server import serving_in_process
from timing import SHARE, _busy, _own_seconds, _quiet, machine

from ark_jax.llm import complete

WORKERS = 64
# About 700 tokens, like a chunk with its instruction.
PROMPT = "Read this passage and name what it speaks of. " * 60


def processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measure(url: str, calls: int) -> tuple[float, float]:
    """Calls per second, and processor seconds per second."""
    settings = complete.LLMSettings(
        backend="openai",
        model="toy",
        base_url=url,
        key_env="NO_KEY",
        temperature=0.0,
        max_tokens=4096,
        concurrency=WORKERS,
        requests_per_minute=0,
        tokens_per_minute=0,
        timeout=60.0,
        retries=0,
        reasks=0,
        price=(0.3, 2.5),
        max_cost=100.0,
        replies="",
    )
    requests = [complete.Call(f"extract/{i}", "extract", (f"{PROMPT} {i}",)) for i in range(calls)]
    with tempfile.TemporaryDirectory() as folder:
        processor_start, start = processor_seconds(), time.monotonic()
        complete.complete(requests, settings, Path(folder) / "replies.jsonl", "calls")
        wall = time.monotonic() - start
    return calls / wall, (processor_seconds() - processor_start) / wall


if __name__ == "__main__":
    os.environ["NO_PROXY"] = "127.0.0.1"
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 30.0
    print(machine())
    import openai  # noqa: F401  (imported before the clock starts)

    for latency in (1.0, 0.25):
        _quiet()
        others, start, capacity = _busy() - _own_seconds(), time.monotonic(), WORKERS / latency
        with serving_in_process(latency=latency, capacity=WORKERS) as url:
            rate, busy = measure(url, round(capacity * seconds))
        foreign = (_busy() - _own_seconds() - others) / (time.monotonic() - start)
        noise = (
            f"   (other processes, with the server, took {foreign:.2f} cores)"
            if foreign > SHARE * os.cpu_count()
            else ""
        )
        print(
            f"{WORKERS} workers, replies after {latency:g} s: {rate:.1f} calls/s, "
            f"{rate / capacity:.1%} of {capacity:g}; {busy:.2f} processor seconds per second, "
            f"{busy / rate * 1e3:.2f} ms per call{noise}",
            flush=True,
        )
