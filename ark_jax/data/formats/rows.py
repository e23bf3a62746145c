"""Files whose rows are documents, questions with their contexts, or chunks."""

import dataclasses
import itertools
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from ark_jax.data.formats.base import Format, complete_corpus, hashed_document
from ark_jax.data.formats.chunks import read_chunks
from ark_jax.data.formats.contexts import (
    dpr_row,
    hotpotqa_row,
    longbench_row,
    musique_row,
    ragas_row,
    squad_row,
)
from ark_jax.data.formats.pairs import is_pair, pair_row, pairs_on, read_pairs
from ark_jax.data.formats.questions import question_row
from ark_jax.data.problems import Findings
from ark_jax.data.records import Corpus, Document, Question
from ark_jax.data.rows import LONGEST_NAME, InputRow
from ark_jax.data.spool import Documents
from ark_jax.data.table_files import rows_of
from ark_jax.data.text_files import TREC_TABLE, head_text, is_trec_table

KNOWN = (
    "a folder of .txt, .md, .html, .pdf, .docx, .epub, .pptx, .xlsx or .rst files, a folder with "
    "documents and questions (.jsonl, .csv or .parquet), a BEIR folder, or a file whose rows have "
    "text (documents), question, context and answers, or query and positive (the README of ark_jax "
    "lists all formats)"
)


@dataclasses.dataclass(frozen=True)
class RowKind:
    """A kind of rows: its name, whether a row is one, and how a row is parsed.

    `parse` gives the documents of a row and its question; either may be lacking.
    """

    name: str
    recognises: Callable[[Mapping[str, object]], bool]
    parse: Callable[[InputRow], tuple[list[Document], Question | None]]


def document_row(row: InputRow) -> tuple[list[Document], None]:
    """A document; without an id, a hash of its content is the id."""
    title, text = row.text("title", required=False, blank=True), row.text("text")
    metadata = row.metadata(row.key, "title", "text")
    if row.key in row.values:
        return [Document(row.text(row.key), title, text, metadata=metadata)], None
    return [hashed_document(title, text, metadata)], None


def _is_hotpotqa(values: Mapping[str, object]) -> bool:
    return "supporting_facts" in values or isinstance(values.get("context"), list | dict)


ROW_KINDS = (
    RowKind("longbench", lambda values: "input" in values, longbench_row),
    RowKind("musique", lambda values: "paragraphs" in values, musique_row),
    RowKind("2wiki", lambda values: _is_hotpotqa(values) and "evidences" in values, hotpotqa_row),
    RowKind("hotpotqa", _is_hotpotqa, hotpotqa_row),
    RowKind("dpr", lambda values: {"question", "ctxs"} <= values.keys(), dpr_row),
    RowKind(
        "ragas",
        lambda values: "user_input" in values or {"question", "contexts"} <= values.keys(),
        ragas_row,
    ),
    RowKind("squad", lambda values: {"question", "context"} <= values.keys(), squad_row),
    RowKind(
        "questions",
        lambda values: "question" in values,
        lambda row: ([], question_row(row, needs_id=False)),
    ),
    RowKind("pairs", is_pair, pair_row),
    RowKind(
        "chunks",
        lambda values: "text" in values and bool({"document", "start"} & values.keys()),
        document_row,
    ),
    RowKind("documents", lambda values: "text" in values, document_row),
)


def recognised_rows(
    rows: Iterator[InputRow], path: Path, findings: Findings
) -> tuple[RowKind | None, Iterable[InputRow]]:
    """The kind of the first row that has one, and all rows; None and a problem if none has."""
    if is_trec_table(head_text(path)):
        findings.problems.add(path, TREC_TABLE)
        return None, ()
    inspected = []
    for row in rows:
        if len(inspected) < 1000:
            inspected.append(row)
        for kind in ROW_KINDS:
            if kind.recognises(row.values):
                _remark_others(kind, row, path, findings)
                return kind, itertools.chain(inspected, rows)
    if inspected:
        findings.problems.stop(path, _unknown_fields(inspected[0]), inspected[0].line)
    return None, ()


def _remark_others(kind: RowKind, row: InputRow, path: Path, findings: Findings) -> None:
    """Says if rows of one kind are rows of another kind too, and not a part of it."""
    parts = {"questions", "squad", "hotpotqa", *(["documents"] if kind.name == "chunks" else [])}
    later = ROW_KINDS[ROW_KINDS.index(kind) + 1 :]
    fit = [x.name for x in later if x.name not in parts and x.recognises(row.values)]
    if fit:
        message = f"its rows fit {' and '.join(fit)} too; they are read as {kind.name}"
        findings.remarks.add(path, message, rows=0)


