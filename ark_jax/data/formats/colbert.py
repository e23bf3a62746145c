"""ColBERT's tables without a header: passages and queries by number, and triples of numbers."""

import dataclasses
import itertools
import re
from collections.abc import Collection, Iterator
from pathlib import Path

from ark_jax.data.formats.base import (
    Format,
    Grades,
    complete_corpus,
    judged_questions,
    read_benchmark,
    relevant_grades,
    trec_rows,
)
from ark_jax.data.formats.questions import check_questions
from ark_jax.data.json_files import parse_json
from ark_jax.data.problems import Findings
from ark_jax.data.records import Corpus, Document, Question
from ark_jax.data.rows import InputRow
from ark_jax.data.spool import Documents
from ark_jax.data.text_files import filled_lines, head_text, is_trec_judgments

_HEADER = re.compile(r"(id|[pq]id)\t(text|passage|query)(\ttitle)?", re.IGNORECASE)
_NUMBERED = re.compile(r"\d+\t[^\t]*(\t[^\t]*)?")
_TRIPLE = re.compile(r"\s*\[\s*\d+\s*,\s*[\d\[]")
_TABLES = {"passages": ("collection",), "queries": ("queries", "questions")}  # how names begin
_SOURCE = "the collection"


@dataclasses.dataclass(frozen=True)
class _Files:
    """The files of a folder by what they hold; or a file, with what lies beside queries."""

    passages: list[Path]
    queries: list[Path]
    judgments: list[Path]
    triples: list[Path]
    others: list[Path]

    @classmethod
    def at(cls, path: Path) -> "_Files":
        parts = cls([], [], [], [], [])
        folder = path if path.is_dir() else path.parent
        for file in sorted(file for file in folder.iterdir() if file.name[0] != "."):
            if file.is_file():
                getattr(parts, _kind(file)).append(file)
        if path.is_dir():
            return parts
        named = {kind: [file for file in getattr(parts, kind) if file == path] for kind in _TABLES}
        return dataclasses.replace(parts, **named, others=[])


def _kind(path: Path) -> str:
    """What a file holds, by its head, and of tables by its name: a field of `_Files`."""
    head = head_text(path)
    lines = [line for line in head.splitlines()[:20] if line]
    if is_trec_judgments(head) and len(lines[0].split()) == 4:  # three may be a triple
        return "judgments"
    if _TRIPLE.match(head):
        return "triples"
    lines = lines[1:] if lines and _HEADER.fullmatch(lines[0]) else lines
    # The last of several lines may be incomplete.
    if lines and all(map(_NUMBERED.fullmatch, lines[:-1] or lines)):
        name = path.name.lower()
        return next((kind for kind, names in _TABLES.items() if name.startswith(names)), "others")
    return "others"


def recognises(path: Path) -> bool:
    """Whether a path is a table of numbered passages or queries, or a folder with passages."""
    if not path.is_dir():
        names = itertools.chain.from_iterable(_TABLES.values())
        return path.name.lower().startswith(tuple(names)) and _kind(path) in _TABLES
    named = [x for x in path.iterdir() if x.name.lower().startswith(_TABLES["passages"])]
    return any(file.is_file() and _kind(file) == "passages" for file in named)


def files(path: Path) -> list[Path]:
    """Passages, then queries, judgments and triples."""
    parts = _Files.at(path)
    beside = [*parts.judgments, *parts.triples] if path.is_dir() else []
    return [*parts.passages, *parts.queries, *beside]


def read(path: Path, findings: Findings) -> Corpus:
    """Reads passages and, if they lie beside them, queries, judgments and triples."""
    parts = _Files.at(path)

    def passage(row: InputRow) -> Document:
        title = row.text("title", required=False, blank=True)
        return Document(row.text("id"), title, row.text("text", blank=True))

    rows = _numbered(parts.passages, findings)
    documents, lines = read_benchmark(rows, passage, "id", path, findings)
    if not parts.passages:
        message = "holds queries and no passages; put them beside collection.tsv"
        findings.problems.add(path, message)
    if parts.others:
        message = f"{len(parts.others):,} files ({parts.others[0].name}, ...) are not ColBERT's"
        findings.remarks.add(path, f"{message}; they are not read", rows=len(parts.others))
    pairs = list(_asked(parts, findings, path, lines, documents if parts.passages else None))
    claimed = {**lines, **dict.fromkeys(documents.texts)}
    questions = check_questions(pairs, findings, documents.texts, claimed, _SOURCE)
    return complete_corpus(documents, questions, COLBERT.name, findings)


