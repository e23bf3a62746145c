"""Retrieval metrics against lists measured by hand, trec_eval's published outputs, and trec_eval.

trec_eval itself runs on random runs.
"""

import collections
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.paths import DATA

from ark_jax.evaluate import retrieval

SECOND, THIRD, FOURTH = (
    1 / math.log2(3),
    1 / math.log2(4),
    1 / math.log2(5),
)  # what a find at these ranks is worth


FOUR = ("recall@5", "recall@10", "ndcg@10", "mrr")


OTHERS = [f"x{i}" for i in range(10)]


@pytest.mark.parametrize(
    "ranked, gold, at5, at10, ndcg, mrr",
    [
        (["a", "x", "y"], [["a"]], 1, 1, 1, 1),
        (["x", "y", "a"], [["a"]], 1, 1, THIRD, 1 / 3),
        ([*OTHERS[:5], "a"], [["a"]], 0, 1, 1 / math.log2(7), 1 / 6),
        ([*OTHERS, "a"], [["a"]], 0, 0, 0, 1 / 11),  # beyond ten only the reciprocal rank sees it
        (["x", "y"], [["a"]], 0, 0, 0, 0),
        ([], [["a"]], 0, 0, 0, 0),
        (["x", "y"], [], 0, 0, 0, 0),
        (["a", "b"], [["a"], ["b"]], 1, 1, 1, 1),
        (["b", "x", "a"], [["a"], ["b"]], 1, 1, (1 + THIRD) / (1 + SECOND), 1),
        (["x", "a", "y"], [["a"], ["b"]], 0.5, 0.5, SECOND / (1 + SECOND), 0.5),
        (
            ["x", "a", *OTHERS[:7], "b"],
            [["a"], ["b"]],
            0.5,
            1,
            (SECOND + 1 / math.log2(11)) / (1 + SECOND),
            0.5,
        ),
        # Two passages in one chunk: one find brings both.
        (["a", "x"], [["a"], ["a"]], 1, 1, 1, 1),
        (["x", "a"], [["a"], ["a"]], 1, 1, SECOND, 0.5),
        # Two chunks hold one passage: the first counts, the other is neither needed nor rewarded.
        (["x", "b", "a"], [["a", "b"]], 1, 1, SECOND, 0.5),
        (["a", "b"], [["a", "b"]], 1, 1, 1, 1),
        (["b", "a"], [["a", "b"], ["a"]], 1, 1, (1 + SECOND) / 2, 1),
        (["a"], [["a", "b"], ["b", "c"]], 0.5, 0.5, 0.5, 1),
        (
            ["a", *OTHERS[:8], "c"],
            [["a", "b"], ["b", "c"]],
            0.5,
            1,
            (1 + 1 / math.log2(11)) / 2,
            1,
        ),  # found late, still found
        (
            ["x", "b", "y", "c"],
            [["a", "b"], ["c"], ["d"]],
            2 / 3,
            2 / 3,
            (SECOND + FOURTH) / (1 + SECOND + THIRD),
            0.5,
        ),
    ],
)
def test_main_metrics_equal_values_computed_by_hand(ranked, gold, at5, at10, ndcg, mrr):
    wanted = {"recall@5": at5, "recall@10": at10, "ndcg@10": ndcg, "mrr": mrr}
    assert retrieval.measure(ranked, gold, FOUR) == pytest.approx(wanted)


@pytest.mark.parametrize(
    "ranked, gold, wanted",
    [
        (
            ["a", "x", "b"],
            [["a"], ["b"]],
            {"map": (1 + 2 / 3) / 2, "map@2": 1 / 2, "precision@5": 2 / 5, "precision": 2 / 3},
        ),
        (
            ["x", "y", "a"],
            [["a"]],
            {
                "map": 1 / 3,
                "precision@2": 0,
                "precision@3": 1 / 3,
                "hit@2": 0,
                "hit@3": 1,
                "mrr@2": 0,
            },
        ),
        # The copy of a passage is relevant, and brings nothing new.
        (
            ["a", "b", "c"],
            [["a", "b"], ["c"]],
            {"map": 1, "recall@2": 1 / 2, "precision@2": 1, "ndcg@2": 1 / (1 + SECOND)},
        ),
        (["x", "b", "a"], [["a", "b"]], {"map": 1 / 2, "precision@3": 2 / 3, "ndcg": SECOND}),
        (
            ["a", "x"],
            [["a"], ["a"], ["b"]],
            {"map": 2 / 3, "recall@1": 2 / 3, "ndcg@1": 1, "ndcg@2": 2 / (2 + SECOND)},
        ),
        ([], [["a"]], {"map": 0, "precision": 0, "hit": 0, "ndcg": 0}),
        (["a"], [], {"map": 0, "recall": 0, "precision@1": 0, "ndcg": 0}),
    ],
)
def test_further_metrics_equal_values_computed_by_hand(ranked, gold, wanted):
    assert retrieval.measure(ranked, gold, list(wanted)) == pytest.approx(wanted)


