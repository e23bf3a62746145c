"""The type of a format, and helpers that formats share."""

import dataclasses
import hashlib
import math
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path

from ark_jax.data.problems import Findings
from ark_jax.data.records import Corpus, Document, Question
from ark_jax.data.rows import InputRow
from ark_jax.data.spool import Documents, Spool
from ark_jax.data.text_files import filled_lines


@dataclasses.dataclass(frozen=True)
class Format:
    """A format of files or folders.

    Attributes:
        name: the name, unless the rows of a file decide it.
        recognises: whether a path, which exists, has this format.
        read: reads the path, and adds problems and remarks to the findings.
        files: the files that `read` opens, in order; by default the path itself.
        questions: rows and the questions in them, which may be about other documents; None if the
            questions of the format are rows of a file.
        grades: question -> relevant document -> its grade, from 1 on; None where there are none.
    """

    name: str
    recognises: Callable[[Path], bool]
    read: Callable[[Path, Findings], Corpus]
    files: Callable[[Path], list[Path]] = lambda path: [path]
    questions: Callable[[Path, Findings], Iterable[tuple[InputRow, Question]]] | None = None
    grades: Callable[[Path], dict[str, dict[str, int]]] | None = None


def hashed_id(*parts: str) -> str:
    """An id that is a hash of the content."""
    # The row reports a surrogate as a problem; here it must only not raise.
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def hashed_document(title: str, text: str, metadata: str = "") -> Document:
    """A document whose id is a hash of its content, for formats without ids."""
    id = hashed_id(title, text) if title else hashed_id(text)
    return Document(id, title, text, metadata=metadata)


def document_ids(documents: list[Document]) -> tuple[str, ...]:
    """The ids of documents, each once, in order."""
    return tuple(dict.fromkeys(document.id for document in documents))


def row_id(row: InputRow, *content: str) -> str:
    """The id that a row gives, or else a hash of its content."""
    return row.text(row.key) if row.key in row.values else hashed_id(*content)


def read_benchmark(
    rows: Iterable[InputRow],
    document_of: Callable[[InputRow], Document],
    key: str,
    place: Path,
    findings: Findings,
) -> tuple[Documents, dict[str, int]]:
    """The documents of a benchmark, also those without text; and id -> line of all its rows.

    Args:
        key: the field of the id.
        place: what a remark names.
    """
    documents, lines, empty = Documents(), {}, 0
    for row in rows:
        document = document_of(row)
        row.claim_id(lines, key, document.id)
        if findings.settle(row):
            empty += not document.text.strip()
            documents.append(document)
    if empty:
        message = f"{empty:,} documents hold no text; they stay, and no search finds them"
        findings.remarks.add(place, message, rows=0)
    return documents, lines


def complete_corpus(
    documents: Documents,
    questions: list[Question],
    name: str,
    findings: Findings,
    chunks: Spool | None = None,
) -> Corpus:
    """A corpus without the questions whose documents have problems; they are counted."""
    complete = [q for q in questions if all(id in documents.texts for id in q.documents)]
    # An input without documents has a problem of its own.
    if documents and (count := len(questions) - len(complete)):
        message = "ask documents that have problems; they are passed over"
        findings.remarks.add(f"{count:,} questions", message, rows=count)
    return Corpus(documents, complete, name, findings.remarks, chunks)


COLUMNS = ("query-id", "corpus-id", "score")  # as BEIR names them
Grades = dict[str, dict[str, int]]  # question -> relevant document -> its grade, from 1 on


def trec_rows(path: Path, findings: Findings) -> Iterator[InputRow]:
    """The rows of a file as trec_eval reads it: topic, 0, document, grade; or without the 0."""
    for number, line in filled_lines(path, findings):
        findings.problems.rows += 1
        fields = line.split()
        if len(fields) in (3, 4):
            values = dict(zip(COLUMNS, (fields[0], *fields[-2:]), strict=True))
            yield InputRow(str(path), number, values)
        else:
            message = f"{len(fields)} field(s); write topic, 0, document and grade"
            findings.problems.add(path, message, number)


