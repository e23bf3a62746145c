"""Passages that a search found: what of them matters, as JSON, lines for a terminal, and HTML."""

import collections
import dataclasses
import functools
import html
import itertools
import math
import re
import shutil
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup

from ark_jax.retrieval.bm25_index import stems
from ark_jax.runtime.log import GREEN, PLAIN, RED
from ark_jax.runtime.shown import Records, printable, record_html, table_html
from ark_jax.text.sentences import sentence_spans
from ark_jax.text.word_boundaries import UNSPACED, contains_words, whole_word_pattern

if TYPE_CHECKING:
    from ark_jax.index.reader import Answer

LINES = 3  # of a passage
NARROWEST = 40  # columns of one side of a comparison
SURE = 0.5  # of the question's words, by weight: a sentence with so many is chosen by words alone
EMBEDDED = 24  # sentences, at most, that are embedded: those of the first passages
_BEFORE, _CUT = "… ", " …"
_ASKING = {
    "did",
    "do",
    "doe",
    "how",
    "what",
    "when",
    "where",
    "which",
    "who",
    "whom",
    "whose",
    "whi",
}
_CODES = {"word": RED, "answer": GREEN}
_TAGS = {"word": "b", "answer": "mark"}
_SHOWN = re.compile(rf"[^\W{UNSPACED}]+|(?=([{UNSPACED}]{{2}}))")  # words, pairs of characters
_ANSI = re.compile(r"\x1b\[[0-9;]*m")

Similar = Callable[[Sequence[str]], np.ndarray]  # texts -> their cosines with the question `[n]`
Mark = tuple[int, int, str]  # start, end, and a key of _CODES


@dataclasses.dataclass(frozen=True)
class Hit:
    """A chunk that a search returns.

    `score` is a cosine, BM25's score, the sum of reciprocal ranks or a reranker's logit. `text` is
    `document[start:end]` without outer blanks; `title` names the document and its section, and
    `metadata` has the further fields of the document.
    """

    score: float
    document: str
    title: str
    start: int
    end: int
    chunk: str
    text: str
    metadata: Mapping = dataclasses.field(default_factory=dict, hash=False)
    _repr_html_ = record_html

    @property
    def place(self) -> dict:
        """Metadata, and the fields that say where it stands, for the metadata of other software."""
        place = {name: getattr(self, name) for name in ("document", "title", "start", "end")}
        return {**self.metadata, **place}


class Hits(Records):
    """The passages that a search found for a question, best first."""

    question = ""

    def _repr_html_(self) -> str:
        view = View(self.question)
        rows = [
            (rank, hit.score, hit.document, hit.title, Markup(view.html(hit.text, span)))
            for rank, (hit, span) in enumerate(zip(self, view.excerpts(self), strict=True), 1)
        ]
        return table_html(("", "score", "document", "title", "passage"), rows)


