"""Ordered draws: against exact fractions, enumeration and frequencies."""

import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from ark_jax.select import plackett_luce as pl

pytestmark = pytest.mark.usefixtures("mesh")


def candidates(scores, present=None, pairs=None) -> pl.Candidates:
    n = len(scores)
    present = np.ones(n, bool) if present is None else np.array(present, bool)
    pairs = np.zeros((n, n)) if pairs is None else np.array(pairs)
    return pl.Candidates(
        jnp.asarray(scores, jnp.float32), jnp.asarray(present), jnp.asarray(pairs, jnp.float32)
    )


@jax.jit
def log_probs(chosen: pl.Candidates, draws) -> jax.Array:
    return pl.place_log_probs(chosen, jnp.asarray(draws, jnp.int32)).sum(-1)


def probabilities(chosen: pl.Candidates, draws) -> np.ndarray:
    return np.exp(np.asarray(log_probs(chosen, draws), np.float64))


def random_candidates(seed: int, n: int = 5, absent: int = 0, pairs: float = 1.0) -> pl.Candidates:
    rng = np.random.default_rng(seed)
    present = rng.permutation(n) >= absent
    return candidates(rng.normal(0, 1.5, n), present, pairs * rng.normal(0, 1.5, (n, n)))


def test_probabilities_of_draws_equal_exact_fractions():
    # Weights 1, 2, 4: 2 is drawn first with 4/7, then 0 with 1/3, then 1 is left.
    weights = [1, 2, 4]
    draws = [[2, 0, 1], [0, 1, 2], [1, 2, 0]]
    exact = [Fraction(weights[a], 7) * Fraction(weights[b], 7 - weights[a]) for a, b, _ in draws]
    assert exact[0] == Fraction(4, 21)
    values = probabilities(candidates(np.log(weights)), draws)
    np.testing.assert_allclose(values, list(map(float, exact)), rtol=1e-6)


def test_earlier_draws_change_the_scores_by_their_mean_effect():
    pairs = np.zeros((4, 4))
    pairs[3, 0], pairs[3, 1], pairs[2, 0] = math.log(9), math.log(4), math.log(5)
    # After 0: weights 1, 5, 9. After 0 and 1: the means of effects, sqrt(5) and sqrt(9 * 4) = 6.
    expected = 1 / 4 * 1 / 15 * 6 / (6 + math.sqrt(5))
    value = probabilities(candidates(np.zeros(4), pairs=pairs), [[0, 1, 3]])
    np.testing.assert_allclose(value, [expected], rtol=1e-6)


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.integers(0, 5), st.booleans())
def test_probabilities_of_all_draws_sum_to_one(seed, absent, depend):
    chosen = random_candidates(seed, absent=absent, pairs=float(depend))
    every = pl.orderings(5, 3)
    values = probabilities(chosen, every)
    assert values.sum() == pytest.approx(1, abs=1e-5)
    # Only draws of as many as there are, up to three, and of none that is absent.
    lengths = (every != pl.NOT_DRAWN).sum(1)
    gone = ~np.append(chosen.present, True)[every].all(1)
    assert (values[(lengths != min(3, 5 - absent)) | gone] == 0).all()
    assert (values[(lengths == min(3, 5 - absent)) & ~gone] > 0).all()


@pytest.mark.parametrize("draw", [[0, 0], [1, 3], [0, -1], [-1, 0], [0, 4], [-2, 1]], ids=str)
def test_an_impossible_draw_has_zero_probability_and_a_finite_gradient(draw):
    chosen = candidates([0.3, 0.1, 0.2, 0.5], present=[True, True, True, False])
    assert np.isneginf(log_probs(chosen, [draw])[0])
    score = lambda s: (
        jnp.where(jnp.isfinite(log_probs(chosen._replace(scores=s), [draw, [0, 1]])), 1, 0)
        @ jnp.nan_to_num(log_probs(chosen._replace(scores=s), [draw, [0, 1]]), neginf=0)
    )
    assert np.isfinite(jax.grad(score)(chosen.scores)).all()


def draws_of(chosen: pl.Candidates, sets: int, k: int, seed: int = 3) -> np.ndarray:
    noise = pl.gumbel(seed, 5, 7, draws=sets, k=k, candidates=len(chosen.scores))
    return np.asarray(jax.jit(pl.draw)(chosen, noise))


@pytest.mark.parametrize(("absent", "pairs"), [(0, 0.0), (0, 1.0), (2, 1.0), (3, 1.0)], ids=str)
def test_draw_frequencies_match_their_probabilities(absent, pairs):
    chosen = random_candidates(11, absent=absent, pairs=pairs)
    every = pl.orderings(5, 3)
    expected = probabilities(chosen, every) * 20_000
    drawn = draws_of(chosen, 20_000, 3)
    places = {tuple(row): i for i, row in enumerate(every.tolist())}
    counts = np.bincount([places[tuple(row)] for row in drawn.tolist()], minlength=len(every))
    assert counts[expected == 0].sum() == 0
    assert chi_square(counts, expected) > 1e-3
    # The test would notice a wrong policy.
    wrong = probabilities(chosen._replace(scores=chosen.scores * 0.9), every) * 20_000
    assert chi_square(counts, wrong) < 1e-3


