"""Replies of readers become answers with their passages."""

import pytest

from ark_jax.evaluate.reading import ReadingPrompt
from ark_jax.index.reader import Reader

CITING = ReadingPrompt("{passages}\n{question}", cite=True)
QUESTION = "Who founded the Tidal Board?"


def test_an_answer_names_its_cited_or_containing_passages():
    passages = ["The tide rose in 1784.", "Josiah Penhallow founded it.", "by josiah  penhallow!"]
    ask = lambda reply, fits=lambda prompt: True: Reader(
        lambda prompts: [reply], fits, CITING
    ).answer(QUESTION, passages)
    assert ask("Josiah Penhallow.\nMore text").sources == (1, 2)
    cited = ask("<think>Doc [3], Doc [9]</think><answer>him</answer>")
    assert (cited.text, cited.sources, cited.cited) == ("him", (2,), True)
    assert ask("nobody").sources == () and ask("").text == ""
    assert ask("1784", lambda prompt: "Doc [2]" not in prompt).read == 1
    with pytest.raises(ValueError, match="no passage fits the reader"):
        ask("x", lambda prompt: False)


def test_a_tuned_reader_gets_the_prompt_it_was_trained_with():
    asked = []
    form = ReadingPrompt("{passages}\nQ: {question}\nA:", chat=False)
    write = lambda prompts: asked.extend(prompts) or [" 1784\nQ:"]
    reader = Reader(write, lambda prompt: True, form)
    answer = reader.answer(QUESTION, ["The tide rose in 1784.", "by whom?"])
    assert asked == [f"The tide rose in 1784.\n\nby whom?\nQ: {QUESTION}\nA:"]
    assert (answer.text, answer.sources, answer.cited) == ("1784", (0,), False)
