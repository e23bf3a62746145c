"""Pieces of the report's page: texts, numbers, tables, figures, passages. All return HTML.

Every text comes from documents, questions and models, so every text passes through `escape`.
"""

import html
import math
import re
from collections.abc import Sequence

from ark_jax.data.words import whole

EXCERPT = 200  # characters of a passage shown before it is opened
CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufdd0-\ufdef\ufffe\uffff]")  # no character of HTML


def escape(text: object) -> str:
    """`text` as HTML. Lone surrogates, which JSON can hold and UTF-8 cannot, become question marks; control characters boxes."""
    return html.escape(CONTROLS.sub("\ufffd", str(text)).encode("utf-8", "replace").decode())


def number(x: float | None, digits: int = 3) -> str:
    """`-0.5` -> `−0.500` with a true minus; a dash for what was not measured."""
    if x is None or not math.isfinite(x):
        return "–"
    return f"{round(x, digits) + 0.0:.{digits}f}".replace("-", "−")  # zero has no sign


def value(x: object) -> str:
    """A fact or count: thousands apart, floats short, anything else as it stands."""
    if isinstance(x, bool) or x is None:
        return {True: "yes", False: "no", None: "–"}[x]
    if isinstance(x, int | float):
        return format(x, ",d" if isinstance(x, int) else ".4g").replace("-", "−")
    return escape(x)


def span(content: str) -> str:
    """HTML of unknown language, written in its own direction."""
    return f'<span dir="auto">{content}</span>'


def none(sentence: str) -> str:
    """What a section says instead of vanishing."""
    return f'<p class="none">{escape(sentence)}</p>'


def box(name: str, content: str) -> str:
    """Content that may be wider than a phone: scrolls by itself, also by keyboard."""
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(name)}">{content}</div>'


def table(caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]], style: str) -> str:
    """Cells are HTML; the first of a row heads it. A column whose head begins with `#` is right-aligned."""
    classes = [' class="num"' if head.startswith("#") else "" for head in heads]
    top = "".join(f'<th scope="col"{c}>{escape(head.lstrip("#"))}</th>'
                  for head, c in zip(heads, classes, strict=True))
    body = ""
    for row in rows:
        first, *rest = (f"{c}>{cell}" for c, cell in zip(classes, row, strict=True))
        body += f'<tr><th scope="row"{first}</th>' + "".join(f"<td{cell}</td>" for cell in rest) + "</tr>\n"
    return box(caption, f'<table class="{style}"><caption>{escape(caption)}</caption>'
                        f"<thead><tr>{top}</tr></thead>\n<tbody>{body}</tbody></table>")


def figure(drawing: str, head: str, told: str) -> str:
    """A drawing under its head and a line of plain text about it."""
    return (f"<figure><figcaption><b>{escape(head)}</b> <span>{escape(told)}</span></figcaption>"
            f"{drawing}</figure>")


def pattern(answers: Sequence[str]) -> re.Pattern | None:
    """Finds any of the answers as whole words, whatever the case and spacing; None where all are blank."""
    wanted = sorted({tuple(a.split()) for a in answers if a.split()}, key=lambda a: (-len(" ".join(a)), a))
    words = "|".join(whole(" ".join(a), r"\s+".join(map(re.escape, a))) for a in wanted)
    return re.compile(f"({words})", re.IGNORECASE) if wanted else None


def marked(text: str, answers: Sequence[str]) -> str:
    """`text` with the answers in it highlighted."""
    found = pattern(answers)
    parts = found.split(text) if found else [text]
    return "".join(f"<mark>{escape(part)}</mark>" if i % 2 else escape(part) for i, part in enumerate(parts))


def passage(text: str, answers: Sequence[str]) -> str:
    """A passage, answers highlighted; of a long one the part around the first, which opens to the whole."""
    whole = f'<p class="text" dir="auto">{marked(text, answers)}</p>'
    if len(text) <= EXCERPT * 1.2:
        return whole
    found = pattern(answers)
    hit = found.search(text) if found else None
    start = max(0, min((hit.start() if hit else 0) - EXCERPT // 3, len(text) - EXCERPT))
    end = min(start + EXCERPT, len(text))
    # Cuts fall on blanks; where none is near, as in Chinese, between any two characters.
    start = text.rfind(" ", max(0, start - 30), start) + 1 or start
    blank = text.find(" ", end, end + 30)
    end = blank if blank >= 0 else end
    shown = marked(text[start:end], answers)
    shown = f"{'… ' if start else ''}{shown}{' …' if end < len(text) else ''}"
    return (f'<details class="passage"><summary><span class="short" dir="auto">{shown}</span>'
            f'<span class="long">Show less</span></summary>{whole}</details>')


def references(answers: Sequence[str]) -> str:
    """The reference answers of a question, on one line."""
    if not answers:
        return '<p class="answers">No reference answer.</p>'
    return f'<p class="answers" dir="auto">{" · ".join(f"<b>{escape(a)}</b>" for a in answers)}</p>'
