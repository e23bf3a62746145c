"""Chooses texts by the signs of their vectors' components, which fit into caches.

Of a large corpus of tokens, the first signs choose the texts whose other signs are read.
"""

import functools
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, UInt

from ark_jax.retrieval import codes
from ark_jax.text.token_vectors import TokenVectors

SIGNS = 1 << 15  # tokens of texts whose signs are compared at once, so that they stay in a cache
FIRST = 128  # signs of a token that are compared first
WHOLE = 1 << 12  # texts of tokens, at least, whose whole signs are compared; else one of SHARE
PAIRED = 16  # tokens of questions that they are compared with at once
SHARE, LEAST = 64, 1 << 14  # vectors that signs choose: one of SHARE, and at least LEAST
SAMPLED = 16  # one vector of so many tells how many other signs the chosen ones may have


class Signs:
    """The signs of vectors `[n e]` about their mean."""

    def __init__(self, vectors: np.ndarray):
        self._mean = np.asarray(vectors[:: max(len(vectors) // 4096, 1)], np.float32).mean(0)
        self._words = np.empty((codes.columns(len(self._mean), 1), len(vectors)), codes.DTYPE)
        # At random, since every sixteenth chunk may begin a document.
        sampled = max(len(vectors) // SAMPLED, 1)
        self._sample = np.random.default_rng(0).integers(len(vectors), size=sampled)
        for first in range(0, len(vectors), SIGNS):
            rows = np.asarray(vectors[first : first + SIGNS], np.float32)
            self._words[:, first : first + SIGNS] = self._signs(rows).T

    def _signs(self, rows: Float[np.ndarray, "n e"]) -> UInt[np.ndarray, "n words"]:
        packed = np.packbits(rows > self._mean, axis=1, bitorder="little")
        return np.pad(packed, ((0, 0), (0, -packed.shape[1] % 4))).view(codes.DTYPE)

    def choose(self, queries: Float[np.ndarray, "q e"], k: int) -> Iterator[Int[np.ndarray, " c"]]:
        """For each query the vectors with the fewest other signs, in order; never fewer than k."""
        count = self._words.shape[1]
        place = max(LEAST, count // SHARE, 4 * k) * len(self._sample) // count
        for query in self._signs(queries):
            blocks = (self._words[:, i : i + SIGNS] for i in range(0, count, SIGNS))
            distances = np.concatenate([_differences(query[None], block)[0] for block in blocks])
            sample = np.sort(distances[self._sample])
            chosen = np.flatnonzero(distances <= sample[min(place, len(sample) - 1)])
            yield chosen if len(chosen) >= k else np.arange(count)


def screen(
    queries: TokenVectors,
    texts: TokenVectors,
    count: int,
    scope: Int[np.ndarray, " n"] | None = None,
) -> Int[np.ndarray, "q count"]:
    """The `count` texts whose signs are nearest to each query's, lower numbers first.

    Each token of a query takes the token of the text with the fewest other signs. Of equally near
    texts those with lower numbers are taken. Of many more texts than `WHOLE`, only those
    with the nearest first signs count. `scope` is as for `late.nearest`.
    """
    signs = TokenVectors(codes.pack(queries.values, 1), queries.offsets)
    number = len(texts) if scope is None else len(scope)
    wide = max(WHOLE, number // SHARE, 4 * count)
    width = queries.values.shape[1]
    if number < 3 * wide or width <= FIRST:  # the first signs would leave out too little
        return _fewest(_distances(signs, texts, width), count, scope)
    chosen = _fewest(_distances(signs, texts, FIRST), wide, scope)
    stored = TokenVectors(texts.values[:, : codes.columns(width, 1)], texts.offsets)
    for i, rows in enumerate(chosen):
        near = stored[rows if scope is None else scope[rows]]
        chosen[i, :count] = rows[_fewest(_distances(signs[i : i + 1], near, width), count)[0]]
    return chosen[:, :count]


def _distances(signs: TokenVectors, texts: TokenVectors, width: int) -> Int[np.ndarray, "q n"]:
    """How many of the first `width` signs differ, added up over the tokens of each query."""
    words = codes.columns(width, 1)
    asked = np.zeros((-(-len(signs.values) // PAIRED) * PAIRED, words), codes.DTYPE)
    asked[: len(signs.values)] = signs.values[:, :words]
    # An empty text is as far as one whose cosines are 0.
    distances = np.repeat(signs.lengths[:, None], len(texts), 1) * (width // 2)
    asking = np.flatnonzero(signs.lengths)
    size = SIGNS * signs.values.shape[1] // words  # fewer signs of more tokens
    block = np.zeros((words, max(size, int(texts.lengths.max()))), codes.DTYPE)
    for part in texts.slices(size):
        members = texts[part]
        filled = np.flatnonzero(members.lengths)
        if not len(filled) or not len(asking):
            continue
        tokens = len(members.values)
        block[:, :tokens] = members.values[:, :words].T
        parts = asked.reshape(-1, PAIRED, words)
        differences = (_differences(rows, block)[:, :tokens] for rows in parts)
        fewest = [np.minimum.reduceat(x, members.offsets[filled], axis=1) for x in differences]
        least = np.concatenate(fewest)[: len(signs.values)]
        sums = np.add.reduceat(least, signs.offsets[asking], axis=0, dtype=int)
        distances[np.ix_(asking, part.start + filled)] = sums
    return distances


def _fewest(
    distances: Int[np.ndarray, "q n"], count: int, scope: Int[np.ndarray, " n"] | None = None
) -> Int[np.ndarray, "q count"]:
    """The places of the lowest numbers of each row, in order; of equal ones the first."""
    distances = distances if scope is None else distances[:, scope]
    number = distances.shape[1]
    keys = distances * number + np.arange(number)
    return np.sort(np.partition(keys, count - 1, axis=1)[:, :count] % number, axis=1)


def _differences(
    signs: UInt[np.ndarray, "a words"], block: UInt[np.ndarray, "words t"]
) -> UInt[np.ndarray, "a t"]:
    """How many signs of each vector differ from those of each in a block, on the host."""
    with jax.default_device(_host()):
        return np.asarray(_count_differences(signs, block))


@functools.cache
def _host() -> jax.Device:
    """The CPU, or a device where the user has told jax to see no CPU."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        return jax.local_devices()[0]


@jax.jit
def _count_differences(signs: jax.Array, block: jax.Array) -> jax.Array:
    """As `_differences`. A sum of words, not a reduction, is what XLA vectorises."""
    dtype = jnp.uint8 if codes.WORD * len(block) < 256 else jnp.uint16
    words = (
        jax.lax.population_count(theirs ^ ours[:, None]).astype(dtype)
        for theirs, ours in zip(block, signs.T, strict=True)
    )
    return functools.reduce(jnp.add, words)
