"""Judgments of relevance: rows of a question, a document and its grade."""

import math
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from ark_jax.data.problems import Findings
from ark_jax.data.records import Document
from ark_jax.data.rows import InputRow
from ark_jax.data.spool import Documents
from ark_jax.data.text_files import filled_lines

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


def report_unasked(
    path: Path, unasked: Collection[str], count: int, name: str, findings: Findings
) -> None:
    """Says which judged questions are not there; a problem if they are all of `count`.

    Args:
        name: what the format calls questions.
    """
    if not unasked:
        return
    message = f"{len(unasked):,} judged {name}, such as {next(iter(unasked))!r}, are not found"
    if len(unasked) == count:
        fix = f"{name} and judgments must use the same ids"
        findings.problems.add(path, f"{message}, which are all of them; {fix}")
    else:
        findings.remarks.add(path, f"{message}; their judgments are passed over", rows=0)
