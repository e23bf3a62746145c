"""Reciprocal-rank fusion by hand."""

import pytest

from ark_jax.retrieval.fusion import Fusion, by_ranks, load_fusion, save_fusion


def pairs(ids) -> list:
    """A ranking whose scores do not matter."""
    return [(id, 0.0) for id in ids]


def fuse(rankings, k: int) -> list:
    return [id for id, _ in by_ranks(*map(pairs, rankings))][:k]


def test_fused_rankings_equal_examples_worked_by_hand():
    assert fuse([["a", "b"], ["b", "c"]], 9) == ["b", "a", "c"]  # 1/62 + 1/61, 1/61, 1/62
    assert fuse([["a", "b"], ["c", "d"]], 3) == ["a", "c", "b"]  # equals as they are met
    assert (
        fuse([["x", "a"], ["y", "a"], ["z", "a"]], 9)[0] == "a"
    )  # three second places are more than one first
    assert fuse([[*"abcd"], []], 2) == ["a", "b"]
    # 1/120 + 1/125 < 1/61 < 1/120 + 1/124
    ones, longer = [f"o{i}" for i in range(58)], [f"p{i}" for i in range(64)]
    assert fuse([["top", *ones, "a"], [*longer, "a"]], 1) == ["top"]
    assert fuse([["top", *ones, "a"], [*longer[1:], "a"]], 1) == ["a"]


def test_ties_are_kept_in_the_order_of_the_first_list():
    lists = [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"]]
    assert fuse(lists, 3) == ["a", "b", "c"] and fuse(lists[::-1], 3) == ["c", "a", "b"]


def test_reciprocal_rank_scores_equal_values_computed_by_hand():
    lists = [pairs("ab"), pairs("bc")]
    scores = dict(by_ranks(*lists))
    assert scores == pytest.approx({"b": 1 / 62 + 1 / 61, "a": 1 / 61, "c": 1 / 62}, abs=1e-12)
    weighed = by_ranks(*lists, constant=7, weights=(0.5, 4.0))
    assert weighed[0] == ("b", pytest.approx(0.5 / 9 + 4 / 8)) and weighed[1][0] == "c"


def test_scores_are_scaled_by_the_best_before_they_are_joined():
    words, vectors = [("a", 8.0), ("b", 2.0)], [("c", 0.6), ("a", 0.2)]
    joined = dict(Fusion(bm25=0.25, dense=0.75, by="scores").join(words, vectors))
    # Of a cosine the least is -1. What a ranking lacks has no word, or the last listed cosine.
    assert joined == pytest.approx(
        {"a": 0.25 + 0.75 * 0.75, "b": 0.25 / 4 + 0.75 * 0.75, "c": 0.75}
    )
    assert list(joined) == ["a", "c", "b"]
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
    for text in ("", "null", '{"weight": 2}', '{"depth": -1}', '{"bm25": "x"}'):
        (tmp_path / "fusion.json").write_text(text)
        with pytest.raises(ValueError, match=r"fusion.json is damaged"):
            load_fusion(tmp_path)
