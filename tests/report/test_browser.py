"""The report in a real browser: layout on several screens, drawings, keyboard, print, errors."""

import base64
import re

import pytest
from support.browser import PROGRAM, Browser
from support.report_sample import HEADINGS, HOSTILE, empty, poisoned, render, sample, sections_of

pytestmark = pytest.mark.skipif(
    PROGRAM is None, reason="no chromium, chromium-browser or google-chrome on PATH"
)
PHONE, DESK = 360, 1280
ANCHORS = [section.anchor for section in sections_of(sample())]
WORD = "Donaudampfschifffahrt" * 500  # 10,500 letters without a place to break
# Visible elements that reach beyond the window, outside of boxes that scroll.
BEYOND = """[...document.querySelectorAll("body *")].filter(e => e.checkVisibility()
    && !e.closest(".scroll, pre, .skip, .hidden, caption")
    && e.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
    .map(e => e.outerHTML.slice(0, 120))"""


def wide_report() -> dict:
    """The sample with many metrics."""
    data = sample()
    data["metrics"] = [f"recall@{k}" for k in (1, 3, 5, 10, 20, 50, 100, 200, 500)]
    for row in data["table"]:
        row["values"] = dict.fromkeys(data["metrics"], row["values"]["recall@5"])
    return data


def evil(value):
    """`value` with a NUL and a very long word after every text."""
    if isinstance(value, dict):
        return {key: evil(v) for key, v in value.items()}
    if isinstance(value, list):
        return [evil(v) for v in value]
    return f"{value} \0{WORD}" if isinstance(value, str) else value


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Four pages: with the sample, empty, with many metrics, with hostile text."""
    folder = tmp_path_factory.mktemp("pages")
    for name, data in {
        "full": sample(),
        "empty": empty(),
        "wide": wide_report(),
        "evil": evil(poisoned(sample())),
    }.items():
        (folder / f"{name}.html").write_text(render(data), encoding="utf-8")
    return folder


# Size of a PNG, its number of colours, the red value and the share of the commonest colour.
LOOK = """async png => {
    const image = new Image();
    image.src = "data:image/png;base64," + png;
    await image.decode();
    const canvas = new OffscreenCanvas(image.width, image.height);
    const pen = canvas.getContext("2d"), counts = new Map();
    pen.drawImage(image, 0, 0);
    const pixels = new Uint32Array(pen.getImageData(0, 0, image.width, image.height).data.buffer);
    for (const colour of pixels) counts.set(colour, (counts.get(colour) || 0) + 1);
    const [ground, times] = [...counts.entries()].sort((a, b) => b[1] - a[1])[0];
    return {width: image.width, height: image.height, colours: counts.size, ground: ground & 255,
            share: times / pixels.length};
}"""


@pytest.mark.parametrize("page", ["full", "empty", "wide", "evil"])
@pytest.mark.parametrize("width", [PHONE, DESK])
def test_every_section_fits_the_screen_without_errors(page, width, browser, pages):
    browser.show(pages / f"{page}.html", width=width)
    assert browser.messages() == []
    assert browser.run('[...document.querySelectorAll("main > section")].map(s => s.id)') == ANCHORS
    headings = browser.run(
        '[...document.querySelectorAll("section > h2")]'
        ".map(h => h.checkVisibility() && h.innerText)"
    )
    assert headings == HEADINGS
    browser.run('document.querySelectorAll("details").forEach(d => d.open = true)')
    assert browser.run("document.documentElement.scrollWidth") == width
    assert browser.run(BEYOND) == []
    assert browser.run('document.querySelectorAll("img, iframe, link").length') == 0


def test_a_long_word_does_not_widen_a_table_without_limit(browser, pages):
    browser.show(pages / "evil.html", width=PHONE)
    browser.run('document.querySelectorAll("details").forEach(d => d.open = true)')
    widths = dict(
        browser.run(
            '[...document.querySelectorAll("table")]'
            ".map(t => [t.caption.textContent, t.offsetWidth])"
        )
    )
    assert widths and {name: width for name, width in widths.items() if width > 12 * PHONE} == {}


@pytest.mark.parametrize(("width", "height"), [(PHONE, 2400), (DESK, 1600)])
def test_the_page_is_drawn_in_both_themes(width, height, browser, pages):
    looks = {}
    for theme in ("light", "dark"):
        browser.show(pages / "full.html", width=width, height=height, theme=theme)
        picture = browser.screenshot()
        browser.show("about:blank", width=width)  # its policy allows the script
        looks[theme] = browser.run(f"({LOOK})('{base64.b64encode(picture).decode()}')")
    for look in looks.values():
        assert (look["width"], look["height"]) == (width, height)
        assert look["colours"] > 100 and 0.4 < look["share"] < 0.98
    assert looks["light"]["ground"] > 240 and looks["dark"]["ground"] < 40


def test_every_drawing_has_a_size_and_its_text_stays_inside(browser, pages):
    browser.show(pages / "full.html", width=DESK)
    sizes = browser.run(
        '[...document.querySelectorAll("svg[role=img]")].map(s => [s.clientWidth, s.clientHeight])'
    )
    assert len(sizes) == 10 and min(min(size) for size in sizes) > 60
    assert (
        browser.run("""[...document.querySelectorAll("svg[role=img] text")].filter(t => {
        const box = t.getBBox(), view = t.ownerSVGElement.viewBox.baseVal;
        return box.x < -0.5 || box.y < -0.5 || box.x + box.width > view.width + 0.5
            || box.y + box.height > view.height + 0.5;
    }).map(t => t.textContent)""")
        == []
    )


# Tag and name of the focused element.
FOCUSED = """(e => e === document.body ? "" : e.tagName + " "
    + (e.getAttribute("href") || e.getAttribute("aria-label") || e.innerText))
    (document.activeElement)"""


def test_the_keyboard_reaches_everything_that_opens_or_scrolls(browser, pages):
    browser.show(pages / "full.html", width=PHONE)
    reached = []
    for _ in range(200):
        browser.press("Tab", 9)
        focused = browser.run(FOCUSED)
        if not focused or focused in reached[:1]:
            break
        reached.append(focused)
    assert reached[0] == "A #main"
    assert [x for x in reached if x.startswith("A #")][1:] == [f"A #{anchor}" for anchor in ANCHORS]
    assert {"DIV Results by system", "DIV All questions"} <= set(reached)
    openable = browser.run(
        '[...document.querySelectorAll("summary")].filter(s => s.checkVisibility()).length'
    )
    assert len([x for x in reached if x.startswith("SUMMARY")]) == openable
    browser.run('document.querySelector("#manifest summary").focus()')
    browser.press("Enter", 13, "\r")
    assert browser.run('document.querySelector("#manifest details").open')


def test_the_page_prints_on_a_few_sheets_without_navigation(browser, pages):
    browser.show(pages / "full.html", width=DESK)
    printed = browser.print_to_pdf()
    assert printed.startswith(b"%PDF") and len(printed) > 20_000
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 10
    browser.show(pages / "wide.html", width=700, media="print")
    assert not browser.run('document.querySelector("nav").checkVisibility()')
    assert browser.run("document.documentElement.scrollWidth") == 700
    assert (
        browser.run(
            '[...document.querySelectorAll(".scroll")]'
            ".filter(s => s.scrollWidth > s.clientWidth + 1)"
            '.map(s => s.getAttribute("aria-label"))'
        )
        == []
    )


def test_the_table_of_questions_filters_sorts_and_opens(browser, pages):
    browser.show(pages / "full.html", width=PHONE)
    heads = '[...document.querySelectorAll(".questions tbody th button")].map(b => b.innerText)'
    assert browser.run(heads) == ["When?", "Which?"]  # the larger change first
    browser.run('document.querySelectorAll(".questions .sort")[2].click()')  # ranks by base
    assert browser.run(heads) == ["Which?", "When?"]
    choose = 'document.querySelector("select").value = "rose"'
    browser.run(f'{choose}; document.querySelector("select").dispatchEvent(new Event("input"))')
    assert browser.run(heads) == ["Which?"]
    browser.run('document.querySelector(".questions tbody button").focus()')
    browser.press("Enter", 13, "\r")
    assert browser.run('document.querySelector(".opened h4").innerText') == "base"
    marked = '[...document.querySelectorAll(".opened mark")].map(m => m.innerText)'
    assert {*browser.run(marked)} == {"Quay", "quay"}
    assert browser.run("document.documentElement.scrollWidth") == PHONE


def test_other_tables_sort_by_number(browser, pages):
    browser.show(pages / "full.html", width=DESK)
    table = 'document.querySelector("#results table")'
    browser.run(f"{table}.querySelectorAll('.sort')[1].click()")
    names = f"[...{table}.tBodies[0].rows].map(r => r.cells[0].innerText)"
    assert browser.run(names) == ["stage1", "stage2", "base", "stage3"]
    assert browser.run(f"{table}.querySelector('[aria-sort]').ariaSort") == "descending"


def test_hostile_text_is_shown_as_text(browser, pages):
    browser.show(pages / "evil.html", width=DESK)
    assert HOSTILE in browser.run('document.querySelector("h1").textContent')
    assert "\ufffd" in browser.run('document.querySelector("h1").textContent')


def test_the_browser_reports_errors(browser, tmp_path):
    """Otherwise an empty list of messages would prove nothing."""
    bad = tmp_path / "bad.html"
    bad.write_text(
        '<!DOCTYPE html><img src="gone.png"><script>console.warn("a"); nothing()</script>'
    )
    browser.show(bad, width=PHONE)
    messages = " ".join(browser.messages())
    assert "gone.png" in messages and "Uncaught" in messages and "'a'" in messages
