"""Wordings of a relation in a reply: what is read, dropped, and asked for again."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ark_jax.llm.relation_questions import (
    parse_wordings,
    usable_wordings,
    wording_defect,
    wordings_remark,
)

NAMES = ("Kismet", "William Dieterle", "Ada")
TAIL, HEAD = (
    ["Who made {entity}?", "Whose is {entity}"],
    ["What did {entity} make?", "Works of {entity}"],
)


def reply(tail=TAIL, head=HEAD) -> str:
    return json.dumps({"tail": tail, "head": head})


@pytest.mark.parametrize(
    "text, read",
    [
        (reply(), {"head": HEAD, "tail": TAIL}),
        (f"Here you are:\n```json\n{reply()}\n```", {"head": HEAD, "tail": TAIL}),
        (f"<think>{{entity}}</think>{reply()}", {"head": HEAD, "tail": TAIL}),
        (reply()[:-1], {"head": HEAD, "tail": TAIL}),
        (json.dumps({"Tail": TAIL}), {"head": [], "tail": TAIL}),
        (
            reply(head=["by [Entity] ?", 5, None, ""]),
            {"head": ["by {entity} ?", "5"], "tail": TAIL},
        ),
        (reply(tail="Who is\n<entity>?"), {"head": HEAD, "tail": ["Who is {entity}?"]}),
        (json.dumps(TAIL), None),
        ('{"questions": ["Who made {entity}?"]}', None),
        ("Who made {entity}?", None),
        ("", None),
    ],
)
def test_wordings_are_parsed_from_replies(text, read):
    assert parse_wordings(text) == read


MARKS = st.sampled_from(['{"tail": [', '"head": "', "{entity}", "who ", *'[]{}",:\\a\n'])


@given(st.lists(st.text() | st.lists(MARKS).map("".join)))
def test_every_usable_wording_has_the_placeholder_once(replies):
    wordings, _ = usable_wordings(replies, NAMES)
    for text in (*wordings.head, *wordings.tail):
        assert text.count("{entity}") == 1 and wording_defect(text, NAMES) == ""
    assert wordings_remark(replies, NAMES, 9)


@pytest.mark.parametrize(
    "wording, defect",
    [
        ("Who made {entity}?", ""),
        ("Makers of {entity}", ""),
        ("Who adapted {entity}?", ""),  # not the name Ada
        ("Who made it?", "{entity} is missing"),
        ("Who made {entity}, if {entity} was made?", "{entity} comes 2 times"),
        ("{entity}", "it is no question"),
        ("Like Kismet, who made {entity}?", "it holds a name of a fact"),
        ("What did ada write but {entity}?", "it holds a name of a fact"),
    ],
)
def test_the_defect_of_a_wording_is_named(wording, defect):
    assert wording_defect(wording, NAMES) == defect


def test_later_replies_add_only_new_wordings():
    replies = [reply([*TAIL, "who made {entity}"]), reply(TAIL, ["Made by {entity}?"])]
    wordings, defects = usable_wordings(replies, NAMES)
    assert wordings.tail == tuple(TAIL) and wordings.head == (*HEAD, "Made by {entity}?")
    assert defects == [("tail", "who made {entity}", "it comes twice")]


@pytest.mark.parametrize(
    "replies, settings, words",
    [
        ([reply()], {}, None),
        ([reply(TAIL[:1]), reply(TAIL[1:], [])], {}, None),
        ([reply(head=[])], {"sides": ("tail",)}, None),
        ([reply(head=[])], {}, "2 more that ask for the head"),
        ([reply(TAIL[:1], HEAD[:1])], {}, "1 more that ask for the head and 1 more that ask for"),
        ([reply(["Who made it?", TAIL[0]])], {}, "tail, 'Who made it?': {entity} is missing"),
        (["No."], {}, 'No "head" and "tail"'),
        (['{"ta'], {"is_cut": True}, "Your reply broke off"),
    ],
)
def test_the_model_is_told_which_wordings_are_missing(replies, settings, words):
    said = wordings_remark(replies, NAMES, 2, **settings)
    assert said is None if words is None else words in said
