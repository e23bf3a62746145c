"""What of a passage is shown for a question, and how it is marked."""

import dataclasses

import numpy as np
import pytest

from ark_jax.index.index import Hit
from ark_jax.index.passages import Hits, View, side_by_side, table

FILLER = "Nothing of note happened in the long wet autumn of that year, says the clerk. "
TEXT = f"{FILLER * 4}The Tidal Board was founded by Josiah\nPenhallow. {FILLER * 4}"
QUESTION = "Who founded the Tidal Board?"


def hit(text: str = TEXT, **fields) -> Hit:
    return dataclasses.replace(Hit(0.5, "d.txt", "Ünter > x", 0, len(text), "d#0", text), **fields)


@pytest.fixture(autouse=True)
def terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def test_the_sentence_that_has_the_words_is_shown_and_not_the_first_lines():
    (head, *lines) = table({1: hit()}, View(QUESTION))
    assert head == " 1  0.5000  d.txt [0:676]  Ünter > x".replace("676", str(len(TEXT)))
    text = " ".join(x.strip() for x in lines)
    assert "Board was founded by Josiah Penhallow." in text and len(lines) <= 3
    assert text.startswith("… ") and text.endswith(" …")
    full = " ".join(x.strip() for x in table({1: hit()}, View(QUESTION, full=True))[1:])
    assert full == " ".join(TEXT.split())


def test_vectors_choose_a_sentence_where_no_word_does():
    asked = []

    def similar(texts):
        asked.extend(texts)
        return np.array([float("Penhallow" in text) for text in texts])

    ((start, end),) = View("Wer war der Gründer?", similar=similar).excerpts([hit()], 60)
    assert TEXT[start:end].endswith("Josiah\nPenhallow.") and len(asked) == 9
    asked.clear()
    View(QUESTION, similar=similar).excerpts([hit()])
    assert asked == []  # the words are enough


def test_an_answer_is_in_view_and_marked_across_lines():
    text = f"The Tidal Board was founded late. {FILLER * 3}{'x' * 60} Josiah\nPenhallow it was."
    lines = table({1: hit(text)}, View(QUESTION, "Josiah Penhallow", colour=True))
    shown = "".join(lines)
    assert "\x1b[1;32mJosiah" in shown and "Penhallow\x1b[0m" in shown


def test_a_match_at_the_end_of_one_endless_sentence_is_shown():
    text = f"{'so it went on and on, ' * 60}until the Tidal Board was founded"
    assert "Tidal Board" in "".join(table({1: hit(text)}, View(QUESTION)))


def test_control_characters_of_documents_reach_no_terminal():
    bad = hit("The Tidal\x1b[2J Board.\x07 \u202eevil", title="a\x1b]0;b\x07", document="c\x9bd")
    shown = "".join(table({1: bad}, View(QUESTION, full=True)))
    assert not set(shown) & set("\x1b\x07\u202e\x9b") and "\ufffd[2J" in shown


def test_columns_stay_straight_under_colour():
    lines = side_by_side({"a": [hit()], "b": []}, View(QUESTION, colour=True))
    plain = [line.replace("\x1b[1;31m", "").replace("\x1b[0m", "") for line in lines]
    assert {line.index(" |") for line in plain if "|" in line} == {38 + 2}


@pytest.mark.parametrize(
    ("answer", "span", "shown"),
    [
        ("In 1784", (0, 65), "<u>The <b>Board</b> <b>opened</b> <mark>in 1784</mark>.</u> It met"),
        ("the year 1784", (0, 65), "The <b>Board</b> <b>opened</b> in 1784. It met"),
        ("of 1784", (10, 19), "… <u><b>opened</b> in</u> …"),
        ("1784", (26, 65), "… It met"),
        ("two & 1811", (0, 65), "</b> in 1784. It met"),
    ],
)
def test_the_sentence_that_an_answer_rests_on_is_underlined_in_html(answer, span, shown):
    text = "The Board opened in 1784. It met on each day of the year but two."
    assert shown in View("When did the Board open?", answer).html(text, span)


def test_a_notebook_shows_hits_as_a_table_of_escaped_cells():
    hits = Hits([hit("<b>The Tidal Board</b> & co.")])
    hits.question = QUESTION
    shown = hits._repr_html_()
    assert "&lt;b&gt;The <b>Tidal</b> <b>Board</b>&lt;/b&gt; &amp; co." in shown
    assert shown.count("<tr>") == 2 and Hits()._repr_html_().endswith("<tbody></tbody></table>")
    assert "<td>0.5000</td>" in hits[0]._repr_html_()
