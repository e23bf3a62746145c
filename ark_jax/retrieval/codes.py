"""Unit vectors of tokens in a few bits a component: packed and unpacked.

A fixed rotation gives the components of any unit vector `[e]` about the distribution of normal
numbers of variance 1 / e. Thresholds and levels are quantiles and means of that distribution, so no
corpus decides them, and a vector has the same code in every index. Norms stay: unpacked vectors
have length 1.

A code `[columns]` of 32-bit integers has a plane of bits for each bit of a component, the signs
first. Files hold columns one after another, so that a screen reads the signs alone.
"""

import functools

import numpy as np
from jaxtyping import Float, UInt

from ark_jax.text.token_vectors import TokenVectors

BITS = (1, 2, 4, 8)  # of a component
DTYPE = np.dtype("<u4")
ROTATION = 45  # seed of the rotation
WORD = 32  # components that share an integer
ROWS = 1 << 14  # that are packed at once, since planes take much memory


def is_packed(vectors: TokenVectors) -> bool:
    """Whether codes stand in place of the numbers."""
    return vectors.values.dtype == DTYPE


def columns(width: int, bits: int) -> int:
    """Integers in the code of a vector."""
    return bits * -(-width // WORD)


def rotate(vectors: Float[np.ndarray, "t e"]) -> Float[np.ndarray, "t e"]:
    """The vectors in the coordinates of `unpack`; cosines stay."""
    return vectors.astype(np.float32, copy=False) @ _rotation(vectors.shape[1])


def pack(vectors: Float[np.ndarray, "t e"], bits: int) -> UInt[np.ndarray, "t columns"]:
    """The codes of unit vectors."""
    tokens, width = vectors.shape
    if tokens > ROWS:
        return np.concatenate([pack(vectors[i : i + ROWS], bits) for i in range(0, tokens, ROWS)])
    thresholds, _ = _levels(bits)
    numbers = np.searchsorted(thresholds / np.float32(width**0.5), rotate(vectors), side="right")
    planes = np.zeros((tokens, bits, -(-width // WORD) * WORD), bool)
    for plane in range(bits):
        planes[:, plane, :width] = numbers >> (bits - 1 - plane) & 1
    packed = np.packbits(planes, axis=2, bitorder="little")
    return packed.view(DTYPE).reshape(tokens, columns(width, bits))


def unpack(codes: UInt[np.ndarray, "t columns"], width: int) -> Float[np.ndarray, "t e"]:
    """The rotated unit vectors that codes stand for."""
    bits = codes.shape[1] // columns(width, 1)
    words = np.ascontiguousarray(codes).reshape(len(codes), bits, columns(width, 1))
    planes = np.unpackbits(words.view(np.uint8), axis=2, bitorder="little")[:, :, :width]
    numbers = planes[:, 0]
    for plane in range(1, bits):
        numbers = 2 * numbers + planes[:, plane]
    vectors = _levels(bits)[1][numbers]
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def restore(vectors: np.ndarray, width: int) -> Float[np.ndarray, "t e"]:
    """The vectors `[t e]` of a text in the model's coordinates, from codes or from numbers."""
    if vectors.dtype == DTYPE:
        return unpack(vectors, width) @ _rotation(width).T
    return vectors.astype(np.float32)


@functools.cache
def _rotation(width: int) -> Float[np.ndarray, "e e"]:
    """A random orthogonal matrix, the same on every machine up to rounding."""
    # Numbers of RandomState, unlike those of newer generators, never change with numpy's version.
    normal = np.random.RandomState(ROTATION).standard_normal((width, width))
    return np.linalg.qr(normal)[0].astype(np.float32)


@functools.cache
def _levels(bits: int) -> tuple[Float[np.ndarray, " thresholds"], Float[np.ndarray, " levels"]]:
    """Quantiles of a normal number, and its means between them."""
    from scipy.special import ndtri  # takes as long to import as an index to open

    count = 1 << bits
    edges = ndtri(np.arange(count + 1) / count)
    density = np.exp(-(edges**2) / 2)
    levels = (density[:-1] - density[1:]) * count / np.sqrt(2 * np.pi)
    return edges[1:-1].astype(np.float32), levels.astype(np.float32)
