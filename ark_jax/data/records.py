"""Records of the input: documents, pages of files, chunks, questions, and problems in files."""

import contextlib
import dataclasses
import functools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple


@dataclasses.dataclass(frozen=True)
class Section:
    """A heading of a document, and where its section begins.

    `start` is the offset of the heading in the text. `path` holds the headings above it too, the
    outermost first, as in "Install > On Linux"; without the title of the document.
    """

    start: int
    path: str


@dataclasses.dataclass(frozen=True)
class Document:
    """A text of the input. `metadata` is the JSON object of its further fields, or empty."""

    id: str
    title: str
    text: str
    sections: tuple[Section, ...] = ()
    metadata: str = ""


@dataclasses.dataclass(frozen=True)
class Question:
    """A question with its accepted answers.

    `documents` are the ids of documents that may hold the answer; without any, it may be anywhere
    in the corpus. `evidence` are verbatim passages that do. Of a question without answers the
    relevant passages are its evidence, or else its documents. `group` is what results are broken
    down by, such as a type of question; empty if the input has none. `negatives` are the ids of
    documents that the input calls irrelevant.
    """

    id: str
    question: str
    answers: tuple[str, ...]
    documents: tuple[str, ...]
    evidence: tuple[str, ...] = ()
    group: str = ""
    negatives: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Chunk:
    """A part of a document: `document.text[start:end]` without outer blanks.

    `tokens` is its length in tokens before the blanks are removed. `title` names the document and
    the section that the part begins in; it is empty where there is no name.
    """

    id: str
    document: str
    start: int
    end: int
    tokens: int
    text: str
    title: str = ""

    @property
    def passage(self) -> str:
        """What models read: the title on a line of its own, and the text."""
        return with_title(self.title, self.text)


def with_title(title: str, text: str) -> str:
    """The title on a line of its own above the text; the text alone without a title."""
    return f"{title}\n{text}" if title else text


@dataclasses.dataclass(frozen=True)
class Problem:
    """A defect of an input file: its place, and a message with the fix or the consequence.

    `line` counts from 1; 0 means the whole file. `rows` is the number of rows that it describes.
    """

    file: str
    line: int
    field: str
    message: str
    rows: int = 1

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{place}: {self.field + ': ' if self.field else ''}{self.message}"


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Documents and questions; `remarks` describe parts of the files that were ignored.

    `passed_over` counts the files of a folder that gave no document, by reason.

    Many documents are on disk and are read on access. `chunks` are the chunks of the input, or None
    if the documents are still to be cut.
    """

    documents: Sequence[Document]
    questions: list[Question]
    format: str
    remarks: list[Problem] = dataclasses.field(default_factory=list)
    chunks: Sequence[Chunk] | None = None
    passed_over: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def texts(self) -> Mapping[str, str]:
        """document id -> text."""
        stored = getattr(self.documents, "texts", None)
        return {d.id: d.text for d in self.documents} if stored is None else stored


class BadInput(ValueError):
    """Raised for input with problems, before any work is done.

    Args:
        advice: a line on what to do about all of them.
    """

    def __init__(self, problems: list[Problem], advice: str = ""):
        self.problems = problems
        count = sum(problem.rows for problem in problems)
        lines = [f"{count:,} problem(s) in the input:", *(f"  {p}" for p in problems[:20])]
        if len(problems) > 20:
            lines.append(f"  and {len(problems) - 20} more; `ark-jax check` lists all")
        if advice:
            lines.append(advice)
        super().__init__("\n".join(lines))


LONGEST_VALUE = 1000  # characters of a value of metadata
_WRITTEN = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?|true|false")  # as JSON does


def metadata_json(values: Mapping, *, of_cells: bool = False) -> str:
    """Values by name as `Document.metadata`; long, missing and binary ones are left out.

    Args:
        of_cells: whether strings that are numbers or booleans stand for these, as in CSV.
    """
    parts = []
    for name, value in values.items():
        with contextlib.suppress(TypeError, ValueError, RecursionError):
            text = value.lower() if of_cells and isinstance(value, str) else ""
            if not _WRITTEN.fullmatch(text):
                text = json.dumps(value, ensure_ascii=False, allow_nan=False, default=_plain)
            part = f"{json.dumps(str(name), ensure_ascii=False)}: {text}"
            part.encode()  # raises if it holds half of a character
            if text != "null" and len(text) <= LONGEST_VALUE:
                parts.append(part)
    return f"{{{', '.join(parts)}}}" if parts else ""


def _plain(value: object) -> object:
    """A date, time or number of another package as JSON has it; TypeError for anything else."""
    if hasattr(value, "isoformat"):
        return value.isoformat()
    return value.item() if hasattr(value, "item") else float(value)  # type: ignore[arg-type]


class Heading(NamedTuple):
    level: int  # from 1
    start: int  # offset in the text
    name: str


class Page(NamedTuple):
    """The text of a file; `title` is empty if the file has none.

    `remark` is what its user should know of how it was read. `metadata` is a `Document`'s.
    """

    title: str
    text: str
    sections: tuple[Section, ...] = ()
    remark: str = ""
    metadata: str = ""


class Unreadable(Exception):
    """A file that cannot be converted; the message says why, and what to do."""


def titled_page(text: str, headings: Iterable[Heading], title: str = "") -> Page:
    """A page whose first heading of level 1 is its title, or else `title`.

    The heading that is the title starts no section.
    """
    headings = [heading for heading in headings if heading.name]
    first = next((heading for heading in headings if heading.level == 1), None)
    parents: list[Heading] = []
    sections = []
    for heading in headings:
        if heading is first:
            parents = []
            continue
        parents = [parent for parent in parents if parent.level < heading.level]
        parents.append(heading)
        path = " > ".join(parent.name for parent in parents)
        sections.append(Section(heading.start, path))
    return Page(first.name if first else title.strip(), text, tuple(sections))
