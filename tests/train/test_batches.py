"""Batches: masks by hand, epochs as permutations, examples on disk."""

import functools
import itertools

import numpy as np
import pytest

from ark_jax.train import batches, example_files
from ark_jax.train.batches import Example

BATCH = [
    Example("q1", "d", ("a", "b"), ("x", "b")),
    Example("q2", "d", ("b",), ("y",)),
    Example("q3", "e", ("c",), ()),
]


def masks_by_name(examples: list[Example], *, use_negatives: bool, denominator: str):
    """The chunks of a batch, and for each question its positives and negatives as a word."""
    every = sorted({c for e in examples for c in (*e.positives, *e.negatives, "aa", "w")})
    numbered = batches.number_chunks(examples, every, use_negatives=use_negatives)
    numbers = batches.distinct_numbers(numbered)
    masks = batches.pair_masks(
        numbered, numbers, use_negatives=use_negatives, denominator=denominator
    )
    chunks = [every[number] for number in numbers]
    assert chunks == batches.distinct_chunks(examples, use_negatives=use_negatives)
    return chunks, *(named(mask, chunks) for mask in masks)


def named(mask: np.ndarray, chunks: list[str]) -> list[str]:
    return ["".join(c for c, hit in zip(chunks, row, strict=True) if hit) for row in mask]


@pytest.mark.parametrize(
    "use_negatives, denominator, chunks, negative",
    [
        # Stage 1: other questions' positives; b is a sibling of a, whoever brought it in.
        (False, "own", "abc", ["c", "ac", "ab"]),
        (False, "batch", "abc", ["c", "ac", "ab"]),
        (True, "own", "abcxy", ["x", "y", ""]),  # q1 mined its own positive b: no negative
        (True, "batch", "abcxy", ["cxy", "acxy", "abxy"]),
        (False, "all", "abc", ["abc", "abc", "abc"]),
        (True, "all", "abcxy", ["abcxy", "abcxy", "abcxy"]),
    ],
)
def test_masks_equal_examples_worked_by_hand(use_negatives, denominator, chunks, negative):
    columns, positive, negatives = masks_by_name(
        BATCH, use_negatives=use_negatives, denominator=denominator
    )
    assert columns == list(chunks)
    assert positive == ["ab", "b", "c"] and negatives == negative


@pytest.mark.parametrize(
    "use_negatives, denominator, chunks, negative",
    [
        # ARK, eq. 7, "other positive chunks within the same mini-batch": q1's b is a negative of
        # its pair with a, and a of its pair with b.
        (False, "own", "abc", ["bc", "ac", "ac", "ab"]),
        # ARK, eq. 8: C(q) is t+ and the hard negatives, without T+ (its own mined b).
        (True, "own", "abcxy", ["x", "x", "y", ""]),
        (True, "batch", "abcxy", ["bcxy", "acxy", "acxy", "abxy"]),
    ],
)
def test_pairs_have_the_denominators_of_the_paper(use_negatives, denominator, chunks, negative):
    columns, positive, negatives = masks_by_name(
        batches.split_pairs(BATCH), use_negatives=use_negatives, denominator=denominator
    )
    assert columns == list(chunks)
    assert positive == ["a", "b", "b", "c"] and negatives == negative


def test_shares_replace_the_positive_mask_with_floats():
    """Other questions' candidates are negatives, a question's own never, in whichever list."""
    examples = [
        Example("q1", "d", ("a", "b"), ("x", "b"), (0.75, 0.25)),
        Example("q2", "d", ("b", "c"), (), (0.5, 0.5)),
    ]
    numbered = batches.number_chunks(examples, "abcx", use_negatives=True)
    masks = functools.partial(
        batches.pair_masks, use_negatives=True, denominator="batch", has_shares=True
    )
    shares, negative = masks(numbered, np.arange(4))
    assert shares.tolist() == [[0.75, 0.25, 0, 0], [0, 0.5, 0.5, 0]]
    assert named(negative, list("abcx")) == ["cx", "ax"]
    # A process whose devices have no question makes masks of the same types.
    assert shares.dtype == masks([], np.arange(4))[0].dtype == np.float32


EXAMPLES = [Example(f"q{i}", f"d{i % 4}", ("c",), ()) for i in range(23)]


@pytest.mark.parametrize("by", ["question", "document"])
def test_every_epoch_is_another_permutation(by):
    epochs = batches.shuffled_order(EXAMPLES, epochs=3, seed=5, by=by).reshape(3, 23)
    assert [sorted(epoch) for epoch in epochs.tolist()] == [list(range(23))] * 3
    assert len({tuple(epoch) for epoch in epochs.tolist()} | {tuple(range(23))}) == 4


