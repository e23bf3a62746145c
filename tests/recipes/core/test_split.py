"""How questions are divided into training and held-out ones."""

import collections

import pytest
from hypothesis import given, settings, strategies

from ark_jax.data.records import Question
from ark_jax.recipes.ark import config
from ark_jax.recipes.core.split import assign_folds, split_questions


def split(questions, **settings):
    c = config.ark()
    c.data.update(settings)
    parts = split_questions(questions, (), c)
    everything = (*parts.train, *parts.held_out, *parts.unused)
    assert sorted(q.id for q in everything) == sorted(q.id for q in questions)
    return {"train": parts.train, "held_out": parts.held_out, "unused": parts.unused}, parts.by


def documents_of(questions) -> set[str]:
    return {d for q in questions for d in q.documents}


def test_held_out_document_ids_may_be_numbers():
    questions = [Question(f"q{i}", "?", ("x",), (str(i),)) for i in range(4)]
    parts, by = split(questions, held_out_documents=(3,), ignored_questions=("q0",))
    assert (
        [q.id for q in parts["held_out"]] == ["q3"]
        and [q.id for q in parts["unused"]] == ["q0"]
        and by == "document"
    )


def test_documents_joined_by_a_question_stay_in_one_part():
    """Twenty paragraphs a question, as in MuSiQue: drawn one by one, hardly a question would have
    all in one part."""
    questions = [
        Question(f"q{i}", "?", ("a",), tuple(f"d{i}-{k}" for k in range(20))) for i in range(200)
    ]
    questions.append(Question("both", "?", ("a",), ("d0-3", "d1-4")))
    parts, by = split(questions)
    assert by == "document" and not parts["unused"]
    assert not documents_of(parts["train"]) & documents_of(parts["held_out"])
    assert 20 <= len(parts["held_out"]) <= 60  # a fifth is wanted
    more, _ = split([*questions, Question("new", "?", ("a",), ("new",))])
    assert [q for q in more["held_out"] if q.id != "new"] == parts["held_out"]


def test_questions_over_one_pool_of_documents_are_split_individually(capsys):
    questions = [Question(f"q{i}", "?", ("a",), (f"d{i}", f"d{i + 1}")) for i in range(100)]
    parts, by = split(questions)
    assert by == "question" and 8 <= len(parts["held_out"]) <= 35
    assert "the split is by question" in capsys.readouterr().out


def test_questions_across_held_out_and_other_documents_are_unused():
    question_on = lambda *documents: Question(" ".join(documents), "?", ("a",), documents)
    parts, by = split(
        [
            question_on("a"),
            question_on("b"),
            question_on("a", "b"),
            question_on("c"),
            question_on("b", "x"),
        ],
        held_out_documents=("b",),
        ignored_documents=("c",),
    )
    assert {name: [q.id for q in part] for name, part in parts.items()} == {
        "train": ["a"],
        "held_out": ["b"],
        "unused": ["c", "a b", "b x"],
    }
    assert by == "document"


def test_named_questions_are_held_out_regardless_of_documents():
    questions = [Question(f"q{i}", "?", ("a",), ("d",)) for i in range(5)]
    parts, by = split(questions, held_out_questions=("q3", "q1"), ignored_questions=("q0", "q1"))
    assert {name: [q.id for q in part] for name, part in parts.items()} == {
        "train": ["q2", "q4"],
        "held_out": ["q3"],
        "unused": ["q0", "q1"],
    }
    assert by == "question"


def test_holding_out_both_questions_and_documents_is_refused():
    questions = [Question(f"q{i}", "?", ("a",), ("d",)) for i in range(5)]
    with pytest.raises(ValueError, match="only one of them"):
        split(questions, held_out_questions=("q3",), held_out_documents=("d",))


def test_a_large_held_out_share_still_splits_by_document():
    """Eight documents of five questions each: no question joins two of them."""
    questions = [Question(f"q{i}", "?", ("a",), (f"d{i % 8}",)) for i in range(40)]
    parts, by = split(questions, held_out=0.9)
    assert by == "document"
    assert not documents_of(parts["train"]) & documents_of(parts["held_out"])


@pytest.mark.parametrize("share", [0.1, 0.2, 0.8])
def test_two_documents_are_split_into_one_each(share):
    """By chance alone, most of these draws would leave a side empty."""
    questions = [Question(f"q{i}", "?", ("a",), (f"d{i % 2}",)) for i in range(6)]
    parts, by = split(questions, held_out=share)
    assert by == "document" and [len(parts[p]) for p in parts] == [3, 3, 0]


def test_nothing_is_held_out_on_request():
    questions = [Question(f"q{i}", "?", ("a",), (f"d{i % 2}",)) for i in range(6)]
    parts, _ = split(questions, held_out=0.0)
    assert not parts["held_out"]


def test_questions_on_a_single_document_are_split_individually():
    questions = [Question(f"q{i}", "?", ("a",), ("d",)) for i in range(50)]
    parts, by = split(questions)
    assert by == "question" and parts["train"] and parts["held_out"]


def test_questions_without_documents_are_split_individually():
    questions = [Question(f"q{i}", "?", ("a",), ()) for i in range(50)]
    parts, by = split(questions)
    assert by == "question" and 3 <= len(parts["held_out"]) <= 20


def test_a_question_without_answers_is_never_trained_on():
    questions = [Question(f"q{i}", "?", ("a",) * (i % 2), (f"d{i}",)) for i in range(40)]
    parts, _ = split(questions)
    assert {len(q.answers) for q in parts["train"]} == {1}
    assert sum(not q.answers for q in parts["held_out"]) == 20


