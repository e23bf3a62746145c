"""p_hat, what of its variance is chance, and which questions are left."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ark_jax.select import zone
from ark_jax.select.zone import ALIKE, TOO_EASY, TOO_HARD, Zone


def test_the_success_rate_is_the_share_of_rewards_at_or_above_the_threshold():
    # Three of five reach 0.8, one of them only up to rounding.
    rewards = [0.8, 0.79, 1.0, 0.0, 0.7 * 0.8 + 0.3 * 0.8]
    assert zone.p_hat(rewards) == 0.6
    assert zone.p_hat(rewards, right_at=0.5) == 0.8


def test_rounding_does_not_put_a_reward_below_the_threshold():
    assert zone.p_hat([0.1 + 0.2], right_at=0.3) == zone.p_hat([0.8 - 1e-12]) == 1


@pytest.mark.parametrize("rewards", [[], [0.8, math.nan], [math.inf]])
def test_missing_rewards_are_refused(rewards):
    with pytest.raises(ValueError, match="leave out a set whose answers failed"):
        zone.p_hat(rewards)


def test_a_group_is_live_if_its_outcomes_differ():
    assert zone.outcomes_differ([0.0, 0.1, 0.0])
    assert not zone.outcomes_differ([0.3, 0.3, 0.1 + 0.2])
    assert not zone.outcomes_differ([0.5])
    assert not zone.outcomes_differ([1e-4, 3e-3], spread=0.01)
    assert zone.outcomes_differ([1e-4, 3e-2], spread=0.01)


@pytest.mark.parametrize("true", [0.2, 0.5, 0.85])
def test_the_estimate_of_chance_variance_is_unbiased(true):
    rng = np.random.default_rng(0)
    p = rng.binomial(10, true, (20_000, 8)) / 10
    by_chance = np.mean([zone.chance_variance(row, 10) for row in p])
    assert by_chance == pytest.approx(p.var(1).mean(), rel=0.02)
    assert by_chance == pytest.approx(true * (1 - true) / 10 * 7 / 8, rel=0.02)


def test_estimating_variance_from_one_answer_is_refused():
    with pytest.raises(ValueError, match="draw at least two"):
        zone.chance_variance([0.5, 1.0], 1)


def passing(p: np.ndarray, rule: Zone) -> float:
    return np.mean([not zone.judge(row, rule, answers=10).problem for row in p])


@pytest.mark.parametrize(("true", "share"), [(0.5, 0.48), (0.4, 0.45), (0.7, 0.37)])
def test_only_the_filter_of_the_paper_keeps_questions_with_equal_sets(true, share):
    p = np.random.default_rng(1).binomial(10, true, (4000, 8)) / 10
    assert passing(p, Zone(chance=False)) == pytest.approx(share, abs=0.03)
    assert passing(p, Zone()) < 0.08


def test_the_filter_keeps_questions_with_different_sets():
    rng = np.random.default_rng(1)
    p = rng.binomial(10, rng.choice([0.1, 0.9], (4000, 8))) / 10
    assert passing(p, Zone()) > 0.9


@pytest.mark.parametrize(
    ("p", "answers", "problem"),
    [
        ([0.0, 0.0], 10, TOO_HARD),
        ([1.0, 0.9], 10, TOO_EASY),
        ([0.5, 0.5], 10, ALIKE),
        ([0.1, 0.9], 10, ""),
        ([0.5, 0.8], 10, ALIKE),  # .0225 - .0114
        ([0.5, 0.8], None, ""),
        ([0.5], None, ALIKE),
        ([0.25 - 0.2, 0.25 + 0.2], None, ""),
    ],
)
def test_a_rejected_question_has_a_reason(p, answers, problem):
    assert zone.judge(p, Zone(), answers=answers).problem == problem


def test_each_limit_of_the_zone_is_applied():
    p = [0.1, 0.3]  # mean .2, variance .01
    assert zone.judge(p, Zone(low=0.2, variance=0.01), answers=None).problem == ""
    assert zone.judge(p, Zone(low=0.21, variance=0.01), answers=None).problem == TOO_HARD
    assert zone.judge(p, Zone(low=0, high=0.19), answers=None).problem == TOO_EASY
    assert zone.judge(p, Zone(low=0, variance=0.011), answers=None).problem == ALIKE


def test_a_verdict_on_shares_of_answers_holds_the_variance_by_chance():
    verdict = zone.judge([0.1, 0.3], Zone(), answers=5)
    by_chance = (0.1 * 0.9 + 0.3 * 0.7) / 2 / (5 - 1)  # the mean of p (1 - p) / (answers - 1)
    assert verdict[:3] == pytest.approx((0.2, 0.01, by_chance * 0.5))


def test_missing_success_rates_are_refused():
    for p in ([], [0.5, math.nan]):
        with pytest.raises(ValueError, match="needs a finite p"):
            zone.judge(p, Zone(), answers=10)


@given(st.lists(st.integers(0, 10), max_size=50))
def test_a_histogram_has_a_bin_for_each_tenth(tenths):
    counts = zone.histogram([tenth / 10 for tenth in tenths])
    np.testing.assert_array_equal(counts, np.bincount(tenths, minlength=11)[:11])


def test_a_filter_that_keeps_no_question_is_reported_with_advice():
    verdicts = [zone.judge(p, Zone(), answers=10) for p in NO_KEPT]
    with pytest.raises(ValueError) as error:
        zone.check_kept(verdicts, Zone())
    for words in (
        "none of 4 questions",
        "2 too hard, 1 too easy, 1 no set better",
        "0.0: 1, 0.1: 1, 0.5: 1, 1.0: 1",
        "train the reader longer",
        "low=0.25",
    ):
        assert words in str(error.value)


def test_a_filter_that_keeps_one_question_is_accepted():
    verdicts = [zone.judge(p, Zone(), answers=10) for p in (*NO_KEPT, [0.1, 0.9])]
    assert zone.reason_counts(verdicts)["kept"] == 1
    zone.check_kept(verdicts, Zone())


def test_rejected_questions_are_counted_by_reason():
    verdicts = [zone.judge(p, Zone(), answers=10) for p in NO_KEPT]
    assert zone.reason_counts(verdicts) == {"kept": 0, TOO_HARD: 2, TOO_EASY: 1, ALIKE: 1}


# Success rates of two sets of each of four questions, none of which the filter keeps.
NO_KEPT = ([0, 0], [0.1, 0.1], [1, 1], [0.5, 0.5])
