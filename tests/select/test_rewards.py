"""The reward of a set: by hand, and in exact fractions."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ark_jax.select import rewards


@pytest.mark.parametrize(
    ("p", "centre", "expected"),
    [
        (Fraction(0), Fraction(1, 2), 0),
        (Fraction(3, 10), Fraction(1, 2), Fraction(3, 5)),
        (Fraction(1, 2), Fraction(1, 2), 1),
        (Fraction(9, 10), Fraction(1, 2), Fraction(1, 5)),
        (Fraction(1), Fraction(1, 2), 0),
        (Fraction(3, 10), Fraction(3, 5), Fraction(1, 2)),
        (Fraction(3, 5), Fraction(3, 5), 1),
        (Fraction(9, 10), Fraction(3, 5), Fraction(1, 4)),
    ],
    ids=str,
)
def test_the_boundary_reward_is_a_triangle_with_its_top_at_the_centre(p, centre, expected):
    assert rewards.boundary(float(p), centre=float(centre)) == pytest.approx(float(expected))


def test_the_expected_boundary_reward_equals_its_enumeration():
    # By enumeration of the binomial: .754 at the true p = c (K = 10), .625 with four answers.
    for answers, expected in ((10, 0.754), (4, 0.625)):
        mean = sum(
            Fraction(math.comb(answers, right), 2**answers)
            * Fraction(rewards.boundary(right / answers))
            for right in range(answers + 1)
        )
        assert float(mean) == pytest.approx(expected, abs=5e-4)


@given(st.floats(0, 1), st.floats(0.01, 0.99))
def test_the_boundary_reward_is_between_0_and_1(p, centre):
    assert 0 <= rewards.boundary(p, centre=centre) <= 1


@pytest.mark.parametrize("p", [math.nan, -0.1, 1.1, math.inf])
def test_a_value_that_is_not_a_probability_is_refused(p):
    with pytest.raises(ValueError, match=r"p=.*must be from 0 to 1"):
        rewards.boundary(p)


def test_a_likelihood_just_above_1_by_rounding_is_accepted():
    assert rewards.boundary(1 + 1e-9) == 0


@pytest.mark.parametrize("centre", [0.0, 1.0, math.nan])
def test_a_centre_outside_the_open_unit_interval_is_refused(centre):
    with pytest.raises(ValueError, match="must be above 0 and below 1"):
        rewards.boundary(0.5, centre=centre)


def test_relevance_equals_values_computed_by_hand():
    assert rewards.relevance([0.5, -0.25]) == pytest.approx((1 + 0.125) / 2)
    # (6 + 0) / 2 = 3, then 3 / (3 + 10).
    assert rewards.relevance([6.0, -2.0], form="saturating") == pytest.approx(3 / 13)
    assert rewards.relevance([6.0, -2.0], form="saturating", tau=3.0) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("scores", "words"),
    [
        ([], "each document of a set needs one"),
        ([0.5, math.nan], "each document of a set needs one"),
        ([0.5, 7.0], "need form=saturating"),
    ],
)
def test_invalid_relevance_scores_are_refused(scores, words):
    with pytest.raises(ValueError, match=words):
        rewards.relevance(scores)


def test_an_unknown_form_of_relevance_is_refused():
    with pytest.raises(ValueError, match="must be cosine or saturating"):
        rewards.relevance([0.5], form="sigmoid")


def test_the_penalty_for_the_count_is_limited():
    assert [rewards.count_penalty(count) for count in (5, 4, 6, 3, 1, 9)] == [0, 0.5, 0.5, 1, 1, 1]
    assert rewards.count_penalty(1, target=3, rate=0.3, limit=0.5) == 0.5
    assert rewards.count_penalty(2, target=3, rate=0.3, limit=0.5) == 0.3


def test_the_set_reward_equals_eq_10_of_the_paper():
    # .6 + .2 * .75 - .5
    score = rewards.SetReward()(0.3, [0.5, 0.4, 0.6, 0.5])
    assert score == pytest.approx((0.25, 0.6, 0.75, 0.5))


def test_every_setting_of_the_set_reward_counts():
    set_reward = rewards.SetReward(
        boundary_weight=2.0,
        relevance_weight=0.1,
        format_bonus=0.1,
        centre=0.6,
        relevance_form="saturating",
        tau=5.0,
        target=2,
        rate=0.25,
        limit=0.75,
    )
    # 2 * 1/4 + .1 * 1/2 + .1 - .25
    assert set_reward(0.9, [5.0]) == pytest.approx((0.4, 0.25, 0.5, 0.25))


def test_a_malformed_set_has_no_reward():
    assert rewards.MALFORMED.reward == 0


def test_rewards_of_hopeless_sets_differ_by_less_than_0_0003():
    # The phantom advantages of the notes: rewards of sets that are all hopeless.
    cosines = np.array([0.80, 0.79, 0.81, 0.80, 0.78, 0.82, 0.80, 0.79])
    score = rewards.SetReward(relevance_form="saturating", target=1)
    values = np.array([score(0.0, [cosine]).reward for cosine in cosines])
    assert 0 < values.std() < 3e-4
