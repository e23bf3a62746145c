"""The counts of a server, for Prometheus."""

from collections.abc import Callable

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
CONTENT_TYPE = CONTENT_TYPE_LATEST


class Metrics:
    """Counts of requests and batches. Any thread may add to them.

    Args:
        waiting: gives the number of items that are not finished.
    """

    def __init__(self, waiting: Callable[[], float]):
        self._registry = CollectorRegistry()
        options = {"registry": self._registry}
        meaning = "Requests that were answered"
        self._requests = Counter("ark_requests", meaning, ["path", "status"], **options)
        meaning = "Seconds from a request to its answer"
        self._seconds = Histogram(
            "ark_request_seconds", meaning, ["path"], buckets=SECONDS, **options
        )
        meaning = "Batches that went through a model"
        self._batches = Counter("ark_batches", meaning, ["kind"], **options)
        meaning = "Texts, pairs or calls of these batches"
        self._items = Counter("ark_batch_items", meaning, ["kind"], **options)
        meaning = "Texts, pairs and calls that are not finished"
        Gauge("ark_waiting_items", meaning, **options).set_function(waiting)

    def add_request(self, path: str, status: int, seconds: float) -> None:
        """Counts a request that was answered."""
        self._requests.labels(path, status).inc()
        self._seconds.labels(path).observe(seconds)

    def add_batch(self, kind: str, items: int) -> None:
        """Counts a batch that went through a model."""
        self._batches.labels(kind).inc()
        self._items.labels(kind).inc(items)

    def text(self) -> bytes:
        """All counts in the text format of Prometheus, see `CONTENT_TYPE`."""
        return generate_latest(self._registry)
