"""Losses over the global batch: InfoNCE, distillation, Matryoshka, two margins, two over lists."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float

from ark_jax.layout import BATCH
from ark_jax.models.pooling import unit


@runtime_checkable
class Loss(Protocol):
    """A loss over the questions and passages of a global batch, as `info_nce` is one."""

    def __call__(
        self,
        queries: Float[Array, "b *t e"],
        passages: Float[Array, "c *s e"],
        positive: Bool[Array, "b c"],
        negative: Bool[Array, "b c"],
        *,
        temperature: float,
    ) -> Float[Array, ""]:
        """Returns one number, the mean over what it compares; jax must be able to trace it.

        Args:
            queries, passages: unit vectors, `[b e]` and `[c e]`; by `retriever.vectors=tokens`
                those of tokens, `[b t e]` and `[c s e]`, where padding is zero. Rows without a text
                have no pair in either mask.
            positive: the pairs of a question and a passage that answers it; for `distil` their
                shares, float.
            negative: the pairs of a question and a passage that counts against it.
            temperature: `train.temperature`.
        """


@runtime_checkable
class ListLoss(Protocol):
    """A loss over lists of candidates, as `weighted_lists` is one."""

    def __call__(
        self,
        scores: Float[Array, "lists candidates"],
        present: Bool[Array, "lists candidates"],
        weights: Float[Array, "lists candidates"],
    ) -> Float[Array, ""]:
        """Returns one number, the mean over lists; jax must be able to trace it.

        Args: as of `weighted_lists`.
        """


def on_whole_arrays(loss: Loss | ListLoss) -> Loss | ListLoss:
    """`loss` with all rows on every device and floats in float32, so it need not know the mesh."""

    def replicated(*arrays: jax.Array, **settings: float) -> jax.Array:
        return loss(*map(gather, arrays), **settings)

    def gather(array: jax.Array) -> jax.Array:
        """The array on every device; floats in float32."""
        whole = jax.sharding.reshard(array, P())
        is_float = jnp.issubdtype(array.dtype, jnp.floating)
        return whole.astype(jnp.float32) if is_float else whole

    return replicated


def info_nce(
    queries: Float[Array, "b *t e"],
    passages: Float[Array, "c *s e"],
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
    scores = _cosines(queries, passages) / temperature
    # A finite floor: a question whose batch holds no negative has loss 0, not NaN.
    floored = jnp.where(negative, scores, -1e30)
    negatives = jax.nn.logsumexp(floored, axis=1, keepdims=True)
    # A positive that is also a negative, for its siblings, is in `negatives` already.
    denominator = jnp.where(negative, negatives, jnp.logaddexp(scores, negatives))
    losses = jnp.where(positive, denominator - scores, 0)
    return losses.sum() / jnp.maximum(positive.sum(), 1)


def distil(
    queries: Float[Array, "b *t e"],
    passages: Float[Array, "c *s e"],
    shares: Float[Array, "b c"],
    negative: Bool[Array, "b c"],
    *,
    temperature: float,
) -> Float[Array, ""]:
    """Mean over questions of -sum_c p_c log softmax(cosines / temperature)_c, with a teacher's p.

    The softmax runs over the question's candidates C, which have a share, and its `negative`
    passages, whose share is 0. The loss is the sum of two terms. The first is KL(p || softmax over
    C) plus the entropy of p, which no retriever changes. The second is -log of the mass that C has
    among all: InfoNCE with C as one positive. With a single share of 1, the loss is `info_nce`.

    A listwise KL as in RocketQAv2 (Ren et al. 2021), where the teacher is a cross-encoder in
    training. MarginMSE (Hofstätter et al. 2020) instead fits differences of scores.

    Args:
        shares: of each question's candidates, above 0 and scaled to a sum of 1; 0 elsewhere.
    """
    scores = _cosines(queries, passages) / temperature
    return list_cross_entropy(scores, (shares > 0) | negative, shares)


def matryoshka(
    queries: Float[Array, "b *t e"],
    passages: Float[Array, "c *s e"],
    positive: Bool[Array, "b c"] | Float[Array, "b c"],
    negative: Bool[Array, "b c"],
    *,
    widths: Sequence[int],
    temperature: float,
    scaled: bool = True,
    loss: Loss = info_nce,
) -> Float[Array, ""]:
    """Mean of `loss` over the whole vectors, and over their first components for each of `widths`.

    Kusupati et al. 2022, with equal weights.

    Args:
        scaled: whether truncated vectors are scaled to unit length; not for dot products.
    """
    scale = unit if scaled else lambda x: x
    shortened = [(scale(queries[..., :width]), scale(passages[..., :width])) for width in widths]
    losses = [
        loss(*vectors, positive, negative, temperature=temperature)
        for vectors in [(queries, passages), *shortened]
    ]
    return sum(losses) / len(losses)


def mean_cosines(
    queries: Float[Array, "b *t e"],
    passages: Float[Array, "c *s e"],
    positive: Bool[Array, "b c"] | Float[Array, "b c"],
    negative: Bool[Array, "b c"],
) -> dict[str, Float[Array, ""]]:
    """`positive_cosine` and `negative_cosine`, means over the pairs of a mask; NaN without a pair.

    A pair in both masks counts as positive. No gradient flows.
    """
    cosines = jax.lax.stop_gradient(_cosines(queries, passages))
    masks = {"positive": positive > 0, "negative": negative & (positive == 0)}
    return {
        f"{name}_cosine": jnp.where(mask, cosines, 0).sum() / mask.sum()
        for name, mask in masks.items()
    }


def two_margins(
    queries: Float[Array, "b e"],
    triples: Float[Array, "c e"],
    positive: Bool[Array, "b c"],
    neighbour: Bool[Array, "b c"],
    negative: Bool[Array, "b c"],
    *,
    margins: tuple[float, float],
) -> Float[Array, ""]:
    """Mean over questions of two hinges: neighbour below positive, negative below neighbour.

    Eq. 4 and 5 of GPR, max(0, γ1 + cos n - cos p) + max(0, γ2 + cos g - cos n), where g is the
    nearest of a question's negatives. Without a neighbour, the one hinge is γ1 + γ2 between
    negative and positive. Without a negative, only the first hinge is left. A row without a
    positive is no question.
    """
    scores = _cosines(queries, triples)
    first, second = margins
    is_question, has_neighbour, has_negative = (
        mask.any(axis=1) for mask in (positive, neighbour, negative)
    )
    p, n, g = (
        jnp.where(mask, scores, -1e30).max(axis=1) for mask in (positive, neighbour, negative)
    )

    def hinge(keep: Bool[Array, " b"], value: Float[Array, " b"]) -> Float[Array, " b"]:
        """max(0, value) where `keep` is true, else 0."""
        return jnp.where(keep, jnp.maximum(jnp.where(keep, value, 0), 0), 0)

    losses = (
        hinge(is_question & has_neighbour, first + n - p)
        + hinge(is_question & has_neighbour & has_negative, second + g - n)
        + hinge(is_question & ~has_neighbour & has_negative, first + second + g - p)
    )
    return losses.sum() / jnp.maximum(is_question.sum(), 1)


def weighted_lists(
    scores: Float[Array, "lists candidates"],
    present: Bool[Array, "lists candidates"],
    weights: Float[Array, "lists candidates"],
) -> Float[Array, ""]:
    """Mean over lists of w+ · -log softmax of the positive, eq. 5 of STAR.

    A list is one positive, in column 0, and its negatives. Its loss is
    -log(e^s+ / (e^s+ + sum_i w_i e^s_i)), times the weight w+ of the positive. With all weights 1
    it is cross-entropy over the list.

    Args:
        scores: logits. In a softmax over values in 0..1, candidates could differ by a factor of e
            at most.
        present: which candidates exist, since lists differ in length. A row without a positive is
            no list, a list of its positive alone has loss 0.
        weights: column 0 has w+, the others have w_i, all above 0 where present.
    """
    is_list = present[:, :1]
    shifts = jnp.log(jnp.where(present, weights, 1)).at[:, 0].set(0)
    # A finite floor, as in `info_nce`.
    floored = jnp.where(present, scores + shifts, -1e30)
    values = jax.nn.logsumexp(floored, axis=1, keepdims=True) - scores[:, :1]
    losses = jnp.where(is_list, weights[:, :1] * values, 0)
    return losses.sum() / jnp.maximum(is_list.sum(), 1)


def list_cross_entropy(
    scores: Float[Array, "lists candidates"],
    present: Bool[Array, "lists candidates"],
    targets: Float[Array, "lists candidates"],
) -> Float[Array, ""]:
    """Mean over lists of -sum_i t_i log softmax(s)_i: the scores learn a teacher's shares t.

    It differs from the Kullback-Leibler divergence by the entropy of the shares, which no scorer
    changes.

    Args:
        scores: logits.
        present: which candidates exist, since lists differ in length. A row without any is no list.
        targets: shares, which are scaled to a sum of 1.
    """
    shares = jnp.where(present, targets, 0)
    shares = shares / jnp.maximum(shares.sum(axis=1, keepdims=True), 1e-30)
    logs = jax.nn.log_softmax(jnp.where(present, scores, -1e30), axis=1)
    values = -jnp.where(present, shares * logs, 0).sum(axis=1)
    return values.sum() / jnp.maximum(present.any(axis=1).sum(), 1)


def _cosines(queries: Float[Array, "b *t e"], texts: Float[Array, "c *s e"]) -> Float[Array, "b c"]:
    """Cosines of unit vectors, or the `_maxsim` of vectors of tokens.

    Each device scores its own questions with all texts.
    """
    if queries.ndim == 3:
        return _maxsim(queries, texts)
    return jnp.einsum(
        "be,ce->bc",
        queries,
        jax.sharding.reshard(texts, P()),
        out_sharding=P(BATCH),
        preferred_element_type=jnp.float32,
    )


def _maxsim(queries: Float[Array, "b t e"], texts: Float[Array, "c s e"]) -> Float[Array, "b c"]:
    """The scores of `late.maxsim`. Zero vectors are padding.

    Each device scores all questions with its own share of the texts, since texts have many more
    vectors. It scores one question after another, and computes the scores again for the gradient.
    """
    is_token = jnp.any(texts != 0, axis=-1)

    def compare(query: Float[Array, "t e"]) -> Float[Array, " c"]:
        """The score of one question with each text."""
        cosines = jnp.einsum(
            "cse,te->cst", texts, query, out_sharding=P(BATCH), preferred_element_type=jnp.float32
        )
        best = jnp.where(is_token[:, :, None], cosines, -1).max(axis=1)
        is_query_token = jnp.any(query != 0, axis=-1)
        total = jnp.where(is_query_token, best, 0).sum(axis=-1)
        return total / jnp.maximum(is_query_token.sum(), 1)

    scores = jax.lax.map(jax.checkpoint(compare), jax.sharding.reshard(queries, P()))
    return jax.sharding.reshard(scores, P(BATCH))
