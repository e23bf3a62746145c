"""The page for people: its HTML, and in a real browser its look, its keyboard, and its answers."""

import dataclasses
import re

import pytest
from support import llm_server, serving
from support.browser import PROGRAM, Browser
from support.serving import QUESTION

from ark_jax.index.index import Hit
from ark_jax.index.passages import View
from ark_jax.index.reader import Answer, Reader
from ark_jax.pipeline.tables import save_rows
from ark_jax.serve import page

LONG = "It was low. " * 40 + "Josiah  PENHALLOW founded the Tidal Board. " + "It was high. " * 40
HITS = [
    Hit(0.5, "a <b>", "The <i>Board</i>", 0, 1000, "a#0", LONG),
    Hit(0.25, "b", "b", 3, 9, "b#0", "No name & no bell."),
]
VIEW = View("Who founded the Tidal Board?", "josiah penhallow")


def test_hostile_text_is_escaped_and_the_answer_highlighted():
    html = page.render_columns({"<Tuned>": HITS, "BM25": []}, VIEW)
    # In the excerpt and in the whole.
    sentence = "<mark>Josiah  PENHALLOW</mark> <b>founded</b> the <b>Tidal</b> <b>Board</b>."
    assert html.count(f"<u>{sentence}</u>") == 2
    assert "a &lt;b&gt; [0:1000]" in html and "The &lt;i&gt;Board&lt;/i&gt;" in html
    assert "&lt;Tuned&gt;" in html and "No passage has a word of the question" in html
    assert "<mark>" not in page.render_columns({"BM25": HITS}, View(QUESTION))


def test_a_rendered_answer_names_its_passages():
    read = lambda **fields: page.render_answer(
        dataclasses.replace(Answer("<i>Josiah</i>", (0, 1), True, 2, ""), **fields), HITS
    )
    assert "&lt;i&gt;Josiah&lt;/i&gt;" in read()
    assert "It cites a &lt;b&gt; [0:1000], b [3:9]." in read()
    assert "It cites nothing. Its words stand in b [3:9]." in read(sources=(1,), cited=False)
    assert "in none of the 2 passages read" in read(sources=(), cited=False)
    assert "no answer" in read(text="", sources=(), cited=False)


def test_a_rank_is_compared_with_that_of_the_first_column():
    columns = {"Before": HITS, "Tuned": [HITS[1], dataclasses.replace(HITS[0], chunk="c#0")]}
    html = page.render_columns(columns, VIEW)
    assert re.findall(r'title="against Before">([^<]+)<', html) == ["▲ 1", "new"]


def test_questions_of_the_run_are_examples(tmp_path):
    rows = [{"question": f"q{i}?", "change": "rose" if i > 5 else "fell"} for i in range(8)]
    save_rows(rows, tmp_path / "questions.parquet")
    assert page.example_questions(tmp_path / "index") == ["q6?", "q7?", "q0?", "q1?", "q2?"]
    assert page.example_questions(tmp_path / "elsewhere" / "index") == []


def test_the_page_forbids_scripts_and_styles_from_elsewhere(client):
    status, headers, _ = client.send("GET", "/")
    policy = headers["content-security-policy"]
    assert status == 200 and policy.startswith("default-src 'none'; ") and "unsafe" not in policy


def test_the_page_names_its_index_and_leaves_no_placeholder(client):
    html = client.send("GET", "/")[2].decode()
    assert "4 documents, " in html and "<title>index</title>" in html and "$" not in html


def test_the_page_loads_nothing_from_elsewhere(client):
    html = client.send("GET", "/")[2].decode()
    assert re.findall(r'(?:src|href)="([^"]*)"', html) == [
        "data:,",
        "page.css",
        "page.js",
        "#results",
    ]
    css, script = (client.get(path)[1] for path in ("/page.css", "/page.js"))
    assert "http" not in html + script and "url(" not in css and "@import" not in css
    assert "style=" not in html


def test_the_page_has_colours_for_dark_screens(client):
    css = client.get("/page.css")[1]
    assert "--accent" in css and "prefers-color-scheme: dark" in css


def test_the_page_shows_one_column_per_ranking(client):
    status, answer = client.post("/page/search", {"question": QUESTION})
    assert status == 200 and answer["status"] == "The best 5 passages by each of 4 rankings."
    headings = re.findall(r"<h2[^>]*>([^<]*)</h2>", answer["results"])
    assert headings == ["Before: base", "Tuned: tuned", "BM25", "Hybrid, reranked"]
    assert "<script>" not in answer["results"] and "&lt;script&gt;" in answer["results"]


def test_the_page_refuses_a_blank_question(client):
    assert client.post("/page/search", {"question": " "})[0] == 400


def test_the_page_refuses_an_answer_without_a_reader(client):
    assert client.post("/page/answer", {"question": QUESTION})[0] == 422


# --- In a browser ---------------------------------------------------------------------------------

in_a_browser = pytest.mark.skipif(
    PROGRAM is None, reason="no chromium, chromium-browser or google-chrome on PATH"
)
WIDTHS = (400, 1400)
# Visible elements that reach beyond the window.
BEYOND = """[...document.querySelectorAll("body *")].filter(e => e.checkVisibility()
    && !e.closest(".skip")
    && e.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
    .map(e => e.outerHTML.slice(0, 120))"""
