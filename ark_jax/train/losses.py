"""InfoNCE over the whole global batch, and its Matryoshka variant."""

from collections.abc import Sequence

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

    The denominator of a pair holds the positive itself and the question's `negative` passages.
    Another positive of the question is in the denominator only where it is in both masks. A
    question without positives has no pair.
    """
    passages = jax.sharding.reshard(passages, P())
    products = jnp.einsum(
        "be,ce->bc", queries, passages, out_sharding=P(BATCH), preferred_element_type=jnp.float32
    )
    scores = products / temperature
    # A finite floor: a question whose batch holds no negative has loss 0, not NaN.
    floored = jnp.where(negative, scores, -1e30)
    negatives = jax.nn.logsumexp(floored, axis=1, keepdims=True)
    # A positive that is also a negative, for its siblings, is in `negatives` already.
    denominator = jnp.where(negative, negatives, jnp.logaddexp(scores, negatives))
    losses = jnp.where(positive, denominator - scores, 0)
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
    """Mean of `info_nce` over the whole vectors and their first `widths` components, scaled to unit
    length.

    Kusupati et al. 2022, with equal weights. Without widths it is `info_nce`.
    """
    shortened = [(_unit(queries[:, :width]), _unit(passages[:, :width])) for width in widths]
    losses = [
        info_nce(*vectors, positive, negative, temperature=temperature)
        for vectors in [(queries, passages), *shortened]
    ]
    return sum(losses) / len(losses)


def _unit(x: Float[Array, "n e"]) -> Float[Array, "n e"]:
    return x * jax.lax.rsqrt(jnp.maximum(jnp.sum(x * x, axis=-1, keepdims=True), 1e-24))
