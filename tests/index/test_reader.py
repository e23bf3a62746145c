"""Replies of readers become answers with their passages."""

import pytest

from ark_jax.evaluate.reading import ReadingPrompt
from ark_jax.index.reader import Reader, holds

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


POLICY = (
    "Manual pages must be installed compressed with gzip -9. The encoding of the changelog is "
    "UTF-8, and each entry ends with a date in RFC 2822 format."
)
BOARD = (
    "The Tidal Board was founded in 1784 by Josiah Penhallow, a surveyor of forty-three. He "
    "recorded 19,250 soundings. Its secretary’s house stood in Hemp Quay; Wenna Sayle lived there."
)
BRIDGE = "It was not Moy who built the bridge. Solberg finished it on 17 May 1877, for £61,400."
GLOCKE = "Die Glocke der Kirche wurde 1811 gegossen. 東京は日本の首都である。京都は古い都市だ。"
# question; passage; answers that one of its sentences supports, and others.
SUPPORT = [
    (
        "Which encoding must the changelog have?",
        POLICY,
        ["The encoding of the changelog is UTF-8.", "UTF-8", "It must be utf-8", "utf 8."],
        ["Latin-1", "UTF-16", "bzip2", "", "The encoding is the one of the changelog and ASCII"],
    ),
    (
        "How are manual pages compressed?",
        POLICY,
        ["With gzip -9.", "gzip", "They must be compressed with gzip", "installed with gzip"],
        ["bzip2", "By gzip, in RFC 2822 format", "xz -9", "They are not compressed: zip"],
    ),
    (
        "Who founded the Tidal Board?",
        BOARD,
        ["Josiah Penhallow", "It was Josiah Penhallow.", "a surveyor", "Penhallow, in 1784",
         "The answer is: Josiah Penhallow", "Josiah Penhallow founded the Tidal Board."],
        ["Wenna Sayle, in 1784", "Josiah Quill", "in 1874 by Josiah Penhallow", "Barnaby Quill"],
    ),
    (
        "How many soundings did he record?",
        BOARD,
        ["19250", "19,250", "He recorded 19250 soundings.", "19,250 soundings"],
        ["11,400", "19,250 in 1784", "250", "1925"],
    ),
    ("Whose house stood there?", BOARD, ["the secretary's", "its Secretary"], []),
    (
        "Who finished the bridge, and when?",
        BRIDGE,
        ["Solberg", "Solberg, on 17 May 1877", "Solberg did, for £61,400"],
        ["Moy, on 17 May 1877", "Solberg, on 18 May 1877", "Solberg in 1878"],
    ),
    ("Wann wurde sie gegossen?", GLOCKE, ["1811", "Die Glocke wurde 1811 gegossen"], ["1812"]),
    ("日本の首都は？", GLOCKE, ["東京", "日本の首都である"], ["大阪", "東京と京都"]),
]  # fmt: skip


def test_an_answer_is_supported_if_a_sentence_holds_its_content_words():
    pairs = [
        (question, passage, answer, supported)
        for question, passage, *both in SUPPORT
        for answers, supported in zip(both, (True, False), strict=True)
        for answer in answers
    ]
    assert len(pairs) == 50
    wrong = [pair for pair in pairs if holds(pair[1], pair[2], pair[0]) != pair[3]]
    assert wrong == []


def test_a_cited_passage_that_lacks_the_words_does_not_support_the_answer():
    cited = answer_of("<think>Doc [1], Doc [2]</think><answer>Josiah Penhallow</answer>")
    assert (cited.sources, cited.supported) == ((0, 1), (1,))


def test_an_answer_is_passed_on_while_it_is_written():
    reply = "<think>Doc [2] has it.</think><answer>Josiah Penhallow</answer>"

    def write(prompts, partial):
        for end in (9, reply.index(" Pen"), reply.index("swer>", 40)):
            partial(reply[:end])
        return [reply]

    said = []
    answer = Reader(write, lambda prompt: True, CITING).answer(QUESTION, PASSAGES, said.append)
    assert said == ["Josiah", "Josiah Penhallow"] and answer.text == said[-1]
