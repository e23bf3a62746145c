"""The vectors of an index as a USearch file: a graph of near vectors, HNSW."""

import numpy as np
from usearch.index import Index as Graph

from ark_jax.index.index import Index
from ark_jax.integrations import write_file
from ark_jax.text.token_vectors import check_one_each


def write(index: Index, path: str) -> None:
    """Writes a graph by inner products, whose key i is the vector of `index.chunks[i]`.

    Components have 16 bits. The file does not keep `expansion_search`, see `write_file`.

    Raises:
        ValueError: the file is in a bucket, or the index has vectors of tokens.
    """
    vectors = check_one_each(index.vectors, "USearch")
    graph = Graph(ndim=vectors.shape[1], metric="ip", dtype="f16")

    def search(questions: np.ndarray, k: int, expansion: int) -> np.ndarray:
        graph.expansion_search = expansion
        found = graph.search(questions, k)
        is_found = np.arange(k) < np.reshape(found.counts, (-1, 1))
        return np.where(is_found, found.keys.astype(np.int64), -1)

    add = lambda first, block: graph.add(np.arange(first, first + len(block)), block)
    efforts = (64, 128, 256, 512, 1024)
    write_file(path, vectors, add, search, graph.save, "expansion_search", efforts)
