"""InfoNCE over the whole global batch, its Matryoshka variant, and encoding in pieces (GradCache)."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float

from ark_jax.layout import BATCH


def info_nce(
    queries: Float[Array, "b e"],
    passages: Float[Array, "c e"],
    positive: Bool[Array, "b c"],
    negative: Bool[Array, "b c"],
    *,
    temperature: float,
) -> Float[Array, ""]:
    """Mean over all (question, positive) pairs of -log softmax, eq. 7 and 8.

    The denominator of a pair is the positive itself and its question's `negative`, so that other positives of the
    question count only where they are in both masks. A question without positives counts for nothing.
    """
    passages = jax.sharding.reshard(passages, P())
    scores = jnp.einsum("be,ce->bc", queries, passages, out_sharding=P(BATCH),
                        preferred_element_type=jnp.float32) / temperature
    # A finite floor: a question whose batch holds no negative has loss 0, not NaN.
    against = jax.nn.logsumexp(jnp.where(negative, scores, -1e30), axis=1, keepdims=True)
    # A positive that is a negative of its siblings is in `against` already.
    whole = jnp.where(negative, against, jnp.logaddexp(scores, against))
    losses = jnp.where(positive, whole - scores, 0)
    return losses.sum() / jnp.maximum(positive.sum(), 1)


def matryoshka(
    queries: Float[Array, "b e"],
    passages: Float[Array, "c e"],
    positive: Bool[Array, "b c"],
    negative: Bool[Array, "b c"],
    *,
    widths: Sequence[int],
    temperature: float,
) -> Float[Array, ""]:
    """Mean of `info_nce` of the vectors and of their first `widths` components, at unit length again.

    Kusupati et al. 2022, with equal weights; without widths it is `info_nce`.
    """
    unit = lambda x: x * jax.lax.rsqrt(jnp.maximum(jnp.sum(x * x, axis=-1, keepdims=True), 1e-24))
    sides = [(queries, passages), *((unit(queries[:, :width]), unit(passages[:, :width])) for width in widths)]
    return sum(info_nce(*side, positive, negative, temperature=temperature) for side in sides) / len(sides)


def in_chunks(encode: Callable, chunks: int) -> Callable:
    """GradCache: holds the activations of one piece at a time, yet the gradient is that of the whole batch.

    `encode(tokens, mask) -> [b e]`; every piece takes rows from all devices. `b` must be divisible.
    """
    if chunks == 1:
        return encode

    def chunked(tokens, mask):
        b, t = tokens.shape
        split = lambda x: jnp.swapaxes(x.reshape(b // chunks, chunks, t, out_sharding=P(BATCH)), 0, 1)
        piece = jax.checkpoint(lambda _, x: (None, encode(*x)))
        vectors = jax.lax.scan(piece, None, (split(tokens), split(mask)))[1]
        return jnp.swapaxes(vectors, 0, 1).reshape(b, -1, out_sharding=P(BATCH))

    return chunked
