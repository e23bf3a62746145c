"""The page as a whole: sections, navigation, empty parts, no outside resources, style sheet."""

import base64
import copy
import hashlib
import json
import os
import re
import subprocess
import sys
from importlib.resources import files

import pytest
from support.paths import REPOSITORY
from support.report_pages import ParsedPage, table_cells
from support.report_sample import HEADINGS, empty, render, sample


def test_the_navigation_reaches_every_section():
    parsed = ParsedPage(render(sample()))
    assert parsed.text("h1") == ["A run"] and parsed.text("h2") == HEADINGS
    assert parsed.text("nav") == HEADINGS
    ids = [attrs["id"] for _, attrs in parsed.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    targets = [attrs["href"] for attrs in parsed.all("a") if attrs["href"] != "questions.parquet"]
    assert targets[0] == "#main" and len(targets) == 1 + len(HEADINGS)
    assert all(target[1:] in ids for target in targets)


def test_the_verdict_comes_before_the_sections():
    page = render(sample())
    verdict = (
        '<p class="verdict">Training helped:</p><ul class="numbers"><li>recall@5 +0.100.</li></ul>'
    )
    assert page.index(verdict) < page.index('<section id="facts"')


def test_the_verdict_of_an_empty_run_says_that_nothing_was_run():
    assert '<p class="verdict">Nothing was run.</p></header>' in render(empty())


def test_an_empty_section_has_a_sentence_that_says_so():
    parsed = ParsedPage(render(empty()))
    assert parsed.text("h2") == HEADINGS
    sentences = [
        data
        for path, data in parsed.texts
        if path[-2:] == ("section", "p") and data.startswith("No ")
    ]
    assert len(sentences) == len(HEADINGS)
    assert all(sentence.endswith(".") for sentence in sentences)
    assert not parsed.all("table") and not parsed.all("svg") and not parsed.all("figure")


@pytest.mark.parametrize("key", sorted(set(sample()) - {"title", "verdict"}))
def test_the_page_renders_with_any_single_part_empty(key):
    parsed = ParsedPage(render(sample() | {key: empty()[key]}))
    assert parsed.text("h2") == HEADINGS
    assert any(path and path[-1] == "p" and data.startswith("No ") for path, data in parsed.texts)


def test_time_and_cost_are_shown_per_step_and_in_total():
    data = sample()
    data["usage"].append(data["usage"][0] | {"stage": "extract", "calls": 6, "cost": 1.5})
    assert table_cells(render(data), "Time and cost by step") == [
        [
            "step",
            "in proportion",
            "time",
            "share",
            "LLM calls",
            "asked again",
            "tokens in",
            "tokens out",
            "USD",
        ],
        ["extract", "", "1.3s", "1.7 %", "6", "7", "190,200", "61,300", "1.50"],
        ["stage1", "", "1m15s", "98.3 %", "–", "–", "–", "–", "–"],
        ["rewrite", "", "0.0s", "0.0 %", "144", "7", "190,200", "61,300", "0.03"],
        ["all", "", "1m16s", "100.0 %", "150", "14", "380,400", "122,600", "1.53"],
    ]
    data["usage"] = []
    assert table_cells(render(data), "Time and cost by step")[-1] == ["all", "", "1m16s", "100.0 %"]


def test_the_page_renders_with_empty_inner_parts():
    data = sample()
    data["curves"]["stage1"] = []
    data["distributions"]["stage2"] = {"positive": [], "negative": []}
    text = " ".join(data for _, data in ParsedPage(render(data)).texts)
    assert "No finite loss was recorded." in text
    assert "No cosine similarities were recorded" in text
    assert "No rewrite was accepted." in text and "No hard negatives were mined for stage3." in text


LOADING_TAGS = {
    "link",
    "img",
    "iframe",
    "object",
    "embed",
    "use",
    "image",
    "base",
    "form",
    "video",
    "audio",
}
LOADING_ATTRIBUTES = {"src", "srcset", "xlink:href", "action", "data", "poster", "background"}


def test_no_element_of_the_report_page_loads_a_resource():
    page = render(sample())
    parsed = ParsedPage(page)
    assert "//" not in page.replace("</", "")  # which every address has
    assert not LOADING_TAGS & {tag for tag, _ in parsed.elements}
    for _, attrs in parsed.elements:
        assert not LOADING_ATTRIBUTES & set(attrs)
        assert attrs.get("href", "#").startswith("#") or attrs["href"] == "questions.parquet"


def test_the_style_of_the_report_page_loads_no_resource():
    style = "".join(ParsedPage(render(sample())).text("style"))
    assert style
    for loading in ("url(", "@import", "@font-face", "<"):
        assert loading not in style


def test_the_report_page_forbids_resources_and_all_scripts_but_its_own():
    page = render(sample())
    metas = ParsedPage(page).all("meta")
    (policy,) = [attrs["content"] for attrs in metas if "http-equiv" in attrs]
    script = page.rsplit("<script>", 1)[1].split("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    own = f"script-src 'sha256-{digest}'"
    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; {own}"


def test_the_same_data_give_the_same_bytes_for_any_hash_seed(tmp_path):
    data = sample()
    before = copy.deepcopy(data)
    page = render(data)
    assert data == before
    (tmp_path / "data.json").write_text(json.dumps(data))
    code = (
        "import json, sys; from support.report_sample import render; "
        "data = json.load(open(sys.argv[1])); sys.stdout.buffer.write(render(data).encode()); "
        "assert 'jax' not in sys.modules"
    )
    paths = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "tests")])
    for seed in ("1", "2"):
        run = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "data.json")],
            capture_output=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": paths},
        )
        assert run.stdout == page.encode()


def schemes() -> list[dict[str, str]]:
    css = (files("ark_jax.report") / "report.css").read_text(encoding="utf-8")
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


def test_stylesheet_and_markup_use_the_same_classes():
    css = (files("ark_jax.report") / "report.css").read_text(encoding="utf-8")
    selectors = re.sub(r"/\*.*?\*/|\{[^{}]*\}", "", css, flags=re.DOTALL)
    styled = set(re.findall(r"\.([a-z]+)", selectors))
    script = (files("ark_jax.report") / "report.js").read_text(encoding="utf-8")
    used = {"command", *re.findall(r'class: (?:needed \? )?"([a-z]+)"', script)}
    for page in (render(sample()), render(empty())):
        used |= {
            name
            for _, attrs in ParsedPage(page).elements
            for name in (attrs.get("class") or "").split()
        }
    assert styled - used == set(), "styled, never used"
    assert used - styled <= {"tick"}, "used, never styled"
    for query in ("screen and (prefers-color-scheme: dark)", "print", "(max-width: 30rem)"):
        assert f"@media {query} {{" in css


def test_counts_quarantine_and_difficulty_are_shown_in_tables():
    page = render(sample())
    assert table_cells(page, "Records rejected, cut or set aside")[1] == ["cut passages", "1,204"]
    assert table_cells(page, "Quarantined replies")[1] == [
        "extract",
        "d#0007",
        "no record",
        "I cannot.",
    ]
    assert table_cells(page, "Hard negatives by stage") == [
        [
            "stage",
            "mined by",
            "negatives",
            "mean gap",
            "above the positive",
            "with an answer",
            "dropped: copies",
            "dropped: margin",
            "dropped: aligned",
            "questions without",
        ],
        ["stage2", "stage1", "1,569", "0.059", "3.9 %", "38", "7", "0", "21", "3"],
        ["stage3", "stage1", "1,569", "–", "–", "38", "7", "0", "21", "3"],
    ]
