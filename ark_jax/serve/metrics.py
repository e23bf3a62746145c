"""What a server counts, in the text format of Prometheus."""

import bisect
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Counts of requests and batches. Any thread may add to them."""

    def __init__(self):
        self._lock = threading.Lock()
        self._requests: dict[tuple[str, int], int] = defaultdict(int)
        self._seconds: dict[str, list[int]] = defaultdict(lambda: [0] * (len(SECONDS) + 1))
        self._total: dict[str, float] = defaultdict(float)
        self._batches: dict[str, int] = defaultdict(int)
        self._items: dict[str, int] = defaultdict(int)

    def add_request(self, path: str, status: int, seconds: float) -> None:
        with self._lock:
            self._requests[path, status] += 1
            self._seconds[path][bisect.bisect_left(SECONDS, seconds)] += 1
            self._total[path] += seconds

    def add_batch(self, kind: str, items: int) -> None:
        with self._lock:
            self._batches[kind] += 1
            self._items[kind] += items

    def text(self, gauges: Mapping[str, tuple[str, float]]) -> str:
        """All counts.

        Args:
            gauges: name -> help and present value of what goes up and down.
        """
        with self._lock:
            lines = [*self._counters(), *self._histogram()]
        for name, (about, value) in gauges.items():
            lines += [*_head(name, about, "gauge"), f"{name} {value:g}"]
        return "\n".join([*lines, ""])

    def _counters(self) -> Iterator[str]:
        name = "ark_requests_total"
        yield from _head(name, "Requests that were answered.", "counter")
        for (path, status), count in sorted(self._requests.items()):
            yield f'{name}{{path="{path}",status="{status}"}} {count}'
        for name, about, counts in (
            ("ark_batches_total", "Batches that went through a model.", self._batches),
            ("ark_batch_items_total", "Texts, pairs or calls of these batches.", self._items),
        ):
            yield from _head(name, about, "counter")
            yield from (f'{name}{{kind="{kind}"}} {n}' for kind, n in sorted(counts.items()))

    def _histogram(self) -> Iterator[str]:
        name = "ark_request_seconds"
        yield from _head(name, "Seconds from a request to its answer.", "histogram")
        for path, counts in sorted(self._seconds.items()):
            total = 0
            for bound, count in zip((*SECONDS, "+Inf"), counts, strict=True):
                total += count
                yield f'{name}_bucket{{path="{path}",le="{bound}"}} {total}'
            yield f'{name}_sum{{path="{path}"}} {self._total[path]:.6f}'
            yield f'{name}_count{{path="{path}"}} {total}'


def _head(name: str, about: str, kind: str) -> list[str]:
    return [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
