"""Question-answer pairs read from a model's reply, and evidence found in the passage."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ark_jax.llm.question_pairs import Pair, find_evidence, find_verbatim, parse_pairs

ONE = {"question": "Who built it?", "answer": "Ada", "evidence": ["Ada built the mill."]}
PAIR = Pair("Who built it?", "Ada", ("Ada built the mill.",))


@pytest.mark.parametrize(
    "reply, pairs",
    [
        (json.dumps({"pairs": [ONE]}), [PAIR]),
        (f"```json\n{json.dumps({'pairs': [ONE]})}\n```\nI hope this helps!", [PAIR]),
        (json.dumps([ONE]), [PAIR]),
        (json.dumps(ONE), [PAIR]),
        (json.dumps({"questions": [ONE]}), [PAIR]),
        (json.dumps({"note": ["a thought"], "pairs": [ONE]}), [PAIR]),
        (f'<think>{{"pairs": []}}</think>{json.dumps({"pairs": [ONE]})}', [PAIR]),
        (f'An example is {{"pairs": []}}. Now: {json.dumps({"pairs": [ONE]})}', [PAIR]),
        (json.dumps({"pairs": [ONE | {"evidence": "Ada built the mill."}]}), [PAIR]),
        (json.dumps({"pairs": [ONE | {"question": " Who\n built  it?"}]}), [PAIR]),
        ('{"pairs": [{"Q": "When?", "A": 1790, "quotes": ["In 1790."]}]}',
         [Pair("When?", "1790", ("In 1790.",))]),
        # what is not whole is left out
        (json.dumps({"pairs": [{"question": "Who?", "answer": "Ada"}, ONE, 7, None]}), [PAIR]),
        (json.dumps({"pairs": [ONE | {"answer": ""}, ONE | {"answer": True}, ONE]}), [PAIR]),
        (json.dumps({"pairs": [ONE]})[:-2], [PAIR]),  # cut off
        (json.dumps({"pairs": [ONE]}).replace('"]}', '",]},'), [PAIR]),  # commas too many
        ('{"pairs": []}', []),  # the model says that there is nothing to ask
        ("[]", []),
        ("I will not.", None),
        ('{"pairs": "none"}', None),
        ('["Who built it?", "When?"]', None),
        ("", None),
    ],
)  # fmt: skip
def test_question_pairs_are_parsed_from_replies(reply, pairs):
    assert parse_pairs(reply) == pairs


PIECES = st.sampled_from(
    ['{"pairs": [', '{"question": "', '"answer": ', '"evidence": [', "[", "]", "{", "}", '"', ","]
)


@given(st.text() | st.lists(PIECES | st.text(max_size=3)).map("".join))
def test_any_reply_parses_to_complete_pairs_or_none(reply):
    pairs = parse_pairs(reply)
    assert pairs is None or all(x.question and x.answer and x.evidence for x in pairs)


@pytest.mark.parametrize("text", ["[" * 6000, '{"pairs": [' * 3000, '{"a":' * 3000])
def test_a_reply_that_is_nested_too_deeply_gives_no_pair(text):
    assert not parse_pairs(text)


WORDS = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1)


@given(st.lists(st.tuples(WORDS, WORDS, st.lists(WORDS, min_size=1)), min_size=1))
def test_pairs_survive_a_round_trip_through_json(rows):
    written = [{"question": q, "answer": a, "evidence": e} for q, a, e in rows]
    expected = [Pair(q, a, tuple(e)) for q, a, e in rows]
    assert parse_pairs(json.dumps({"pairs": written}, ensure_ascii=False)) == expected


TEXT = "The mill stood\n  on the Lenn. Ada (a mason) built it in 1790; “it leaks”, she said."


@pytest.mark.parametrize(
    "quote, part",
    [
        ("Ada (a mason) built it in 1790;", "Ada (a mason) built it in 1790;"),
        ("The mill stood on the Lenn.", "The mill stood\n  on the Lenn."),
        ('"Ada (a mason) built it"', "Ada (a mason) built it"),
        ("“it leaks”", "“it leaks”"),
        ("Ada built it in 1790", None),
        ("ada (a mason)", None),
        (" ", None),
    ],
)
def test_a_quote_is_found_despite_other_spacing_and_outer_quotation_marks(quote, part):
    assert find_verbatim(quote, TEXT) == part
    assert part is None or part in TEXT


@given(st.text(), st.text(), st.text(), st.integers(1, 5))
def test_any_part_of_a_text_is_found_despite_extra_spaces(before, part, after, blanks):
    if part.split():
        assert find_verbatim(part.replace(" ", " " * blanks), f"{before} {part} {after}")


def test_evidence_is_found_only_if_every_quote_is():
    both = Pair("q", "a", ("Ada built it.", "It stood.", "Ada built it."))
    assert find_evidence(both, ["Ada built it.", "It stood."]) == ["Ada built it.", "It stood."]
    assert find_evidence(both, ["Ada built it."]) is None
