"""Files of LangChain and LlamaIndex that are one JSON object, and folders of both and AutoRAG."""

import itertools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from ark_jax.data.formats import pages, plain
from ark_jax.data.formats.base import Format, complete_corpus
from ark_jax.data.formats.chunks import place_chunks, read_chunks
from ark_jax.data.formats.questions import check_questions, question_rows
from ark_jax.data.formats.rows import read_rows
from ark_jax.data.framework_rows import plain_row
from ark_jax.data.json_files import json_object
from ark_jax.data.problems import Findings
from ark_jax.data.records import Corpus, Document, Question
from ark_jax.data.rows import InputRow
from ark_jax.data.spool import Documents
from ark_jax.data.table_files import SUFFIXES
from ark_jax.data.text_files import begins_with

_SEEN = 20  # files of a folder, of which one must be a document
_VECTORS = re.compile(r'\s*\{\s*"[^"]*"\s*:\s*\{\s*"id"\s*:\s*"[^"]*"\s*,\s*"vector"\s*:\s*\[')
_STORED = re.compile(
    r'\s*\{\s*"lc"\s*:\s*\d+\s*,\s*"type"\s*:\s*"constructor"\s*,\s*'
    r'"id"\s*:\s*\[[^\]]*"Document"\s*\]'
)
_DOCSTORE = re.compile(r'\s*\{\s*"docstore/\w+"\s*:')
_PAIRS = re.compile(r'\s*\{\s*"(queries|corpus|relevant_docs)"\s*:\s*\{')
_EXAMPLES = re.compile(r'\s*\{\s*"examples"\s*:\s*\[\s*\{\s*"query"\s*:')
DOCSTORE_FILE = "docstore.json"  # of a storage context of LlamaIndex
_DOCUMENT, _NODES = "4", ("1", "3")  # LlamaIndex's types of objects that have a text


def _objects(path: Path, values: Iterable[object]) -> Iterator[InputRow]:
    """Objects as rows, counted from 1; what is no object has no fields."""
    for number, value in enumerate(values, 1):
        yield InputRow(str(path), number, value if isinstance(value, dict) else {}, "row")


def read_vectors(path: Path, findings: Findings) -> Corpus:
    """Reads what LangChain's `InMemoryVectorStore.dump` wrote: a document for each vector."""
    rows = []
    for row in _objects(path, json_object(path, findings).values()):
        findings.problems.rows += 1
        content = {"page_content": row.values.get("text", ""), **row.values}
        rows.append(plain_row(InputRow(row.file, row.line, content, row.unit)))
    return read_rows(path, iter(rows), findings)


def _is_stored(path: Path) -> bool:
    """Whether a file is a document as LangChain stores it; a file of rows may begin like one."""
    return path.suffix not in SUFFIXES and begins_with(path, _STORED)


def _is_store(path: Path) -> bool:
    """Whether a folder is a store of LangChain: one of its first files is a document."""
    files = itertools.islice(pages.all_files(path), _SEEN) if path.is_dir() else ()
    return any(map(_is_stored, files))


def _stored_files(path: Path) -> list[Path]:
    """The documents of a store."""
    return [file for file in pages.all_files(path) if _is_stored(file)]


def read_store(path: Path, findings: Findings) -> Corpus:
    """Reads what LangChain's `LocalFileStore` holds: a file for each document, its name the id."""
    files = _stored_files(path)
    known = {*files}
    if others := [file for file in pages.all_files(path) if file not in known]:
        message = f"{len(others):,} files ({others[0].name}, ...) are no documents of LangChain"
        findings.remarks.add(path, f"{message}; they are not read", rows=len(others))

    def rows() -> Iterator[InputRow]:
        for file in files:
            findings.problems.rows += 1
            content = json_object(file, findings).get("kwargs")
            if isinstance(content, dict):  # of a damaged file the problem is known
                values = {**content, "id": file.relative_to(path).as_posix()}
                yield plain_row(InputRow(str(file), 1, values))

    return read_rows(path, rows(), findings)


def _docstore(path: Path) -> Path:
    """The docstore in a storage context of LlamaIndex; a file is one itself."""
    return path / DOCSTORE_FILE if path.is_dir() else path