IDS = st.integers(0, 14).map(lambda i: f"c{i}")


# Sums of the same terms in another order: the last was a bit below that of the shorter list.
@example([f"c{i}" for i in range(8)], [["c0"], ["c0"], ["c4"], ["c5"]])
@given(
    st.lists(IDS, unique=True, max_size=15),
    st.lists(st.lists(IDS, min_size=1, max_size=3, unique=True), max_size=5),
)
def test_metrics_stay_within_their_bounds(ranked, gold):
    names = [*FOUR, "map", "map@5", "hit@5", "ndcg", "precision@3"]
    values = retrieval.measure(ranked, gold, names)
    assert all(0 <= value <= 1 + 1e-12 for value in values.values())
    assert values["recall@5"] <= values["recall@10"]
    assert (values["ndcg@10"] > 0) == (values["recall@10"] > 0)
    # A longer list is never worse.
    shorter = retrieval.measure(ranked[:-1], gold, names)
    assert all(values[name] >= shorter[name] - 1e-12 for name in values)
    # With one holder a passage the best list is the holders, those of most passages first.
    single = [holders[:1] for holders in gold]
    best = [
        id
        for id, _ in collections.Counter(id for holders in single for id in holders).most_common()
    ]
    if best:
        assert retrieval.measure(best, single, names)["ndcg@10"] == pytest.approx(1)
        assert retrieval.measure(["other", *best], single, names)["ndcg@10"] < 1
    # Passages with a chunk of their own each are judgements of grade 1.
    first_holder = {holders[0]: 1 for holders in single}
    assert retrieval.measure(ranked, [[id] for id in first_holder], names) == pytest.approx(
        retrieval.measure(ranked, first_holder, names)
    )


CUTS = (1, 2, 3, 5, 7, 10, 15, 20, 23, 30, 100, 200, 500, 1000, 2000)


# trec_eval's name -> ours
OURS = {
    "map": "map",
    "recip_rank": "mrr",
    "ndcg": "ndcg",
    "set_P": "precision",
    "set_recall": "recall",
    **{
        f"{theirs}_{k}": f"{ours}@{k}"
        for k in CUTS
        for theirs, ours in (
            ("P", "precision"),
            ("recall", "recall"),
            ("ndcg_cut", "ndcg"),
            ("map_cut", "map"),
            ("success", "hit"),
        )
    },
}


def table(name: str, columns: tuple[int, int, int], kind) -> dict[str, dict]:
    """query -> id -> number, of a file of trec_eval's."""
    path = DATA / "trec_eval_tests" / name
    if not path.is_file():
        pytest.skip(f"{path} is absent: set ARK_DATA to compare with published outputs")
    out = collections.defaultdict(dict)
    for line in path.read_text().splitlines():
        query, id, value = (line.split()[i] for i in columns)
        out[query][id] = kind(value)
    return out


@pytest.mark.parametrize(
    "published, run, qrels, level, longest, compared",
    [
        ("out.test", "results.test", "qrels.test", 1, None, 11),
        ("out.test.a", "results.test", "qrels.test", 1, None, 44),
        ("out.test.aq", "results.test", "qrels.test", 1, None, 44),
        (
            "out.test.aqc",
            "results.trunc",
            "qrels.test",
            1,
            None,
            44,
        ),  # a query without results, counted (-c)
        ("out.test.aqcM", "results.trunc", "qrels.test", 1, 100, 44),  # lists cut (-M 100)
        (
            "out.test.aql",
            "results.test",
            "qrels.rel_level",
            2,
            None,
            44,
        ),  # relevant from grade 2 on (-l 2); grades of -1
        ("out.test.meas_params", "results.test", "qrels.test", 1, None, 11),
    ],
)
def test_measures_match_published_output_of_trec_eval(
    published, run, qrels, level, longest, compared
):
    wanted = {
        query: {name: value for name, value in printed.items() if name in OURS}
        for query, printed in table(published, (1, 0, 2), str).items()
    }
    lists = {
        query: retrieval.ranking(scores)[:longest]
        for query, scores in table(run, (0, 2, 4), float).items()
    }
    ours = retrieval.measures(lists, table(qrels, (0, 2, 3), int), list(OURS.values()), level=level)
    ours["all"] = {
        name: np.mean([values[name] for values in ours.values()]) for name in OURS.values()
    }
    assert set(wanted) <= set(ours) and len(wanted["all"]) == compared
    for query, printed in wanted.items():
        assert {name: f"{ours[query][OURS[name]]:.4f}" for name in printed} == printed, query


