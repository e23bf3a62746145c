"""Bootstrap intervals against the normal approximation; the randomisation test against scipy."""

import itertools
import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from ark_jax.evaluate import significance
from ark_jax.evaluate.significance import bootstrap_interval, holm, sign_flip


def one(values, draws: int = 10_000, seed: int = 0) -> float:
    return sign_flip(np.array(values, float)[:, None], draws=draws, seed=seed)[0]


@pytest.mark.parametrize(
    "values, p",
    [
        ([1, 1, 1], 2 / 8),  # all up, or all down
        ([3, 2, 1], 2 / 8),
        ([3, 2, -1], 4 / 8),  # 6, 4, -4, -6 of 6 4 2 0 0 -2 -4 -6
        ([1, -1], 1.0),
        ([0.1, 0.2, -0.3], 1.0),  # sums to zero but for rounding
        ([0.1] * 5, 2 / 32),
        ([5], 1.0),
        ([5, 0, 0, 0], 1.0),  # what does not differ says nothing
        ([1, 2, 0, 3, 4, 0, 5], 2 / 32),
        ([0, 0], 1.0),
        ([], 1.0),
    ],
)
def test_the_exact_p_value_equals_a_count_by_hand(values, p):
    assert one(values) == pytest.approx(p, abs=1e-15)
    assert one([-x for x in values]) == one(values)


VALUES = st.lists(
    st.sampled_from([-1.0, -0.5, -0.37, 0.0, 0.1, 0.2, 0.3, 1.0]), min_size=2, max_size=9
)


