"""BEIR: a folder with corpus.jsonl, queries.jsonl and relevance judgments in qrels/*.tsv."""

import collections
import csv
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

from ark_jax.data.formats.base import (
    COLUMNS,
    Format,
    complete_corpus,
    read_benchmark,
    relevant_grades,
)
from ark_jax.data.formats.questions import check_questions
from ark_jax.data.json_files import json_rows
from ark_jax.data.problems import Findings
from ark_jax.data.records import Corpus, Document, Question
from ark_jax.data.rows import InputRow
from ark_jax.data.spool import Documents
from ark_jax.data.table_files import csv_rows


def recognises(path: Path) -> bool:
    """Whether a path is a folder with corpus.jsonl, or qrels/SPLIT.tsv in one."""
    return (_root_and_judgments(path)[0] / "corpus.jsonl").exists()


def _root_and_judgments(path: Path) -> tuple[Path, list[Path]]:
    """The folder, and its files of judgments: all, or the one that the path names."""
    if path.parent.name == "qrels" and path.suffix == ".tsv":
        return path.parent.parent, [path]
    return path, sorted((path / "qrels").glob("*.tsv"))


def files(path: Path) -> list[Path]:
    """The files that `read` opens, in order."""
    root, judgments = _root_and_judgments(path)
    queries = [root / "queries.jsonl"] if _has_queries(root, judgments) else []
    return [root / "corpus.jsonl", *queries, *judgments]


def _has_queries(root: Path, judgments: list[Path]) -> bool:
    """Whether queries are expected: a folder may also hold a corpus alone."""
    return (root / "queries.jsonl").exists() or bool(judgments)


def read(path: Path, findings: Findings) -> Corpus:
    """Reads the folder with the judgments of all splits, or those of qrels/SPLIT.tsv.

    The documents of a query are those with a score above 0. A document without text has its title
    for text; one without both stays, as in BEIR. `metadata` of a query may hold answers and
    evidence; a query without them and without a relevant document is passed over.
    """
    root, judgments = _root_and_judgments(path)
    place = root / "corpus.jsonl"
    rows = json_rows(place, findings)
    documents, lines = read_benchmark(rows, _beir_document, "_id", place, findings)
    questions = []
    if _has_queries(root, judgments):
        questions = read_queries(path, findings, documents.texts, lines, documents)
    return complete_corpus(documents, questions, BEIR.name, findings)


def _beir_document(row: InputRow) -> Document:
    """The document of a row; without text its title is the text."""
    title = row.text("title", required=False, blank=True)
    metadata = row.metadata("_id", "title", "text")
    if title.strip() and row.values.get("text") == "":
        return Document(row.text("_id"), "", title, metadata=metadata)
    # A missing text is a problem, an empty one is none.
    is_empty = str(row.values.get("text")).strip() == ""
    text = "" if is_empty else row.text("text")
    return Document(row.text("_id"), title, text, metadata=metadata)


def read_queries(
    path: Path, findings: Findings, texts, claimed, corpus: Documents | None = None
) -> list[Question]:
    """The queries with their relevant documents.

    Args:
        path: the folder, or qrels/SPLIT.tsv in it.
        claimed: the ids of all documents of the input, those with problems too.
        corpus: the documents of the input, to which judged ones that it lacks are added. None:
            these are problems.
    """
    root, judgments = _root_and_judgments(path)
    if len(judgments) > 1:
        names = ", ".join(file.stem for file in judgments)
        message = f"holds the splits {names}; all are read, and qrels/SPLIT.tsv names one"
        findings.remarks.add(root / "qrels", message)
    rows = ((row, _parse_query(row)) for row in json_rows(root / "queries.jsonl", findings))
    judged, place = _judgments(judgments, findings), root / "qrels"
    relevant = relevant_grades(judged, findings, place, claimed, corpus, "corpus.jsonl")
    queries, passed_over = {}, 0
    pairs = []
    for row, question in rows:
        queries[question.id] = row.line
        documents = tuple(relevant.get(question.id, ()))
        if row.ok and not (documents or question.answers or question.evidence):
            passed_over += 1
            continue
        pairs.append((row, dataclasses.replace(question, documents=documents)))
    if passed_over:
        message = f"{passed_over:,} queries have no relevant document; they are passed over"
        findings.remarks.add(root / "queries.jsonl", message, rows=passed_over)
    if queries and (unknown := [id for id in relevant if id not in queries]):
        message = (
            f"{len(unknown):,} queries of qrels, such as {unknown[0]!r}, are not found; add them"
        )
        findings.problems.add(root / "queries.jsonl", message)
    claimed = claimed if corpus is None else collections.ChainMap(corpus.rows, claimed)
    return check_questions(pairs, findings, texts, claimed, "corpus.jsonl")


def _parse_query(row: InputRow) -> Question:
    """The query of a row, without documents."""
    metadata = row.values.get("metadata")
    part = InputRow(row.file, row.line, metadata if isinstance(metadata, dict) else {}, row.unit)
    lists = [part.texts(name) if part.values.get(name) else () for name in ("answers", "evidence")]
    question = Question(row.text("_id"), row.text("text"), lists[0], (), lists[1], part.group)
    row.problems += part.problems
    return question


def read_grades(path: Path) -> dict[str, dict[str, int]]:
    """query id -> relevant document -> its grade, from 1 on; bad rows are passed over."""
    return relevant_grades(_judgments(_root_and_judgments(path)[1], Findings()), Findings(), path)


def _judgments(paths: list[Path], findings: Findings) -> Iterator[InputRow]:
    """The rows of files of judgments."""
    for path in paths:
        yield from csv_rows(path, COLUMNS, findings, delimiter="\t")


BEIR = Format("beir", recognises, read, files, grades=read_grades)


def write_beir(corpus: Corpus, folder: Path, split: str = "test") -> None:
    """Writes corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv, which our reader takes too.

    The documents of a question have the score 1. Its answers and evidence go to the `metadata` of
    the query. Headings and chunks have no place in this format.
    """
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    with (folder / "corpus.jsonl").open("w", encoding="utf-8") as file:
        for document in corpus.documents:
            row = {"_id": document.id, "title": document.title, "text": document.text}
            row["metadata"] = json.loads(document.metadata or "{}")
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    with (folder / "queries.jsonl").open("w", encoding="utf-8") as file:
        for question in corpus.questions:
            metadata = {"answers": question.answers, "evidence": question.evidence}
            row = {"_id": question.id, "text": question.question, "metadata": metadata}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    path = folder / "qrels" / f"{split}.tsv"
    ids = (id for question in corpus.questions for id in (question.id, *question.documents))
    # The csv module writes a carriage return without quotes, and readers end the line there.
    quoting = csv.QUOTE_ALL if any("\r" in id for id in ids) else csv.QUOTE_MINIMAL
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter="\t", lineterminator="\n", quoting=quoting)
        writer.writerow(["query-id", "corpus-id", "score"])
        for question in corpus.questions:
            writer.writerows([question.id, document, 1] for document in question.documents)
