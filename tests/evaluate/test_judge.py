"""Verdicts are read, counted in both orders, and tallied."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ark_jax.evaluate import judge

SAID = st.sampled_from(["first", "second", "tie", ""])


PAIRS = st.integers(1, 4).flatmap(
    lambda repeats: st.dictionaries(
        st.text("abcdef", min_size=1, max_size=2),
        st.lists(st.tuples(SAID, SAID), min_size=repeats, max_size=repeats),
        max_size=8,
    )
)


@pytest.mark.parametrize(
    "forward, backward, outcome",
    [
        ("first", "second", "won"),
        ("second", "first", "lost"),
        ("tie", "tie", "tied"),
        ("first", "first", "inconsistent"),
        ("second", "second", "inconsistent"),
        ("first", "tie", "inconsistent"),
        ("tie", "first", "inconsistent"),
        ("", "second", "disqualified"),
        ("first", "", "disqualified"),
        ("", "", "disqualified"),
    ],
)
def test_a_win_needs_both_orders(forward, backward, outcome):
    assert judge.outcome(forward, backward) == outcome


def test_a_tally_equals_values_computed_by_hand():
    won, lost, tied = ("first", "second"), ("second", "first"), ("tie", "tie")
    inconsistent, unreadable = ("first", "first"), ("", "second")
    verdicts = {
        "a": [won, won],
        "b": [won, lost],
        "c": [tied, inconsistent],
        "d": [unreadable, won],
        "e": [unreadable, unreadable],
    }
    tally = judge.tally(verdicts, same=1, seed=3)
    # a counts 1; b and c count 1/2; d counts 1 by its one readable pair; e does not count.
    # The one question with equal answers counts 1/2.
    rate = tally["win_rate"]
    assert rate["mean"] == pytest.approx((1 + 0.5 + 0.5 + 1 + 0.5) / 5)
    assert 0.5 <= rate["low"] < rate["mean"] < rate["high"] <= 1
    assert tally["by_repeat"] == [
        pytest.approx((1 + 1 + 0.5 + 0.5) / 4),
        pytest.approx((1 + 0 + 0.5 + 1 + 0.5) / 5),
    ]
    names = ("won", "lost", "tied", "inconsistent", "disqualified")
    assert [tally[name] for name in names] == [4, 1, 1, 1, 3]
    assert tally["decided"] == 4 / 5 and tally["agreement"] == 6 / 7 and tally["unjudged"] == 1
    # Five consistent pairs name each place once; the inconsistent one names the first twice.
    assert tally["position_bias"] == pytest.approx((5 - 5 + 2) / 12)


@settings(deadline=None)
@given(PAIRS, st.integers(0, 3))
def test_swapping_the_systems_swaps_wins_and_losses(verdicts, same):
    tally = judge.tally(verdicts, same=same, seed=0)
    # The other system has the same verdicts: its wins are the losses here. A judge's preference for
    # a position stays the same.
    other = judge.tally(
        {q: [pair[::-1] for pair in pairs] for q, pairs in verdicts.items()}, same=same, seed=0
    )
    assert (other["won"], other["lost"]) == (tally["lost"], tally["won"])
    for unchanged in ("tied", "inconsistent", "position_bias", "agreement"):
        assert other[unchanged] == tally[unchanged]
    if tally["win_rate"]:
        assert other["win_rate"]["mean"] == pytest.approx(1 - tally["win_rate"]["mean"])


@settings(deadline=None)
@given(PAIRS, st.integers(0, 3))
def test_the_figures_of_a_tally_are_within_their_bounds(verdicts, same):
    tally = judge.tally(verdicts, same=same, seed=0)
    assert sum(tally[name] for name in judge.OUTCOMES) == sum(map(len, verdicts.values()))
    rate = tally["win_rate"]
    assert (rate is None) == (tally["unjudged"] == len(verdicts) and not same)
    if rate:
        assert 0 <= rate["low"] <= rate["mean"] <= rate["high"] <= 1
    if tally["position_bias"] is not None:
        assert -1 <= tally["position_bias"] <= 1
    if tally["agreement"] == 1:
        assert not tally["position_bias"]


@pytest.mark.parametrize("place, bias", [("first", 1.0), ("second", -1.0)])
def test_a_judge_that_prefers_one_place_decides_nothing(place, bias):
    tally = judge.tally({q: [(place, place)] * 3 for q in "abc"}, same=0, seed=0)
    assert tally["position_bias"] == bias
    assert tally["win_rate"] == {"mean": 0.5, "low": 0.5, "high": 0.5}
    assert tally["inconsistent"] == 9 and tally["agreement"] == 0 and tally["decided"] is None


WHOLE = {"faithfulness": "first", "conciseness": "second", "overall": "tie"}


@pytest.mark.parametrize(
    "replies, verdict",
    [
        (['{"reason": "x", "faithfulness": "1", "conciseness": "2", "overall": "tie"}'], WHOLE),
        (
            ['```json\n{"faithfulness": 1, "conciseness": "Answer 2", "overall": "Tie."}\n```'],
            WHOLE,
        ),
        (
            [
                '<think>{"overall": "1"}</think> '
                '{"Faithfulness": "answer_1", "Conciseness": "2", "Overall": "tie"}'
            ],
            WHOLE,
        ),
        (
            ['{"faithfulness": "1", "conciseness": "2", "overall": "tie", "reason": "broken off'],
            WHOLE,
        ),
        (
            [
                '{"faithfulness": "1", "conciseness": "both"}',
                '{"conciseness": "2", "overall": "tie"}',
            ],
            WHOLE,
        ),
        (['{"overall": "1"}', '{"overall": "2"}'], {"overall": "second"}),
        (
            [
                'a draft {"overall": "2"} but '
                '{"faithfulness": "1", "conciseness": "2", "overall": "tie"}'
            ],
            WHOLE,
        ),
        (
            [
                '{"overall": "2"}</think> '
                '{"faithfulness": "1", "conciseness": "2", "overall": "tie"}'
            ],
            WHOLE,
        ),
        (["{" * 300], {}),
        (
            [
                '{"Faithfulness": {"Winner": "Answer 1", "Explanation": "2"}, '
                '"Conciseness": {"Winner": "2"}, "Overall Winner": {"Winner": "None"}}'
            ],
            WHOLE,
        ),
        (['{"overall": "12"}'], {}),
        (['{"overall": {"better": "1"}}'], {}),
        (["Answer 1 is better."], {}),
        (["[1, 2]"], {}),
        ([""], {}),
        (['{"overall": null}'], {}),
        (["{"], {}),
        (["} {"], {}),
    ],
)
def test_verdicts_are_parsed_from_replies_of_judges(replies, verdict):
    assert judge.parse_verdicts(*replies) == verdict
    assert (judge.missing_verdicts_remark(verdict) is None) == (len(verdict) == 3)


@settings(deadline=None)
@given(st.text('{}[]":,12tieovral ', max_size=60))
def test_any_reply_parses_to_valid_verdicts(text):
    assert set(judge.parse_verdicts(text).items()) <= {
        (name, said) for name in judge.CRITERIA for said in ("first", "second", "tie")
    }