def _unknown_fields(row: InputRow) -> str:
    """The problem of a row whose fields no known format has, and the fix."""
    fields = [name[:LONGEST_NAME] for name in list(row.columns or row.values)[:8]]
    known_fields = ("question", "answers") if len(fields) > 1 else ("text",)
    columns = (f"{known}={name}" for known, name in zip(known_fields, fields, strict=False))
    flag = shlex.quote(f"--columns={','.join(columns)}")
    return (
        f"no known format has rows with the fields {fields}; say which is which, such as "
        f"{flag} (config.data.columns), or give {KNOWN}"
    )


def read(path: Path, findings: Findings) -> Corpus:
    """Reads a file of any kind of rows that has documents."""
    return read_rows(path, rows_of(path, findings), findings)


def read_rows(path: Path, rows: Iterator[InputRow], findings: Findings) -> Corpus:
    """The corpus of rows of one kind; `path` is what problems name."""
    kind, rows = recognised_rows(rows, path, findings)
    if kind is None:
        return Corpus([], [], "", findings.remarks)
    if kind.name == "chunks":
        documents, chunks = read_chunks(rows, findings)
        return Corpus(documents, [], "chunks", findings.remarks, chunks)
    documents = Documents()
    if kind.name == "pairs":
        questions = read_pairs(rows, documents, findings)
        return complete_corpus(documents, questions, kind.name, findings)
    questions = list(parsed_rows(kind, rows, documents, findings))
    if kind.name == "questions" or (questions and not documents):
        message = (
            "holds questions and no documents; put them into a folder as questions.jsonl beside "
            "documents.jsonl or text files, or name both: `ark-jax init DOCUMENTS --questions=FILE`"
        )
        findings.problems.add(path, message)
    return complete_corpus(documents, questions, kind.name, findings)


def parsed_rows(
    kind: RowKind, rows: Iterable[InputRow], documents: Documents, findings: Findings
) -> Iterator[Question]:
    """Adds the documents of all good rows, and yields their questions."""
    lines: dict[str, int] = {}
    hashed_lines: dict[str, int] = {}
    for row in rows:
        row_documents, question = kind.parse(row)
        id = question.id if question else row_documents[0].id if row_documents else ""
        names_itself = row.key in row.values
        if row.ok and not names_itself and id in hashed_lines:
            row.remark_repeat(hashed_lines[id])
            findings.settle(row)
            continue
        if row.ok and names_itself and (question or kind.name == "documents"):
            row.claim_id(lines, row.key, id)
        elif row.ok:
            hashed_lines[id] = row.line
        if kind.name == "dpr":
            _check_passages(row, row_documents, documents)
        if findings.settle(row):
            for document in row_documents:
                documents.append(document)
            if question:
                yield question


def _check_passages(row: InputRow, passages: Iterable[Document], documents: Documents) -> None:
    """Reports passages whose id an earlier row gives to another text."""
    for passage in passages:
        if documents.texts.get(passage.id, passage.text) != passage.text:
            defect = f"{passage.id!r} has another text in an earlier row"
            row.add_problem("ctxs", defect, "give every passage its own id, or none")


def parsed_pairs(
    path: Path, findings: Findings, texts: Mapping[str, str]
) -> Iterator[tuple[InputRow, Question]]:
    """The rows of a file that hold a question, and the questions, without their contexts.

    Args:
        texts: document id -> text, of the documents that pairs are about.
    """
    kind, rows = recognised_rows(rows_of(path, findings), path, findings)
    if kind and kind.name in ("documents", "chunks"):
        message = "holds documents and no questions; give a file whose rows have question"
        findings.problems.add(path, message)
        return
    if kind and kind.name == "pairs":
        yield from pairs_on(rows, texts, findings)
        return
    for row in rows:
        _, question = kind.parse(row)
        if question:
            yield row, question
        else:
            findings.settle(row)


def _shard_files(folder: Path) -> list[Path]:
    """The Parquet and Arrow files below a folder, without hidden ones, in order."""
    return [
        path
        for path in sorted([*folder.rglob("*.parquet"), *folder.rglob("*.arrow")])
        if not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]


def read_shards(folder: Path, findings: Findings) -> Corpus:
    """Reads the files of a folder, such as one of the hub or of `datasets`, as one file."""
    rows = itertools.chain.from_iterable(rows_of(path, findings) for path in _shard_files(folder))
    return read_rows(folder, rows, findings)


ROWS = Format("", lambda path: not path.is_dir(), read)
SHARDS = Format(
    "", lambda path: path.is_dir() and bool(_shard_files(path)), read_shards, _shard_files
)
