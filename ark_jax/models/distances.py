"""Rows of tables that hold something for each distance between two tokens of a text."""

import functools

import numpy as np
from jaxtyping import Int


@functools.lru_cache(maxsize=64)
def rows_of_bias(tokens: int, buckets: int, farthest: int) -> Int[np.ndarray, "t s"]:
    """MPNet's bucket of each pair (query, key), as T5's: half of them for keys on each side.

    The first half of a side's buckets hold one distance each, the others grow by a factor.
    """
    distance = np.arange(tokens)[None] - np.arange(tokens)[:, None]
    half = buckets // 2
    exact, far = half // 2, np.maximum(np.abs(distance), 1).astype(np.float32)
    grown = np.log(far / np.float32(exact)) / np.float32(np.log(farthest / exact))
    bucket = np.minimum(exact + (grown * (half - exact)).astype(np.int32), half - 1)
    bucket = np.where(np.abs(distance) < exact, np.abs(distance), bucket)
    return (bucket + half * (distance > 0)).astype(np.int32)


@functools.lru_cache(maxsize=64)
def rows_of_states(tokens: int, buckets: int, farthest: int) -> Int[np.ndarray, "t s"]:
    """DeBERTa's row of each pair (query, key); `buckets` are those of both sides.

    Beyond half of a side's buckets, they grow by a factor, up to `farthest`; 0 bounds distances.
    """
    distance = np.arange(tokens)[:, None] - np.arange(tokens)[None]
    side = buckets // 2
    if farthest:
        middle = side // 2
        far = np.maximum(np.abs(distance), middle).astype(np.float32)
        grown = np.log(far / np.float32(middle)) / np.log(np.float32((farthest - 1) / middle))
        bucket = np.ceil(grown * np.float32(middle - 1)) + middle
        bucket = np.where(np.abs(distance) <= middle, np.abs(distance), bucket)
        distance = (np.sign(distance) * bucket).astype(np.int32)
    return np.clip(distance + side, 0, buckets - 1).astype(np.int32)