@settings(deadline=None)
@given(VALUES)
def test_the_exact_p_value_matches_scipy(values):
    # In hundredths, whose sums are exact: scipy takes what differs by rounding alone for different.
    exact = np.round(np.multiply(values, 100))
    wanted = scipy.stats.permutation_test(
        (exact, 0 * exact),
        lambda x, y, axis: np.sum(x - y, axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=np.inf,
    )
    assert one(values) == pytest.approx(wanted.pvalue, abs=1e-12)
    sums = [
        sum(s * x for s, x in zip(signs, values, strict=True))
        for signs in itertools.product((1, -1), repeat=len(values))
    ]
    assert one(values) == np.mean(np.abs(sums) >= abs(sum(values)) - 1e-9)


@pytest.mark.parametrize("shift", [0.0, 0.2, 0.5])
def test_the_sampled_p_value_matches_scipy(shift):
    values = np.random.default_rng(5).normal(shift, 1, 40)
    wanted = scipy.stats.permutation_test(
        (values, np.zeros(40)),
        lambda x, y, axis: np.sum(x - y, axis),
        rng=1,
        permutation_type="samples",
        vectorized=True,
        n_resamples=20_000,
    ).pvalue
    p = one(values, draws=20_000)
    # Five standard errors of the difference of two sampled shares.
    assert p == pytest.approx(wanted, abs=5 * np.sqrt(2 * max(wanted, 1e-3) / 20_000))
    assert p > 0


@pytest.mark.parametrize("shift", [0.0, 0.2, 0.5])
def test_the_sampled_p_value_depends_on_the_seed(shift):
    values = np.random.default_rng(5).normal(shift, 1, 40)
    p = one(values, draws=20_000)
    assert p == one(values, draws=20_000)
    assert p != one(values, draws=20_000, seed=1)


def test_columns_are_tested_independently_of_each_other():
    random = np.random.default_rng(0).normal(0.3, 1, 30)
    values = np.stack([np.ones(30), random, np.r_[1, 2, 4, np.zeros(27)]], 1)
    together = sign_flip(values, draws=999, seed=3)
    assert together.tolist() == [one(column, draws=999, seed=3) for column in values.T]


def test_a_sampled_p_value_is_never_zero():
    # The observed difference counts as a draw, and none of 999 is as large: (0 + 1) / (999 + 1).
    assert one(np.ones(30), draws=999, seed=3) == 1 / 1000


def test_zero_differences_do_not_count_as_questions():
    # Three differences are left, whose signs are enumerated: all up or all down of eight.
    assert one(np.r_[1, 2, 4, np.zeros(27)], draws=999, seed=3) == 2 / 8


def test_testing_no_columns_gives_no_p_values():
    assert sign_flip(np.zeros((4, 0)), draws=10, seed=0).shape == (0,)


def test_p_values_of_noise_are_uniform():
    """Of a thousand tests of noise one in twenty is below 0.05."""
    noise = np.random.default_rng(7).normal(0, 1, (25, 1000))
    p = sign_flip(noise, draws=2000, seed=0)
    assert np.mean(p < 0.05) == pytest.approx(0.05, abs=0.02)
    assert np.mean(p < 0.5) == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("differences, draws", [([[np.nan]], 10), ([[np.inf]], 10), ([[1.0]], 0)])
def test_invalid_differences_and_draws_are_refused(differences, draws):
    with pytest.raises(ValueError, match="must be finite, draws at least 1"):
        sign_flip(np.array(differences), draws=draws, seed=0)


@pytest.mark.parametrize(
    "p, corrected",
    [
        ([0.01], [0.01]),
        ([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02]),
        ([0.04, 0.04], [0.08, 0.08]),
        ([0.6, 0.9], [1.0, 1.0]),
        ([0.001, 0.5, 0.02], [0.003, 0.5, 0.04]),
        ([], []),
    ],
)
def test_holm_corrections_equal_values_computed_by_hand(p, corrected):
    assert holm(p).tolist() == pytest.approx(corrected)


def test_a_bootstrap_interval_of_40_values_is_near_the_normal_one():
    values = np.random.default_rng(0).random(40).tolist()
    interval = bootstrap_interval(values, draws=2000, seed=3)
    half = 1.96 * np.std(values) / math.sqrt(40)
    assert interval["mean"] == pytest.approx(sum(values) / 40)
    assert interval["low"] == pytest.approx(interval["mean"] - half, abs=0.02)
    assert interval["high"] == pytest.approx(interval["mean"] + half, abs=0.02)


def test_a_bootstrap_interval_depends_only_on_its_seed():
    values = np.random.default_rng(0).random(40).tolist()
    interval = bootstrap_interval(values, draws=2000, seed=3)
    assert bootstrap_interval(values, draws=2000, seed=3) == interval
    assert bootstrap_interval(values, draws=2000, seed=4) != interval


def test_a_bootstrap_interval_of_equal_values_is_a_point():
    point = {"mean": 0.5, "low": 0.5, "high": 0.5}
    assert bootstrap_interval([0.5, 0.5], draws=10, seed=0) == point


def test_a_bootstrap_interval_of_no_values_is_nan():
    assert all(math.isnan(x) for x in bootstrap_interval([], draws=10, seed=0).values())


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_a_bootstrap_interval_stays_within_the_values(values):
    interval = bootstrap_interval(values, draws=200, seed=0)
    assert min(values) - 1e-9 <= interval["low"] <= interval["high"] <= max(values) + 1e-9
    assert interval["mean"] == pytest.approx(np.mean(values))


def test_the_smallest_detectable_difference_has_a_power_of_four_fifths():
    """A paired test of simulated questions finds the smallest difference four times of five."""
    rng = np.random.default_rng(7)
    for questions in (20, 200):
        mean = significance.smallest_difference(questions)
        drawn = rng.normal(mean, significance.DEVIATION, (questions, 400))
        p = significance.sign_flip(drawn, draws=500, seed=1)
        assert 0.72 < (p < 0.05).mean() < 0.88
    assert significance.smallest_difference(5) == pytest.approx(0.30, abs=0.01)
    assert significance.smallest_difference(1) < 1
    assert "likely miss a difference in nDCG@10 below 0.30" in significance.detectable_difference(5)


def test_questions_of_one_document_count_as_one_observation():
    """Four equal questions of a document tell as much as one."""
    by_document = [0.1, 0.4, -0.2, 0.3, 0.2]
    values, names = np.repeat(by_document, 4), [name for name in "abcde" for _ in range(4)]
    options = {"draws": 2000, "seed": 3}
    alone = bootstrap_interval(by_document, **options)
    assert bootstrap_interval(values, clusters=names, **options) == pytest.approx(alone)
    p_of_documents = sign_flip(values[::4, None], **options)
    clustered = sign_flip(values[:, None], clusters=names, **options)
    assert clustered == pytest.approx(p_of_documents)
    assert sign_flip(values[:, None], **options) < 0.01 < p_of_documents


def test_a_wrong_number_of_clusters_is_refused():
    with pytest.raises(ValueError, match="3 clusters for 20 values"):
        sign_flip(np.ones((20, 1)), clusters=["a", "b", "c"], draws=10, seed=0)


def test_documents_are_weighted_by_their_number_of_questions():
    values, names = np.array([1.0, 1.0, 1.0, 0.0]), ["a", "a", "a", "b"]
    interval = bootstrap_interval(values, draws=500, seed=0, clusters=names)
    # Two documents are drawn: the means are those of aa, ab and bb.
    assert interval == {"mean": 0.75, "low": 0.0, "high": 1.0}
