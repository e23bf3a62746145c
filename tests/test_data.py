"""Positives, hard negatives, batches: by hand, on numbers small enough to check in the head."""

import itertools

import numpy as np
import pyarrow as pa
import pytest

from ark_jax.data import curriculum, negatives, positives
from ark_jax.data.curriculum import Example
from ark_jax.data.positives import Weighing

PAPER = Weighing(answers="max", normalise="none", forward=1.0, backward=0.3, retriever=1.0, short_chunk=0)


def weighing(**changes) -> Weighing:
    return Weighing(**{**vars(PAPER), **changes})


def scores(*rows: tuple) -> pa.Table:
    """Rows of (question, chunk, answer, forward, backward, retriever, chunk tokens)."""
    names = ("question", "chunk", "answer", "forward", "backward", "retriever", "chunk_tokens")
    filled = {"forward_tokens": 1, "backward_tokens": 1, "cut": False}
    return pa.Table.from_pylist([{**dict(zip(names, row, strict=True)), **filled} for row in rows], schema=positives.SCHEMA)


# Halves and quarters, so that float32 columns hold them exactly.
TABLE = scores(
    ("q", "a", 0, -2.0, -1.0, 0.5, 100), ("q", "a", 1, -1.0, -3.0, 0.5, 100),
    ("q", "b", 0, -4.0, -2.0, 0.25, 5), ("q", "b", 1, -6.0, -1.0, 0.25, 5),
    ("q", "c", 0, -3.0, -1.5, 1.0, 20), ("q", "c", 1, -3.0, -1.5, 1.0, 20),
    ("other", "a", 0, -8.0, -8.0, 0.0, 100),
)


def unified(table: pa.Table, **changes) -> dict[str, dict[str, float]]:
    """question -> chunk -> S."""
    out: dict[str, dict[str, float]] = {}
    for row in positives.unify(table, weighing(**changes)):
        out.setdefault(row["question"], {})[row["chunk"]] = row["score"]
    return out


@pytest.mark.parametrize("changes, expected", [
    # forward + 0.3 backward + cosine, each the best over the two answers
    ({}, {"a": -1.0 - 0.3 + 0.5, "b": -4.0 - 0.3 + 0.25, "c": -3.0 - 0.45 + 1.0}),
    ({"answers": "first"}, {"a": -2.0 - 0.3 + 0.5, "b": -4.0 - 0.6 + 0.25, "c": -3.0 - 0.45 + 1.0}),
    ({"answers": "mean"}, {"a": -1.5 - 0.6 + 0.5, "b": -5.0 - 0.45 + 0.25, "c": -3.0 - 0.45 + 1.0}),
    ({"answers": "first", "forward": 0.5, "backward": 2.0, "retriever": 4.0},
     {"a": -1.0 - 2.0 + 2.0, "b": -2.0 - 4.0 + 1.0, "c": -1.5 - 3.0 + 4.0}),
    # minmax over a, b, c: forward -2 -4 -3, backward -1 -2 -1.5, cosine 0.5 0.25 1
    ({"answers": "first", "normalise": "minmax", "backward": 0.5}, {"a": 1 + 0.5 + 1 / 3, "b": 0.0, "c": 0.5 + 0.25 + 1}),
    # b has 5 of 10 tokens, but as the lowest it has nothing to lose
    ({"answers": "first", "short_chunk": 10}, {"a": -1.8, "b": -4.35, "c": -2.45}),
    # c has 20 of 40 tokens and loses half of what it stands above b; b, of 5, is the lowest; a is long enough
    ({"answers": "first", "short_chunk": 40}, {"a": -1.8, "b": -4.35, "c": -4.35 + (4.35 - 2.45) / 2}),
])
def test_scores_by_hand(changes, expected):
    found = unified(TABLE, **changes)
    assert found["q"] == pytest.approx(expected, abs=1e-6)
    assert list(found) == ["q", "other"]


