"""Metrics from judgements: trec_eval's published outputs, and trec_eval itself on random runs."""

import collections

import numpy as np
import pytest
from conftest import DATA
from hypothesis import given, settings
from hypothesis import strategies as st

from ark_jax.evaluate import retrieval

CUTS = (1, 2, 3, 5, 7, 10, 15, 20, 23, 30, 100, 200, 500, 1000, 2000)
# trec_eval's name -> ours
OURS = {"map": "map", "recip_rank": "mrr", "ndcg": "ndcg", "set_P": "precision", "set_recall": "recall",
        **{f"{theirs}_{k}": f"{ours}@{k}" for k in CUTS for theirs, ours in (
            ("P", "precision"), ("recall", "recall"), ("ndcg_cut", "ndcg"), ("map_cut", "map"), ("success", "hit"))}}


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


@pytest.mark.parametrize("published, run, qrels, level, most, compared", [
    ("out.test", "results.test", "qrels.test", 1, None, 11),
    ("out.test.a", "results.test", "qrels.test", 1, None, 44),
    ("out.test.aq", "results.test", "qrels.test", 1, None, 44),
    ("out.test.aqc", "results.trunc", "qrels.test", 1, None, 44),  # a query without results, counted (-c)
    ("out.test.aqcM", "results.trunc", "qrels.test", 1, 100, 44),  # lists cut (-M 100)
    ("out.test.aql", "results.test", "qrels.rel_level", 2, None, 44),  # relevant from grade 2 on (-l 2); grades of -1
    ("out.test.meas_params", "results.test", "qrels.test", 1, None, 11),
])
def test_measures_are_those_that_trec_eval_printed(published, run, qrels, level, most, compared):
    wanted = {query: {name: value for name, value in printed.items() if name in OURS}
              for query, printed in table(published, (1, 0, 2), str).items()}
    lists = {query: retrieval.ranking(scores)[:most] for query, scores in table(run, (0, 2, 4), float).items()}
    found = retrieval.measures(lists, table(qrels, (0, 2, 3), int), list(OURS.values()), level=level)
    found["all"] = {name: np.mean([values[name] for values in found.values()]) for name in OURS.values()}
    assert set(wanted) <= set(found) and len(wanted["all"]) == compared
    for query, printed in wanted.items():
        assert {name: f"{found[query][OURS[name]]:.4f}" for name in printed} == printed, query


IDS = st.integers(0, 30).map(lambda i: f"d{i}")
# Few values, so that many tie, and some that are one number in float32 alone.
SCORES = st.dictionaries(IDS, st.sampled_from([-1.5, 0.0, 0.25, 1.0, 1.0 + 1e-9, 1.0 + 1e-5, 2.0, 7.0]), min_size=1)
# Of grades below zero pytrec_eval 0.5.11 spoils its memory, and hangs; the published outputs have some.
GRADES = st.dictionaries(IDS, st.integers(0, 3), min_size=1)


@settings(deadline=None, max_examples=100)
@given(st.dictionaries(st.sampled_from("abc"), st.tuples(SCORES, GRADES), min_size=1), st.sampled_from([1, 2]))
def test_measures_are_trec_evals_on_random_runs_with_ties(drawn, level):
    pytrec_eval = pytest.importorskip("pytrec_eval", reason="trec_eval's own code is not installed")
    run, qrels = ({query: pair[i] for query, pair in drawn.items()} for i in (0, 1))
    theirs = {f"{name}.{','.join(map(str, CUTS))}" for name in ("P", "recall", "ndcg_cut", "map_cut", "success")}
    evaluator = pytrec_eval.RelevanceEvaluator(qrels, {*theirs, "map", "recip_rank", "ndcg", "set_P", "set_recall"},
                                               relevance_level=level)
    wanted, found = evaluator.evaluate(run), retrieval.measures(run, qrels, list(OURS.values()), level=level)
    assert found.keys() == wanted.keys()
    for query, values in wanted.items():
        assert {name: found[query][ours] for name, ours in OURS.items()} == pytest.approx({name: values[name] for name in OURS})


def test_of_equal_scores_the_later_id_comes_first():
    assert retrieval.ranking({"a": 1.0, "c": 1.0, "b": 1.0, "d": 0.5, "e": 2.0}) == ["e", "c", "b", "a", "d"]
    assert retrieval.ranking({"a": 1.0 + 1e-9, "b": 1.0}) == ["b", "a"]  # one number in float32
    assert retrieval.ranking({"d10": 0.0, "d9": 0.0, "é": 0.0, "z": 0.0}) == ["é", "z", "d9", "d10"]
    assert retrieval.ranking({"a": float("-inf"), "b": 3, "c": float("inf")}) == ["c", "b", "a"]
    assert retrieval.ranking({}) == []


def test_every_query_with_gold_is_measured_and_no_other():
    run = {"asked": {"a": 2.0, "x": 1.0}, "stranger": {"a": 1.0}, "listed": ["x", "a"]}
    qrels = {"asked": {"a": 1}, "listed": {"a": 2}, "unanswered": {"a": 1}}
    assert retrieval.measures(run, qrels, ["mrr"]) == {"asked": {"mrr": 1}, "listed": {"mrr": 0.5}, "unanswered": {"mrr": 0}}
    assert retrieval.measures(run, {"listed": [["a", "b"], ["c"]]}, ["recall@2"]) == {"listed": {"recall@2": 0.5}}


@pytest.mark.parametrize("name", ["ndgc@10", "NDCG", "recall@0", "recall@", "recall@-1", "recall@1.5", "@5", "", "recall@5@5"])
def test_a_metric_must_be_known(name):
    with pytest.raises(ValueError, match="must be recall, precision, hit, mrr, map or ndcg, alone or with @k") as told:
        retrieval.measures({}, {"q": {"a": 1}}, [name])
    assert repr(name) in str(told.value)


def test_bad_runs_are_refused_by_name():
    with pytest.raises(ValueError, match="query 'q': the score of 'b' is nan"):
        retrieval.measures({"q": {"a": 1.0, "b": float("nan")}}, {"q": {"a": 1}}, ["map"])
    with pytest.raises(ValueError, match="query 'q': 'b' is listed twice"):
        retrieval.measures({"q": ["a", "b", "c", "b"]}, {"q": {"a": 1}}, ["map"])
