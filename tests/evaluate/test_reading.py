"""The form of a reader's prompt, and how it travels with a tuned reader."""

import json

import pytest
from support import tiny

from ark_jax.evaluate.reading import READING_PROMPT, ReadingPrompt
from ark_jax.models.language import LanguageModel

PLAIN = "{passages}\nQ: {question}\nA:"


def test_slots_inside_passages_and_questions_are_not_filled():
    form = ReadingPrompt("{passages} {question}")
    passages = form.join(["A {x}.", "B."])
    assert form.fill("Who {passages}?", passages) == "A {x}.\n\nB. Who {passages}?"
    cited = ReadingPrompt(PLAIN, cite=True)
    assert cited.fill("Who?", cited.join(["A.", "B."])) == "Doc [1] A.\n\nDoc [2] B.\nQ: Who?\nA:"


def test_a_reply_with_citations_is_parsed():
    reply = "<think> Doc [2] and Doc [3] say so. </think>\n<answer> a lamp </answer>"
    parsed = ReadingPrompt(PLAIN, cite=True).parse(reply, 2)  # of two passages
    assert (parsed.answer, parsed.citations, parsed.outside) == ("a lamp", (2,), (3,))


def test_a_plain_reply_is_its_first_line():
    assert ReadingPrompt(PLAIN).parse(" a lamp\nand more", 2).answer == "a lamp"
    assert ReadingPrompt(PLAIN).parse(" \n", 2).problem == "no answer"


def test_a_plain_reply_without_a_chat_may_begin_with_a_line_break():
    """Models that were not tuned go on with a line break."""
    assert ReadingPrompt(PLAIN, chat=False).parse("\n a lamp\nand", 2).answer == "a lamp"
    assert not ReadingPrompt(PLAIN, chat=False).stop


def test_only_a_plain_reply_of_a_chat_stops_at_a_line_break():
    assert ReadingPrompt(PLAIN).stop == ("\n",) and not ReadingPrompt(PLAIN, cite=True).stop


def test_only_chat_prompts_use_the_models_chat_template(tmp_path, mesh):
    lm = LanguageModel.from_pretrained(tiny.write(tmp_path, "llama", tokenizer="chat"))
    assert ReadingPrompt(PLAIN).for_model(lm, "a lamp") == lm.chat("a lamp") != "a lamp"
    bare = ReadingPrompt(PLAIN, chat=False)
    assert bare.for_model(lm, "a lamp") == "a lamp"
    # What a document holds ends no turn.
    (ids,) = lm.prompt_ids([bare.for_model(lm, f"a lamp {tiny.STOP}")])
    assert not set(ids) & set(lm.stop_ids)


def test_a_reading_prompt_is_saved_and_read_from_the_models_folder(tmp_path):
    assert ReadingPrompt.read(tmp_path) is None
    form = ReadingPrompt("Wörter: {passages} {question}", chat=False, cite=True)
    form.write(tmp_path)
    assert ReadingPrompt.read(tmp_path) == form


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"chat": 1}, "chat=1: must be true or false; fetch the file again"),
        ({"template": None}, "template=None: must be a text"),
        ({"template": "{passages}"}, r"has no slot \{question\}"),
    ],
)
def test_a_damaged_reading_prompt_is_refused(tmp_path, changes, message):
    values = {"template": PLAIN, "chat": False, "cite": False} | changes
    (tmp_path / READING_PROMPT).write_text(json.dumps(values))
    with pytest.raises(ValueError, match=message):
        ReadingPrompt.read(tmp_path)