def test_a_lone_chunk_and_equal_scores_are_half():
    """Min-max over no spread has no answer; a half takes no side."""
    assert unified(TABLE, answers="first", normalise="minmax")["other"] == {"a": pytest.approx(0.5 + 0.15 + 0.5)}


def test_a_short_chunk_is_never_raised():
    rng = np.random.default_rng(0)
    rows = [("q", f"c{i}", 0, *(float(x) for x in rng.normal(-3, 3, 3)), int(n)) for i, n in enumerate(rng.integers(0, 30, 50))]
    for normalise in ("none", "minmax"):
        plain, marked = (unified(scores(*rows), normalise=normalise, short_chunk=n)["q"] for n in (0, 20))
        assert all(marked[c] <= plain[c] + 1e-9 for c in plain)
        least = 0.0 if normalise == "minmax" else min(plain.values())
        assert min(marked.values()) >= least - 1e-9
        fallen = {row[1] for row in rows if row[-1] < 20 and plain[row[1]] > least}
        assert {c for c in plain if marked[c] < plain[c] - 1e-9} == fallen and len(fallen) > 20


def test_both_the_best_and_the_mean_over_answers_are_kept():
    row = positives.unify(TABLE, weighing(answers="first"))[0]
    assert row == {"question": "q", "chunk": "a", "score": pytest.approx(-1.8), "retriever": 0.5, "forward_max": -1.0,
                   "forward_mean": -1.5, "backward_max": -1.0, "backward_mean": -2.0}


@pytest.mark.parametrize("changes", [{"answers": "last"}, {"normalise": "zscore"}])
def test_an_unknown_weighing_is_refused_by_name(changes):
    (field, value), = changes.items()
    with pytest.raises(ValueError, match=f"score.{field}='{value}'"):
        positives.unify(TABLE, weighing(**changes))


def test_the_best_are_selected_and_ties_go_by_name():
    given = {"q": {"d#2": 1.0, "d#10": 1.0, "d#0": -1.0, "d#1": 2.0}, "r": {"d#0": 0.0}}
    rows = [{"question": q, "chunk": chunk, "score": score} for q, some in given.items() for chunk, score in some.items()]
    assert positives.select(rows, 2) == {"q": ["d#1", "d#10"], "r": ["d#0"]}
    assert positives.select(rows)["q"] == ["d#1", "d#10", "d#2", "d#0"]


def test_questions_are_kept_by_how_far_their_positives_lead():
    scores = {"clear": (-1, -3, -3), "tied": (-1, -1, -4), "near": (-1.0, -1.2, -1.5), "alone": (-9,)}
    rows = [{"question": q, "chunk": f"{q}#{i}", "score": x} for q, some in scores.items() for i, x in enumerate(some)]
    one, two = positives.select(rows, 1), positives.select(rows, 2)
    assert positives.decided(rows, one, 1.0) == one
    assert list(positives.decided(rows, one, 0.75)) == ["alone", "clear", "near"]
    assert list(positives.decided(rows, one, 0.5)) == ["alone", "clear"]
    assert list(positives.decided(rows, two, 0.5)) == ["alone", "tied"]  # -1 and -4, where clear has -3 and -3
    assert positives.decided(rows, two, 0.01) == {"alone": ["alone#0"]}
    for keep in (0, -0.1, 1.1):
        with pytest.raises(ValueError, match=r"config\.score\.keep"):
            positives.decided(rows, one, keep)


# --- negatives -------------------------------------------------------------------------------------------------------

def unit(*degrees: float) -> np.ndarray:
    """Vectors in the plane."""
    radians = np.radians(degrees)
    return np.stack([np.cos(radians), np.sin(radians)], 1).astype(np.float32)


CHUNKS = unit(0, 10, 20, 90, 100, 180)
IDS = ["e", "d", "c", "b", "a", "z"]


def cosine(degrees: float):
    return pytest.approx(np.cos(np.radians(degrees)), abs=1e-6)


