"""Loads and compiles the models of a server, in the thread that will use them."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import jax

from ark_jax import layout
from ark_jax.index import folder as folders
from ark_jax.index.index import Index
from ark_jax.index.reader import Reader
from ark_jax.serve.metrics import Metrics
from ark_jax.serve.models import Embedder, Reranker, Texts, model_name
from ark_jax.serve.service import MOST_ASKED, ServedIndex, Service
from ark_jax.serve.work import CALLS, Lane, Work
from ark_jax.text.token_vectors import stack


def open_service(
    index: Index,
    *,
    compare: str = "",
    rerank: bool = True,
    reader: Callable[[], Reader] | None = None,
    local: bool = True,
    token: str = "",
    capacity: int = 4096,
) -> Service:
    """Opens the service of an index, on one device.

    Args:
        compare: folder or hub name of another model for the same passages; empty: none.
        rerank: whether the index's reranker, if it has one, is used.
        reader: opens the reader; None: no answers.
        local: whether the reader computes on the device of this process.
        token: the token that requests must send; empty: none.
        capacity: texts that may wait.

    Raises:
        FileNotFoundError, ValueError: a model cannot be opened, or is not that of the index.
        OSError: the vectors of `compare` cannot be written.
    """
    # A mesh belongs to one thread. The other devices are left to other servers.
    enter = lambda: jax.set_mesh(layout.make_mesh((1, 1, 1)))
    work = Work(enter, capacity=capacity)
    metrics = Metrics(lambda: work.waiting)
    work.on_batch = lambda lane, count: metrics.add_batch(_lane_label(lane), count)

    # A local reader computes in a thread of its own: the models' thread never waits for it.
    reads = ThreadPoolExecutor(1 if local else MOST_ASKED, "reader", enter) if reader else None

    def load() -> Service:
        tuned = _load_served_index(index)
        return Service(
            name=index.folder.name,
            work=work,
            metrics=metrics,
            tuned=tuned,
            base=_load_served_index(index.with_model(compare)) if compare else None,
            reranker=_load_reranker(index) if rerank and index.manifest.reranker else None,
            reader=reads.submit(reader).result() if reads and reader else None,
            reads=reads,
            token=token,
            damage=ThreadPoolExecutor(1, "digests").submit(_damage, index),
        )

    try:
        return work.call(load)
    except Exception:
        work.close()
        if reads:
            reads.shutdown()
        raise


def _load_served_index(index: Index) -> ServedIndex:
    """Loads and compiles the model of an index, and searches once."""
    embedder = Embedder(index.retriever, model_name(index.model))
    embedder.warm_up()
    texts = Texts(["Who?"], "query", embedder.width, cut=True)
    vectors = stack([embedder.run(embedder.prepare(texts))[0].vector])
    for by in ("dense", "hybrid"):  # compiles the search, and reads the files once
        index.search(["Who?"], by=by, vectors=vectors, rerank=False)
    return ServedIndex(index, embedder)


def _load_reranker(index: Index) -> Reranker:
    reranker = Reranker(index.reranker, model_name(index.manifest.reranker))
    reranker.warm_up()
    return reranker


def _damage(index: Index) -> str:
    """Which file of an index is damaged, in words; empty if none is, or others replaced them."""
    reason = folders.damage_of(index.manifest, index.folder, verify=True)
    return reason if folders.read_manifest(index.folder) == index.manifest else ""


def _lane_label(lane: Lane) -> str:
    """The name of a lane in the metrics."""
    if lane is CALLS:
        return "search"
    return "embed" if isinstance(lane, Embedder) else "rerank"