@pytest.mark.parametrize("by", ["question", "document"])
def test_the_order_depends_on_the_seed_alone(by):
    order = batches.shuffled_order(EXAMPLES, epochs=3, seed=5, by=by).tolist()
    assert batches.shuffled_order(EXAMPLES, epochs=3, seed=5, by=by).tolist() == order
    assert batches.shuffled_order(EXAMPLES, epochs=1, seed=5, by=by).tolist() == order[:23]
    assert batches.shuffled_order(EXAMPLES, epochs=3, seed=6, by=by).tolist() != order


@pytest.mark.parametrize("by", ["question", "document"])
def test_the_order_of_no_examples_is_empty(by):
    assert batches.shuffled_order(EXAMPLES, epochs=3, seed=5, by=by).dtype == np.int64
    assert batches.shuffled_order([], epochs=2, seed=0, by=by).shape == (0,)


def test_questions_of_a_document_stay_together_in_shuffled_order():
    runs = []
    for epoch in batches.shuffled_order(EXAMPLES, epochs=4, seed=0, by="document").reshape(4, 23):
        groups = itertools.groupby(epoch, lambda i: EXAMPLES[i].documents)
        members = [list(group) for _, group in groups]
        assert len(members) == 4, "the questions of a document are apart"
        runs += members
    assert any(run != sorted(run) for run in runs)
    scattered = batches.shuffled_order(EXAMPLES, epochs=1, seed=0, by="question")
    assert len(list(itertools.groupby(scattered, lambda i: EXAMPLES[i].documents))) > 4


def test_batches_keep_every_example():
    order = batches.shuffled_order(EXAMPLES, epochs=1, seed=0, by="question")
    groups = list(batches.split_batches(order, 10))
    assert [len(b) for b in groups] == [10, 10, 3]
    assert np.concatenate(groups).tolist() == order.tolist()


def test_examples_survive_a_round_trip_through_array_record(tmp_path):
    examples = [
        Example("frage-ß", "düne|東京", ("düne#0000", "東京#0001"), ("🙂#0002",)),
        Example("q2", "d", ("a",), ()),
        Example("q3", "d", ("a", "b"), (), (0.1 + 0.2, 1 / 3)),
        *(
            Example(f"q{i}", "d", ("a",) * (i % 3 + 1), tuple(map(str, range(i))))
            for i in range(3, 40)
        ),
    ]
    example_files.write_examples(examples, tmp_path / "first")
    for rows, folder in ((examples, "first"), ([], "second")):
        with pytest.raises(ValueError, match="holds examples already" if rows else "no examples"):
            example_files.write_examples(rows, tmp_path / folder)
    assert example_files.read_examples(tmp_path / "first") == examples
    assert [
        p.suffix.startswith(".array_record") for p in (tmp_path / "first").rglob("*array_record*")
    ] == [True]


def test_an_unknown_denominator_is_refused():
    with pytest.raises(
        ValueError, match=r"config\.train\.denominator='sum': must be one of own, batch, all"
    ):
        masks_by_name(BATCH, use_negatives=True, denominator="sum")


def test_a_copy_of_a_positive_is_never_a_negative():
    """q2's positive B is a copy of q1's positive b: each would be in the other's denominator."""
    sources = (
        {"q1": ["b", "e"], "q2": ["c", "B"]},
        {"q1": ["d"], "q2": ["b", "d", "e"]},
        {"q1": "d", "q2": "d"},
    )
    rows = batches.make_examples(*sources, {"B": "b", "e": "c"})
    assert rows == [
        Example("q1", "d", ("b", "c"), ("d",)),
        Example("q2", "d", ("c", "b"), ("b", "d", "c")),
    ]
    masks = masks_by_name(rows, use_negatives=True, denominator="batch")
    assert masks == (["b", "c", "d"], ["bc", "bc"], ["d", "d"])
    assert batches.make_examples(*sources, {})[1].positives == ("c", "B")


def test_examples_are_ordered_like_the_positives():
    documents = {"q0": "d", "q1": "d", "q2": "e"}
    rows = batches.make_examples(
        {"q2": ["a"], "q1": [], "q0": ["b", "c"]}, {"q0": ["x"], "q1": ["y"]}, documents, {}
    )
    assert rows == [Example("q2", "e", ("a",), ()), Example("q0", "d", ("b", "c"), ("x",))]
