"""Retrieval metrics and answer scores: tables worked out by hand, and other people's published numbers."""

import collections
import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ark_jax.data.records import Chunk
from ark_jax.evaluate import answers, retrieval

DATA = Path(os.environ.get("ARK_DATA", Path(__file__).parents[1].parent / "shared" / "data"))

SECOND, THIRD, FOURTH = 1 / math.log2(3), 1 / math.log2(4), 1 / math.log2(5)  # what a find at these ranks is worth
FOUR = ("recall@5", "recall@10", "ndcg@10", "mrr")
OTHERS = [f"x{i}" for i in range(10)]


@pytest.mark.parametrize("ranked, gold, at5, at10, ndcg, mrr", [
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
    (["x", "a", *OTHERS[:7], "b"], [["a"], ["b"]], 0.5, 1, (SECOND + 1 / math.log2(11)) / (1 + SECOND), 0.5),
    # Two passages in one chunk: one find brings both.
    (["a", "x"], [["a"], ["a"]], 1, 1, 1, 1),
    (["x", "a"], [["a"], ["a"]], 1, 1, SECOND, 0.5),
    # Two chunks hold one passage: the first of them counts, the other is neither needed nor rewarded.
    (["x", "b", "a"], [["a", "b"]], 1, 1, SECOND, 0.5),
    (["a", "b"], [["a", "b"]], 1, 1, 1, 1),
    (["b", "a"], [["a", "b"], ["a"]], 1, 1, (1 + SECOND) / 2, 1),
    (["a"], [["a", "b"], ["b", "c"]], 0.5, 0.5, 0.5, 1),
    (["a", *OTHERS[:8], "c"], [["a", "b"], ["b", "c"]], 0.5, 1, (1 + 1 / math.log2(11)) / 2, 1),  # found late, still found
    (["x", "b", "y", "c"], [["a", "b"], ["c"], ["d"]], 2 / 3, 2 / 3, (SECOND + FOURTH) / (1 + SECOND + THIRD), 0.5),
])
def test_metrics_by_hand(ranked, gold, at5, at10, ndcg, mrr):
    wanted = {"recall@5": at5, "recall@10": at10, "ndcg@10": ndcg, "mrr": mrr}
    assert retrieval.measure(ranked, gold, FOUR) == pytest.approx(wanted)


@pytest.mark.parametrize("ranked, gold, wanted", [
    (["a", "x", "b"], [["a"], ["b"]], {"map": (1 + 2 / 3) / 2, "map@2": 1 / 2, "precision@5": 2 / 5, "precision": 2 / 3}),
    (["x", "y", "a"], [["a"]], {"map": 1 / 3, "precision@2": 0, "precision@3": 1 / 3, "hit@2": 0, "hit@3": 1, "mrr@2": 0}),
    # The copy of a passage is relevant, and brings nothing new.
    (["a", "b", "c"], [["a", "b"], ["c"]], {"map": 1, "recall@2": 1 / 2, "precision@2": 1, "ndcg@2": 1 / (1 + SECOND)}),
    (["x", "b", "a"], [["a", "b"]], {"map": 1 / 2, "precision@3": 2 / 3, "ndcg": SECOND}),
    (["a", "x"], [["a"], ["a"], ["b"]], {"map": 2 / 3, "recall@1": 2 / 3, "ndcg@1": 1, "ndcg@2": 2 / (2 + SECOND)}),
    ([], [["a"]], {"map": 0, "precision": 0, "hit": 0, "ndcg": 0}),
    (["a"], [], {"map": 0, "recall": 0, "precision@1": 0, "ndcg": 0}),
])
def test_further_metrics_by_hand(ranked, gold, wanted):
    assert retrieval.measure(ranked, gold, list(wanted)) == pytest.approx(wanted)


IDS = st.integers(0, 14).map(lambda i: f"c{i}")