FOCUSED = """(e => e === document.body ? "" : e.tagName + "#" + e.id)(document.activeElement)"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def reading(service, tmp_path_factory):
    """A server whose reader is a model behind an endpoint."""
    pytest.importorskip("openai", reason="the reader needs pip install 'ark-jax[llm]'")

    def model(messages):
        return "<think>Doc [1] says so.</think><answer>Josiah Penhallow</answer>"

    with pytest.MonkeyPatch.context() as patch, llm_server.serving(model) as endpoint:
        patch.setenv("OPENAI_API_KEY", "k")
        patch.setenv("NO_PROXY", "127.0.0.1")
        cache = tmp_path_factory.mktemp("replies") / "replies.jsonl"
        with serving.reading(service, lambda: Reader.endpoint(endpoint.url, "m", cache)) as client:
            yield client


def wait_for(browser: Browser, expression: str):
    """The value of an expression once it is true."""
    return browser.run(
        f"""new Promise((done, fail) => {{
            const start = Date.now(), look = () => {{
                const value = {expression};
                if (value) done(value);
                else if (Date.now() - start > 60000) fail(new Error("never: " +
                    document.body.innerText));
                else setTimeout(look, 20);
            }};
            look();
        }})"""
    )


def type_question(browser: Browser, text: str = QUESTION) -> None:
    """Types into what has the focus, and presses Enter."""
    wait_for(browser, 'document.activeElement.tagName === "INPUT"')
    browser.ask("Input.insertText", text=text)
    browser.press("Enter", 13, "\r")


@in_a_browser
@pytest.mark.parametrize("width", WIDTHS)
def test_asking_a_question_shows_four_columns_and_the_answer(width, browser, reading):
    browser.show(f"{reading.url}/", width=width)
    wait_for(browser, f'{FOCUSED} === "INPUT#question"')
    type_question(browser)
    said = wait_for(browser, 'document.querySelector(".said")?.innerText')
    assert said == "Josiah Penhallow"
    headings = browser.run('[...document.querySelectorAll("#results h2")].map(h => h.textContent)')
    assert headings == ["Before: base", "Tuned: tuned", "BM25", "Hybrid, reranked"]
    marks = browser.run('[...document.querySelectorAll("mark")].map(m => m.innerText)')
    assert set(marks) == {"Josiah Penhallow"}
    lines = browser.run('[...document.querySelectorAll(".columns u")].map(m => m.innerText)')
    assert set(lines) == {"Josiah Penhallow founded the Tidal Board in 1784."}
    visible = (
        '[...document.querySelectorAll(".columns section")].filter(s => s.checkVisibility())'
        ".map(s => [s.querySelector('h2').innerText, s.getBoundingClientRect().y])"
    )
    shown, tops = zip(*browser.run(visible), strict=True)
    assert list(shown) == (headings[-1:] if width == 400 else headings) and len(set(tops)) == 1
    browser.run('document.querySelector(".tabs input").click()')
    assert browser.run(visible)[0][0] == headings[0]
    assert browser.run("location.search").startswith("?q=Who")
    found = 'document.querySelectorAll(".place span[title]")'
    moves = browser.run(f"[...{found}].map(m => m.innerText)")
    assert moves and all(re.fullmatch("new|=|[▲▼] [1-4]", move) for move in moves)
    assert browser.run("document.documentElement.scrollWidth") == width
    assert browser.run(BEYOND) == []
    assert browser.run("document.title") == "index"  # the script of a document did not run
    requests = browser.messages()
    assert requests and all(x.startswith((reading.url, "data:,")) for x in requests)


@in_a_browser
def test_the_page_can_be_used_by_keyboard(browser, reading):
    browser.show(f"{reading.url}/", width=WIDTHS[0])
    browser.run('document.activeElement.blur(); document.querySelector(".skip").focus()')
    browser.press("Tab", 9)
    type_question(browser)
    wait_for(browser, 'document.querySelector(".said")')
    reached = []
    for _ in range(3):
        browser.press("Tab", 9)
        reached.append(browser.run(FOCUSED))
    assert reached[0] == "BUTTON#"
    browser.run('document.querySelector(".skip").focus()')
    browser.press("Enter", 13, "\r")
    wait_for(browser, 'document.activeElement.id === "results"')


@in_a_browser
def test_the_page_shows_an_error_and_answers_the_next_question(browser, client):
    browser.show(f"{client.url}/", width=WIDTHS[1])
    type_question(browser, "   ")
    wait_for(browser, 'document.querySelector("#status.wrong")')
    assert browser.run('document.querySelector("#status").innerText') == (
        "`question` cannot be empty"
    )
    browser.run('document.querySelector("#question").value = ""')
    type_question(browser)
    wait_for(browser, 'document.querySelectorAll(".columns section").length === 4')
    assert browser.run('document.querySelector("#status.wrong")') is None
    assert browser.run('document.querySelector("#answer").innerText') == ""


@in_a_browser
def test_the_page_asks_for_the_token_and_sends_it(browser, service):
    guarded = dataclasses.replace(service, token="s3cret")
    with serving.serving(guarded) as client:
        browser.show(f"{client.url}/", width=WIDTHS[0])
        assert not browser.run('document.querySelector("#key").checkVisibility()')
        type_question(browser)
        wait_for(browser, 'document.querySelector("#key").checkVisibility()')
        browser.run('document.querySelector("#token").focus()')
        type_question(browser, "s3cret")
        wait_for(browser, 'document.querySelectorAll(".columns section").length === 4')
        assert not browser.run('document.querySelector("#key").checkVisibility()')
        assert browser.run(BEYOND) == []