def test_a_question_without_answers_is_unused_if_others_are_held_out_by_name():
    questions = [Question(f"q{i}", "?", ("a",) * (i % 2), (f"d{i}",)) for i in range(40)]
    named, _ = split(questions, held_out_questions=("q1",))
    assert [q.id for q in named["held_out"]] == ["q1"]
    assert {len(q.answers) for q in named["unused"]} == {0}


@pytest.mark.parametrize("supervision", ["alignment", "gold"])
@pytest.mark.parametrize("by", ["rewritten", "question"])
def test_unanswered_questions_train_only_if_no_setting_needs_answers(supervision, by):
    c = config.ark()
    c.score.supervision, c.mine.by = supervision, by
    questions = [Question(f"q{i}", "?", ("a",) * (i % 2), (f"d{i}",)) for i in range(40)]
    parts = split_questions(questions, (), c)
    trained = {len(question.answers) for question in parts.train}
    assert trained == ({0, 1} if (supervision, by) == ("gold", "question") else {1})
    assert not parts.unused


def test_a_separate_test_set_is_all_that_is_held_out():
    c, train, test = with_test_set()
    parts = split_questions(train, test, c)
    assert (parts.train, parts.held_out, parts.by) == (train, test, "file")


def test_a_question_in_both_training_and_test_set_is_refused():
    c, train, test = with_test_set()
    with pytest.raises(ValueError, match=r"the question 'q1' of test\.jsonl is also in"):
        split_questions(train, [*test, train[1]], c)


def test_held_out_questions_next_to_a_test_set_are_refused():
    c, train, test = with_test_set()
    c.data.held_out_questions = ("q1",)
    with pytest.raises(ValueError, match="only one of them"):
        split_questions(train, test, c)


def with_test_set():
    """A config that names a test set, four training questions and two test questions."""
    c = config.ark()
    c.data.test = "test.jsonl"
    train = [Question(f"q{i}", "?", ("a",), ("d",)) for i in range(4)]
    test = [Question(f"t{i}", "?", ("a",), ("d",)) for i in range(2)]
    return c, train, test


def folds_of(questions, folds: int, **changes) -> list[dict]:
    return [split(questions, fold=(i, folds), **changes)[0] for i in range(1, folds + 1)]


@settings(max_examples=60, deadline=None)
@given(
    strategies.lists(
        strategies.lists(strategies.integers(0, 30), min_size=1, max_size=2).map(tuple),
        min_size=12,
        max_size=60,
    ),
    strategies.integers(2, 6),
)
def test_folds_hold_out_every_question_once(named, folds):
    questions = [
        Question(f"q{i}", "?", ("a",) * (i % 3 > 0), tuple(map(str, documents)))
        for i, documents in enumerate(named)
    ]
    try:
        parts = folds_of(questions, folds)
    except ValueError as error:
        assert "use fewer folds" in str(error)
        return
    held_out = [q.id for part in parts for q in part["held_out"]]
    assert sorted(held_out) == sorted(q.id for q in questions)
    by = split(questions, fold=(1, folds))[1]
    for part in parts:
        assert part["held_out"]
        assert all(q.answers for q in part["train"]) and not any(q.answers for q in part["unused"])
        if by == "document":
            assert not documents_of(part["train"]) & documents_of(part["held_out"])
    ids = lambda parts: [{q.id for q in part["held_out"]} for part in parts]
    assert ids(folds_of(questions[::-1], folds)) == ids(parts)


@settings(max_examples=60, deadline=None)
@given(
    strategies.lists(strategies.integers(1, 12), min_size=2, max_size=40),
    strategies.integers(2, 6),
    strategies.integers(0, 3),
)
def test_folds_have_sizes_as_equal_as_the_groups_allow(sizes, folds, seed):
    keys = [f"d{i}" for i, size in enumerate(sizes) for _ in range(size)]
    folds = min(folds, len(sizes))
    fold_of = assign_folds(keys, folds, seed)
    loads = collections.Counter(fold_of[key] for key in keys)
    assert set(loads) == set(range(1, folds + 1))
    assert max(loads.values()) - min(loads.values()) <= max(sizes)
    assert assign_folds(keys[::-1], folds, seed) == fold_of


@pytest.mark.parametrize("documents", [20, 199, 204, 1000])
def test_a_new_document_moves_few_others_between_folds(documents):
    keys = [f"d{i}" for i in range(documents) for _ in range(2)]
    before = assign_folds(keys, 5, 0)
    for i in range(10):
        after = assign_folds([*keys, f"new{i}", f"new{i}"], 5, 0)
        assert sum(before[key] != after[key] for key in before) <= 10
    other_seed = assign_folds(keys, 5, 1)
    assert sum(before[key] != other_seed[key] for key in before) > documents / 4


def test_folds_next_to_named_held_out_parts_are_refused():
    questions = [Question(f"q{i}", "?", ("a",), (f"d{i % 3}",)) for i in range(12)]
    for other in ({"held_out_documents": ("d1",)}, {"held_out_questions": ("q1",)}):
        with pytest.raises(ValueError, match="only one of them"):
            split(questions, fold=(1, 3), **other)


def test_more_folds_than_groups_of_documents_are_refused():
    questions = [Question(f"q{i}", "?", ("a",), (f"d{i % 3}",)) for i in range(12)]
    with pytest.raises(ValueError, match=r"fold=\(1, 4\).* 3 groups of documents.*fewer folds"):
        split(questions, fold=(1, 4))
    assert [len(part["held_out"]) for part in folds_of(questions, 3)] == [4, 4, 4]