@given(st.lists(IDS, unique=True, max_size=15), st.lists(st.lists(IDS, min_size=1, max_size=3, unique=True), max_size=5))
def test_metrics_stay_within_their_bounds(ranked, gold):
    names = [*FOUR, "map", "map@5", "hit@5", "ndcg", "precision@3"]
    found = retrieval.measure(ranked, gold, names)
    assert all(0 <= value <= 1 + 1e-12 for value in found.values())
    assert found["recall@5"] <= found["recall@10"]
    assert (found["ndcg@10"] > 0) == (found["recall@10"] > 0)
    # A longer list is never worse.
    shorter = retrieval.measure(ranked[:-1], gold, names)
    assert all(found[name] >= shorter[name] for name in found)
    # With one holder a passage the best list is the holders, those of most passages first.
    single = [holders[:1] for holders in gold]
    best = [id for id, _ in collections.Counter(id for holders in single for id in holders).most_common()]
    if best:
        assert retrieval.measure(best, single, names)["ndcg@10"] == pytest.approx(1)
        assert retrieval.measure(["other", *best], single, names)["ndcg@10"] < 1
    # Passages with a chunk of their own each are judgements of grade 1.
    own = {holders[0]: 1 for holders in single}
    assert retrieval.measure(ranked, [[id] for id in own], names) == pytest.approx(retrieval.measure(ranked, own, names))


def chunk(id: str, document: str, start: int, end: int) -> Chunk:
    return Chunk(id, document, start, end, 1, "")


def test_evidence_lies_in_the_chunks_that_hold_half_of_it():
    text = "0123456789abcdefghijklmnopqrst"  # chunks of twelve that share four
    chunks = [chunk("d0", "d", 0, 12), chunk("d1", "d", 8, 20), chunk("d2", "d", 16, 28), chunk("d3", "d", 24, 30),
              chunk("e0", "e", 0, 12)]
    hold = lambda passage, documents=None: retrieval.gold_chunks([passage], documents or {"d": text, "e": "nothing here"}, chunks)
    assert hold("1234") == [["d0"]]
    assert hold("89ab") == [["d0", "d1"]]  # inside the overlap
    assert hold("abcd") == [["d0", "d1"]]  # two of four in d0: just half
    assert hold("bcde") == [["d1"]]  # one of four in d0
    assert hold("456789abcdef") == [["d0", "d1"]]  # eight of twelve in either
    assert hold("0123456789abcdefghijklmnopqrst") == [["d0", "d1", "d2", "d3"]]  # whole chunks of a long passage
    assert hold("efghijklmnopqrst") == [["d1", "d2", "d3"]]  # d1: six of its twelve
    assert hold("1802") == []
    assert hold("1234", {"d": text, "e": "01234"}) == [["d0", "e0"]]
    assert hold("14", {"d": "14" + "x" * 24 + "14", "e": ""}) == [["d0", "d2", "d3"]]  # wherever it stands
    cut = [chunk("d0", "d", 0, 10), chunk("d1", "d", 11, 21)]
    assert retrieval.gold_chunks(["6789Xbcde"], {"d": "0123456789Xbcdefghijkl"}, cut) == [["d0", "d1"]]  # four of nine in either
    assert retrieval.gold_chunks(["14"], {"d": "14"}, [chunk("d0", "d", 1, 1)]) == []  # a chunk of nothing
    both = retrieval.gold_chunks(["1234", "1802", "opqr"], {"d": text, "e": ""}, chunks)
    assert both == [["d0"], ["d2", "d3"]]


