"""Hard negatives: candidates and rules by hand, with angles as cosines."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ark_jax.retrieval import mining
from ark_jax.retrieval.dense import top_k


def unit(*degrees: float) -> np.ndarray:
    """Vectors in the plane."""
    radians = np.radians(degrees)
    return np.stack([np.cos(radians), np.sin(radians)], 1).astype(np.float32)


CHUNKS = unit(0, 10, 20, 90, 100, 180)


IDS = ["e", "d", "c", "b", "a", "z"]


def cosine(degrees: float):
    return pytest.approx(np.cos(np.radians(degrees)), abs=1e-6)


def mined(queries, pools, vectors=CHUNKS, ids=IDS, *, top: int) -> dict[str, list]:
    """question -> (chunk id, score), hardest first."""
    candidates = mining.dense_candidates(queries, pools, vectors, ids, top=top)
    for positions, scores in candidates.values():
        assert (positions.dtype, scores.dtype) == (np.int32, np.float32)
    return {
        question: [(ids[i], score) for i, score in zip(positions, scores.tolist(), strict=True)]
        for question, (positions, scores) in candidates.items()
    }


def test_candidates_are_the_union_over_rewritten_questions(mesh):
    queries = {"q": unit(1, 92)}
    assert mined(queries, {"q": range(6)}, top=2) == {
        "q": [("e", cosine(1)), ("b", cosine(2)), ("a", cosine(8)), ("d", cosine(9))]
    }
    # With room for one more each, c (19 degrees off) and c again (72): its better cosine counts.
    assert mined(queries, {"q": range(6)}, top=3)["q"][4:] == [("c", cosine(19))]


def test_candidates_come_from_a_questions_own_pool(mesh):
    queries = {"q": unit(0), "r": unit(0), "s": unit(0, 180)}
    pools = {"q": [3, 4, 5], "r": [5, 0], "s": [3, 4, 5]}
    assert mined(queries, pools, top=10) == {
        "q": [("b", cosine(90)), ("a", cosine(100)), ("z", cosine(180))],
        "r": [("e", cosine(0)), ("z", cosine(180))],
        "s": [("z", cosine(0)), ("a", cosine(80)), ("b", cosine(90))],
    }


def test_equally_hard_candidates_are_ordered_by_id_on_any_mesh(any_mesh):
    same = np.repeat(unit(30), 4, axis=0)
    candidates = mined({"q": unit(0)}, {"q": range(4)}, same, ["d#3", "d#1", "d#2", "d#0"], top=4)
    assert [name for name, _ in candidates["q"]] == ["d#0", "d#1", "d#2", "d#3"]


def mined_one_by_one(queries, pools, vectors, ids, top: int) -> dict[str, list]:
    """As `mined`, by a search for each query in a copy of the question's pool."""
    out = {}
    for question, rows in queries.items():
        best: dict[str, float] = {}
        for row in rows:
            positions, scores = top_k(row[None], vectors[list(pools[question])], top)
            for i, score in zip(positions[0].tolist(), scores[0].tolist(), strict=True):
                id = ids[pools[question][i]]
                best[id] = max(best.get(id, -1.0), score)
        out[question] = sorted(best.items(), key=lambda pair: (-pair[1], pair[0]))
    return out


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.lists(st.integers(0, 11), unique=True) | st.none()),
        max_size=7,
    ),
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(0, 3),
)
def test_searching_questions_together_equals_searching_them_alone(asked, top, at_once, seed):
    """Many vectors are equal, so that ids decide; None is a pool of all chunks."""
    rng = np.random.default_rng(seed)
    few = unit(*range(0, 360, 45))
    vectors, ids = few[rng.integers(0, 8, 12)], [f"d#{i}" for i in rng.permutation(12)]
    queries = {f"q{i}": few[rng.integers(0, 8, count)] for i, (count, _) in enumerate(asked)}
    pools = {f"q{i}": range(12) if pool is None else pool for i, (_, pool) in enumerate(asked)}
    with mock.patch.object(mining, "QUESTIONS", at_once):
        together = mined(queries, pools, vectors, ids, top=top)
    assert together == mined_one_by_one(queries, pools, vectors, ids, top)


def test_an_empty_pool_gives_no_candidates(mesh):
    assert mined({"q": unit(0)}, {"q": []}, top=3) == {"q": []}
    assert chosen(positives=list("abBcdef")) == ([], {"copies": 0, "margin": 0, "aligned": 0})


