"""Chunks that were cut before, such as the chunks of a vector database."""

import dataclasses
import json
from collections.abc import Iterable

from ark_jax.data.problems import Findings
from ark_jax.data.records import Chunk, Document, metadata_json
from ark_jax.data.rows import InputRow
from ark_jax.data.spool import Documents, Spool

LONGEST_GAP = 1_000_000  # characters; more is a mistake
FIELDS = ("id", "document", "start", "end", "start_index", "tokens", "title", "text")
_GAP = "\ud800"  # no text of a row has it
SEPARATOR = "\n\n"  # separates chunks of one document that do not say where they start


def chunk_row(row: InputRow) -> tuple[Chunk, int | None]:
    """A chunk that starts at 0, and its start in the document if the row says it.

    Without a document, the chunk is a document of its own. Its length in tokens is not known yet.
    """
    id, text = row.text("id"), row.text("text")
    document = row.text("document", required=False) or id
    title = row.text("title", required=False, blank=True)
    start, end = row.offset("start"), row.offset("end")
    if start is not None and end is not None and end - start != len(text):
        defect = f"is {end}, but the text has {len(text):,} characters from {start} on"
        row.add_problem("end", defect, "count characters, not bytes, of the text as it is")
    return Chunk(id, document, 0, len(text), 0, text, title), start


def read_chunks(rows: Iterable[InputRow], findings: Findings) -> tuple[Documents, Spool]:
    """Chunks without their documents, which are joined from them in the order of the rows.

    A document is what its chunks cover. A gap between two chunks becomes blank lines, and chunks
    that do not say where they start follow one another with a blank line between them. Its metadata
    are the fields that are alike in all of its chunks.
    """
    lines: dict[str, int] = {}
    chunks = Spool(Chunk)
    texts: dict[str, str] = {}
    titles: dict[str, str] = {}
    metadata: dict[str, dict] = {}
    for row in rows:
        chunk, start = chunk_row(row)
        row.claim_id(lines, "id", chunk.id)
        if row.ok:
            text, start = _insert_chunk(texts.get(chunk.document, ""), chunk.text, start, row)
        if findings.settle(row):
            texts[chunk.document] = text
            titles.setdefault(chunk.document, chunk.title)
            further = json.loads(row.metadata(*FIELDS) or "{}")
            alike = metadata.setdefault(chunk.document, further).items()
            metadata[chunk.document] = {x: y for x, y in alike if further.get(x) == y}
            chunks.append(_moved_to(chunk, start))
    documents = Documents()
    for id, text in texts.items():
        facts = metadata_json(metadata[id])
        documents.append(Document(id, titles[id], text.replace(_GAP, "\n"), metadata=facts))
    return documents, chunks


def _insert_chunk(known: str, text: str, start: int | None, row: InputRow) -> tuple[str, int]:
    """Inserts a chunk into the text of its document."""
    if start is None:
        start = len(known) + len(SEPARATOR) if known else 0
    if start > len(known) + LONGEST_GAP:
        defect = f"{start} is far behind the chunks before it"
        row.add_problem("start", defect, "count characters from the start of the document")
        return known, start
    padded = known.ljust(start, _GAP)
    overlap = min(len(padded) - start, len(text))
    if any(a not in (b, _GAP) for a, b in zip(padded[start:], text, strict=False)):
        defect = f"{start} is inside an earlier chunk of the document with other text"
        row.add_problem("start", defect, "mend it, or add documents.jsonl")
    return padded[:start] + text + padded[start + overlap :], start


def _moved_to(chunk: Chunk, start: int) -> Chunk:
    """The chunk with other offsets."""
    return dataclasses.replace(chunk, start=start, end=start + len(chunk.text))


def place_chunks(
    rows: Iterable[InputRow], documents: Documents, claimed: dict[str, int], findings: Findings
) -> Spool:
    """Chunks of known documents; each must be where its row says, or is found by its text.

    Args:
        claimed: the ids of all documents of the input, those with problems too.
    """
    lines: dict[str, int] = {}
    latest: dict[str, int] = {}
    chunks = Spool(Chunk)
    for row in rows:
        chunk, start = chunk_row(row)
        row.claim_id(lines, "id", chunk.id)
        if row.ok and chunk.document not in claimed:
            defect = f"{chunk.document!r} is not found among the documents"
            row.add_problem("document", defect, "add that document or mend the id")
        if not row.ok or chunk.document not in documents.texts:
            findings.settle(row)
            continue
        text = documents.texts[chunk.document]
        if start is None:
            start = text.find(chunk.text, latest.get(chunk.document, 0))
            start = text.find(chunk.text) if start < 0 else start
        if start < 0 or not text.startswith(chunk.text, start):
            words = " ".join(chunk.text.split())[:60]
            defect = f"is not found in the document {chunk.document!r} ({words!r})"
            row.add_problem("text", defect, "quote the document letter by letter")
        if findings.settle(row):
            latest[chunk.document] = start
            chunks.append(_moved_to(chunk, start))
    return chunks
