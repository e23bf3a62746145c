"""TREC's files: documents as <DOC><DOCNO>, topics in SGML or XML, judgments beside them."""

import collections
import html
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

from ark_jax.data.converters import CONVERTERS
from ark_jax.data.formats.base import (
    Format,
    complete_corpus,
    keep_absent,
    remark_absent,
    remark_empty,
)
from ark_jax.data.formats.pages import all_files
from ark_jax.data.formats.questions import check_questions
from ark_jax.data.problems import Findings
from ark_jax.data.records import Corpus, Document, Question
from ark_jax.data.rows import InputRow
from ark_jax.data.spool import Documents
from ark_jax.data.table_files import SUFFIXES
from ark_jax.data.text_files import begins_with, head_text, is_trec_judgments, read_text, text_lines

# Beside them, files of these suffixes are never TREC's.
_OTHER = {*SUFFIXES, *CONVERTERS, ".gz"} - {".txt"}
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


def _files_of(path: Path) -> Iterator[Path]:
    """The files of a folder that may be TREC's, or the file itself."""
    if not path.is_dir():
        return iter([path])
    return (file for file in all_files(path) if file.suffix.lower() not in _OTHER)


def recognises(path: Path) -> bool:
    """Whether a path is a file of documents or topics, or a folder with one among its first."""
    some = itertools.islice(_files_of(path), _SEEN)
    return any(begins_with(file, _DOCUMENTS) or begins_with(file, _TOPICS) for file in some)


def files(path: Path) -> list[Path]:
    """Documents, then topics, then judgments."""
    kinds: tuple[list[Path], ...] = ([], [], [])
    for file in _files_of(path):
        if begins_with(file, _DOCUMENTS):
            kinds[0].append(file)
        elif begins_with(file, _TOPICS):
            kinds[1].append(file)
        elif file.is_file() and is_trec_judgments(head_text(file)):
            kinds[2].append(file)
    return list(itertools.chain(*kinds))


def read(path: Path, findings: Findings) -> Corpus:
    """Reads documents and, if they lie beside them, the topics and judgments.

    A topic asks with its question, query or title. Without a judgment above 0 it is passed over.
    A document without text stays.
    """
    documents, lines, empty = Documents(), {}, 0
    document_files = [file for file in files(path) if begins_with(file, _DOCUMENTS)]
    for row in itertools.chain.from_iterable(_documents(file, findings) for file in document_files):
        document = Document(row.text("docno"), row.values["title"], row.values["text"])
        row.claim_id(lines, "docno", document.id)
        if findings.settle(row):
            empty += not (document.text or document.title)
            documents.append(document)
    if not document_files:
        message = "holds topics and no documents; put them into the folder of the documents"
        findings.problems.add(path, message)
    remark_empty(path, empty, findings)
    others = _unread(path)
    if others:
        message = f"{len(others):,} files ({others[0].name}, ...) are not TREC's; they are not read"
        findings.remarks.add(path, message, rows=len(others))
    pairs = list(asked(path, findings))
    needed = dict.fromkeys(id for _, question in pairs for id in question.documents)
    absent = [id for id in needed if id not in lines]
    if absent and documents and keep_absent(absent, needed, documents):
        remark_absent(path, absent, "the documents", findings)
    claimed = collections.ChainMap(documents.rows, lines)
    questions = check_questions(pairs, findings, documents.texts, claimed, "the documents")
    return complete_corpus(documents, questions, TREC.name, findings)


def _unread(path: Path) -> list[Path]:
    """The files of a folder that no format reads."""
    if not path.is_dir():
        return []
    known = set(files(path))
    others = (file for file in all_files(path) if file not in known)
    return [file for file in others if file.suffix.lower() not in CONVERTERS]


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
            found = re.search(rf"<{name}\b[^>]*>(.*?)(?:{end})", source, re.I | re.S)
            if found and found[1].strip():
                return found[1].strip()
    return ""


def _plain(source: str) -> str:
    """Markup as text; lines are kept."""
    text = html.unescape(_TAG.sub(" ", source)).replace("\r", "")
    return re.sub(r"[ \t]{2,}", " ", text).strip()


def asked(path: Path, findings: Findings) -> Iterator[tuple[InputRow, Question]]:
    """Topics, and the documents that are judged relevant to them.

    Judgments lie in the folder, or in that of a file of topics.
    """
    topic_files = [file for file in files(path) if begins_with(file, _TOPICS)]
    grades = _grades(path) if topic_files else {}
    if topic_files and not grades:
        message = "holds topics; put their judgments (qrels) beside them"
        findings.problems.add(topic_files[0], message)
        return
    passed_over = 0
    for file in topic_files:
        for number, match in enumerate(_TOPIC.finditer(read_text(file, findings)), 1):
            findings.problems.rows += 1
            named = _NUMBER.search(match[2])
            id = named[1] if named else _LABEL.sub("", _plain(_element(match[3], ("num",)))).strip()
            id = id if id in grades else id.lstrip("0") or id
            text = _LABEL.sub("", _plain(_element(match[3], ASKED) or match[3]))
            row = InputRow(str(file), number, {"id": id, "title": " ".join(text.split())}, "row")
            relevant = tuple(name for name, grade in grades.get(id, {}).items() if grade > 0)
            question = Question(row.text("id"), row.text("title"), (), relevant)
            if row.ok and not relevant:
                passed_over += 1
                continue
            yield row, question
    if passed_over:
        message = f"{passed_over:,} topics have no relevant document; they are passed over"
        findings.remarks.add(path, message, rows=passed_over)


def _grades(path: Path) -> dict[str, dict[str, int]]:
    """topic -> judged document -> its grade, of judgments in a folder, or beside a file."""
    beside = path.parent.iterdir() if path.is_file() else _files_of(path)
    grades: dict[str, dict[str, int]] = {}
    for file in sorted(beside):
        if not file.is_file() or not is_trec_judgments(head_text(file)):
            continue
        for line in read_text(file, Findings()).splitlines():
            if fields := line.split():
                topic, document, grade = fields[0], *fields[-2:]
                grades.setdefault(topic, {})[document] = int(grade)
    return grades


def read_grades(path: Path) -> dict[str, dict[str, int]]:
    """topic -> relevant document -> its grade, from 1 on."""
    return {
        topic: {document: grade for document, grade in judged.items() if grade > 0}
        for topic, judged in _grades(path).items()
    }


TREC = Format("trec", recognises, read, files, asked, read_grades)
