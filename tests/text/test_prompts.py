"""Prompt templates: validation, filling and digests."""

import re

import pytest

from ark_jax.text import prompts

NAMES = ("extract", "glean", "questions", "rewrite", "forward", "backward", "read", "judge")
TARGETS = {"forward": "answer", "backward": "question"}


@pytest.mark.parametrize("name", NAMES)
def test_our_prompts_are_valid_and_a_users_copy_is_the_same(name, tmp_path):
    text = prompts.load_template(name)
    (tmp_path / "own.txt").write_text(text + "\n", encoding="utf-8")
    assert prompts.load_template(name, str(tmp_path / "own.txt")) == text


@pytest.mark.parametrize(
    "name, text, words",
    [
        ("read", "Answer {question}", r"own\.txt: no slot \{passages\}; add it"),
        ("rewrite", "{question} {count}", r"no slot \{answer\}, \{entities\}; add it"),
        (
            "forward",
            "{passage} {answer} {question}",
            r"own\.txt: must end in \{answer\}, the text that is scored",
        ),
        ("backward", "{passage} {answer} {question}?", r"must end in \{question\}"),
    ],
)
def test_a_prompt_that_would_go_wrong_in_silence_is_refused(name, text, words, tmp_path):
    (tmp_path / "own.txt").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=words):
        prompts.load_template(name, str(tmp_path / "own.txt"), target=TARGETS.get(name, ""))


def test_braces_that_are_no_slots_are_left_alone():
    text = 'As {"questions": ["..."]}: {question} of {passage}, {unknown}'
    filled = prompts.fill(text, question="why {passage}?", passage=r"\1 {count} {} {question}")
    assert (
        filled
        == r'As {"questions": ["..."]}: why {passage}? of \1 {count} {} {question}, {unknown}'
    )


def test_a_digest_changes_with_the_text():
    assert (
        prompts.text_digest("a {slot}")
        == prompts.text_digest("a {slot}")
        != prompts.text_digest("a {slot} ")
    )
    assert re.fullmatch("[0-9a-f]{16}", prompts.text_digest(""))