def chi_square(counts: np.ndarray, expected: np.ndarray) -> float:
    """The p-value; draws that are expected less than five times are taken together."""
    common = expected >= 5
    pooled = [np.append(x[common], x[~common].sum()) for x in (counts, expected)]
    observed, wanted = (x[pooled[1] > 1e-9] for x in pooled)
    assert len(observed) > 1
    return stats.chisquare(observed, wanted * observed.sum() / wanted.sum()).pvalue


def test_without_pair_effects_draws_are_the_top_k_of_noisy_scores():
    chosen = random_candidates(2, n=9, pairs=0.0)
    noise = pl.gumbel(0, 0, 0, draws=40, k=1, candidates=9)
    _, top = jax.lax.top_k(chosen.scores + noise[:, 0], 4)
    drawn = pl.draw(chosen, jnp.broadcast_to(noise, (40, 4, 9)))
    np.testing.assert_array_equal(drawn, top)


def test_without_noise_the_best_are_drawn_with_ties_in_order():
    chosen = candidates([0.2, 0.7, 0.7, 0.1], present=[True, True, True, False])
    drawn = pl.draw(chosen, jnp.zeros((1, 4, 4)))
    np.testing.assert_array_equal(drawn, [[1, 2, 0, pl.NOT_DRAWN]])


def test_noise_depends_only_on_seed_step_question_and_set():
    noise = lambda *place, **shape: np.asarray(
        pl.gumbel(*place, **{"draws": 3, "k": 2, "candidates": 6} | shape)
    )
    first = noise(1, 2, 3)
    np.testing.assert_array_equal(noise(1, 2, 3, draws=5)[:3], first)
    np.testing.assert_array_equal(noise(1, 2, 3, k=4)[:, :2], first)
    np.testing.assert_array_equal(noise(1, 2, 3, candidates=11)[..., :6], first)
    for place in ((2, 2, 3), (1, 3, 3), (1, 2, 4), (2, 1, 3), (1, 3, 2)):
        assert (noise(*place) != first).all()
    assert len(np.unique(first)) == first.size
    # The same in a call of several questions.
    several = jax.vmap(lambda q: pl.gumbel(1, 2, q, draws=3, k=2, candidates=6))
    np.testing.assert_array_equal(several(jnp.array([8, 3]))[1], first)


def test_the_sampled_policy_gradient_matches_the_enumerated_one():
    chosen = random_candidates(4, n=4)
    every = jnp.asarray(pl.orderings(4, 2))
    rewards = jnp.asarray(np.random.default_rng(0).normal(size=len(every)), jnp.float32)

    def expected(scores):
        values = log_probs(chosen._replace(scores=scores), every)
        return (jnp.exp(values) * rewards).sum()

    exact = jax.grad(expected)(chosen.scores)
    drawn = draws_of(chosen, 40_000, 2)
    places = {tuple(row): i for i, row in enumerate(np.asarray(every).tolist())}
    gained = rewards[np.array([places[tuple(row)] for row in drawn.tolist()])]
    sampled = jax.grad(lambda s: (log_probs(chosen._replace(scores=s), drawn) * gained).mean())(
        chosen.scores
    )
    assert np.abs(exact).max() > 0.1
    np.testing.assert_allclose(sampled, exact, atol=0.015)


def test_entropy_is_exact_if_draws_can_be_enumerated_and_else_estimated(monkeypatch):
    alike = float(pl.entropy(candidates(np.zeros(5)), jnp.zeros((1, 2), jnp.int32)))
    assert alike == pytest.approx(math.log(20), abs=1e-5)
    chosen = random_candidates(6, absent=1)
    drawn = jnp.asarray(draws_of(chosen, 2_000, 2))
    values = probabilities(chosen, pl.orderings(5, 2))
    exact = stats.entropy(values)
    assert float(pl.entropy(chosen, drawn)) == pytest.approx(exact, abs=1e-5)
    gradient = jax.grad(lambda s: pl.entropy(chosen._replace(scores=s), drawn))(chosen.scores)
    assert np.isfinite(gradient).all()
    # Otherwise by draws, with less noise than the mean of -log p has.
    monkeypatch.setattr(pl, "MOST_ORDERINGS", 0)
    assert float(pl.entropy(chosen, drawn)) == pytest.approx(exact, abs=0.03)
    estimates = jax.vmap(lambda part: pl.entropy(chosen, part))(drawn.reshape(100, 20, 2))
    plain = -np.asarray(log_probs(chosen, drawn)).reshape(100, 20).mean(1)
    assert np.std(estimates) < 0.7 * np.std(plain)


def test_entropy_counts_only_present_candidates():
    chosen = candidates([0.0, 0.0, 5.0], present=[True, True, False])
    drawn = jnp.asarray(draws_of(chosen, 2, 3))
    assert float(pl.entropy(chosen, drawn)) == pytest.approx(math.log(2), abs=1e-6)


def test_draws_and_log_probabilities_are_the_same_on_any_mesh(two_meshes):
    chosen = random_candidates(11)
    drawn = draws_of(chosen, 2, 3)
    # As one device drew them once: each mesh must give these draws again.
    np.testing.assert_array_equal(drawn, [[4, 0, 3], [0, 1, 2]])
    np.testing.assert_allclose(log_probs(chosen, drawn), [-3.519579, -4.271032], atol=1e-5)
