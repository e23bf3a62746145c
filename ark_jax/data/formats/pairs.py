"""Pairs and triplets: a question with texts that are relevant to it, and others that are not."""

import dataclasses
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from ark_jax.data.formats.base import (
    Format,
    complete_corpus,
    document_ids,
    hashed_document,
    hashed_id,
    row_id,
)
from ark_jax.data.problems import Findings
from ark_jax.data.records import Corpus, Document, Question
from ark_jax.data.rows import InputRow, text_fault
from ark_jax.data.spool import Documents
from ark_jax.data.text_files import filled_lines, head_text

# Names of sentence-transformers and of FlagEmbedding; those of MS MARCO mix them.
QUESTION_FIELDS = ("anchor", "query")
POSITIVE_FIELDS = ("positive", "pos")
_NEGATIVE_FIELD = re.compile(r"neg|negative(_\d+)?")
SENTENCE_WORDS = 4  # more than names of relations and entities have, in the median


def is_pair(values: Mapping[str, object]) -> bool:
    """Whether a row has a question and a positive."""
    return all(
        any(name in values for name in names) for names in (QUESTION_FIELDS, POSITIVE_FIELDS)
    )


def pair_row(row: InputRow) -> tuple[list[Document], Question]:
    """The texts of a row as documents, and a question whose documents are its positives."""
    question = row.text(_present_field(row, QUESTION_FIELDS))
    positives = _field_documents(row, _present_field(row, POSITIVE_FIELDS))
    fields = [name for name in row.values if _NEGATIVE_FIELD.fullmatch(name)]
    negatives = [document for name in fields for document in _field_documents(row, name)]
    if row.ok and not positives:
        row.add_problem(_present_field(row, POSITIVE_FIELDS), "is empty", "give a text")
    id = row_id(row, question)
    documents, others = document_ids(positives), document_ids(negatives)
    pair = Question(id, question, (), documents, (), row.group, others)
    return [*positives, *negatives], pair


def _present_field(row: InputRow, names: tuple[str, ...]) -> str:
    """The first of these fields that the row has, or else the first of all."""
    return next((name for name in names if name in row.values), names[0])


def _field_documents(row: InputRow, field: str) -> list[Document]:
    """A document for each text of a field, which is a string or a list of strings."""
    is_list = isinstance(row.values.get(field), list)
    texts = row.texts(field, required=False) if is_list else (row.text(field),)
    return [hashed_document("", text) for text in texts if text]


def read_pairs(
    rows: Iterable[InputRow], documents: Documents, findings: Findings
) -> list[Question]:
    """Adds the texts of all good rows to the documents; returns the questions, each once."""

    def parsed() -> Iterator[tuple[InputRow, Question]]:
        """Yields questions; adds the texts of a row once it is known to be good."""
        for row in rows:
            row_documents, question = pair_row(row)
            yield row, question
            if row.ok:  # it is settled by now
                for document in row_documents:
                    documents.append(document)

    return [question for _, question in _merged_pairs(parsed(), findings)]


def pairs_on(
    rows: Iterable[InputRow], texts: Mapping[str, str], findings: Findings
) -> list[tuple[InputRow, Question]]:
    """The questions, each once and with its first row, on the documents of a corpus.

    A row names a document by its text or by its id.
    """
    ids: dict[str, str] = {}  # hash of a text -> the first document with it
    for id, text in texts.items():
        ids.setdefault(hashed_id(text), id)

    def placed() -> Iterator[tuple[InputRow, Question]]:
        """Yields questions with ids of the corpus; a text that it lacks is a problem."""
        for row in rows:
            row_documents, question = pair_row(row)
            known = {x.id: x.text if x.text in texts else ids.get(x.id) for x in row_documents}
            for document in row_documents:
                if texts and known[document.id] is None:
                    defect = f"{document.text[:60]!r} is neither text nor id of a document"
                    fix = "add it to the corpus, or read the pairs without one"
                    row.add_problem(_present_field(row, POSITIVE_FIELDS), defect, fix)
            documents, negatives = (
                tuple(dict.fromkeys(map(known.get, names)))
                for names in (question.documents, question.negatives)
            )
            yield row, dataclasses.replace(question, documents=documents, negatives=negatives)

    return _merged_pairs(placed(), findings)


def _merged_pairs(
    pairs: Iterable[tuple[InputRow, Question]], findings: Findings
) -> list[tuple[InputRow, Question]]:
    """The questions of all good rows, each once and with its first row.

    Rows that ask the same are one question, for a positive of one row must not be a negative of
    the other. A text that is both is a positive.
    """
    merged: dict[str, tuple[InputRow, Question]] = {}
    lines: dict[str, int] = {}
    for row, question in pairs:
        first = merged.get(question.question)
        if not first:
            row.claim_id(lines, row.key, question.id)
        if findings.settle(row):
            if first:
                row, known = first
                question = dataclasses.replace(
                    known,
                    documents=tuple(dict.fromkeys((*known.documents, *question.documents))),
                    negatives=tuple(dict.fromkeys((*known.negatives, *question.negatives))),
                )
            merged[question.question] = row, question
    negatives = lambda x: tuple(id for id in x.negatives if id not in x.documents)
    return [(row, dataclasses.replace(x, negatives=negatives(x))) for row, x in merged.values()]


def are_triples_of_sentences(path: Path) -> bool:
    """Whether a file without a header has lines of question, positive and negative, tabs between.

    Lines of a graph have three fields too; theirs are short names.
    """
    if path.suffix not in ("", ".txt", ".tsv"):
        return False
    lines = [line.split("\t") for line in head_text(path).splitlines()[:20] if line.strip()]
    # The last of several lines may be incomplete.
    lines = lines[:-1] or lines
    if not lines or any(len(fields) != 3 for fields in lines):
        return False
    counts = [len(text.split()) for fields in lines for text in fields[1:]]
    # The first line may name columns.
    return min(*counts[:2], statistics.median(counts)) >= SENTENCE_WORDS


def _triplet_rows(path: Path, findings: Findings) -> Iterator[InputRow]:
    """Lines of question, positive and negative, tabs between, as rows."""
    for number, line in filled_lines(path, findings):
        findings.problems.rows += 1
        fields = line.split("\t")
        if len(fields) != 3 or any(map(text_fault, fields)):
            message = f"{len(fields)} field(s); write question, positive and negative, tabs between"
            findings.problems.add(path, message, number)
            continue
        yield InputRow(str(path), number, dict(zip(("query", "pos", "neg"), fields, strict=True)))


def read(path: Path, findings: Findings) -> Corpus:
    """Reads a file of triples of sentences, as MS MARCO has them."""
    documents = Documents()
    questions = read_pairs(_triplet_rows(path, findings), documents, findings)
    return complete_corpus(documents, questions, TRIPLES.name, findings)


TRIPLES = Format("triplets", lambda path: path.is_file() and are_triples_of_sentences(path), read)
