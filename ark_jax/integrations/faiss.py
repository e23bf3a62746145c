"""The vectors of an index as a FAISS file."""

import os
from pathlib import Path

import faiss
import numpy as np

from ark_jax.index.index import Index

BLOCK = 8192  # vectors in memory at once


def write(index: Index, path: str) -> None:
    """Writes an `IndexFlatIP`, whose row i is the vector of `index.chunks[i]`.

    Inner products of unit vectors are cosines.
    """
    flat = faiss.IndexFlatIP(index.vectors.shape[1])
    for start in range(0, len(index), BLOCK):
        flat.add(np.asarray(index.vectors[start : start + BLOCK], np.float32))
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    faiss.write_index(flat, f"{path}.new")
    os.replace(f"{path}.new", path)
