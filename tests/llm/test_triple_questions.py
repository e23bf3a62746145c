"""Questions about numbered triples in a reply: what is read, dropped, and asked for again."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ark_jax.llm.triple_questions import (
    AskedEnd,
    WrittenQuestion,
    parse_triple_questions,
    questions_remark,
    sort_questions,
)

TAIL = AskedEnd(1, "tail", "Kismet", ("William Dieterle", "Dieterle"))
HEAD = AskedEnd(1, "head", "William Dieterle", ("Kismet",))
OTHER = AskedEnd(2, "tail", "Marrowgate", ("Pellin",))
WHO = WrittenQuestion(1, "tail", "Who made Kismet?")
WHAT = WrittenQuestion(1, "head", "What did William Dieterle make?")
NEXT = WrittenQuestion(2, "tail", "Where does one go from Marrowgate?")


def reply(*rows: WrittenQuestion) -> str:
    form = [{"triple": x.number, "ask": x.side, "question": x.question} for x in rows]
    return json.dumps({"questions": form})


@pytest.mark.parametrize(
    "text, written",
    [
        (reply(WHO, WHAT), [WHO, WHAT]),
        (f"Sure!\n```json\n{reply(WHO)}\n```\nI hope this helps.", [WHO]),
        (f'<think>{{"questions": []}}</think>{reply(WHO)}', [WHO]),
        (reply(WHO, WHAT)[:-2], [WHO, WHAT]),
        (reply(WHO, WHAT)[:-5], [WHO]),  # a question that breaks off is none
        (json.dumps([{"triple": "1.", "ask": "Tail", "question": " Who made\nKismet? "}]), [WHO]),
        (json.dumps({"Triple": 1, "side": "tail", "question": WHO.question}), [WHO]),
        (json.dumps([{"question": "Who?"}]), [WrittenQuestion(0, "", "Who?")]),
        (
            json.dumps([{"triple": True, "ask": "both", "question": "Who?"}]),
            [WrittenQuestion(0, "", "Who?")],
        ),
        (json.dumps([{"triple": 1, "ask": "tail", "question": ""}]), None),
        ('{"questions": []}', []),
        ('{"questions": ["Who made Kismet?"]}', None),
        ("Who made Kismet?", None),
        ("", None),
        ("[" * 100_000, None),
    ],
)
def test_triple_questions_are_parsed_from_replies(text, written):
    assert parse_triple_questions(text) == written


MARKS = st.sampled_from(['{"questions": [', '"triple": 1', '"question": "a"', *'[]{}",:\\1a\n'])


@given(st.text() | st.lists(MARKS).map("".join))
def test_any_reply_parses_to_complete_questions(text):
    for written in parse_triple_questions(text) or ():
        assert written.question.strip() and written.side in ("head", "tail", "")
    usable, _ = sort_questions([text], [TAIL], 1)
    assert (questions_remark([text], [TAIL], 1) is None) == bool(usable[TAIL])


@pytest.mark.parametrize(
    "written, defect",
    [
        (WrittenQuestion(1, "tail", "Who made kismet ?"), None),
        (WrittenQuestion(1, "tail", "Who made it?"), "the known entity is not named"),
        (WrittenQuestion(1, "tail", "Who made Kismets?"), "the known entity is not named"),
        (
            WrittenQuestion(1, "tail", "Did William Dieterle make Kismet?"),
            "the answer is in the question",
        ),
        (WrittenQuestion(1, "tail", "Did dieterle make Kismet?"), "the answer is in the question"),
        (WrittenQuestion(3, "tail", "Who made Kismet?"), "no such end was asked for"),
        (WrittenQuestion(2, "head", "Who made Kismet?"), "no such end was asked for"),
        (WrittenQuestion(0, "", "Who made Kismet?"), "no such end was asked for"),
    ],
)
def test_the_defect_of_a_question_is_named(written, defect):
    usable, defects = sort_questions([reply(written)], [TAIL, OTHER], 1)
    if defect:
        assert defects == [(written, defect)] and not any(usable.values())
    else:
        assert not defects and usable[TAIL] == [written.question]


def test_later_replies_add_new_questions_up_to_the_count():
    same = WrittenQuestion(1, "tail", "who made Kismet")
    more = WrittenQuestion(1, "tail", "Whose work is Kismet?")
    usable, defects = sort_questions([reply(WHO, same), reply(more, NEXT)], [TAIL, OTHER], 2)
    assert usable == {TAIL: [WHO.question, more.question], OTHER: [NEXT.question]}
    assert defects == [(same, "the question comes twice")]
    usable, _ = sort_questions([reply(WHO, more)], [TAIL], 1)
    assert usable == {TAIL: [WHO.question]}


@pytest.mark.parametrize(
    "replies, is_cut, words",
    [
        ([reply(WHO, WHAT, NEXT)], False, None),
        ([reply(WHO), reply(WHAT, NEXT)], False, None),
        ([reply(WHO, NEXT)], False, "Questions are missing: 1 for the head of fact 1."),
        ([reply(WHO)], False, "1 for the head of fact 1; 1 for the tail of fact 2."),
        (
            [reply(WrittenQuestion(1, "tail", "Who is it?"), WHAT, NEXT)],
            False,
            "fact 1, tail: the known entity is not named",
        ),
        ([reply()], False, "Questions are missing"),
        (["I cannot."], False, "No questions with numbers of facts could be read"),
        (['{"ques'], True, "broke off before its first question"),
        ([reply(WHO)[:-2]], True, "Questions are missing"),
    ],
)
def test_the_model_is_told_which_questions_are_missing(replies, is_cut, words):
    said = questions_remark(replies, [TAIL, HEAD, OTHER], 1, is_cut=is_cut)
    assert said is None if words is None else words in said