def read_docstore(path: Path, findings: Findings) -> Corpus:
    """Reads LlamaIndex's docstore: its documents, and its nodes as their chunks.

    A node without a source is a document of its own. Without the documents themselves, these are
    joined from the nodes.
    """
    path = _docstore(path)
    documents, nodes, textless = Documents(), [], 0
    lines: dict[str, int] = {}
    stored = json_object(path, findings).get("docstore/data")
    for row in _objects(path, stored.values() if isinstance(stored, dict) else ()):
        findings.problems.rows += 1
        kind = str(row.values.get("__type__"))
        part = _node(row)
        if kind in _NODES:
            nodes.append(part)
        elif kind == _DOCUMENT:
            document = plain.plain_document(part, needs_id=True)
            part.claim_id(lines, "id", document.id)
            if findings.settle(part):
                documents.append(document)
        else:
            textless += 1
    if textless:
        findings.remarks.add(
            path, f"{textless:,} nodes hold no text; they are passed over", rows=textless
        )
    chunks = None
    if nodes and documents:
        chunks = place_chunks(nodes, documents, lines, findings)
    elif nodes:
        documents, chunks = read_chunks(nodes, findings)
    elif not documents and not findings.problems:
        findings.problems.add(path, "holds no document; give another file")
    return complete_corpus(documents, [], DOCSTORE.name, findings, chunks)


def _node(row: InputRow) -> InputRow:
    """A document or node as a row of ours."""
    data = row.values.get("__data__")
    data = data if isinstance(data, dict) else {}
    resource = data.get("text_resource")
    text = data.get("text") or (resource.get("text") if isinstance(resource, dict) else None)
    source = (data.get("relationships") or {}).get("1") or {}
    metadata = data.get("metadata") or {}
    values = {
        "id": data.get("id_"),
        "title": metadata.get("title"),
        "text": text,
        "metadata": metadata,
        "document": source.get("node_id"),
        "start": data.get("start_char_idx") if source else None,
    }
    known = {name: value for name, value in values.items() if value is not None}
    return InputRow(row.file, row.line, known, row.unit)


def read_pairs(path: Path, findings: Findings) -> Corpus:
    """Reads LlamaIndex's EmbeddingQAFinetuneDataset: queries, corpus and relevant_docs."""
    texts = json_object(path, findings).get("corpus")
    documents, lines = Documents(), {}
    for number, (id, text) in enumerate(texts.items() if isinstance(texts, dict) else (), 1):
        findings.problems.rows += 1
        row = InputRow(str(path), number, {"id": id, "text": text}, "row")
        lines[id] = number
        document = Document(row.text("id"), "", row.text("text"))
        if findings.settle(row):
            documents.append(document)
    pairs = asked_in_pairs(path, findings)
    questions = check_questions(pairs, findings, documents.texts, lines, "its corpus")
    return complete_corpus(documents, questions, PAIRS.name, findings)


def asked_in_pairs(path: Path, findings: Findings) -> Iterator[tuple[InputRow, Question]]:
    """The queries of such a data set, with the ids of their documents."""
    content = json_object(path, findings)
    queries, relevant = (content.get(name) or {} for name in ("queries", "relevant_docs"))
    for number, (id, text) in enumerate(queries.items(), 1):
        findings.problems.rows += 1
        values = {"id": id, "question": text, "documents": relevant.get(id)}
        row = InputRow(str(path), number, {k: v for k, v in values.items() if v is not None}, "row")
        documents = row.texts("documents")
        yield row, Question(row.text("id"), row.text("question"), (), documents)


def _examples(path: Path, findings: Findings) -> Iterator[InputRow]:
    """The examples of LlamaIndex's LabelledRagDataset as rows of ours."""
    for row in _objects(path, json_object(path, findings)["examples"]):
        findings.problems.rows += 1
        yield plain_row(row)


def _autorag_files(folder: Path) -> list[Path]:
    """AutoRAG's corpus and questions, if a folder holds both."""
    paths = [folder / "corpus.parquet", folder / "qa.parquet"]
    return paths if all(path.is_file() for path in paths) else []


def read_autorag(folder: Path, findings: Findings) -> Corpus:
    """Reads AutoRAG's corpus.parquet and qa.parquet."""
    corpus_file, question_file = _autorag_files(folder)
    documents, claimed = plain.read_documents(corpus_file, findings)
    pairs = question_rows(question_file, findings)
    questions = check_questions(pairs, findings, documents.texts, claimed, corpus_file.name)
    return complete_corpus(documents, questions, AUTORAG.name, findings)


VECTORS = Format("langchain", lambda path: begins_with(path, _VECTORS), read_vectors)
STORE = Format("langchain", _is_store, read_store, _stored_files)
DOCSTORE = Format(
    "llama_index",
    lambda path: begins_with(_docstore(path), _DOCSTORE),
    read_docstore,
    lambda path: [_docstore(path)],
)
PAIRS = Format(
    "llama_index", lambda path: begins_with(path, _PAIRS), read_pairs, questions=asked_in_pairs
)
EXAMPLES = Format(
    "llama_index",
    lambda path: begins_with(path, _EXAMPLES),
    lambda path, findings: read_rows(path, _examples(path, findings), findings),
)
AUTORAG = Format("autorag", lambda path: bool(_autorag_files(path)), read_autorag, _autorag_files)
