"""The HTML pieces: marked answers, excerpts of passages, hostile text, even columns."""

import json
import re

import pytest
from support.report_pages import ParsedPage
from support.report_sample import HOSTILE, LONG, poisoned, render, sample

from ark_jax.report.page import html


@pytest.mark.parametrize(
    ("text", "answers", "marked"),
    [
        (
            "The TIDE <tide> tidewater",
            ["tide"],
            "The <mark>TIDE</mark> &lt;<mark>tide</mark>&gt; tidewater",
        ),
        ("By  boat, by\nboat", ["boat", "by boat"], "<mark>By  boat</mark>, <mark>by\nboat</mark>"),
        ("a+b aab", ["a+b", " "], "<mark>a+b</mark> aab"),
        ("plain", [""], "plain"),
        ("喜歡東京", ["東京"], "喜歡<mark>東京</mark>"),  # a script without spaces
    ],
)
def test_answers_are_highlighted_as_whole_words_in_any_case(text, answers, marked):
    assert html.marked(text, answers) == marked


def test_a_long_passage_shows_an_excerpt_around_its_answer():
    passage = html.passage(LONG, ["tide"])
    excerpt, whole = passage.split("</span>")[0], passage.split('<p class="text" dir="auto">')[1]
    assert "<mark>tide</mark>" in excerpt and len(re.sub("<[^>]+>", "", excerpt)) < 300
    assert re.sub("<[^>]+>", "", whole) == LONG


def test_a_short_passage_is_shown_whole():
    assert html.passage("Short & sweet.", []) == '<p class="text" dir="auto">Short &amp; sweet.</p>'


def test_an_excerpt_is_cut_in_a_text_without_spaces():
    passage = html.passage("潮" * 2000 + "位" + "潮" * 2000, ["x"])
    assert 150 < len(re.sub("<[^>]+>", "", passage.split("</span>")[0])) < 260


def test_hostile_text_never_becomes_markup():
    clean, parsed = ParsedPage(render(sample())), ParsedPage(render(poisoned(sample())))
    assert len(parsed.all("script")) == len(clean.all("script")) == 2  # the page's own, and data
    tags = lambda p: {tag for tag, _ in p.elements}
    assert tags(parsed) == tags(clean) - {
        "small"
    }  # no system is named base, so none has a difference
    assert not [name for _, attrs in parsed.elements for name in attrs if name.startswith("on")]
    assert HOSTILE + "A run" in parsed.text("title")[0] + parsed.text("h1")[0]
    everything = "".join(data for _, data in parsed.texts)
    for text in (
        "Training helped",
        "MiniLM",
        "stage1",
        "recall@5",
        "What broke the gauge?",
        "cut passages",
        "extract",
        "I cannot.",
        "What, beside the mill, broke it?",
        "d#0001",
    ):
        assert HOSTILE + text in everything, text
    assert json.dumps(HOSTILE + "0.1.0") in everything
    shown = next(json.loads(data) for _, data in parsed.texts if data.startswith('{"systems"'))
    assert HOSTILE + "In 1785." in shown["rows"][0][4][1][1][0]


def test_characters_that_html_forbids_are_replaced():
    data = sample() | {
        "verdict": "half \ud83d of a pair",
        "title": "a\0b\x1b[1m\x0c\ufffe",
        "manifest": {"x": "\udc80"},
    }
    page = render(data).encode("utf-8").decode()
    assert "half ? of a pair" in page and "<h1>a\ufffdb\ufffd[1m \ufffd</h1>" in page
    assert not re.search("[\0-\x08\x0b-\x1f\x7f-\x9f]", page)


def test_numeric_columns_are_right_aligned_with_even_figures():
    page = render(sample())
    for caption, numeric in (
        ("Positives", [0, 0, 1, 1, 1, 1]),
        ("Results by system", [0, 1, 1]),
        ("Time and cost by step", [0, 0, 1, 1, 1, 1, 1, 1, 1]),
    ):
        row = page.split(f"<caption>{caption}</caption>")[1].split("<tbody>")[1].split("</tr>")[0]
        assert [int('class="num"' in tag) for tag in re.findall(r"<t[hd][^>]*>", row)] == numeric
    rule = re.search(r"\.num \{([^}]*)\}", page)[1]
    assert "text-align: right" in rule and "tabular-nums" in rule
