"""Questions read from a rewriter's replies, and the complaint when too few are usable."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ark_jax.data.records import Question
from ark_jax.recipes.ark import rewrite


@pytest.mark.parametrize(
    "reply, questions",
    [
        ('{"questions": ["Why A?", "Why B?"]}', ["Why A?", "Why B?"]),
        ('```json\n{"questions": ["Why A?", "Why B?"]}\n```', ["Why A?", "Why B?"]),
        ('Of course!\n\n```\n["Why A?", "Why B?"]\n```', ["Why A?", "Why B?"]),
        ('["Why A?", "Why B?",]', ["Why A?", "Why B?"]),
        ('["Why {A}?", "Why B?"]', ["Why {A}?", "Why B?"]),
        ('{"confusing_questions": ["Why A?", "Why B?",],}', ["Why A?", "Why B?"]),
        ('{"note": "two of them", "questions": ["Why A?", "Why B?"]}', ["Why A?", "Why B?"]),
        ("{'questions': ['Why A?', 'Why B?']}", ["Why A?", "Why B?"]),
        ('{"questions": ["Why A?", "Why B?"', ["Why A?", "Why B?"]),
        (
            '{"questions": ["Why\\n A? ", "Why A?", "", 5, null, "Why “B”?"]}',
            ["Why A?", "Why “B”?"],
        ),
        (
            '<think>A dict like {"questions": []}.</think>{"questions": ["Why A?", "Why B?"]}',
            ["Why A?", "Why B?"],
        ),
        (
            '{"questions": ["Why A?", "Why B?"]}\n\nI hope these {questions} help!',
            ["Why A?", "Why B?"],
        ),
        ('{"questions": "Why A?"}', []),
        ("I will not.", []),
        ("", []),
    ],
)
def test_rewritten_questions_are_read(reply, questions):
    assert rewrite.parse_questions(reply) == questions


BRACKETS = st.sampled_from(['{"questions": [', "[", "]", "{", "}", '"', ",", "a", "\\", "\n", ":"])


@given(st.text() | st.lists(BRACKETS).map("".join))
def test_no_reply_of_a_rewriter_raises(reply):
    assert all(isinstance(x, str) and x.strip() for x in rewrite.parse_questions(reply))


@pytest.mark.parametrize(
    "questions, words",
    [
        (["Why A?", "Why B?"], None),
        (["Why A?", "Why B?", "Why C?"], None),
        (["Why A?", "Why B?", "WHO built it?"], None),  # there are enough without it
        (["Why A?"], "2 different questions were asked for, 1 could be used. Write 1 more that"),
        ([], "2 different questions were asked for, 0 could be used. Write 2 more that"),
        (
            ["Why A?", "WHO built it?"],
            "1 could be used. One of them is the original question. Write 1 more that",
        ),
    ],
)
def test_what_the_model_is_told(questions, words):
    complaint = rewrite.remark(questions, Question("q", "Who  built\nit?", ("Ada",), ("d",)), 2)
    assert complaint is None if words is None else words in complaint


def test_questions_of_several_replies_are_told_apart():
    assert rewrite.parse_questions('["Why A?", "Why B?"]', "No.", '["why  b", "Why C?"]') == [
        "Why A?",
        "Why B?",
        "Why C?",
    ]


@pytest.mark.parametrize(
    "text", ["[" * 6000, '{"questions": ["Who is he?", ' * 220, '{"a":' * 3000]
)
def test_a_reply_nested_too_deeply_has_no_question_beyond_its_first(text):
    assert rewrite.parse_questions(text) in ([], ["Who is he?"])


@pytest.mark.parametrize(
    "reply, questions",
    [
        (
            'thinking: {"questions": ["draft?"]}\n</think>\n{"questions": ["a?", "b?"]}',
            ["a?", "b?"],
        ),
        ('{"reasoning": ["a thought", "another"], "questions": ["a?", "b?"]}', ["a?", "b?"]),
        ('Here [1] is ["x"]:\n{"questions": ["a?"]}', ["a?"]),
        ('["a?", "b?"]', ["a?", "b?"]),
        ('{"rewritten": ["a?"]}', ["a?"]),
        ('{"questions": ["a?", "b?', ["a?", "b?"]),
    ],
)
def test_questions_are_read_from_real_replies(reply, questions):
    assert rewrite.parse_questions(reply) == questions