@pytest.mark.parametrize("answers, text, there", [
    (["1802"], "It burned in 1802.", True),
    (["The Long  Staff"], "he took the\nlong staff, and left", True),
    (["no"], "a note", False),  # whole words only
    (["staff long"], "the long staff", False),
    (["long staff"], "long, staff", False),  # what stands between counts
    (["St. Ives"], "at st.ives", True),
    (["Caf\u00e9"], "the cafe\u0301 closed", True),  # composed or not
    (["cafe"], "the caf\u00e9 closed", False),
    (["\u6771\u4eac"], "\u5728 \u6771\u4eac", True),
    (["\u6771\u4eac\u5854"], "\u4ed6\u559c\u6b61\u6771\u4eac\u5854\u3002", True),  # no blanks between words
    (["\u6771\u5854"], "\u6771\u4eac\u5854", False),
    (["$5"], "it cost $5!", True),
    (["", " ", "zinc"], "a tin", False),  # an empty answer is nowhere
    ([], "a tin", False),
    (["gold", "tin"], "a tin", True),  # one is enough
])
def test_a_chunk_contains_an_answer(answers, text, there):
    chunks = [Chunk("c0", "d", 0, 9, 1, "other"), Chunk("c1", "d", 9, 20, 1, text), Chunk("c2", "d", 20, 40, 1, f"so: {text}")]
    assert retrieval.answer_chunks(answers, chunks) == ([["c1", "c2"]] if there else [])


def test_an_interval_holds_the_mean_and_repeats():
    values = np.random.default_rng(0).random(40).tolist()
    found = retrieval.interval(values, draws=2000, seed=3)
    assert found["mean"] == pytest.approx(sum(values) / 40)
    # The normal approximation is close for forty values.
    half = 1.96 * np.std(values) / math.sqrt(40)
    assert found["low"] == pytest.approx(found["mean"] - half, abs=0.02)
    assert found["high"] == pytest.approx(found["mean"] + half, abs=0.02)
    assert retrieval.interval(values, draws=2000, seed=3) == found != retrieval.interval(values, draws=2000, seed=4)
    assert retrieval.interval([0.5, 0.5], draws=10, seed=0) == {"mean": 0.5, "low": 0.5, "high": 0.5}
    assert all(math.isnan(x) for x in retrieval.interval([], draws=10, seed=0).values())


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_an_interval_stays_among_its_values(values):
    found = retrieval.interval(values, draws=200, seed=0)
    assert min(values) - 1e-9 <= found["low"] <= found["high"] <= max(values) + 1e-9
    assert found["mean"] == pytest.approx(np.mean(values))


@pytest.mark.parametrize("given, references, f1, exact", [
    ("1802", ["1802"], 1, 1),
    ("The Long Staff!", ["a long staff"], 1, 1),
    ("in 1802", ["1802"], 2 / 3, 0),
    ("the mill burned down", ["The mill burned in 1802."], 2 * (2 / 3) * (2 / 4) / (2 / 3 + 2 / 4), 0),
    ("no", ["yes", "No."], 1, 1),
    ("Ada Lovelace", ["Ada", "Lovelace, Countess Ada"], 0.8, 0),  # two of two, two of three
    ("ada ada", ["Ada"], 2 / 3, 0),  # a word counts as often as it is there
    ("19,250", ["19250"], 1, 1),
    ("An another theory", ["another theory"], 1, 1),  # articles are whole words
    ("", ["1802"], 0, 0),
    ("the", ["1802"], 0, 0),
    ("1802", [], 0, 0),
    ("sixteen", ["1802"], 0, 0),
])
def test_answers_by_hand(given, references, f1, exact):
    assert answers.f1(given, references) == pytest.approx(f1)
    assert answers.exact_match(given, references) == exact


@pytest.mark.parametrize("name, published", [("narrativeqa", 26.63), ("qasper", 32.99), ("multifieldqa_en", 49.34),
                                             ("hotpotqa", 42.77), ("2wikimqa", 27.35), ("musique", 18.77)])
def test_scores_are_those_that_longbench_published(name, published):
    folder = DATA / "longbench_preds"
    if not folder.is_dir():
        pytest.skip(f"{folder} is absent: set ARK_DATA to compare with published scores")
    rows = [json.loads(line) for line in (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]
    expected = json.loads((folder / "list_result.json").read_text())[name]
    found = [answers.f1(row["pred"], row["answers"]) for row in rows]
    assert found == pytest.approx(expected, abs=1e-12)
    assert round(100 * np.mean(found), 2) == published
