import copy
import json
import math
import os
import re
import subprocess
import sys
from html import unescape
from html.parser import HTMLParser
from importlib.resources import files

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ark_jax.evaluate import figures, page
from ark_jax.evaluate.report import render

HOSTILE = "</title></style></p><script>alert(1)</script>\"' onload=x <b>&lt;"
HEADINGS = ["The run", "Results", "Training", "Positives and hard negatives", "A community", "Examples",
            "Gains and losses", "Answers", "The judge", "Set aside", "Time and cost", "Manifest"]
LONG = ("The gauge stood on the quay. " * 30 + "It was the tide that broke it, not the tidewater mill. "
        + "Later. " * 40)


def sample() -> dict:
    """Small data that touches every part of the page."""
    interval = lambda mean: {"mean": mean, "low": mean - 0.05, "high": mean + 0.05}
    scored = {"chunk": "d#0001", "text": LONG, "forward": -1.25, "backward": -2.0, "retriever": 0.5,
              "score": -3.0}
    unscored = scored | {"text": "Short text.", "forward": None, "backward": None, "score": None}
    nodes = [{"name": f"node {i}", "type": "place", "rank": 0.3 / (i + 1), "seed": i == 0, "small": i < 3}
             for i in range(8)]
    tested = lambda mean, difference, p: interval(mean) | {"against_base": {
        "difference": difference, "low": difference - 0.02, "high": difference + 0.02, "p": p / 4, "p_holm": p}}
    verdicts = {"won": 12, "lost": 5, "tied": 3, "inconsistent": 4, "disqualified": 1, "decided": 0.7, "unjudged": 0,
                "win_rate": interval(0.64), "by_repeat": [0.6, None, 0.68], "position_bias": -0.125, "agreement": 0.8333}
    nothing = dict.fromkeys(verdicts, 0) | dict.fromkeys(("win_rate", "position_bias", "agreement")) | {"by_repeat": [None]}
    mined = lambda **more: {"model": "stage1", "negatives": 1569, "questions_without": 3, "holding_the_answer": 38,
                            "dropped": {"copies": 7, "margin": 0, "answers": 21}, **more}
    curve = [{"step": i + 1, "loss": 2.0 / (i + 1), "learning_rate": 1e-5} for i in range(50)]
    return {
        "title": "A run", "verdict": "Training helped: recall@5 +0.100.",
        "facts": [["documents", 1234], ["model", "MiniLM"], ["share", 0.25], ["cached", True]],
        "metrics": ["recall@5", "mrr"],
        "table": [{"system": "base", "values": {"recall@5": interval(0.5), "mrr": interval(0.4)}},
                  {"system": "stage1", "values": {"recall@5": tested(0.6, 0.1, 0.0002), "mrr": tested(0.3, -0.1, 0.0625)}},
                  {"system": "stage2", "values": {"recall@5": tested(0.6002, 0.1002, 0.04), "mrr": tested(0.4, 0.0, 1.0)}},
                  {"system": "stage3", "values": {"recall@5": tested(0.45, -0.05, 0.5)}}],
        "curves": {"stage1": curve, "stage2": curve[:3]},
        "distributions": {"stage2": {"positive": [0.9, 0.5], "negative": [0.6, 0.4, 0.5]}},
        "difficulty": {"stage2": mined(mean_gap_to_hardest=0.0593, share_above_the_positive=0.0387,
                                       gap_to_hardest={"p10": -0.0318, "p50": 0.0642, "p90": 0.1604}),
                       "stage3": mined()},
        "community": {"question": "Where?", "answer": "node 0", "nodes": nodes,
                      "edges": [{"a": 0, "b": i, "similarity": i > 5} for i in range(1, 8)]},
        "examples": [{"question": "What broke the gauge?", "answers": ["tide", "the tide"],
                      "rewritten": {"large": ["What, beside the mill, broke it?"], "small": []},
                      "positives": [scored], "negatives": {"stage2": [unscored], "stage3": []}},
                     {"question": "Who?", "answers": [], "rewritten": {}, "positives": [], "negatives": {}}],
        "tally": {"rose": 11, "fell": 1234, "stayed": 40},
        "wins": [{"question": "Which?", "answers": ["Quay"], "passage": "On the quay.", "before": None, "after": 2,
                  "first": {"base": {"text": "In the fen."}, "stage3": {"text": "On the quay."}},
                  "given": {"base": "fen", "stage3": "the quay"}}],
        "losses": [{"question": "When?", "answers": ["1784"], "passage": "In 1784.", "before": 1, "after": 1200,
                    "first": {"base": None, "stage3": {"text": "In 1785."}}, "given": {"stage3": "1785"}}],
        "answers": [{"question": "How?", "answers": ["by boat"],
                     "given": {"base": "By  boat.", "stage3": "no"}}],
        "judge": {"judge": "a judge", "repeats": 3, "temperature": 0.7, "verdicts": 144, "disqualified": {"unreadable": 1},
                  "pairs": [{"system": "stage3", "against": "base", "questions": 60, "same": 9,
                             "criteria": {"overall": verdicts, "conciseness": nothing}}]},
        "counts": [["cut passages", 1204]],
        "quarantine": [{"stage": "extract", "item": "d#0007", "reason": "no record", "text": "I cannot."}],
        "usage": [{"stage": "rewrite", "calls": 144, "requests": 151, "asked_again": 7, "retries": 3, "cached": 20,
                   "input_tokens": 190_200, "output_tokens": 61_300, "cost": 0.034}],
        "times": [["extract", 1.26], ["stage1", 74.8]],
        "manifest": {"version": "0.1.0", "seeds": [0, 1]},
    }