def test_candidates_are_the_union_over_rewrites(mesh):
    queries = {"q": unit(1, 92)}
    found = negatives.mine(queries, {"q": range(6)}, CHUNKS, IDS, top=2)
    assert found == {"q": [("e", cosine(1)), ("b", cosine(2)), ("a", cosine(8)), ("d", cosine(9))]}
    # With room for one more each, c (19 degrees off) and c again (72): its better cosine counts.
    found = negatives.mine(queries, {"q": range(6)}, CHUNKS, IDS, top=3)
    assert found["q"][4:] == [("c", cosine(19))]


def test_candidates_come_from_a_questions_own_pool(mesh):
    queries = {"q": unit(0), "r": unit(0), "s": unit(0, 180)}
    pools = {"q": [3, 4, 5], "r": [5, 0], "s": [3, 4, 5]}
    found = negatives.mine(queries, pools, CHUNKS, IDS, top=10)
    assert found == {"q": [("b", cosine(90)), ("a", cosine(100)), ("z", cosine(180))],
                     "r": [("e", cosine(0)), ("z", cosine(180))],
                     "s": [("z", cosine(0)), ("a", cosine(80)), ("b", cosine(90))]}


def test_equally_hard_candidates_go_by_name_whatever_the_mesh(any_mesh):
    same = np.repeat(unit(30), 4, axis=0)
    found = negatives.mine({"q": unit(0)}, {"q": range(4)}, same, ["d#3", "d#1", "d#2", "d#0"], top=4)
    assert [name for name, _ in found["q"]] == ["d#0", "d#1", "d#2", "d#3"]


def test_nothing_to_mine(mesh):
    assert negatives.mine({"q": unit(0)}, {"q": []}, CHUNKS, IDS, top=3) == {"q": []}
    assert chosen(positives=list("abBcdef")) == ([], {"copies": 0, "margin": 0, "aligned": 0, "answers": 0})


# Found for a question, hardest first by its rewrites. B differs from b in case and spacing only; a holds the answer.
FOUND = [("a", 0.9), ("b", 0.8), ("B", 0.8), ("c", 0.7), ("d", 0.6), ("e", 0.5), ("f", 0.4)]
TEXTS = {"a": "a tide of nine feet", "b": "The Lamp", "B": "the  lamp\n", "c": "salt", "d": "wool", "e": "SALT", "f": "bell"}
COSINES = {"a": 0.5, "b": 0.79, "B": 0.79, "c": 0.77, "d": 0.2, "e": 0.77, "f": 0.8}


def chosen(positives: list[str], *, cosines: dict = COSINES, **changes) -> tuple[list[str], dict[str, int]]:
    """Names of the negatives, and what the rules took."""
    rules = {"margin": 0.0, "spared": (), "drop_answers": False, "keep": 9} | changes
    kept, dropped = negatives.choose(FOUND, positives, cosine=cosines, originals=negatives.originals(TEXTS),
                                     holding=lambda chunk: negatives.holds(TEXTS[chunk], ["Nine Feet"]), **rules)
    assert dict(kept).items() <= dict(FOUND).items()
    return [name for name, _ in kept], dict(dropped)


