"""Entities and triples that HippoRAG extracted, from its file `openie_results_*.json`."""

import functools
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ark_jax.data.records import Chunk, Document
from ark_jax.data.text_columns import LookedUp
from ark_jax.graph.store import fold
from ark_jax.text.word_boundaries import whole_word_pattern

RECORDS = ("extracted_entities", "extracted_triples")


class _Entry(NamedTuple):
    """An entry of the file, as strings: they take a fraction of the memory of its lists."""

    digests: list[str]  # of its passage and text
    records: str  # JSON: its lists RECORDS


def recorded_replies(
    path: Path, documents: Iterable[Document], chunks: Mapping[str, Sequence[Chunk]]
) -> Mapping[str, str]:
    """Reads HippoRAG's file as replies for `extract.parse_reply`, so that malformed records are
    quarantined.

    The file is `{"docs": [{"text" or "passage", "extracted_entities": [name], "extracted_triples":
    [[head, relation, tail]]}]}`. A passage is a document's text, with or without the title in a
    line above. If a document has several chunks, each record goes to the first chunk that contains
    its entity or head (as a whole word if possible), or to the first chunk of all if none does.

    Returns:
        chunk id -> reply, which is made on access.

    Raises:
        ValueError: the file has another form or lacks a document.
    """
    by_digest: dict[str, _Entry] = {}
    for number, entry in enumerate(_entries(path), 1):
        if not isinstance(entry, _Entry):
            raise _entry_error(entry, f"{path}: docs, entry {number}")
        by_digest.update(dict.fromkeys(entry.digests, entry))
    entries = {}
    for document in documents:
        with_title = f"{document.title}\n{document.text}"
        entry = by_digest.get(_text_digest(document.text)) or by_digest.get(
            _text_digest(with_title)
        )
        if entry is None:
            raise ValueError(
                f"{path}: no entry for document {document.id!r} ({document.text[:60]!r}...); "
                "extract it too, or name it in config.data.ignored_documents"
            )
        entries[document.id] = entry
    document_of = {chunk.id: document for document in entries for chunk in chunks.get(document, ())}
    # One document is cached, since its chunks follow one another.
    document_replies = functools.lru_cache(maxsize=1)(
        lambda document: _chunk_replies(entries[document], chunks[document])
    )
    return LookedUp(document_of, lambda chunk: document_replies(document_of[chunk])[chunk])


def _entries(path: Path) -> list:
    """The items of the file's list "docs", see `_entry_or_object`."""
    try:
        text = path.expanduser().read_text(encoding="utf-8-sig")
        value = json.loads(text, object_hook=_entry_or_object)
    except FileNotFoundError:
        raise ValueError(f"config.graph.openie: {path} does not exist; mend the path") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(
            f"config.graph.openie: {path} cannot be read as JSON ({error}); copy the file again"
        ) from None
    if not isinstance(value, dict) or not isinstance(value.get("docs"), list):
        raise ValueError(
            f'{path}: no list "docs"; config.graph.openie takes HippoRAG\'s openie_results_*.json'
        )
    return value["docs"]


def _entry_or_object(value: dict) -> dict | _Entry:
    """Turns an object of the file into an entry while JSON is parsed; others stay as they are."""
    texts, records = _entry_texts(value), [value.get(name) for name in RECORDS]
    if not texts or not all(isinstance(rows, list) for rows in records):
        return value
    return _Entry(list(map(_text_digest, texts)), json.dumps(records))


def _entry_texts(entry: dict) -> list[str]:
    """The passage and text that an entry has."""
    return [entry[name] for name in ("passage", "text") if isinstance(entry.get(name), str)]


def _entry_error(value: object, place: str) -> ValueError:
    """The error for an object of the file that is not an entry, which says why."""
    if not isinstance(value, dict) or not _entry_texts(value):
        return ValueError(f"{place}: no text and no passage; see config.graph.openie")
    name = next(name for name in RECORDS if not isinstance(value.get(name), list))
    return ValueError(f"{place}: {name} is not a list; write [] where there is nothing")


def _text_digest(text: str) -> str:
    """The SHA-256 of a text; spacing does not count."""
    return hashlib.sha256(" ".join(text.split()).encode(errors="surrogatepass")).hexdigest()


def _chunk_replies(entry: _Entry, chunks: Sequence[Chunk]) -> dict[str, str]:
    """Distributes an entry's records over the chunks of its document, as JSON."""
    entities, triples = json.loads(entry.records)
    records = {chunk.id: {"entities": [], "triples": []} for chunk in chunks}
    texts = {chunk.id: fold(chunk.text) for chunk in chunks}

    def chunk_with(name: object) -> str:
        """The id of the chunk that a record with this name goes to."""
        folded = fold(name) if isinstance(name, str) else ""
        matches = [id for id, text in texts.items() if folded and folded in text]
        if len(matches) > 1:
            pattern = whole_word_pattern(folded)
            matches = [id for id in matches if re.search(pattern, texts[id])] or matches
        return matches[0] if matches else chunks[0].id

    for name in entities:
        record = {"name": name, "type": "entity", "description": ""}
        records[chunk_with(name)]["entities"].append(record)
    for triple in triples:
        head = triple[0] if isinstance(triple, list) and triple else None
        records[chunk_with(head)]["triples"].append(triple)
    return {id: json.dumps(record, ensure_ascii=False) for id, record in records.items()}
