"""Entities and triples that HippoRAG extracted, from its file `openie_results_*.json`."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from ark_jax.data.records import Chunk, Document
from ark_jax.graph.store import fold
from ark_jax.text.word_boundaries import whole_word_pattern


def recorded_replies(
    path: Path, documents: Sequence[Document], chunks: Mapping[str, Sequence[Chunk]]
) -> dict[str, str]:
    """Reads HippoRAG's file as replies for `extract.parse_reply`, so that malformed records are
    quarantined.

    The file is `{"docs": [{"text" or "passage", "extracted_entities": [name], "extracted_triples":
    [[head, relation, tail]]}]}`. A passage is a document's text, with or without the title in a
    line above. If a document has several chunks, each record goes to the first chunk that contains
    its entity or head (as a whole word if possible), or to the first chunk of all if none does.

    Args:
        path: the file.
        documents: documents that the file must contain.
        chunks: document id -> its chunks.

    Returns:
        chunk id -> reply.

    Raises:
        ValueError: the file has another form or lacks a document.
    """
    entries: dict[str, dict] = {}
    for number, entry in enumerate(_entries(path), 1):
        _check_entry(entry, f"{path}: docs, entry {number}")
        for name in ("passage", "text"):
            if isinstance(entry.get(name), str):
                entries[_normalised(entry[name])] = entry
    texts = {}
    for document in documents:
        with_title = f"{document.title}\n{document.text}"
        entry = entries.get(_normalised(document.text)) or entries.get(_normalised(with_title))
        if entry is None:
            raise ValueError(
                f"{path}: nothing on document {document.id!r} ({document.text[:60]!r}...); "
                "extract it too, or name it in config.data.ignored_documents"
            )
        texts |= _chunk_replies(entry, chunks.get(document.id, ()))
    return texts


def _entries(path: Path) -> list:
    try:
        value = json.loads(path.expanduser().read_text(encoding="utf-8-sig"))
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


def _check_entry(entry: object, place: str) -> None:
    if not isinstance(entry, dict) or not any(
        isinstance(entry.get(name), str) for name in ("text", "passage")
    ):
        raise ValueError(f"{place}: no text and no passage; see config.graph.openie")
    for name in ("extracted_entities", "extracted_triples"):
        if not isinstance(entry.get(name), list):
            raise ValueError(f"{place}: {name} is not a list; write [] where there is nothing")


def _normalised(text: str) -> str:
    return " ".join(text.split())


def _chunk_replies(entry: Mapping, chunks: Sequence[Chunk]) -> dict[str, str]:
    """Distributes an entry's records over the chunks of its document, as JSON."""
    if not chunks:
        return {}
    records = {chunk.id: {"entities": [], "triples": []} for chunk in chunks}
    texts = {chunk.id: fold(chunk.text) for chunk in chunks}

    def chunk_with(name: object) -> str:
        folded = fold(name) if isinstance(name, str) else ""
        matches = [id for id, text in texts.items() if folded and folded in text]
        if len(matches) > 1:
            pattern = whole_word_pattern(folded)
            matches = [id for id in matches if re.search(pattern, texts[id])] or matches
        return matches[0] if matches else chunks[0].id

    for name in entry["extracted_entities"]:
        record = {"name": name, "type": "entity", "description": ""}
        records[chunk_with(name)]["entities"].append(record)
    for triple in entry["extracted_triples"]:
        head = triple[0] if isinstance(triple, list) and triple else None
        records[chunk_with(head)]["triples"].append(triple)
    return {id: json.dumps(record, ensure_ascii=False) for id, record in records.items()}