@dataclasses.dataclass(frozen=True)
class View:
    """How passages are shown for a question.

    Attributes:
        answer: marked as well; the part of a passage that holds it is shown.
        similar: chooses sentences where words do not; None: words alone.
        full: shows whole passages.
        colour: marks by codes of a terminal.
    """

    question: str
    answer: str = ""
    similar: Similar | None = None
    full: bool = False
    colour: bool = False

    @functools.cached_property
    def _asked(self) -> set[str]:
        """The stems of the question."""
        return set(stems([self.question])[0]) - _ASKING

    def excerpts(self, hits: Sequence[Hit], room: int = 300) -> list[tuple[int, int]]:
        """The part of each passage that matters: start and end of whole sentences in its text.

        Args:
            room: characters of a part that has several sentences, at most.
        """
        if self.full:
            return [(0, len(hit.text)) for hit in hits]
        if not hits:
            return []
        spans = [sentence_spans(hit.text) for hit in hits]
        sentences = [
            hit.text[a:b] for hit, ranges in zip(hits, spans, strict=True) for a, b in ranges
        ]
        scores = np.split(self._scores(sentences, spans), np.cumsum(list(map(len, spans)))[:-1])
        return [_grow(*pair, room) for pair in zip(spans, scores, strict=True)]

    def _scores(self, sentences: Sequence[str], spans: Sequence[Sequence]) -> np.ndarray:
        """How much each sentence of the passages matters, `[n]`.

        It is the share of the question's words that the sentence holds, rare ones counting more. In
        passages without a sentence that holds half of them, the cosine with the question is added.
        """
        held = [self._asked.intersection(words) for words in stems(sentences)]
        counts = collections.Counter(itertools.chain.from_iterable(held))
        weights = {word: math.log1p(len(held) / n) for word, n in counts.items()}
        total = sum(weights.values()) or 1.0
        scores = np.array([sum(weights[word] for word in words) / total for words in held])
        ends = np.cumsum(list(map(len, spans))).tolist()
        places = [range(end - len(ranges), end) for end, ranges in zip(ends, spans, strict=True)]
        unsure: list[int] = []
        for rows in places:
            is_unsure = len(rows) > 1 and max(scores[rows]) < SURE
            unsure += rows if is_unsure and len(unsure) + len(rows) <= EMBEDDED else ()
        if self.similar and unsure:
            scores[unsure] += self.similar([sentences[i] for i in unsure])
        if self.answer:
            scores += [2 * contains_words(sentence, self.answer) for sentence in sentences]
        return scores

    def marks(self, text: str) -> list[Mark]:
        """Where the answer and the question's words stand in a text, in order."""
        marks: list[Mark] = []
        if words := self.answer.split():
            pattern = whole_word_pattern(" ".join(words), r"\s+".join(map(re.escape, words)))
            places = re.finditer(pattern, text, re.IGNORECASE)
            marks = [(match.start(), match.end(), "answer") for match in places]
        spans = [match.span(match.lastindex or 0) for match in _SHOWN.finditer(text)]
        for (start, end), stem in zip(spans, stems([text[a:b] for a, b in spans]), strict=True):
            inside = any(a <= start < b for a, b, kind in marks if kind == "answer")
            if not inside and self._asked.intersection(stem[-1:]):  # a pair, not its characters
                marks.append((start, end, "word"))
        return sorted(marks)

    def html(self, text: str, span: tuple[int, int]) -> str:
        """A part of a text as HTML: the question's words `<b>`, the answer `<mark>`, and around it
        the sentence that it rests on `<u>`.
        """
        from ark_jax.index.reader import support

        part, start, end = _with_dots(text, span), 0, 0
        if self.answer and (place := support(text, self.answer, self.question)):
            shift = len(_BEFORE) * bool(text[: span[0]].strip()) - span[0]
            start, end = (min(max(x, span[0]), span[1]) + shift for x in place)
        marks, codes = self.marks(part), lambda kind: (f"<{_TAGS[kind]}>", f"</{_TAGS[kind]}>")

        def painted(a: int, b: int) -> str:
            inside = [(x - a, y - a, kind) for x, y, kind in marks if a <= x < b]
            return _painted(part[a:b], inside, html.escape, codes)

        head, rests, tail = painted(0, start), painted(start, end), painted(end, len(part))
        return f"{head}<u>{rests}</u>{tail}" if rests else head + tail

    def lines(self, text: str, span: tuple[int, int], width: int) -> list[str]:
        """A part of a text as marked lines of `width` characters; three at most unless `full`."""
        paragraphs = _with_dots(text, span).splitlines() if self.full else [_with_dots(text, span)]
        lines = []
        for part in (" ".join(x.split()) for x in paragraphs):
            marks, place = self.marks(part), 0
            limit = {} if self.full else {"max_lines": LINES}
            if marks and len(part) > LINES * width and not self.full:  # one long sentence
                offset = part.rfind(" ", 0, max(marks[0][0] - width, 0)) + 1
                part = f"… {part[offset:]}" if offset else part
                marks = self.marks(part)
            for line in textwrap.wrap(part, width, placeholder=_CUT, **limit):
                body = line.removesuffix(_CUT)
                start = part.index(body, place)
                place = start + len(body)
                spans = [(a - start, b - start, x) for a, b, x in marks if a < place and b > start]
                codes = lambda kind: (_CODES[kind], PLAIN) if self.colour else ("", "")
                lines.append(_painted(body, spans, str, codes) + line[len(body) :])
        return lines


def _grow(spans: Sequence[tuple[int, int]], scores: np.ndarray, room: int) -> tuple[int, int]:
    """The best sentence with its neighbours, the better one first, as far as there is room."""
    if not spans:
        return 0, 0
    low = high = int(np.argmax(scores))
    while True:
        sides = [(low - 1, high), (low, high + 1)]
        fitting = [
            (a, b)
            for a, b in sides
            if a >= 0 and b < len(spans) and spans[b][1] - spans[a][0] <= room
        ]
        if not fitting:
            return spans[low][0], spans[high][1]
        low, high = max(fitting, key=lambda x: scores[x[0]] if x[0] < low else scores[x[1]])


