"""Replies of readers become answers with their passages."""

import pytest

from ark_jax.evaluate.reading import ReadingPrompt
from ark_jax.index.reader import Reader

CITING = ReadingPrompt("{passages}\n{question}", cite=True)
QUESTION = "Who founded the Tidal Board?"


PASSAGES = ["The tide rose in 1784.", "Josiah Penhallow founded it.", "by josiah  penhallow!"]


def answer_of(reply, fits=lambda prompt: True):
    """The answer of a reader whose model replies with `reply`."""
    return Reader(lambda prompts: [reply], fits, CITING).answer(QUESTION, PASSAGES)


def test_an_answer_without_citations_names_the_passages_that_contain_it():
    assert answer_of("Josiah Penhallow.\nMore text").sources == (1, 2)
    assert answer_of("nobody").sources == ()


def test_an_answer_names_its_cited_passages():
    cited = answer_of("<think>Doc [3], Doc [9]</think><answer>him</answer>")
    assert (cited.text, cited.sources, cited.cited) == ("him", (2,), True)


def test_an_empty_reply_is_an_empty_answer():
    assert answer_of("").text == ""


def test_only_the_passages_that_fit_are_read():
    only_first = lambda prompt: "Doc [2]" not in prompt
    assert answer_of("1784", only_first).read == 1


def test_a_reader_that_no_passage_fits_is_refused():
    with pytest.raises(ValueError, match="no passage fits the reader"):
        answer_of("x", lambda prompt: False)


def test_a_tuned_reader_gets_the_prompt_it_was_trained_with():
    asked = []
    form = ReadingPrompt("{passages}\nQ: {question}\nA:", chat=False)
    write = lambda prompts: asked.extend(prompts) or [" 1784\nQ:"]
    reader = Reader(write, lambda prompt: True, form)
    answer = reader.answer(QUESTION, ["The tide rose in 1784.", "by whom?"])
    assert asked == [f"The tide rose in 1784.\n\nby whom?\nQ: {QUESTION}\nA:"]
    assert (answer.text, answer.sources, answer.cited) == ("1784", (0,), False)
