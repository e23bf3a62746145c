"""The type of a format, and helpers that formats share."""

import dataclasses
import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

from ark_jax.data.problems import Findings
from ark_jax.data.records import Corpus, Document, Question
from ark_jax.data.rows import InputRow
from ark_jax.data.spool import Documents, Spool


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


def hashed_document(title: str, text: str) -> Document:
    """A document whose id is a hash of its content, for formats without ids."""
    return Document(hashed_id(title, text) if title else hashed_id(text), title, text)


def document_ids(documents: list[Document]) -> tuple[str, ...]:
    """The ids of documents, each once, in order."""
    return tuple(dict.fromkeys(document.id for document in documents))


def row_id(row: InputRow, *content: str) -> str:
    """The id that a row gives, or else a hash of its content."""
    return row.text(row.key) if row.key in row.values else hashed_id(*content)


def remark_empty(path: Path, count: int, findings: Findings) -> None:
    """Says how many documents of a benchmark hold no text."""
    if count:
        message = f"{count:,} documents hold no text; they stay, and no search finds them"
        findings.remarks.add(path, message, rows=0)


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