@pytest.mark.parametrize(("positives", "changes", "kept", "dropped"), [
    # Of two chunks with one text the harder serves, or the first by name; b's copy is no more a negative than b itself.
    (["f"], {}, "abcd", (2, 0, 0, 0)),
    (["b", "f"], {}, "acd", (2, 0, 0, 0)),
    (["B", "d"], {}, "acf", (2, 0, 0, 0)),
    # What comes after the last one taken is not looked at.
    (["f"], {"keep": 2}, "ab", (0, 0, 0, 0)),
    (["f"], {"keep": 3}, "abc", (1, 0, 0, 0)),
    # 0.95 of the best positive's 0.8 is 0.76, of 0.5 less than all but d; 0.97 of 0.8 is 0.776.
    (["f"], {"margin": 0.95}, "ad", (0, 4, 0, 0)),
    (["d", "f"], {"margin": 0.95}, "a", (0, 4, 0, 0)),
    (["a"], {"margin": 0.95}, "d", (0, 5, 0, 0)),
    (["f"], {"margin": 0.97}, "acd", (1, 2, 0, 0)),
    (["f"], {"drop_answers": True}, "bcd", (2, 0, 0, 1)),
    (["f"], {"drop_answers": True, "margin": 0.95}, "d", (0, 4, 0, 1)),
    (["f"], {"spared": "bd"}, "aBc", (1, 0, 2, 0)),
    (["f"], {"spared": "abB", "drop_answers": True, "margin": 0.97}, "cd", (1, 2, 1, 0)),
])
def test_what_may_be_a_positive_is_no_negative(positives, changes, kept, dropped):
    rules = ("copies", "margin", "aligned", "answers")
    assert chosen(positives, **changes) == (list(kept), dict(zip(rules, dropped, strict=True)))


def test_a_margin_below_zero_is_further_from_the_positive():
    below = {**dict.fromkeys(COSINES, -0.5), "f": -0.4, "d": -0.405}
    assert chosen(["f"], cosines=below, margin=0.95)[0] == ["a", "b", "c"]


@pytest.mark.parametrize(("text", "answers", "holding"), [
    ("It was  NINE\nfeet deep.", ["nine feet"], True), ("ninety feet", ["nine", "fee"], False), ("of nine", ["Nine", "x"], True),
    ("it cost $5 then", ["$5"], True), ("it cost $50", ["$5"], False), ("東京都に住む", ["東京"], True), 
    ("Le café", ["café"], True), ("cafés", ["café"], False), ("在Paris吃", ["Paris"], True), ("서울에서", ["서울"], True),
    ("В Москве", ["москва"], False), ("a+b", ["a.b"], False),
    ("STRASSE", ["straße"], True), ("", ["nine"], False)])
def test_an_answer_is_held_as_whole_words(text, answers, holding):
    assert negatives.holds(text, answers) is holding


# --- batches ---------------------------------------------------------------------------------------------------------

BATCH = [Example("q1", "d", ("a", "b"), ("x", "b")), Example("q2", "d", ("b",), ("y",)), Example("q3", "e", ("c",), ())]


def named(mask: np.ndarray, chunks: list[str]) -> list[str]:
    return ["".join(c for c, hit in zip(chunks, row, strict=True) if hit) for row in mask]


@pytest.mark.parametrize("use_negatives, denominator, chunks, negative", [
    (False, "own", "abc", ["c", "ac", "ab"]),  # stage 1: other questions' positives; b is a sibling of a, whoever brought it in
    (False, "batch", "abc", ["c", "ac", "ab"]),
    (True, "own", "abcxy", ["x", "y", ""]),  # q1 mined its own positive b: no negative
    (True, "batch", "abcxy", ["cxy", "acxy", "abxy"]),
    (False, "all", "abc", ["abc", "abc", "abc"]),
    (True, "all", "abcxy", ["abcxy", "abcxy", "abcxy"]),
])
def test_who_is_contrasted_with_whom(use_negatives, denominator, chunks, negative):
    found, positive, against = curriculum.masks(BATCH, use_negatives=use_negatives, denominator=denominator)
    assert found == list(chunks)
    assert named(positive, found) == ["ab", "b", "c"]
    assert named(against, found) == negative


EXAMPLES = [Example(f"q{i}", f"d{i % 4}", ("c",), ()) for i in range(23)]