def relevant_grades(
    rows: Iterable[InputRow],
    findings: Findings,
    place: Path,
    claimed: Collection[str] = (),
    corpus: Documents | None = None,
    source: str = "",
) -> Grades:
    """The relevant documents of each question, in order, and their grades.

    Published judgments name some documents that their corpus lacks. BEIR and trec_eval count them
    as relevant, so they are added to it, without text. Where most are lacking, ids or files are
    mistaken, and each is a problem.

    Args:
        rows: with the fields `COLUMNS`.
        place: what a remark names.
        claimed: the ids of all documents of the input, those with problems too; empty if any
            document may be named.
        corpus: the documents of the input; None: a document that is not claimed is a problem.
        source: what holds the documents, as messages name it.
    """
    grades: Grades = {}
    absent: list[tuple[InputRow, str, str]] = []
    for row in rows:
        question, document, grade = _judgment(row)
        is_absent = row.ok and grade > 0 and bool(claimed) and document not in claimed
        if is_absent:
            absent.append((row, question, document))
        if (is_absent or findings.settle(row)) and grade > 0:
            grades.setdefault(question, {})[document] = grade
    needed = list(dict.fromkeys(document for _, _, document in absent))
    judged = {document for of_question in grades.values() for document in of_question}
    if corpus is not None and 2 * len(needed) <= len(judged):
        _add_without_text(needed, corpus, place, source, findings)
        return grades
    for row, question, document in absent:
        defect = f"{document!r} is not found in {source}"
        row.add_problem("corpus-id", defect, "add that document or mend the id")
        findings.settle(row)
        grades[question].pop(document, None)
    return {question: of_question for question, of_question in grades.items() if of_question}


def _judgment(row: InputRow) -> tuple[str, str, int]:
    """Question, document and grade of a row."""
    question, document, score = (row.text(column) for column in COLUMNS)
    try:
        return question, document, math.ceil(float(score or 0))
    except (ValueError, OverflowError):
        row.add_problem("score", f"is {score[:20]!r}", "write a number")
        return question, document, 0


def _add_without_text(
    ids: list[str], corpus: Documents, place: Path, source: str, findings: Findings
) -> None:
    """Adds documents that a corpus lacks, and says how many."""
    for id in ids:
        corpus.append(Document(id, "", ""))
    if ids:
        message = (
            f"{len(ids):,} relevant documents, such as {ids[0]!r}, are not in {source}; they "
            "count in recall and nDCG, as in BEIR, and no search finds them"
        )
        findings.remarks.add(place, message, rows=0)


def judged_questions(
    asked: Iterable[tuple[InputRow, Question]],
    judged: Collection[str],
    path: Path,
    names: tuple[str, str],
    findings: Findings,
) -> Iterator[tuple[InputRow, Question]]:
    """The questions with a relevant document; the others, and judged ones that are absent, count.

    Args:
        judged: ids of questions; if none of them is asked, that is a problem.
        names: what the format calls a question and a document, in plural and singular.
    """
    unasked, passed_over, (questions, document) = dict.fromkeys(judged), 0, names
    for row, question in asked:
        unasked.pop(question.id, None)
        if row.ok and not question.documents:
            passed_over += 1
        else:
            yield row, question
    if passed_over:
        message = f"{passed_over:,} {questions} have no relevant {document}; they are passed over"
        findings.remarks.add(path, message, rows=passed_over)
    if not unasked:
        return
    message = f"{len(unasked):,} judged {questions}, such as {next(iter(unasked))!r}, are not found"
    if len(unasked) == len(judged):
        fix = f"{questions} and judgments must use the same ids"
        findings.problems.add(path, f"{message}, which are all of them; {fix}")
    else:
        findings.remarks.add(path, f"{message}; their judgments are passed over", rows=0)
