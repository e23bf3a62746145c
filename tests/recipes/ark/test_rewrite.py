"""Questions read from a rewriter's replies, and the complaint when too few are usable."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ark_jax.data.records import Question
from ark_jax.graph.extract import parse_reply as extract_records
from ark_jax.graph.store import KnowledgeGraph
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_rows, save_rows
from ark_jax.recipes.ark import config, extract
from ark_jax.runtime.log import Metrics


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
def test_rewritten_questions_are_parsed_from_replies(reply, questions):
    assert extract.parse_questions(reply) == questions


BRACKETS = st.sampled_from(['{"questions": [', "[", "]", "{", "}", '"', ",", "a", "\\", "\n", ":"])


@given(st.text() | st.lists(BRACKETS).map("".join))
def test_any_reply_parses_to_nonempty_questions(reply):
    assert all(isinstance(x, str) and x.strip() for x in extract.parse_questions(reply))


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
def test_the_model_is_told_how_many_questions_are_missing(questions, words):
    complaint = extract.rewrite_remark(
        questions, Question("q", "Who  built\nit?", ("Ada",), ("d",)), 2
    )
    assert complaint is None if words is None else words in complaint


def test_repeated_questions_of_several_replies_are_dropped():
    assert extract.parse_questions('["Why A?", "Why B?"]', "No.", '["why  b", "Why C?"]') == [
        "Why A?",
        "Why B?",
        "Why C?",
    ]


@pytest.mark.parametrize(
    "text", ["[" * 6000, '{"questions": ["Who is he?", ' * 220, '{"a":' * 3000]
)
def test_a_reply_that_is_nested_too_deeply_gives_at_most_one_question(text):
    assert extract.parse_questions(text) in ([], ["Who is he?"])


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
def test_questions_are_parsed_from_real_replies(reply, questions):
    assert extract.parse_questions(reply) == questions


@pytest.mark.parametrize(
    "text, asked, exposed",
    [
        ("Where did Ada, who built it, live?", "Who built it?", True),
        ("Where did ADA live?", "Who built it?", True),
        ("What does Adam say of who built it?", "Who built it?", False),
        ("Did Ada or Eve build it?", "Was it Ada or Eve?", False),  # the original gives a choice
    ],
)
def test_a_rewrite_reveals_the_answer_only_if_its_original_does_not(text, asked, exposed):
    question = Question("q", asked, ("Ada",), ("d",))
    assert extract.gives_away_answer(text, question) is exposed


def test_rewrites_that_reveal_the_answer_are_dropped(tmp_path):
    questions = [Question(id, "Who built the mill?", ("Ada",), ("d",)) for id in ("part", "whole")]
    exposed = "What of Ada, who built the mill?"
    versions = {"part": [exposed, "Whose mill is it?"], "whole": [exposed, "Is the mill by Ada?"]}
    replies = [
        {
            "item": f"rewrite/{id}/{size}",
            "key": f"{id}/{size}",
            "reply": {"choices": [{"message": {"content": json.dumps({"questions": texts})}}]},
        }
        for id, texts in versions.items()
        for size in ("large", "small")
    ]
    (tmp_path / "replies.jsonl").write_text("".join(json.dumps(row) + "\n" for row in replies))
    for stage in ("data", "graph", "communities", "rewrite"):
        (tmp_path / stage).mkdir()
    save_rows(questions, tmp_path / "data" / "questions_train.parquet", Question)
    records = extract_records('("entity"<|>Ada<|>person<|>She built it.)##', "c")
    KnowledgeGraph.from_records(*records[:2]).save(tmp_path / "graph")
    rows = [
        {"question": id, "size": size, "nodes": [0]}
        for id in versions
        for size in ("large", "small")
    ]
    save_rows(rows, tmp_path / "communities" / "communities.parquet")
    c = config.ark()
    c.llm.backend, c.llm.replies = "replay", str(tmp_path / "replies.jsonl")
    context = Context(c, tmp_path, Metrics(tmp_path / "metrics.jsonl"))
    counts = extract.rewrite(context, tmp_path / "rewrite")
    assert counts["dropped_with_the_answer"] == 6 and counts["not_rewritten"] == 2
    rewritten = load_rows(tmp_path / "rewrite" / "rewritten.parquet")
    assert {(row["question"], row["text"]) for row in rewritten} == {
        ("part", "Whose mill is it?"),
        ("whole", "Who built the mill?"),
    }
