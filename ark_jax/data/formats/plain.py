"""Our own format: a folder with documents or chunks of rows, and with questions or without."""

import difflib
from pathlib import Path

from ark_jax.data.formats import pages
from ark_jax.data.formats.base import Format, complete_corpus, hashed_id
from ark_jax.data.formats.chunks import place_chunks, read_chunks
from ark_jax.data.formats.questions import check_questions, question_rows
from ark_jax.data.problems import Findings
from ark_jax.data.records import Corpus, Document
from ark_jax.data.rows import InputRow
from ark_jax.data.spool import Documents
from ark_jax.data.table_files import QUESTIONS, SUFFIXES, named_file, rows_of

STEMS = ("documents", "chunks", QUESTIONS)
DOCUMENTS_FIX = "add it, or put text files beside the questions"
STRICT = (".jsonl", ".json")  # where every document writes its own id


def recognises(path: Path) -> bool:
    """Whether a folder has a file of documents or chunks, or of questions without any documents."""
    if any(named_file(path, stem) for stem in STEMS[:2]):
        return True
    return bool(named_file(path, QUESTIONS)) and not pages.recognises(path)


def files(path: Path) -> list[Path]:
    """The files that `read` opens, in order."""
    documents, chunks, questions = (named_file(path, stem) for stem in STEMS)
    if not documents and not chunks:
        documents = path / "documents.jsonl"
    return [file for file in (documents, chunks, questions) if file]


def plain_document(row: InputRow, *, needs_id: bool) -> Document:
    """The document of a row; without an id, a hash of its content is the id."""
    title, text = row.text("title", required=False, blank=True), row.text("text")
    id = row.text("id") if needs_id or "id" in row.values else hashed_id(title, text)
    return Document(id, title, text, metadata=row.metadata("id", "title", "text"))


def read(folder: Path, findings: Findings) -> Corpus:
    """Reads documents.jsonl, chunks.jsonl and questions.jsonl, or files of other forms."""
    document_file, chunk_file, question_file = (
        named_file(folder, stem, findings.reading) for stem in STEMS
    )
    _note_unread_files(folder, findings)
    if [file for file in folder.iterdir() if file.suffix in SUFFIXES] == [question_file]:
        message = f"does not exist, but {question_file.name} does; {DOCUMENTS_FIX}"
        findings.problems.add(folder / "documents.jsonl", message)
        return Corpus([], [], PLAIN.name, findings.remarks)
    chunks = None
    if chunk_file and not document_file:
        documents, chunks = read_chunks(rows_of(chunk_file, findings), findings)
        claimed = documents.texts
    else:
        documents, claimed = read_documents(document_file or folder / "documents.jsonl", findings)
        if chunk_file:
            chunks = place_chunks(rows_of(chunk_file, findings), documents, claimed, findings)
    questions = []
    if question_file:
        source = (document_file or chunk_file or folder / "documents.jsonl").name
        pairs = question_rows(question_file, findings)
        questions = check_questions(pairs, findings, documents.texts, claimed, source)
    return complete_corpus(documents, questions, PLAIN.name, findings, chunks)


def read_documents(path: Path, findings: Findings) -> tuple[Documents, dict[str, int]]:
    """The documents, and id -> line, also of documents with problems."""
    documents = Documents()
    lines: dict[str, int] = {}
    for row in rows_of(path, findings):
        document = plain_document(row, needs_id=path.suffix in STRICT)
        if "id" in row.values or document.id not in lines:
            row.claim_id(lines, "id", document.id)
        else:
            row.remark_repeat(lines[document.id])
        if findings.settle(row):
            documents.append(document)
    return documents, lines


def _note_unread_files(folder: Path, findings: Findings) -> None:
    """Remarks on files of rows that are not read because of their names."""
    read_files = files(folder)
    for path in sorted(folder.iterdir()):
        if path in read_files or path.suffix not in SUFFIXES:
            continue
        similar = difflib.get_close_matches(path.stem, STEMS, 1, 0.8)
        if similar:
            message = f"is not read; delete it, or name it {similar[0]}{path.suffix} if it counts"
            findings.remarks.add(path, message)


PLAIN = Format("plain", recognises, read, files)
