"""The passages and vectors of an index as a collection of Qdrant, which can be searched there."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator

import numpy as np
from qdrant_client import QdrantClient
from qdrant_client.http.exceptions import ApiException
from qdrant_client.models import (
    Distance,
    MultiVectorComparator,
    MultiVectorConfig,
    PointStruct,
    VectorParams,
)

from ark_jax.index.index import Index
from ark_jax.retrieval.codes import restore
from ark_jax.text.token_vectors import TokenVectors, Vectors


def write(index: Index, url: str) -> None:
    """Writes a collection named after the index's files, unless it exists.

    After a kill, call it again: the id of a point is the row of its chunk.

    Args:
        url: of a server, whose key is in $QDRANT_API_KEY, or a folder.
    """
    name = index.manifest.folder
    of_tokens = isinstance(index.vectors, TokenVectors)
    most_similar = MultiVectorConfig(comparator=MultiVectorComparator.MAX_SIM)
    params = VectorParams(
        size=index.manifest.made_with["width"],
        distance=Distance.DOT,  # of unit vectors the cosine
        multivector_config=most_similar if of_tokens else None,
    )
    point = lambda row: PointStruct(
        id=row,
        vector=restore(index.vectors[row], index.manifest.made_with["width"]).tolist(),
        payload=dataclasses.asdict(index.chunks[row]),
    )
    with _open_client(url) as client:
        if not client.collection_exists(name):
            client.create_collection(name, params)
        if client.count(name, exact=True).count < len(index):
            client.upload_points(name, map(point, range(len(index))), wait=True)


def nearest(url: str, name: str, queries: Vectors, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The k chunks nearest to each question: their rows and scores as `late.nearest`, `[q k]` each.

    For vectors of tokens Qdrant gives a sum of cosines; a score is their mean.
    """
    with _open_client(url) as client:
        if not client.collection_exists(name):
            raise FileNotFoundError(f"{url}: no {name}; `ark-jax index --to=qdrant` writes it")
        search = lambda query: client.query_points(name, query.tolist(), limit=k).points
        results = [search(query) for query in queries]
    rows = np.array([[point.id for point in points] for points in results])
    scores = np.array([[point.score for point in points] for points in results])
    return rows, scores / queries.lengths[:, None] if isinstance(queries, TokenVectors) else scores


@contextlib.contextmanager
def _open_client(url: str) -> Iterator[QdrantClient]:
    """A client of a server or a folder; closes it afterwards.

    Raises:
        ConnectionError: the server refuses a request.
    """
    key = os.environ.get("QDRANT_API_KEY")
    client = QdrantClient(url=url, api_key=key) if "://" in url else QdrantClient(path=url)
    try:
        yield client
    except ApiException as error:
        raise ConnectionError(f"{url}: {error}; mend it, or the key in $QDRANT_API_KEY") from error
    finally:
        client.close()
