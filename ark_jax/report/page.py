"""The page of a report: one HTML file of sections, made with the macros of page.html.

It uses no network, and no script but report.js, which it holds; its content security policy forbids
others. Equal data gives equal bytes.
"""

import base64
import dataclasses
import hashlib
import importlib.resources
import math
import re
from collections.abc import Mapping, Sequence

import jinja2
from markupsafe import Markup

from ark_jax.runtime.shown import printable
from ark_jax.text.word_boundaries import whole_word_pattern

QUESTIONS_FILE = "questions.parquet"  # beside a page that has a table of all questions
EXCERPT = 200  # characters of a passage that are shown before it is opened


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of a page.

    Attributes:
        anchor: the id for links, unique on the page.
        body: pieces of HTML from the macros of `html`; plain text becomes a paragraph.
        empty: the sentence that is shown if the body is empty.
        rows: what questions.parquet holds beside the page.
    """

    title: str
    anchor: str
    body: Sequence[str]
    empty: str = ""
    rows: Sequence[Mapping] = ()


def render(title: str, verdict: Sequence[str], sections: Sequence[Section]) -> str:
    """The HTML of a page.

    Args:
        verdict: sentences; of the first, the part after a colon is shown smaller, as the others.
    """
    first, *rest = verdict or [""]
    statement, colon, numbers = first.partition(": ")
    script = (importlib.resources.files("ark_jax.report") / "report.js").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    listed = [*filter(None, [numbers]), *rest]
    page = html.page(title, statement + colon.strip(), listed, sections, Markup(script), digest)
    return clean(page)


def clean(text: str) -> str:
    """HTML that UTF-8 can hold and a browser accepts.

    Lone surrogates, which JSON can hold, become question marks; `printable` has the other rules.
    """
    return printable(text).encode("utf-8", "replace").decode()


def format_number(x: float | None, digits: int = 3) -> str:
    """`-0.5` -> `−0.500` with a true minus sign; a dash for a missing number."""
    if x is None or not math.isfinite(x):
        return "–"
    return f"{round(x, digits) + 0.0:.{digits}f}".replace("-", "−")  # + 0.0 makes -0.0 positive


def format_value(x: object) -> str:
    """A fact or count: `1204` -> `1,204`, floats to four significant digits, `True` -> `yes`."""
    if isinstance(x, bool) or x is None:
        return {True: "yes", False: "no", None: "–"}[x]
    if isinstance(x, int | float):
        return format(x, ",d" if isinstance(x, int) else ".4g").replace("-", "−")
    return x if isinstance(x, str) else str(x)  # Markup stays so


def answer_pattern(answers: Sequence[str]) -> re.Pattern | None:
    """Matches the answers as whole words, with any case and spacing. None if all are blank."""
    split_answers = {tuple(answer.split()) for answer in answers if answer.split()}
    longest_first = sorted(split_answers, key=lambda words: (-len(" ".join(words)), words))
    alternatives = [
        whole_word_pattern(" ".join(words), r"\s+".join(map(re.escape, words)))
        for words in longest_first
    ]
    return re.compile(f"({'|'.join(alternatives)})", re.IGNORECASE) if alternatives else None


def split_at(text: str, answers: Sequence[str]) -> list[str]:
    """Splits `text` at the answers in it; every second part is an answer."""
    pattern = answer_pattern(answers)
    return pattern.split(text) if pattern else [text]


def excerpt_range(text: str, answers: Sequence[str]) -> tuple[int, int]:
    """Start and end of an excerpt around the first answer; a short text is whole.

    It is cut at blanks or, if none is near, as in Chinese, between any two characters.
    """
    if len(text) <= EXCERPT * 1.2:
        return 0, len(text)
    pattern = answer_pattern(answers)
    match = pattern.search(text) if pattern else None
    position = match.start() if match else 0
    start = max(0, min(position - EXCERPT // 3, len(text) - EXCERPT))
    end = min(start + EXCERPT, len(text))
    start = text.rfind(" ", max(0, start - 30), start) + 1 or start
    blank = text.find(" ", end, end + 30)
    return start, blank if blank >= 0 else end


def load_macros(package: str):
    """A module of the macros in a package's page.html, which are functions that return HTML."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(package, ""),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {
        "split_at": split_at,
        "excerpt": excerpt_range,
        "trim_number_sign": lambda head: head.lstrip("#"),
    }
    return environment.get_template("page.html").module


html = load_macros("ark_jax.report")
