"""Builds the HTML pieces of the report: numbers, tables, figures, passages.

All functions return HTML. Every text comes from documents, questions or models, so every text
passes through `escape`.
"""

import html
import math
import re
from collections.abc import Sequence

from ark_jax.text.word_boundaries import whole_word_pattern

# Lets a page load nothing and run no script, whatever a document contains.
SECURITY_POLICY = (
    '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
    "style-src 'unsafe-inline'\">"
)
EXCERPT = 200  # characters of a passage that are shown before it is opened
# Control characters and others that HTML forbids.
FORBIDDEN = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufdd0-\ufdef\ufffe\uffff]")


def escape(text: object) -> str:
    """`text` as HTML.

    Lone surrogates, which JSON can hold and UTF-8 cannot, become question marks; forbidden
    characters become U+FFFD.
    """
    return html.escape(FORBIDDEN.sub("\ufffd", str(text)).encode("utf-8", "replace").decode())


def format_number(x: float | None, digits: int = 3) -> str:
    """`-0.5` -> `−0.500` with a true minus sign; a dash for a missing number."""
    if x is None or not math.isfinite(x):
        return "–"
    return f"{round(x, digits) + 0.0:.{digits}f}".replace("-", "−")  # + 0.0 makes -0.0 positive


def format_value(x: object) -> str:
    """A fact or count: `1204` -> `1,204`, floats with four digits, booleans as yes and no."""
    if isinstance(x, bool) or x is None:
        return {True: "yes", False: "no", None: "–"}[x]
    if isinstance(x, int | float):
        return format(x, ",d" if isinstance(x, int) else ".4g").replace("-", "−")
    return escape(x)


def auto_direction(content: str) -> str:
    """HTML of unknown language, which the browser sets from left to right or right to left."""
    return f'<span dir="auto">{content}</span>'


def empty_note(sentence: str) -> str:
    """The sentence that a section shows if it has no data."""
    return f'<p class="none">{escape(sentence)}</p>'


def scroll_box(name: str, content: str) -> str:
    """Content that may be wider than a phone. It scrolls by itself, also by keyboard."""
    label = escape(name)
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{label}">{content}</div>'


def table(caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]], style: str) -> str:
    """A table in a scroll box.

    Args:
        heads: plain text; a column whose head begins with `#` is right-aligned.
        rows: cells as HTML; the first cell of a row is its head.
        style: the CSS class.
    """
    classes = [' class="num"' if head.startswith("#") else "" for head in heads]
    names = [escape(head.lstrip("#")) for head in heads]
    head_cells = [
        f'<th scope="col"{css}>{name}</th>' for css, name in zip(classes, names, strict=True)
    ]
    body = "".join(_table_row(row, classes) for row in rows)
    content = (
        f'<table class="{style}"><caption>{escape(caption)}</caption>'
        f"<thead><tr>{''.join(head_cells)}</tr></thead>\n<tbody>{body}</tbody></table>"
    )
    return scroll_box(caption, content)


def _table_row(row: Sequence[str], classes: Sequence[str]) -> str:
    head, *cells = (f"{css}>{cell}" for css, cell in zip(classes, row, strict=True))
    data = "".join(f"<td{cell}</td>" for cell in cells)
    return f'<tr><th scope="row"{head}</th>{data}</tr>\n'


def figure(drawing: str, head: str, caption: str) -> str:
    """A drawing under its head and a line of plain text."""
    return (
        f"<figure><figcaption><b>{escape(head)}</b> <span>{escape(caption)}</span></figcaption>"
        f"{drawing}</figure>"
    )


def answer_pattern(answers: Sequence[str]) -> re.Pattern | None:
    """Matches the answers as whole words, with any case and spacing. None if all are blank."""
    split_answers = {tuple(answer.split()) for answer in answers if answer.split()}
    longest_first = sorted(split_answers, key=lambda words: (-len(" ".join(words)), words))
    alternatives = [
        whole_word_pattern(" ".join(words), r"\s+".join(map(re.escape, words)))
        for words in longest_first
    ]
    return re.compile(f"({'|'.join(alternatives)})", re.IGNORECASE) if alternatives else None


def highlight(text: str, answers: Sequence[str]) -> str:
    """`text` with the answers in it marked."""
    pattern = answer_pattern(answers)
    parts = pattern.split(text) if pattern else [text]
    return "".join(
        f"<mark>{escape(part)}</mark>" if i % 2 else escape(part) for i, part in enumerate(parts)
    )


def passage(text: str, answers: Sequence[str]) -> str:
    """A passage with its answers marked. A long one shows an excerpt, and all of it on a click."""
    full = f'<p class="text" dir="auto">{highlight(text, answers)}</p>'
    if len(text) <= EXCERPT * 1.2:
        return full
    start, end = _excerpt_range(text, answers)
    excerpt = highlight(text[start:end], answers)
    excerpt = f"{'… ' if start else ''}{excerpt}{' …' if end < len(text) else ''}"
    return (
        f'<details class="passage"><summary><span class="short" dir="auto">{excerpt}</span>'
        f'<span class="long">Show less</span></summary>{full}</details>'
    )


def _excerpt_range(text: str, answers: Sequence[str]) -> tuple[int, int]:
    """Where an excerpt around the first answer begins and ends.

    It is cut at blanks; if none is near, as in Chinese, between any two characters.
    """
    pattern = answer_pattern(answers)
    match = pattern.search(text) if pattern else None
    position = match.start() if match else 0
    start = max(0, min(position - EXCERPT // 3, len(text) - EXCERPT))
    end = min(start + EXCERPT, len(text))
    start = text.rfind(" ", max(0, start - 30), start) + 1 or start
    blank = text.find(" ", end, end + 30)
    return start, blank if blank >= 0 else end


def references(answers: Sequence[str]) -> str:
    """The reference answers of a question, on one line."""
    if not answers:
        return '<p class="answers">No reference answer.</p>'
    bold_answers = " · ".join(f"<b>{escape(answer)}</b>" for answer in answers)
    return f'<p class="answers" dir="auto">{bold_answers}</p>'
