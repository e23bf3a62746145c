"""The reward of an answer: by hand, and as the released code computes it."""

import json

import pytest
from support.paths import REPOSITORY

from ark_jax.text.cited import CitedAnswer, parse_answer
from ark_jax.train import rewards

RELEASED = json.loads(
    (REPOSITORY / "tests/support/golden/bar_rag_released.json").read_text(encoding="utf-8")
)


def test_the_citation_reward_peaks_at_its_target():
    assert [rewards.citation(count) for count in range(5)] == [0, 0.5, 1, 0.5, 0]
    assert [rewards.citation(count, target=1) for count in range(4)] == [0.5, 1, 0.5, 0]


def reply(answer: str, cited: int = 0, problem: str = "") -> CitedAnswer:
    return CitedAnswer(answer, "", tuple(range(1, cited + 1)), (), problem)


def test_the_answer_reward_equals_values_computed_by_hand():
    # Two of three tokens of the answer and two of two of the reference: F1 = 4/5.
    score = rewards.AnswerReward()(reply("comedian Bob Saget", 3), ["Ted", "the Bob Saget"])
    assert score.f1 == pytest.approx(0.8) and score.exact_match == 0 and score.citation == 0.5
    assert score.reward == pytest.approx(0.8 * 0.7 * 0.8 + 0.2 * 0.5)


def test_the_weights_of_the_answer_reward_count():
    weighted = rewards.AnswerReward(
        answer_weight=0.5, citation_weight=0.4, f1_weight=0.2, exact_weight=0.6, citations=3
    )
    score = weighted(reply("bob saget", 3), ["Bob Saget"])
    # F1, exact match and citations are all 1.
    assert score.reward == pytest.approx(0.5 * (0.2 + 0.6) + 0.4) and score.well_formed


def test_a_malformed_reply_earns_nothing_even_if_it_is_right():
    score = rewards.AnswerReward()(reply("Bob Saget", 2, "no </answer>"), ["Bob Saget"])
    assert score == (0, False, 0, 0, 0)


def test_only_an_exact_match_reaches_the_threshold_of_the_paper():
    best = rewards.AnswerReward()(reply("x " * 500 + "y", 2), ["x " * 500])
    assert best.f1 > 0.998 and best.reward < 0.8
    assert rewards.AnswerReward()(reply("x"), ["x"]).reward == pytest.approx(0.8)


def test_an_answer_without_a_word_matches_no_reference():
    assert rewards.AnswerReward()(reply("the"), ["the", "Bob"]).reward == 0


def test_references_without_a_word_are_refused():
    with pytest.raises(ValueError, match=r"'the', '\.\.\.', ''.*leave the question out"):
        rewards.AnswerReward()(reply("the"), ["the", "...", ""])


def test_rewards_match_the_released_code():
    """Where form and citations are counted as there: 31 documents, one answer that has a word."""
    stricter = 0
    for row in RELEASED["answers"]:
        parsed = parse_answer(row["reply"], 31)
        score = rewards.AnswerReward()(parsed, RELEASED["references"])
        if parsed.problem and row["reward"] > 0:
            stricter += 1
            assert parsed.problem in (
                "the answer is empty",
                "<answer> twice",
                "<think> without </think>",
            ), row
        else:
            assert score.reward == pytest.approx(row["reward"], abs=1e-9), row
    assert stricter >= 2
    assert len({row["reward"] for row in RELEASED["answers"]}) > 8
