"""What the client of the LLM stages costs: `python tests/benchmarks/llm.py [seconds]`.

A server in another process answers so many requests at once, each after a fixed time: what it can serve a second is
known. 64 workers ask it for some seconds after a warm-up; printed are calls a second, the share of the server's
capacity, and the processor time of the client.
"""

import asyncio
import os
import resource
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from llm_server import apart
from timing import SHARE, _busy, _own, _quiet, machine

from ark_jax.text.endpoint import Endpoint

WORKERS = 64
PROMPT = "Read this passage and name what it speaks of. " * 60  # some 700 tokens, as a chunk with its instruction


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def asked(url: str, seconds: float) -> tuple[float, float]:
    """Calls a second, and processor seconds a second, while `WORKERS` ask one after another."""
    done = 0

    async def worker(name: int, endpoint: Endpoint) -> None:
        nonlocal done
        while True:
            await endpoint.ask([{"role": "user", "content": f"{PROMPT} {name}/{done}"}])
            done += 1

    async with Endpoint(model="toy", base_url=url, key_env="NO_KEY", temperature=0.0, max_tokens=4096, timeout=60.0,
                        retries=0, requests_per_minute=0, tokens_per_minute=0) as endpoint:
        workers = [asyncio.create_task(worker(i, endpoint)) for i in range(WORKERS)]
        await asyncio.sleep(3)  # until connections are open and the workers out of step
        before, used, start = done, cpu(), time.monotonic()
        await asyncio.wait(workers, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        wall, calls, used = time.monotonic() - start, done - before, cpu() - used
        for task in workers:
            task.cancel()
        failed = [x for x in await asyncio.gather(*workers, return_exceptions=True) if not isinstance(x, asyncio.CancelledError)]
        if failed:
            raise failed[0]
    return calls / wall, used / wall


if __name__ == "__main__":
    os.environ["NO_PROXY"] = "127.0.0.1"
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
    print(machine())
    for latency in (1.0, 0.25):
        _quiet()
        others, start = _busy() - _own(), time.monotonic()
        with apart(latency=latency, capacity=WORKERS) as url:
            rate, busy = asyncio.run(asked(url, seconds))
        foreign = (_busy() - _own() - others) / (time.monotonic() - start)
        capacity = WORKERS / latency
        noise = f"   (contended by {foreign:.2f} cores: not to be quoted)" if foreign > SHARE * os.cpu_count() else ""
        print(f"{WORKERS} workers, replies after {latency:g} s: {rate:.1f} calls/s, {rate / capacity:.1%} of {capacity:g}; "
              f"{busy:.2f} processor seconds a second, {busy / rate * 1e3:.2f} ms a call{noise}", flush=True)
