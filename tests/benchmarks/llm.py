"""What a run of LLM calls costs: `python tests/benchmarks/llm.py [seconds]`.

A server in another process answers 64 requests at once, each after a second or a quarter of one, give or take a half: what
it can serve a second is known. `complete` asks it, 64 at once, through the official client, the limits, the claims and the
ledger on disk. Printed are calls a second with start and end, the share of the server's capacity, and processor time.
"""

import os
import resource
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from llm_server import apart
from timing import SHARE, _busy, _own, _quiet, machine

from ark_jax.text import llm

WORKERS = 64
PROMPT = "Read this passage and name what it speaks of. " * 60  # some 700 tokens, as a chunk with its instruction


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def asked(url: str, calls: int) -> tuple[float, float]:
    """Calls a second, and processor seconds a second."""
    settings = llm.Settings(backend="openai", model="toy", base_url=url, key_env="NO_KEY", temperature=0.0, max_tokens=4096,
                            concurrency=WORKERS, requests_per_minute=0, tokens_per_minute=0, timeout=60.0, retries=0, reasks=0,
                            price=(0.3, 2.5), max_cost=100.0, replies="")
    some = [llm.Call(f"extract/{i}", "extract", (f"{PROMPT} {i}",)) for i in range(calls)]
    with tempfile.TemporaryDirectory() as folder:
        used, start = cpu(), time.monotonic()
        llm.complete(some, settings, Path(folder) / "replies.jsonl", "calls")
        wall = time.monotonic() - start
    return calls / wall, (cpu() - used) / wall


if __name__ == "__main__":
    os.environ["NO_PROXY"] = "127.0.0.1"
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 30.0
    print(machine())
    import openai  # noqa: F401  (its import is no part of a call)

    for latency in (1.0, 0.25):
        _quiet()
        others, start, capacity = _busy() - _own(), time.monotonic(), WORKERS / latency
        with apart(latency=latency, capacity=WORKERS) as url:
            rate, busy = asked(url, round(capacity * seconds))
        foreign = (_busy() - _own() - others) / (time.monotonic() - start)
        noise = f"   (others, the server among them, took {foreign:.2f} cores)" if foreign > SHARE * os.cpu_count() else ""
        print(f"{WORKERS} workers, replies after {latency:g} s: {rate:.1f} calls/s, {rate / capacity:.1%} of {capacity:g}; "
              f"{busy:.2f} processor seconds a second, {busy / rate * 1e3:.2f} ms a call{noise}", flush=True)
