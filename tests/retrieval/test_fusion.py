"""Reciprocal-rank fusion by hand."""

import pytest

from ark_jax.retrieval.fusion import fuse, fused_scores


def test_fusion_by_hand():
    assert fuse([["a", "b"], ["b", "c"]], 9) == ["b", "a", "c"]  # 1/62 + 1/61, 1/61, 1/62
    assert fuse([["a", "b"], ["c", "d"]], 3) == ["a", "c", "b"]  # equals as they are met
    assert (
        fuse([["x", "a"], ["y", "a"], ["z", "a"]], 9)[0] == "a"
    )  # three second places are more than one first
    assert fuse([[*"abcd"], []], 2) == ["a", "b"]
    # 1/120 + 1/125 < 1/61 < 1/120 + 1/124
    ones, others = [f"o{i}" for i in range(58)], [f"p{i}" for i in range(64)]
    assert fuse([["top", *ones, "a"], [*others, "a"]], 1) == ["top"]
    assert fuse([["top", *ones, "a"], [*others[1:], "a"]], 1) == ["a"]


def test_sums_of_equal_terms_are_equal_in_any_order():
    lists = [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"]]
    assert fuse(lists, 3) == ["a", "b", "c"] and fuse(lists[::-1], 3) == ["c", "a", "b"]


def test_scores_are_those_of_the_order():
    lists = [["a", "b"], ["b", "c"]]
    scores = dict(fused_scores(lists))
    assert scores == pytest.approx({"b": 1 / 62 + 1 / 61, "a": 1 / 61, "c": 1 / 62}, abs=1e-12)
    assert [id for id, _ in fused_scores(lists)] == fuse(lists, 3)
    weighed = fused_scores(lists, constant=7, weights=(0.5, 4.0))
    assert weighed[0] == ("b", pytest.approx(0.5 / 9 + 4 / 8)) and weighed[1][0] == "c"
