"""TREC's files: documents as <DOC><DOCNO>, topics in SGML or XML, judgments beside them."""

import collections
import dataclasses
import html
import itertools
import re
from collections.abc import Collection, Iterator
from pathlib import Path

from ark_jax.data.converters import CONVERTERS
from ark_jax.data.formats.base import (
    Format,
    Grades,
    complete_corpus,
    judged_questions,
    read_benchmark,
    relevant_grades,
    trec_rows,
)
from ark_jax.data.formats.pages import all_files
from ark_jax.data.formats.questions import check_questions
from ark_jax.data.problems import Findings
from ark_jax.data.records import Corpus, Document, Question
from ark_jax.data.rows import InputRow
from ark_jax.data.spool import Documents
from ark_jax.data.table_files import SUFFIXES
from ark_jax.data.text_files import head_text, is_trec_judgments, read_text, text_lines

# Beside them, files of these suffixes are never TREC's.
_FOREIGN = {*SUFFIXES, *CONVERTERS} - {".txt"}
_SEEN = 20  # files of a folder, of which one must hold TREC's documents
_DOCUMENTS = re.compile(r"\s*(<\?xml.*?\?>\s*)?(<(?!doc>)\w+>\s*)?<doc>\s*<docno>", re.I | re.S)
_TOPICS = re.compile(
    r"\s*(<\?xml.*?\?>\s*)?(<(?!top\b|topic\b)[^>]*>\s*)*(<top>|<topic\b[^>]*\bnumber\s*=)",
    re.I | re.S,
)
_TOPIC = re.compile(r"<(top|topic)\b([^>]*)>(.*?)</\1>", re.I | re.S)
_NUMBER = re.compile(r"""\bnumber\s*=\s*["']?([^"'>\s]+)""", re.I)
_LABEL = re.compile(r"\A\s*(number|topic|description|narrative)\s*:", re.I)
_TAG = re.compile(r"<[^>]*>")
_NO_TEXT = re.compile(r"<(docno|docid|dochdr|script|style)\b[^>]*>.*?</\1>", re.I | re.S)
TITLES = ("title", "headline", "head", "hl", "ttl", "ti")
TEXTS = ("text", "leadpara", "lp", "abstract", "body")
# What a user would type: a question, else the title, else the description.
ASKED = ("question", "query", "title", "desc", "description")


@dataclasses.dataclass(frozen=True)
class _Collection:
    """The files of a folder by what they hold; or of a file, with the judgments beside it."""

    documents: list[Path]
    topics: list[Path]
    judgments: list[Path]
    others: list[Path]

    @classmethod
    def at(cls, path: Path) -> "_Collection":
        """The collection at a path; looks at each file once."""
        parts = cls([], [], [], [])
        for file in _files_of(path):
            getattr(parts, _kind(file)).append(file)
        beside = path.parent.iterdir() if parts.topics and not path.is_dir() else ()
        parts.judgments.extend(file for file in sorted(beside) if _kind(file) == "judgments")
        return parts


def _files_of(path: Path) -> Iterator[Path]:
    """The files of a folder, or the file itself."""
    return all_files(path) if path.is_dir() else iter([path])


def _kind(path: Path) -> str:
    """What a file holds, by its head: "documents", "topics", "judgments" or "others"."""
    if path.suffix.lower() in _FOREIGN or not path.is_file():
        return "others"
    head = head_text(path)
    if _DOCUMENTS.match(head):
        return "documents"
    if _TOPICS.match(head):
        return "topics"
    return "judgments" if is_trec_judgments(head) else "others"


def recognises(path: Path) -> bool:
    """Whether a path is a file of documents or topics, or a folder with one among its first."""
    files = (file for file in _files_of(path) if file.suffix.lower() not in _FOREIGN)
    kinds = map(_kind, itertools.islice(files, _SEEN))
    return any(kind in ("documents", "topics") for kind in kinds)


def files(path: Path) -> list[Path]:
    """Documents, then topics, then judgments."""
    parts = _Collection.at(path)
    return [*parts.documents, *parts.topics, *(parts.judgments if path.is_dir() else [])]


def read(path: Path, findings: Findings) -> Corpus:
    """Reads documents and, if they lie beside them, the topics and judgments.

    A topic asks with its question, query or title. Without a judgment above 0 it is passed over.
    A document without text stays.
    """
    parts = _Collection.at(path)
    rows = itertools.chain.from_iterable(_documents(x, findings) for x in parts.documents)
    stored = lambda row: Document(row.text("docno"), row.values["title"], row.values["text"])
    documents, lines = read_benchmark(rows, stored, "docno", path, findings)
    if not parts.documents:
        message = "holds topics and no documents; put them into the folder of the documents"
        findings.problems.add(path, message)
    others = [file for file in parts.others if file.suffix.lower() not in CONVERTERS]
    if path.is_dir() and others:
        message = f"{len(others):,} files ({others[0].name}, ...) are not TREC's; they are not read"
        findings.remarks.add(path, message, rows=len(others))
    pairs = list(_asked(parts, findings, path, lines, documents if parts.documents else None))
    claimed = collections.ChainMap(documents.rows, lines)
    questions = check_questions(pairs, findings, documents.texts, claimed, "the documents")
    return complete_corpus(documents, questions, TREC.name, findings)


