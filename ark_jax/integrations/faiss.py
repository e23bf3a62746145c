"""The vectors of an index as a FAISS file."""

import os

import faiss
import numpy as np

from ark_jax.index.index import Index
from ark_jax.runtime.storage import local_path
from ark_jax.text.token_vectors import check_one_each

BLOCK = 8192  # vectors in memory at once


def write(index: Index, path: str) -> None:
    """Writes an `IndexFlatIP`, whose row i is the vector of `index.chunks[i]`.

    Inner products of unit vectors are cosines.

    Raises:
        ValueError: the file is in a bucket, or the index has vectors of tokens.
    """
    vectors = check_one_each(index.vectors, "FAISS")
    flat = faiss.IndexFlatIP(vectors.shape[1])
    for start in range(0, len(index), BLOCK):
        flat.add(np.asarray(vectors[start : start + BLOCK], np.float32))
    file = local_path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    faiss.write_index(flat, f"{file}.new")
    os.replace(f"{file}.new", file)