def empty() -> dict:
    data = {key: type(value)() for key, value in sample().items()}
    return data | {"title": "A run", "verdict": "Nothing was run."}


class Page(HTMLParser):
    """Parses strictly: every element that is opened must be closed in turn."""

    def __init__(self, text: str):
        super().__init__()
        self.open, self.elements, self.texts = [], [], []
        self.feed(text)
        self.close()
        assert self.open == [], f"left open: {self.open}"

    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"<{tag}> repeats an attribute: {names}"
        self.elements.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-1:]}"
        self.open.pop()

    def handle_data(self, data):
        self.texts.append((tuple(self.open), data))

    def text(self, tag: str) -> list[str]:
        return [data for path, data in self.texts if tag in path]

    def all(self, tag: str) -> list[dict]:
        return [attrs for name, attrs in self.elements if name == tag]


def cells(html: str, caption: str) -> list[list[str]]:
    """Rows of a table as plain text; blanks between the parts of a cell."""
    table = html.split(f"<caption>{caption}</caption>")[1].split("</table>")[0]
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in table.split("<tr>")[1:]]
    return [[" ".join(unescape(re.sub(r"<[^>]+>", " ", cell)).split()) for cell in row] for row in rows]


def test_all_sections_stand_under_headings_that_the_navigation_reaches():
    html = render(sample())
    parsed = Page(html)
    assert parsed.text("h1") == ["A run"] and parsed.text("h2") == HEADINGS
    assert parsed.text("nav") == HEADINGS
    ids = [attrs["id"] for _, attrs in parsed.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    targets = [attrs["href"] for attrs in parsed.all("a")]
    assert targets[0] == "#main" and len(targets) == 1 + len(HEADINGS)
    assert all(target[1:] in ids for target in targets)
    assert ('<p class="verdict">Training helped:</p><p class="numbers">recall@5 +0.100.</p>' in html
            and '<p class="verdict">Nothing was run.</p></header>' in render(empty()))
    assert html.index("Training helped:") < html.index('<section id="facts"')


def test_empty_data_says_so_section_by_section():
    parsed = Page(render(empty()))
    assert parsed.text("h2") == HEADINGS
    said = [data for path, data in parsed.texts if path[-2:] == ("section", "p") and data.startswith("No ")]
    assert len(said) == len(HEADINGS) + 1  # gains and losses say it each
    assert all(sentence.endswith(".") for sentence in said)
    assert not parsed.all("table") and not parsed.all("svg") and not parsed.all("figure")


@pytest.mark.parametrize("key", sorted(set(sample()) - {"title", "verdict"}))
def test_any_part_may_be_empty_by_itself(key):
    parsed = Page(render(sample() | {key: empty()[key]}))
    assert parsed.text("h2") == HEADINGS
    assert any(path and path[-1] == "p" and data.startswith("No ") for path, data in parsed.texts)


def test_time_calls_tokens_and_money_of_every_step_and_of_all():
    data = sample()
    data["usage"].append(data["usage"][0] | {"stage": "extract", "calls": 6, "cost": 1.5})
    assert cells(render(data), "Time and cost by step") == [
        ["step", "in proportion", "time", "share", "LLM calls", "asked again", "tokens in", "tokens out", "USD"],
        ["extract", "", "1.3s", "1.7 %", "6", "7", "190,200", "61,300", "1.50"],
        ["stage1", "", "1m15s", "98.3 %", "–", "–", "–", "–", "–"],
        ["rewrite", "", "0.0s", "0.0 %", "144", "7", "190,200", "61,300", "0.03"],
        ["all", "", "1m16s", "100.0 %", "150", "14", "380,400", "122,600", "1.53"]]
    data["usage"] = []
    assert cells(render(data), "Time and cost by step")[-1] == ["all", "", "1m16s", "100.0 %"]


def test_inner_parts_may_be_empty():
    data = sample()
    data["curves"]["stage1"] = []
    data["distributions"]["stage2"] = {"positive": [], "negative": []}
    data["community"]["nodes"] = data["community"]["edges"] = []
    text = " ".join(data for _, data in Page(render(data)).texts)
    assert "No finite loss was recorded." in text
    assert "No cosine similarities were recorded" in text
    assert "No knowledge-graph community was recorded" in text
    assert "No rewrite was accepted." in text and "No hard negatives were mined for stage3." in text


def poisoned(value, keys: bool = False):
    """The data with HOSTILE before every text, names of stages, systems and metrics included."""
    named = {"curves", "distributions", "difficulty", "dropped", "values", "rewritten", "negatives", "given", "first", "tally",
             "criteria", "manifest"}
    if isinstance(value, dict):
        return {HOSTILE + key if keys else key: poisoned(v, key in named) for key, v in value.items()}
    if isinstance(value, list):
        return [poisoned(v) for v in value]
    return HOSTILE + value if isinstance(value, str) else value


def test_no_text_becomes_markup():
    clean, parsed = Page(render(sample())), Page(render(poisoned(sample())))
    assert not parsed.all("script")
    tags = lambda p: {tag for tag, _ in p.elements}
    assert tags(parsed) == tags(clean) - {"small"}  # no system is called base any more
    assert not [name for _, attrs in parsed.elements for name in attrs if name.startswith("on")]
    assert HOSTILE + "A run" in parsed.text("title")[0] + parsed.text("h1")[0]
    everything = "".join(data for _, data in parsed.texts)
    for text in ("Training helped", "MiniLM", "stage1", "recall@5", "node 3", "What broke the gauge?", "In 1785.",
                 "By  boat.", "cut passages", "extract", "I cannot.", "What, beside the mill, broke it?", "d#0001"):
        assert HOSTILE + text in everything, text
    assert json.dumps(HOSTILE + "0.1.0") in everything


def test_what_no_html_can_hold_is_replaced():
    data = sample() | {"verdict": "half \ud83d of a pair", "title": "a\0b\x1b[1m\x0c\ufffe", "manifest": {"x": "\udc80"}}
    html = render(data).encode("utf-8").decode()
    assert "half ? of a pair" in html and "<h1>a\ufffdb\ufffd[1m\ufffd\ufffd</h1>" in html
    assert not re.search("[\0-\x08\x0b-\x1f\x7f-\x9f]", html)


def test_page_asks_for_nothing_from_outside():
    html = render(sample())
    parsed = Page(html)
    assert "http://" not in html and "https://" not in html and "//" not in html.replace("</", "")
    loading = {"script", "link", "img", "iframe", "object", "embed", "use", "image", "base", "form", "video",
               "audio"}
    assert not loading & {tag for tag, _ in parsed.elements}
    for _, attrs in parsed.elements:
        assert not {"src", "srcset", "xlink:href", "action", "data", "poster", "background"} & set(attrs)
        assert attrs.get("href", "#").startswith("#")
    style = "".join(parsed.text("style"))
    assert "url(" not in style and "@import" not in style and "@font-face" not in style and "<" not in style
    policies = [attrs["content"] for attrs in parsed.all("meta") if "http-equiv" in attrs]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'"]


def test_same_data_gives_same_bytes_whatever_the_hash_seed(tmp_path):
    data = sample()
    before = copy.deepcopy(data)
    html = render(data)
    assert data == before
    (tmp_path / "data.json").write_text(json.dumps(data))
    code = ("import json, sys; from ark_jax.evaluate.report import render; "
            "data = json.load(open(sys.argv[1])); sys.stdout.buffer.write(render(data).encode()); "
            "assert 'jax' not in sys.modules")
    for seed in ("1", "2"):
        run = subprocess.run([sys.executable, "-c", code, str(tmp_path / "data.json")], capture_output=True,
                             check=True, env={**os.environ, "PYTHONHASHSEED": seed})
        assert run.stdout == html.encode()


def untested() -> list[dict]:
    """The table of a run without a test."""
    rows = sample()["table"]
    for row in rows:
        for v in row["values"].values():
            v.pop("against_base", None)
    return rows


def test_results_star_the_best_and_tell_the_difference_to_base_with_its_test():
    assert cells(render(sample()), "Results by system") == [
        ["system", "recall@5", "MRR"],
        ["base", "0.500 0.450 to 0.550", "★ best: 0.400 0.350 to 0.450"],
        ["stage1", "★ best: 0.600 +0.100* p < 0.001 0.550 to 0.650", "0.300 −0.100 p 0.062 0.250 to 0.350"],
        ["stage2", "★ best: 0.600 +0.100* p 0.040 0.550 to 0.650", "★ best: 0.400 ±0.000 p 1.000 0.350 to 0.450"],
        ["stage3", "0.450 −0.050 p 0.500 0.400 to 0.500", "–"]]


def test_results_without_a_test_claim_no_significance():
    html = render(sample() | {"table": untested()})
    assert cells(html, "Results by system")[2] == [
        "stage1", "★ best: 0.600 +0.100 0.550 to 0.650", "0.300 −0.100 0.250 to 0.350"]
    assert "randomisation" not in html and "two that overlap may still differ" in html and "recall@5 (0 to 1)" in html


def test_differences_are_drawn_where_they_were_tested_and_rings_where_chance_explains_them():
    html = render(sample())
    recall, mrr = re.findall(r'<svg [^>]*aria-labelledby="interval-.*?</svg>', html, re.DOTALL)
    assert "stage1: 0.100, interval 0.080 to 0.120" in recall and "base:" not in recall
    assert recall.count('class="point"') == 2 and recall.count('class="point hollow"') == 1
    assert mrr.count('class="point"') == 0 and mrr.count('class="point hollow"') == 2
    assert "randomisation" in html and "two that overlap may still differ" not in html


def test_nothing_is_best_where_all_are_alike():
    data = sample() | {"table": [row | {"values": {"mrr": row["values"].get("mrr")}} for row in untested()[:3:2]]}
    assert cells(render(data), "Results by system")[1:] == [["base", "–", "0.400 0.350 to 0.450"],
                                                            ["stage2", "–", "0.400 ±0.000 0.350 to 0.450"]]


def test_results_without_base_or_rivals_claim_nothing():
    data = sample() | {"table": untested()[1:2]}
    data["table"][0]["values"]["mrr"]["mean"] = math.nan
    assert cells(render(data), "Results by system")[1:] == [["stage1", "0.600 0.550 to 0.650", "–"]]


def test_the_judge_is_told_with_its_bias():
    html = render(sample())
    assert cells(html, "Verdicts on stage3 against base") == [
        ["criterion", "win rate", "won", "lost", "tied", "by place", "disqualified", "repeats", "position bias",
         "both orders agree"],
        ["overall", "0.640", "12", "5", "3", "4", "1", "0.600 to 0.680", "−0.12", "83 %"],
        ["conciseness", "–", "0", "0", "0", "0", "0", "–", "–", "–"]]
    assert "9 of 60 answers are the same" in html and "overall: 0.640, interval 0.590 to 0.690" in html


def test_numeric_columns_are_right_aligned_with_even_figures():
    html = render(sample())
    for caption, numeric in (("Positives", [0, 0, 1, 1, 1, 1]), ("Results by system", [0, 1, 1]),
                             ("Time and cost by step", [0, 0, 1, 1, 1, 1, 1, 1, 1])):
        row = html.split(f"<caption>{caption}</caption>")[1].split("<tbody>")[1].split("</tr>")[0]
        assert [int('class="num"' in tag) for tag in re.findall(r"<t[hd][^>]*>", row)] == numeric
    rule = re.search(r"\.num \{([^}]*)\}", html)[1]
    assert "text-align: right" in rule and "tabular-nums" in rule


def test_other_tables():
    html = render(sample())
    assert cells(html, "Answers by system") == [["question", "reference", "base", "stage3"],
                                                ["How?", "by boat", "By boat .", "no"]]
    assert cells(html, "Records rejected, cut or set aside")[1] == ["cut passages", "1,204"]
    assert cells(html, "Quarantined replies")[1] == ["extract", "d#0007", "no record", "I cannot."]
    assert cells(html, "Hard negatives by stage") == [
        ["stage", "mined by", "negatives", "mean gap", "above the positive", "with an answer", "dropped: copies",
         "dropped: margin", "dropped: answers", "questions without"],
        ["stage2", "stage1", "1,569", "0.059", "3.9 %", "38", "7", "0", "21", "3"],
        ["stage3", "stage1", "1,569", "–", "–", "38", "7", "0", "21", "3"]]
    assert cells(html, "Hard negatives of stage2")[1] == ["d#0001", "Short text.", "–", "–", "0.500", "–"]
    assert cells(html, "Entities by rank")[1] == ["node 0", "place", "seed", "0.30000"]


def test_wins_and_losses_are_worked():
    html = render(sample())
    won, lost = html.split("<h3>Gains</h3>")[1].split("</section>")[0].split("<h3>Losses</h3>")
    plain = lambda part: " ".join(re.sub(r"<[^>]+>", " ", part).split())
    assert plain(won) == ("Which? rank beyond the list → 2 Quay Gold passage On the quay . base puts first In the fen. "
                          "and answers: fen stage3 puts first the gold passage and answers: the quay")
    assert plain(lost) == ("When? rank 1 → 1,200 1784 Gold passage In 1784 . base puts first No passage was found. "
                           "stage3 puts first In 1785. and answers: 1785")
    assert "11 rose, 1,234 fell, 40 stayed" in html


def test_answers_are_marked_as_whole_words_whatever_case_and_spacing():
    assert page.marked("The TIDE <tide> tidewater", ["tide"]) == \
        "The <mark>TIDE</mark> &lt;<mark>tide</mark>&gt; tidewater"
    assert page.marked("By  boat, by\nboat", ["boat", "by boat"]) == \
        "<mark>By  boat</mark>, <mark>by\nboat</mark>"
    assert page.marked("a+b aab", ["a+b", " "]) == "<mark>a+b</mark> aab"
    assert page.marked("plain", [""]) == "plain"
    assert page.marked("\u559c\u6b61\u6771\u4eac", ["\u6771\u4eac"]) == "\u559c\u6b61<mark>\u6771\u4eac</mark>"


def test_long_passage_shows_the_part_around_its_answer_and_opens_to_the_whole():
    html = page.passage(LONG, ["tide"])
    short = html.split("</span>")[0]
    assert "<mark>tide</mark>" in short and len(re.sub("<[^>]+>", "", short)) < 300
    assert re.sub("<[^>]+>", "", html.split('<p class="text" dir="auto">')[1]) == LONG
    assert page.passage("Short & sweet.", []) == '<p class="text" dir="auto">Short &amp; sweet.</p>'
    unbroken = "潮" * 2000 + "位" + "潮" * 2000  # no blank to cut at
    assert 150 < len(re.sub("<[^>]+>", "", page.passage(unbroken, ["x"]).split("</span>")[0])) < 260


def test_figures_are_named_described_and_labelled_with_units():
    html = render(sample())
    drawings = re.findall(r"<svg (?=[^>]*role=).*?</svg>", html, re.DOTALL)
    assert len(drawings) == 2 + 2 * 2 + 4  # metrics, loss and rate of two stages; cosines, difficulty, community, judge
    for drawing in drawings:
        name, desc = re.search(r'aria-labelledby="(\S+)" aria-describedby="(\S+)"', drawing).groups()
        assert re.search(rf'<title id="{name}">[^<]+</title><desc id="{desc}">[^<]+\.</desc>', drawing)
    for title in ("loss (nats)", "step (updates)", "learning rate (per update)",
                  "cosine similarity (−1 to 1)", "share of passages (%)", "difference in recall@5",
                  "win rate (0 to 1)"):
        assert f">{title}</text>" in html
    # 0.9 lies above three negatives, 0.5 above one: 4 of 6 pairs.
    assert "2 positives, 3 hard negatives; a positive lies above a hard negative in 67 % of all pairs" in html


def test_line_chart_leaves_out_what_is_not_finite():
    draw = lambda ys: figures.line_chart("n", "t", list(range(1, len(ys) + 1)), ys,
                                         x_title="step", y_title="loss")
    chart = draw([3.0, math.nan, 1.0, None, math.inf, 2.0])
    assert "loss from step 1 to 6: first 3, last 2, lowest 1, highest 3. Left out as not finite: 3." in chart
    assert chart.count('class="dot"') == 3 and "nan" not in chart and "inf" not in chart
    assert draw([math.nan]) == "" and draw([]) == ""
    assert draw([2.0]).count('class="dot"') == 1
    assert len(draw(np.sin(np.arange(200_000)).tolist())) < 20_000


def coordinates(drawing: str, pattern: str) -> list[float]:
    return [float(found) for found in re.findall(pattern, drawing)]


def test_interval_plot_keeps_proportions():
    drawing = figures.interval_plot("n", "t", [("base", 0.5, 0.4, 0.6), ("stage1", 0.7, 0.6, 0.8)],
                                    x_title="x", reference=0.5)
    base, stage = coordinates(drawing, r'class="point" cx="([\d.]+)"')
    reference = coordinates(drawing, r'class="reference" x1="([\d.]+)"')
    starts = coordinates(drawing, r'class="interval" x1="([\d.]+)"')[::3]
    ends = coordinates(drawing, r'class="interval" x1="[\d.]+" y1="[\d.]+" x2="([\d.]+)"')[::3]
    assert reference == [base]
    unit = (stage - base) / 0.2
    assert starts == pytest.approx([base - 0.1 * unit, base + 0.1 * unit], abs=0.2)
    assert ends == pytest.approx([base + 0.1 * unit, base + 0.3 * unit], abs=0.2)


def test_histograms_draw_shares_upwards_and_downwards():
    drawing = figures.histograms("n", "t", ("up", [0.1] * 4), ("down", [0.1, 0.9]), x_title="x",
                                 x_range=(0.0, 1.0))
    heights = [[float(y) for _, y in re.findall(r"([\d.]+) ([\d.]+)", path)]
               for path in re.findall(r'<path class="(?:above|below)" d="M([^"]+)"', drawing)]
    zero = heights[0][0]
    assert heights[1][0] == zero and min(heights[1]) == zero and max(heights[0]) == zero
    full, half = zero - min(heights[0]), max(heights[1]) - zero
    assert full > 50 and half == pytest.approx(full / 2, abs=0.2)  # 100 % in one bin, 50 % in each of two
    assert "up: 4 values, median 0.10; down: 2 values, median 0.50." in drawing
    assert "down: 0 values." in figures.histograms("n", "t", ("up", [0.1]), ("down", []), x_title="x",
                                                   x_range=(0.0, 1.0))


@pytest.mark.parametrize(("low", "high", "labels"), [
    (0.0, 1.0, ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
    (0.53, 0.67, ["0.55", "0.60", "0.65"]),
    (-3.0, 3.0, ["−3", "−2", "−1", "0", "1", "2", "3"]),
    (0.0, 2500.0, ["0", "500", "1,000", "1,500", "2,000", "2,500"]),
    (0.0, 2.2e-5, ["0", "5e−6", "1e−5", "1.5e−5", "2e−5"]),
])
def test_ticks_are_round(low, high, labels):
    assert figures.tick_labels(figures.ticks(low, high)) == labels


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
def test_ticks_are_few_and_inside(low, width):
    at = figures.ticks(low, low + width)
    assert 2 <= len(at) <= 7
    assert all(low - 1e-6 * width <= v <= low + width * (1 + 1e-6) for v in at)


def test_graph_layout_is_deterministic_and_follows_the_edges():
    rng = np.random.default_rng(0)
    edges = [(int(a), int(b)) for a, b in rng.integers(0, 50, (90, 2))]
    first, second = figures.graph_layout(50, edges), figures.graph_layout(50, list(edges))
    assert first.tobytes() == second.tobytes()
    assert first.shape == (50, 2) and first.min() >= -1e-9 and first.max() <= 1 + 1e-9
    gaps = np.linalg.norm(first[:, None] - first[None], axis=-1)[~np.eye(50, dtype=bool)]
    assert gaps.min() > 0.01

    path = figures.graph_layout(5, [(2, 3), (0, 1), (3, 4), (1, 2)])
    assert (np.diff(path[:, 0]) > 0.2).all() or (np.diff(path[:, 0]) < -0.2).all()
    assert np.ptp(path[:, 1]) < 0.2
    far = lambda places, a, b: float(np.linalg.norm(places[a] - places[b]))
    ring = figures.graph_layout(4, [(0, 1), (1, 2), (2, 3), (3, 0)])
    assert far(ring, 0, 2) > far(ring, 0, 1) and far(ring, 1, 3) > far(ring, 1, 2)
    apart = figures.graph_layout(4, [(0, 1), (2, 3)])
    assert max(apart[:2, 0]) < min(apart[2:, 0]) or min(apart[:2, 0]) > max(apart[2:, 0])
    assert figures.graph_layout(1, []).tolist() == [[0.5, 0.5]]
    assert far(figures.graph_layout(3, []), 0, 1) > 0.1


def test_graph_marks_members_and_no_label_covers_another():
    rng = np.random.default_rng(1)
    nodes = [{"name": f"a fairly long name {i}", "type": "place", "rank": float(r), "seed": i < 2,
              "small": i < 8} for i, r in enumerate(np.sort(rng.random(50))[::-1])]
    edges = [{"a": i, "b": int(rng.integers(0, i)), "similarity": i % 5 == 0} for i in range(1, 50)]
    drawing = figures.graph("g", "t", nodes, edges)
    assert drawing == figures.graph("g", "t", nodes, edges)
    assert drawing.count('<path class="seed"') == 2 and drawing.count('class="small"') == 6
    assert drawing.count('class="large"') == 42
    assert drawing.count('class="similar"') == 9 and drawing.count('class="relation"') == 40
    assert "50 entities, 8 of them in the small community, joined by 49 edges." in drawing
    found = re.findall(r'<text class="node[^"]*" x="([\d.]+)" y="([\d.]+)" text-anchor="(\w+)">([^<]+)<',
                       drawing)
    assert len(found) > 25 and {name for *_, name in found} >= {nodes[0]["name"], nodes[1]["name"]}
    areas = []
    for x, y, anchor, name in found:
        wide = 6.7 * len(name)
        left = float(x) - {"start": 0, "middle": wide / 2, "end": wide}[anchor]
        areas.append((left, float(y) - 11, left + wide, float(y) + 4))
        assert left >= 0 and left + wide <= 880 and 0 < float(y) < 560
    for i, a in enumerate(areas):
        for b in areas[:i]:  # coordinates are rounded to a tenth
            assert a[0] > b[2] - 0.2 or b[0] > a[2] - 0.2 or a[1] > b[3] - 0.2 or b[1] > a[3] - 0.2


def schemes() -> list[dict[str, str]]:
    css = (files("ark_jax.evaluate") / "report.css").read_text(encoding="utf-8")
    light, dark = re.findall(r":root \{([^}]*)\}", css)[:2]
    return [dict(re.findall(r"--([\w-]+): (#\w+)", block)) for block in (light, dark)]


def contrast(a: str, b: str) -> float:
    """WCAG 2 contrast ratio."""
    def luminance(colour):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_colours_have_enough_contrast(scheme):
    colours = schemes()[scheme]
    for ground in ("page", "panel"):
        for ink in ("ink", "soft", "accent", "up", "down"):
            assert contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground)
        for graphic in ("blue", "orange", "edge"):
            assert contrast(colours[graphic], colours[ground]) >= 3.0, (graphic, ground)
    assert contrast(colours["ink"], colours["mark"]) >= 4.5


def test_stylesheet_and_markup_know_the_same_classes():
    css = (files("ark_jax.evaluate") / "report.css").read_text(encoding="utf-8")
    selectors = re.sub(r"/\*.*?\*/|\{[^{}]*\}", "", css, flags=re.DOTALL)
    styled = set(re.findall(r"\.([a-z]+)", selectors))
    used = set()
    for html in (render(sample()), render(empty())):
        used |= {name for _, attrs in Page(html).elements for name in (attrs.get("class") or "").split()}
    assert styled - used == set(), "styled, never used"
    assert used - styled <= {"tick"}, "used, never styled"
    for query in ("screen and (prefers-color-scheme: dark)", "print", "(max-width: 30rem)"):
        assert f"@media {query} {{" in css