def _documents(path: Path, findings: Findings) -> Iterator[InputRow]:
    """A row with docno, title and text for each document of a file."""
    lines, first = [], 0
    for number, line in text_lines(path, findings):
        if re.match(r"\s*<doc>", line, re.I):
            lines, first = [], number
        lines.append(line)
        if re.search("</doc>", line, re.I):
            findings.problems.rows += 1
            source, lines = "".join(lines), []
            name = _element(source, ("docno",))
            values = {"docno": name, "title": _plain(_element(source, TITLES))}
            values["text"] = _text_of(source) or values["title"]
            if values["text"] == values["title"]:
                values["title"] = ""
            yield InputRow(str(path), first, values)
    if "".join(lines).strip() and re.search("<doc>", "".join(lines), re.I):
        findings.problems.add(path, "the last document is cut off; copy the file again", first)


def _text_of(source: str) -> str:
    """The text of a document: its elements of text, or else all but names and titles."""
    parts = re.findall(rf"<({'|'.join(TEXTS)})\b[^>]*>(.*?)</\1>", source, re.I | re.S)
    if parts:
        return "\n\n".join(filter(None, (_plain(text) for _, text in parts)))
    titles = rf"<({'|'.join(TITLES)})\b[^>]*>.*?</\1>"
    return _plain(re.sub(titles, "", _NO_TEXT.sub("", source), flags=re.I | re.S))


def _element(source: str, names: tuple[str, ...]) -> str:
    """What stands in the first element with one of these names, by the order of the names."""
    for name in names:
        # In SGML's topics no tag ends an element; the next one does.
        for end in (f"</{name}>", r"<\w+[ >]|\Z"):
            match = re.search(rf"<{name}\b[^>]*>(.*?)(?:{end})", source, re.I | re.S)
            if match and match[1].strip():
                return match[1].strip()
    return ""


def _plain(source: str) -> str:
    """Markup as text; lines are kept."""
    text = html.unescape(_TAG.sub(" ", source)).replace("\r", "")
    return re.sub(r"[ \t]{2,}", " ", text).strip()


def asked(path: Path, findings: Findings) -> Iterator[tuple[InputRow, Question]]:
    """Topics, and the documents that are judged relevant to them.

    Judgments lie in the folder, or in that of a file of topics.
    """
    return _asked(_Collection.at(path), findings, path)


def _asked(
    parts: _Collection,
    findings: Findings,
    path: Path,
    claimed: Collection[str] = (),
    documents: Documents | None = None,
) -> Iterator[tuple[InputRow, Question]]:
    """The topics of a collection at a path; the others are arguments of `relevant_grades`."""
    if not parts.topics:
        return
    if not parts.judgments:
        message = "holds topics; put their judgments (qrels) beside them"
        findings.problems.add(parts.topics[0], message)
        return
    rows = itertools.chain.from_iterable(trec_rows(file, findings) for file in parts.judgments)
    grades = relevant_grades(rows, findings, path, claimed, documents, "the documents")

    def topics() -> Iterator[tuple[InputRow, Question]]:
        for row, text in itertools.chain.from_iterable(_topics(x, findings) for x in parts.topics):
            id = row.text("id")
            id = id if id in grades else id.lstrip("0") or id
            yield row, Question(id, text, (), tuple(grades.get(id, ())))

    yield from judged_questions(topics(), grades, path, ("topics", "document"), findings)


def _topics(path: Path, findings: Findings) -> Iterator[tuple[InputRow, str]]:
    """A row for each topic of a file, with its number as id, and what the topic asks."""
    for number, match in enumerate(_TOPIC.finditer(read_text(path, findings)), 1):
        findings.problems.rows += 1
        named = _NUMBER.search(match[2])
        id = named[1] if named else _LABEL.sub("", _plain(_element(match[3], ("num",)))).strip()
        text = _LABEL.sub("", _plain(_element(match[3], ASKED) or match[3]))
        row = InputRow(str(path), number, {"id": id, "title": " ".join(text.split())}, "row")
        yield row, row.text("title")


def read_grades(path: Path) -> Grades:
    """topic -> relevant document -> its grade, from 1 on; bad rows are passed over."""
    judgments = _Collection.at(path).judgments
    rows = itertools.chain.from_iterable(trec_rows(file, Findings()) for file in judgments)
    return relevant_grades(rows, Findings(), path)


TREC = Format("trec", recognises, read, files, asked, read_grades)