def _numbered(paths: list[Path], findings: Findings) -> Iterator[InputRow]:
    """The rows of tables: number, text and perhaps a title."""
    for path in paths:
        has_titles = False
        for number, line in filled_lines(path, findings):
            if number == 1 and _HEADER.fullmatch(line):
                continue
            findings.problems.rows += 1
            fields = line.split("\t")
            if len(fields) in (2, 3):
                has_titles = has_titles or len(fields) == 3
                names = ("id", "text", "title")
                yield InputRow(str(path), number, dict(zip(names, fields, strict=False)))
            else:
                message = f"{len(fields)} field(s); write number and text, a tab between"
                findings.problems.add(path, message, number)
        if has_titles:
            message = "the third column is read as the title, as ColBERT does"
            findings.remarks.add(path, message, rows=0)


def asked(path: Path, findings: Findings) -> Iterator[tuple[InputRow, Question]]:
    """Queries, and the passages that judgments and triples beside them name."""
    return _asked(_Files.at(path), findings, path)


def _asked(
    parts: _Files,
    findings: Findings,
    path: Path,
    claimed: Collection[str] = (),
    documents: Documents | None = None,
) -> Iterator[tuple[InputRow, Question]]:
    """The queries at a path; the other arguments are those of `relevant_grades`."""
    if not parts.queries:
        return
    if not (parts.judgments or parts.triples):
        message = "holds queries; put judgments (qrels) or triples beside them"
        findings.problems.add(parts.queries[0], message)
        return
    rows = itertools.chain.from_iterable(trec_rows(file, findings) for file in parts.judgments)
    grades = relevant_grades(rows, findings, path, claimed, documents, _SOURCE)
    positives = {query: dict.fromkeys(of_query) for query, of_query in grades.items()}
    negatives: dict[str, dict[str, None]] = {}
    for file in parts.triples:
        for query, positive, *others in _triples(file, findings, claimed):
            positives.setdefault(query, {})[positive] = None
            negatives.setdefault(query, {}).update(dict.fromkeys(others))

    def queries() -> Iterator[tuple[InputRow, Question]]:
        for row in _numbered(parts.queries, findings):
            id, text = row.text("id"), row.text("text")
            relevant = positives.get(id, {})
            others = tuple(name for name in negatives.get(id, ()) if name not in relevant)
            yield row, Question(id, text, (), tuple(relevant), negatives=others)

    yield from judged_questions(queries(), positives, path, ("queries", "passage"), findings)


def _triples(path: Path, findings: Findings, claimed: Collection[str]) -> Iterator[list[str]]:
    """The lines of a file: a query, a positive and negatives."""
    for number, line in filled_lines(path, findings):
        findings.problems.rows += 1
        try:
            ids = parse_json(line)
        except (ValueError, RecursionError):
            ids = None
        if not (isinstance(ids, list) and len(ids) > 1 and all(type(x) in (int, str) for x in ids)):
            message = "is not [query, positive, negative, ...] of numbers; write it so"
            findings.problems.add(path, message, number)
            continue
        ids = [str(id) for id in ids]
        if absent := [id for id in ids[1:] if claimed and id not in claimed]:
            message = (
                f"{absent[0]!r} is not found in {_SOURCE}; add that passage or mend the number"
            )
            findings.problems.add(path, message, number)
            continue
        yield ids


def read_grades(path: Path) -> Grades:
    """query -> relevant passage -> its grade, from 1 on; bad rows are passed over."""
    judgments = _Files.at(path).judgments
    rows = itertools.chain.from_iterable(trec_rows(file, Findings()) for file in judgments)
    return relevant_grades(rows, Findings(), path)


COLBERT = Format("colbert", recognises, read, files, asked, read_grades)