def _with_dots(text: str, span: tuple[int, int]) -> str:
    """A part of a text without control characters, with dots where something is left out."""
    start, end = span
    prefix, suffix = _BEFORE * bool(text[:start].strip()), _CUT * bool(text[end:].strip())
    return prefix + printable(text[start:end]) + suffix


def _painted(
    text: str,
    marks: Sequence[Mark],
    escape: Callable[[str], str],
    codes: Callable[[str], tuple[str, str]],
) -> str:
    """A text, each mark of which is between the two codes of its kind."""
    parts, place = [], 0
    for start, end, kind in marks:
        opening, closing = codes(kind)
        start, end = max(start, place), min(end, len(text))
        parts += [escape(text[place:start]), opening, escape(text[start:end]), closing]
        place = end
    return "".join([*parts, escape(text[place:])])


def hit_row(hit: Hit) -> dict:
    """The fields of a passage, with its score rounded to six digits; metadata where it has any."""
    row = dataclasses.asdict(dataclasses.replace(hit, score=round(hit.score, 6)))
    return row if hit.metadata else {name: x for name, x in row.items() if name != "metadata"}


def search_row(question: str, by: str, hits: Sequence[Hit]) -> dict:
    """The passages of a question, best first."""
    return {"question": question, "by": by, "passages": list(map(hit_row, hits))}


def comparison_row(question: str, by: str, hits: Mapping[str, Sequence[Hit]]) -> dict:
    """The passages of a question by several models, each under its name."""
    compared = {name: list(map(hit_row, of_model)) for name, of_model in hits.items()}
    return {"question": question, "by": by, "compared": compared}


def answer_row(question: str, answer: "Answer", hits: Sequence[Hit]) -> dict:
    """An answer, and the passages that it rests on.

    Args:
        hits: the passages that the reader was given.
    """
    return {
        "question": question,
        "answer": answer.text,
        "cited": answer.cited,
        "supported": [hits[i].chunk for i in answer.supported],
        "sources": [hit_row(hits[i]) for i in answer.sources],
        "read": [hit.chunk for hit in hits[: answer.read]],
        "reply": answer.reply,
    }


def table(hits: Mapping[int, Hit], view: View) -> list[str]:
    """The lines that show passages one below another, in order.

    Args:
        hits: number of each passage -> the passage.
    """
    lines = itertools.chain(*_blocks(hits, view, _terminal_columns()))
    return list(lines) or ["no passage has a word of the question"]


def side_by_side(results: Mapping[str, Sequence[Hit]], view: View) -> list[str]:
    """The lines that show the passages of several models in columns.

    Args:
        results: name of the model -> its passages, best first.
    """
    width = max((_terminal_columns() - 3) // len(results), NARROWEST)
    sides = [_blocks(dict(enumerate(hits, 1)), view, width) for hits in results.values()]
    rows = [tuple(name[:width] for name in results), tuple("-" * width for _ in results)]
    for blocks in itertools.zip_longest(*sides, fillvalue=[]):
        rows += itertools.zip_longest(*blocks, fillvalue="")
    padded = lambda cell: cell + " " * (width - len(_ANSI.sub("", cell)))
    return [" | ".join(map(padded, row)).rstrip() for row in rows]


def _terminal_columns() -> int:
    return min(shutil.get_terminal_size().columns, 120)


def _blocks(hits: Mapping[int, Hit], view: View, width: int) -> list[list[str]]:
    """The lines of each passage: number, score, document, offsets and title, and then its text."""
    blocks = []
    spans = view.excerpts([*hits.values()], LINES * (width - 4) - 2 * len(_CUT))
    for (number, hit), span in zip(hits.items(), spans, strict=True):
        title = f"  {hit.title}" if hit.title not in ("", hit.document) else ""
        place = f"{number:>2}  {hit.score:.4f}  {hit.document} [{hit.start}:{hit.end}]{title}"
        options = {"max_lines": 1, "drop_whitespace": False, "placeholder": _CUT}
        head = textwrap.wrap(printable(place), width, **options)
        blocks.append([*head, *(f"    {x}" for x in view.lines(hit.text, span, width - 4))])
    return blocks
