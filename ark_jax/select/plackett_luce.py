"""Plackett-Luce: candidates are drawn one after the other, without replacement.

The softmax of the remaining candidates' scores gives the probabilities at each place. A score may
depend on earlier draws. If `pairs` is zero it does not, and `draw` is the Gumbel top-k trick.

All functions take the candidates of one question; `jax.vmap` adds questions.
"""

import functools
import itertools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

NOT_DRAWN = -1  # fills the places of a draw after the last candidate
FLOOR = -1e30  # score of a candidate that cannot be drawn; finite, so that no gradient is NaN
MOST_ORDERINGS = 1000  # up to which the entropy is summed over all ordered draws


class Candidates(NamedTuple):
    """The candidates of one question, and their scores."""

    scores: Float[Array, " n"]  # of each candidate, logits
    present: Bool[Array, " n"]  # questions differ in their number of candidates
    pairs: Float[Array, "n n"]  # [i, j]: added to the score of i, as a mean over all drawn j


def place_log_probs(candidates: Candidates, draws: Int[Array, "m k"]) -> Float[Array, "m k"]:
    """Log-probability of each place of ordered draws, given the places before it.

    Their sum over k is the log-probability of a draw. It is -inf for a draw that names a candidate
    twice, names one that is absent, or stops although candidates are left.
    """

    def score_place(drawn: jax.Array, numbers: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Adds the candidates of one place to those drawn before; gives their log-probability."""
        left, scores = _remaining(candidates, drawn)
        named = numbers[:, None] == jnp.arange(left.shape[-1])
        possible = jnp.where(numbers == NOT_DRAWN, ~left.any(-1), (named & left).any(-1))
        value = jnp.where(named, jax.nn.log_softmax(scores), 0).sum(-1)
        return drawn | named, jnp.where(possible, value, -jnp.inf)

    return jax.lax.scan(score_place, _nothing_drawn(candidates, len(draws)), draws.T)[1].T


def draw(candidates: Candidates, noise: Float[Array, "m k n"]) -> Int[Array, "m k"]:
    """Draws m times k candidates in order.

    Args:
        noise: from `gumbel`. Zeros take the candidate of the highest score at each place, the first
            one of equals.

    Returns:
        Positions of candidates; NOT_DRAWN where no candidate was left.
    """

    def draw_place(drawn: jax.Array, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Draws the candidates of one place, and adds them to those drawn before."""
        left, scores = _remaining(candidates, drawn)
        best = jnp.argmax(jnp.where(left, scores + noise, -jnp.inf), -1)
        numbers = jnp.where(left.any(-1), best, NOT_DRAWN).astype(jnp.int32)
        return drawn | (numbers[:, None] == jnp.arange(left.shape[-1])), numbers

    start = _nothing_drawn(candidates, len(noise))
    return jax.lax.scan(draw_place, start, jnp.swapaxes(noise, 0, 1))[1].T


def gumbel(
    seed: int | Int[Array, ""],
    step: int | Int[Array, ""],
    question: int | Int[Array, ""],
    *,
    draws: int,
    k: int,
    candidates: int,
) -> Float[Array, "m k n"]:
    """Noise for `draw`: m = `draws` sets of k places for n = `candidates`.

    Each number depends on (seed, step, question, set, place, candidate) alone. So
    neither other questions of a call nor absent candidates change the draws.
    """
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), step), question)
    keys_of_sets = _fold_in_numbers(key, draws)
    keys_of_places = jax.vmap(lambda key: _fold_in_numbers(key, k))(keys_of_sets)
    # A longer row of noise begins with the values of a shorter one.
    noise_of_place = lambda key: jax.random.gumbel(key, (candidates,))
    return jax.vmap(jax.vmap(noise_of_place))(keys_of_places)


def _fold_in_numbers(key: jax.Array, count: int) -> jax.Array:
    """`count` random keys, each from `key` and its number."""
    return jax.vmap(lambda number: jax.random.fold_in(key, number))(jnp.arange(count))


def entropy(candidates: Candidates, draws: Int[Array, "m k"]) -> Float[Array, ""]:
    """The entropy of an ordered draw, nats.

    It is exact if n candidates have at most MOST_ORDERINGS ordered draws. Otherwise it is the mean
    over `draws` of the entropies at their places, which has no bias and less noise than the mean of
    -log p.
    """
    n, k = candidates.scores.shape[-1], draws.shape[-1]
    if sum(math.perm(n, size) for size in range(min(n, k) + 1)) <= MOST_ORDERINGS:
        log_probs = place_log_probs(candidates, jnp.asarray(orderings(n, k))).sum(-1)
        return -_p_log_p(log_probs).sum()

    def place_entropy(drawn: jax.Array, numbers: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Adds the candidates of one place to those drawn before; gives the place's entropy."""
        left, scores = _remaining(candidates, drawn)
        log_probs = jnp.where(left, jax.nn.log_softmax(scores), -jnp.inf)
        return drawn | (numbers[:, None] == jnp.arange(n)), -_p_log_p(log_probs).sum(-1)

    _, values = jax.lax.scan(place_entropy, _nothing_drawn(candidates, len(draws)), draws.T)
    return values.sum(0).mean()


@functools.lru_cache(maxsize=8)
def orderings(n: int, k: int) -> np.ndarray:
    """All ordered draws of at most k of n candidates, int32 `[draws k]`, NOT_DRAWN at their ends.

    Shorter draws occur where fewer than k candidates are present.
    """
    rows = [
        chosen + (NOT_DRAWN,) * (k - size)
        for size in range(min(n, k) + 1)
        for chosen in itertools.permutations(range(n), size)
    ]
    return np.array(rows, np.int32).reshape(len(rows), k)


def _remaining(
    candidates: Candidates, drawn: Bool[Array, "m n"]
) -> tuple[Bool[Array, "m n"], Float[Array, "m n"]]:
    """Which candidates can still be drawn, and their scores; `FLOOR` for all others."""
    weights = drawn / jnp.maximum(drawn.sum(-1, keepdims=True), 1)
    effects = jnp.einsum("mj,ij->mi", weights, candidates.pairs, precision="highest")
    left = candidates.present & ~drawn
    return left, jnp.where(left, candidates.scores + effects, FLOOR)


def _nothing_drawn(candidates: Candidates, draws: int) -> Bool[Array, "m n"]:
    """The state before the first place: which candidates each of m draws has taken."""
    return jnp.zeros((draws, candidates.scores.shape[-1]), bool)


def _p_log_p(log_probs: Float[Array, "*b"]) -> Float[Array, "*b"]:
    """p log p; 0 where p is 0."""
    possible = jnp.isfinite(log_probs)
    finite = jnp.where(possible, log_probs, 0)
    return jnp.where(possible, jnp.exp(finite) * finite, 0)
