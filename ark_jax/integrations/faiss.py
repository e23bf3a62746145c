"""The vectors of an index as a FAISS file."""

import faiss
import numpy as np

from ark_jax.index.index import Index
from ark_jax.integrations import write_file
from ark_jax.text.token_vectors import check_one_each

PARTED_VECTORS = 200_000  # vectors from which on a search reads a part of them
TRAINING = 40  # vectors a list, from which k-means makes the centres of lists


def write(index: Index, path: str) -> None:
    """Writes an index by inner products, whose row i is the vector of `index.chunks[i]`.

    It is flat, and of many vectors an `IndexIVFFlat`, which keeps its `nprobe`; see `write_file`.

    Raises:
        ValueError: the file is in a bucket, or the index has vectors of tokens.
    """
    vectors = check_one_each(index.vectors, "FAISS")
    lists = int(len(vectors) ** 0.5) if len(vectors) >= PARTED_VECTORS else 0
    kind = f"IVF{lists},Flat" if lists else "Flat"
    made = faiss.index_factory(vectors.shape[1], kind, faiss.METRIC_INNER_PRODUCT)
    if lists:
        sample = np.random.default_rng(0).permutation(len(vectors))[: TRAINING * lists]
        made.train(np.asarray(vectors[np.sort(sample)], np.float32))

    def search(questions: np.ndarray, k: int, nprobe: int) -> np.ndarray:
        if lists:
            made.nprobe = nprobe
        return made.search(questions, k)[1]

    add, save = lambda _, block: made.add(block), lambda file: faiss.write_index(made, file)
    efforts = [*(1 << i for i in range(4, lists.bit_length())), lists]
    write_file(path, vectors, add, search, save, "nprobe" if lists else "", efforts)
