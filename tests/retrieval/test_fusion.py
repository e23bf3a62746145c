"""Reciprocal-rank fusion by hand."""

import pytest

from ark_jax.retrieval.fusion import Fusion, by_ranks, load_fusion, save_fusion


def pairs(ids) -> list:
    """A ranking whose scores do not matter."""
    return [(id, 0.0) for id in ids]


def fuse(rankings, k: int) -> list:
    return [id for id, _ in by_ranks(*map(pairs, rankings))][:k]


def test_fused_rankings_equal_examples_worked_by_hand():
    # A text at place n of a list scores 1 / (60 + n): here 1/62 + 1/61, 1/61 and 1/62.
    assert fuse([["a", "b"], ["b", "c"]], 9) == ["b", "a", "c"]
    # Three second places are more than one first place.
    assert fuse([["x", "a"], ["y", "a"], ["z", "a"]], 9)[0] == "a"
    assert fuse([[*"abcd"], []], 2) == ["a", "b"]


def test_one_place_decides_between_a_first_place_and_two_late_ones():
    # 1/120 + 1/125 < 1/61 < 1/120 + 1/124
    ones, longer = [f"o{i}" for i in range(58)], [f"p{i}" for i in range(64)]
    assert fuse([["top", *ones, "a"], [*longer, "a"]], 1) == ["top"]
    assert fuse([["top", *ones, "a"], [*longer[1:], "a"]], 1) == ["a"]


def test_equal_scores_are_ranked_in_the_order_of_the_lists():
    assert fuse([["a", "b"], ["c", "d"]], 3) == ["a", "c", "b"]


def test_ties_are_kept_in_the_order_of_the_first_list():
    lists = [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"]]
    assert fuse(lists, 3) == ["a", "b", "c"] and fuse(lists[::-1], 3) == ["c", "a", "b"]


def test_reciprocal_rank_scores_equal_values_computed_by_hand():
    scores = dict(by_ranks(pairs("ab"), pairs("bc")))
    assert scores == pytest.approx({"b": 1 / 62 + 1 / 61, "a": 1 / 61, "c": 1 / 62}, abs=1e-12)


def test_the_constant_and_weights_change_reciprocal_rank_scores():
    first, second, _ = by_ranks(pairs("ab"), pairs("bc"), constant=7, weights=(0.5, 4.0))
    assert first == ("b", pytest.approx(0.5 / 9 + 4 / 8)) and second[0] == "c"


def test_scores_are_scaled_by_the_best_before_they_are_joined():
    words, vectors = [("a", 8.0), ("b", 2.0)], [("c", 0.6), ("a", 0.2)]
    joined = dict(Fusion(bm25=0.25, dense=0.75, by="scores").join(words, vectors))
    # The lowest cosine is -1, so 0.2 is (0.2 + 1) / (0.6 + 1) = 0.75 of the best. A text that is
    # not in a list counts with 0 words, or with the last listed cosine.
    expected = {"a": 0.25 + 0.75 * 0.75, "b": 0.25 / 4 + 0.75 * 0.75, "c": 0.75}
    assert joined == pytest.approx(expected)
    assert list(joined) == ["a", "c", "b"]


def test_scores_are_joined_even_if_a_ranking_is_empty():
    words = [("a", 8.0), ("b", 2.0)]
    assert dict(Fusion(by="scores").join(words, [])) == {"a": 1.0, "b": 0.25}
    assert Fusion(by="scores").join([], []) == []


def test_the_default_fusion_joins_ranks():
    words, vectors = [("a", 8.0), ("b", 2.0)], [("c", 0.6), ("a", 0.2)]
    assert [id for id, _ in Fusion().join(words, vectors)] == fuse([["a", "b"], ["c", "a"]], 3)


@pytest.mark.parametrize(
    "bad", [{"depth": 0}, {"bm25": -1.0}, {"dense": float("nan")}, {"by": "x"}]
)
def test_invalid_fusion_settings_are_refused(bad):
    with pytest.raises(ValueError, match="must be finite and not negative"):
        Fusion(**bad)


def test_fusion_settings_are_saved_and_loaded(tmp_path):
    assert load_fusion(tmp_path) == Fusion()
    save_fusion(Fusion(bm25=0.4, dense=0.6, by="scores"), tmp_path)
    assert load_fusion(tmp_path) == Fusion(bm25=0.4, dense=0.6, by="scores")


@pytest.mark.parametrize("text", ["", "null", '{"weight": 2}', '{"depth": -1}', '{"bm25": "x"}'])
def test_damaged_fusion_settings_are_refused(text, tmp_path):
    (tmp_path / "fusion.json").write_text(text)
    with pytest.raises(ValueError, match=r"fusion.json is damaged"):
        load_fusion(tmp_path)