@pytest.mark.parametrize("by", ["question", "document"])
def test_an_epoch_is_a_permutation_and_epochs_differ(by):
    order = curriculum.order(EXAMPLES, epochs=3, seed=5, by=by)
    epochs = order.reshape(3, 23)
    assert order.dtype == np.int64 and [sorted(epoch) for epoch in epochs.tolist()] == [list(range(23))] * 3
    assert len({tuple(epoch) for epoch in epochs.tolist()} | {tuple(range(23))}) == 4
    assert curriculum.order(EXAMPLES, epochs=3, seed=5, by=by).tolist() == order.tolist()
    assert curriculum.order(EXAMPLES, epochs=3, seed=6, by=by).tolist() != order.tolist()
    assert curriculum.order(EXAMPLES, epochs=1, seed=5, by=by).tolist() == epochs[0].tolist()
    assert curriculum.order([], epochs=2, seed=0, by=by).shape == (0,)


def test_documents_stay_together_and_are_shuffled_within():
    runs = []
    for epoch in curriculum.order(EXAMPLES, epochs=4, seed=0, by="document").reshape(4, 23):
        groups = [(d, list(some)) for d, some in itertools.groupby(epoch, lambda i: EXAMPLES[i].documents)]
        assert len(groups) == 4, "a document was torn apart"
        runs += [some for _, some in groups]
    assert any(some != sorted(some) for some in runs)
    torn = curriculum.order(EXAMPLES, epochs=1, seed=0, by="question")
    assert len(list(itertools.groupby(torn, lambda i: EXAMPLES[i].documents))) > 4


def test_batches_drop_nothing():
    order = curriculum.order(EXAMPLES, epochs=1, seed=0, by="question")
    batches = list(curriculum.batches(order, 10))
    assert [len(b) for b in batches] == [10, 10, 3]
    assert np.concatenate(batches).tolist() == order.tolist()


def test_examples_come_back_from_array_record(tmp_path):
    examples = [Example("frage-ß", "düne|東京", ("düne#0000", "東京#0001"), ("🙂#0002",)), Example("q2", "d", ("a",), ()),
                *(Example(f"q{i}", "d", ("a",) * (i % 3 + 1), tuple(map(str, range(i)))) for i in range(3, 40))]
    curriculum.write(examples, tmp_path / "here")
    for some, folder in ((examples, "here"), ([], "there")):
        with pytest.raises(ValueError, match="holds examples already" if some else "no examples"):
            curriculum.write(some, tmp_path / folder)
    assert curriculum.read(tmp_path / "here") == examples
    assert [p.suffix.startswith(".array_record") for p in (tmp_path / "here").rglob("*array_record*")] == [True]


def test_an_unknown_denominator_is_refused_by_name():
    with pytest.raises(ValueError, match=r"config\.train\.denominator='sum': must be one of own, batch, all"):
        curriculum.masks(BATCH, use_negatives=True, denominator="sum")


def test_the_copy_of_a_positive_is_nobodys_negative():
    """q2's positive B reads as q1's positive b, so it would be in q1's denominator, and b in q2's."""
    given = {"q1": ["b", "e"], "q2": ["c", "B"]}, {"q1": ["d"], "q2": ["b", "d", "e"]}, {"q1": "d", "q2": "d"}
    rows = curriculum.example_rows(*given, negatives.originals(TEXTS))
    assert rows == [Example("q1", "d", ("b", "c"), ("d",)), Example("q2", "d", ("c", "b"), ("b", "d", "c"))]
    chunks, positive, against = curriculum.masks(rows, use_negatives=True, denominator="batch")
    assert chunks == ["b", "c", "d"]
    assert (named(positive, chunks), named(against, chunks)) == (["bc", "bc"], ["d", "d"])
    assert curriculum.example_rows(*given, {})[1].positives == ("c", "B")


def test_examples_follow_the_positives():
    documents = {"q0": "d", "q1": "d", "q2": "e"}
    rows = curriculum.example_rows({"q2": ["a"], "q1": [], "q0": ["b", "c"]}, {"q0": ["x"], "q1": ["y"]}, documents, {})
    assert rows == [Example("q2", "e", ("a",), ()), Example("q0", "d", ("b", "c"), ("x",))]