DOCUMENT_IDS = st.integers(0, 30).map(lambda i: f"d{i}")


# Few values, so that many tie, and some that are one number in float32 alone.
SCORES = st.dictionaries(
    DOCUMENT_IDS,
    st.sampled_from([-1.5, 0.0, 0.25, 1.0, 1.0 + 1e-9, 1.0 + 1e-5, 2.0, 7.0]),
    min_size=1,
)


# Grades below zero corrupt the memory of pytrec_eval 0.5.11, and it hangs. The published outputs
# have such grades.
GRADES = st.dictionaries(DOCUMENT_IDS, st.integers(0, 3), min_size=1)


@settings(deadline=None, max_examples=100)
@given(
    st.dictionaries(st.sampled_from("abc"), st.tuples(SCORES, GRADES), min_size=1),
    st.sampled_from([1, 2]),
)
def test_measures_match_trec_eval_on_random_runs_with_ties(drawn, level):
    pytrec_eval = pytest.importorskip("pytrec_eval", reason="trec_eval's own code is not installed")
    run, qrels = ({query: pair[i] for query, pair in drawn.items()} for i in (0, 1))
    theirs = {
        f"{name}.{','.join(map(str, CUTS))}"
        for name in ("P", "recall", "ndcg_cut", "map_cut", "success")
    }
    evaluator = pytrec_eval.RelevanceEvaluator(
        qrels, {*theirs, "map", "recip_rank", "ndcg", "set_P", "set_recall"}, relevance_level=level
    )
    wanted, measured = (
        evaluator.evaluate(run),
        retrieval.measures(run, qrels, list(OURS.values()), level=level),
    )
    assert measured.keys() == wanted.keys()
    for query, values in wanted.items():
        assert {name: measured[query][ours] for name, ours in OURS.items()} == pytest.approx(
            {name: values[name] for name in OURS}
        )


def test_equal_scores_are_ranked_by_descending_id():
    assert retrieval.ranking({"a": 1.0, "c": 1.0, "b": 1.0, "d": 0.5, "e": 2.0}) == [
        "e",
        "c",
        "b",
        "a",
        "d",
    ]
    assert retrieval.ranking({"a": 1.0 + 1e-9, "b": 1.0}) == ["b", "a"]  # one number in float32
    assert retrieval.ranking({"d10": 0.0, "d9": 0.0, "é": 0.0, "z": 0.0}) == ["é", "z", "d9", "d10"]
    assert retrieval.ranking({"a": float("-inf"), "b": 3, "c": float("inf")}) == ["c", "b", "a"]
    assert retrieval.ranking({}) == []


def test_only_queries_with_gold_are_measured():
    run = {"asked": {"a": 2.0, "x": 1.0}, "stranger": {"a": 1.0}, "listed": ["x", "a"]}
    qrels = {"asked": {"a": 1}, "listed": {"a": 2}, "unanswered": {"a": 1}}
    assert retrieval.measures(run, qrels, ["mrr"]) == {
        "asked": {"mrr": 1},
        "listed": {"mrr": 0.5},
        "unanswered": {"mrr": 0},
    }
    assert retrieval.measures(run, {"listed": [["a", "b"], ["c"]]}, ["recall@2"]) == {
        "listed": {"recall@2": 0.5}
    }


@pytest.mark.parametrize(
    "name",
    ["ndgc@10", "NDCG", "recall@0", "recall@", "recall@-1", "recall@1.5", "@5", "", "recall@5@5"],
)
def test_an_unknown_metric_is_refused(name):
    with pytest.raises(
        ValueError, match="must be recall, precision, hit, mrr, map or ndcg, alone or with @k"
    ) as error:
        retrieval.measures({}, {"q": {"a": 1}}, [name])
    assert repr(name) in str(error.value)


def test_an_invalid_run_is_refused_with_its_query():
    with pytest.raises(ValueError, match="query 'q': the score of 'b' is nan"):
        retrieval.measures({"q": {"a": 1.0, "b": float("nan")}}, {"q": {"a": 1}}, ["map"])
    with pytest.raises(ValueError, match="query 'q': 'b' is listed twice"):
        retrieval.measures({"q": ["a", "b", "c", "b"]}, {"q": {"a": 1}}, ["map"])
