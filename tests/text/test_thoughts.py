"""Thoughts in replies, in the forms that families of models write."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ark_jax.text.thoughts import closed_thought, split_thought

HARMONY = "<|channel|>analysis<|message|>{}<|end|><|start|>assistant<|channel|>final<|message|>{}"
FORMS = {
    "think": "<think>{}</think>{}",
    "THINK": "<THINK>\n{}\n</THINK>\n\n{}",
    "thinking": "<thinking>{}</thinking>{}",
    "thought": "<thought>{}</thought>{}",
    "reasoning": "<reasoning>{}</reasoning>\n{}",
    "Seed": "<seed:think>{}</seed:think>{}",
    "Magistral": "[THINK]{}[/THINK]{}",
    "Kimi": "◁think▷{}◁/think▷{}",
    "OpenThinker": "<|begin_of_thought|>{}<|end_of_thought|>\n<|begin_of_solution|>{}",
    "Command": "<|START_THINKING|>{}<|END_THINKING|><|START_RESPONSE|>{}<|END_RESPONSE|>",
    "gpt-oss": HARMONY,
    "gpt-oss, ended": HARMONY + "<|return|>",
    "gpt-oss, control tokens left out": "analysis{}assistantfinal{}",
    "opened by the template": "{}</think>{}",
    "opened by the template, lines": "{}\n</think>\n{}",
    "two thoughts": "<think>\n</think>\n<think>{}</think>\n{}",
    "after a line": "Sure:\n<think>{}</think>{}",
}
THOUGHT = 'The draft is {"a": 1}, or ("entity"<|>WRONG<|>x<|>y).'
ANSWERS = [
    '{"a": 2}',
    "A <think> tag opens a thought and </think> closes it.",
    "```\n</think>\n```",
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("answer", ANSWERS)
def test_a_thought_before_the_answer_is_left_out(form, answer):
    found, unfinished = split_thought(FORMS[form].format(THOUGHT, answer))
    assert (found.removeprefix("Sure:\n").strip(), unfinished) == (answer, "")


@pytest.mark.parametrize(
    "text",
    [
        "It ends its thoughts with </think> and answers then.",
        "The tags are <think> and </think>.",
        json.dumps({"questions": ["What does <think> mark?", "And </think>?"]}),
        '```json\n{"questions": ["What does\\n</think> mark?"]}\n```',
        '("entity"<|>R1<|>model<|>It opens with <think>.)##("entity"<|>Q<|>model<|>It </think>s.)',
        "The [THINK] mark is Magistral's, ◁think▷ is Kimi's.",
        "```\n<think>\n```\nis an example.",
    ],
)
def test_the_same_words_in_an_answer_are_text(text):
    assert split_thought(text) == (text, "")
    assert split_thought(f"<think>So.</think>{text}") == (text, "")


@pytest.mark.parametrize("form", ["think", "reasoning", "Magistral", "Kimi", "gpt-oss"])
def test_a_thought_that_was_cut_off_leaves_no_answer(form):
    opening = FORMS[form].partition("{")[0]
    assert split_thought(f"{opening}So it") == ("", f"{opening}So it")


@pytest.mark.parametrize(
    ("prompt", "closed"),
    [
        ("Who?<|assistant|>\n<think>\n", "Who?<|assistant|>\n<think>\n\n</think>\n\n"),
        ("What is <think>?\n", "What is <think>?\n"),
        ("assistant\n<think>\n\n</think>\n\n", "assistant\n<think>\n\n</think>\n\n"),
    ],
)
def test_a_thought_that_a_template_opens_is_closed(prompt, closed):
    assert closed_thought(prompt) == closed


PIECES = ["<think>", "</think>", "[THINK]", "\n", " ", '{"a": "', '"}', "[", "```", "(", ")", "<|>"]


@settings(deadline=None)
@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=12).map("".join))
def test_any_reply_is_split(reply):
    answer, unfinished = split_thought(reply)
    assert len(answer) + len(unfinished) <= 2 * len(reply)
    assert unfinished in reply


@pytest.mark.parametrize("piece", ["<think>", "</think>", "a </think>", "\n<think>", "({", "()"])
def test_long_replies_take_linear_time(piece):
    split_thought(f"{piece * 100_000} </think>")