# The chunks of a question, hardest first by its rewrites. B differs from b in case and spacing
# only;
# a holds the answer.
FOUND = [("a", 0.9), ("b", 0.8), ("B", 0.8), ("c", 0.7), ("d", 0.6), ("e", 0.5), ("f", 0.4)]


TEXTS = {
    "a": "a tide of nine feet",
    "b": "The Lamp",
    "B": "the  lamp\n",
    "c": "salt",
    "d": "wool",
    "e": "SALT",
    "f": "bell",
}


COSINES = {"a": 0.5, "b": 0.79, "B": 0.79, "c": 0.77, "d": 0.2, "e": 0.77, "f": 0.8}


def chosen(
    positives: list[str], *, cosines: dict = COSINES, **changes
) -> tuple[list[str], dict[str, int]]:
    """Names of the negatives, and what the rules took."""
    rules = {"margin": 0.0, "spared": (), "keep": 9} | changes
    names = list(TEXTS)
    copies = mining.first_copies(TEXTS.values())
    originals = {names[copy]: names[first] for copy, first in copies.items()}
    negatives, dropped = mining.choose_negatives(
        FOUND, positives, cosine=cosines, first_copy=originals, **rules
    )
    assert dict(negatives).items() <= dict(FOUND).items()
    return [name for name, _ in negatives], dict(dropped)


@pytest.mark.parametrize(
    ("positives", "changes", "kept", "dropped"),
    [
        # Of two chunks with one text the harder serves, or the first by name. If b is a positive,
        # its copy is no negative either.
        (["f"], {}, "abcd", (2, 0, 0)),
        (["b", "f"], {}, "acd", (2, 0, 0)),
        (["B", "d"], {}, "acf", (2, 0, 0)),
        # Later ones are not read.
        (["f"], {"keep": 2}, "ab", (0, 0, 0)),
        (["f"], {"keep": 3}, "abc", (1, 0, 0)),
        # 0.95 of the best positive's 0.8 is 0.76, of 0.5 less than all but d; 0.97 of 0.8 is 0.776.
        (["f"], {"margin": 0.95}, "ad", (0, 4, 0)),
        (["d", "f"], {"margin": 0.95}, "a", (0, 4, 0)),
        (["a"], {"margin": 0.95}, "d", (0, 5, 0)),
        (["f"], {"margin": 0.97}, "acd", (1, 2, 0)),
        (["f"], {"spared": "bd"}, "aBc", (1, 0, 2)),
        (["f"], {"spared": "abB", "margin": 0.97}, "cd", (1, 2, 1)),
        # Of given negatives only copies are left out.
        (["f"], {"spared": "abB", "margin": 0.97, "trusted": "bBc"}, "bcd", (2, 0, 1)),
        (["b"], {"margin": 0.95, "trusted": "Bc"}, "acd", (2, 1, 0)),
    ],
)
def test_likely_positives_are_dropped_from_the_negatives(positives, changes, kept, dropped):
    rules = ("copies", "margin", "aligned")
    assert chosen(positives, **changes) == (list(kept), dict(zip(rules, dropped, strict=True)))


@given(st.lists(st.sampled_from(["a b", "A  b\n", "ab", "", " ", "ß", "SS", "é"])))
def test_each_copy_is_assigned_to_the_first_equal_text(texts):
    expected: dict[int, int] = {}
    for i, text in enumerate(texts):
        same = [j for j in range(i) if texts[j].casefold().split() == text.casefold().split()]
        if same:
            expected[i] = same[0]
    assert mining.first_copies(iter(texts)) == expected


def test_the_margin_also_works_for_negative_cosines():
    below = {**dict.fromkeys(COSINES, -0.5), "f": -0.4, "d": -0.405}
    assert chosen(["f"], cosines=below, margin=0.95)[0] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("text", "answers", "holding"),
    [
        ("It was  NINE\nfeet deep.", ["nine feet"], True),
        ("ninety feet", ["nine", "fee"], False),
        ("of nine", ["Nine", "x"], True),
        ("it cost $5 then", ["$5"], True),
        ("it cost $50", ["$5"], False),
        ("東京都に住む", ["東京"], True),
        ("Le café", ["café"], True),
        ("cafés", ["café"], False),
        ("在Paris吃", ["Paris"], True),
        ("서울에서", ["서울"], True),
        ("В Москве", ["москва"], False),
        ("a+b", ["a.b"], False),
        ("STRASSE", ["straße"], True),
        ("", ["nine"], False),
    ],
)
def test_answers_are_found_only_as_whole_words(text, answers, holding):
    assert mining.contains_answer(text, answers) is holding


# --- batches --------------------------------------------------------------------------------------
