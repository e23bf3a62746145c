"""Records that another system extracted: the JSON that HippoRAG keeps of its open information extraction."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from ark_jax.data.records import Chunk, Document
from ark_jax.data.words import whole
from ark_jax.graph.store import fold


def replies(path: Path, documents: Sequence[Document], chunks: Mapping[str, Sequence[Chunk]]) -> dict[str, str]:
    """chunk id -> what the file says of it, as a reply that `extract.parse` reads: what is malformed goes where a model's goes.

    The file is `{"docs": [{"text" or "passage", "extracted_entities": [name], "extracted_triples": [[head, relation, tail]]}]}`;
    a passage is a document's text, with or without its title in a line above. Of a document in several chunks, a chunk has what
    is named in it, and the first one what is named in none.

    Raises:
        ValueError: a file of another form, or one that lacks a document that has chunks.
    """
    known: dict[str, dict] = {}
    for number, row in enumerate(_rows(path), 1):
        if not isinstance(row, dict) or not any(isinstance(row.get(name), str) for name in ("text", "passage")):
            raise ValueError(f"{path}: docs, entry {number}: no text and no passage; see config.graph.openie")
        for name in ("extracted_entities", "extracted_triples"):
            if not isinstance(row.get(name), list):
                raise ValueError(f"{path}: docs, entry {number}: {name} is not a list; write [] where there is nothing")
        for name in ("passage", "text"):
            if isinstance(row.get(name), str):
                known[_plain(row[name])] = row
    out = {}
    for document in documents:
        row = known.get(_plain(document.text)) or known.get(_plain(f"{document.title}\n{document.text}"))
        if row is None:
            raise ValueError(f"{path}: nothing on document {document.id!r} ({document.text[:60]!r}...); extract it too, or name "
                             "it in config.data.ignored_documents")
        out |= _shared_out(row, chunks.get(document.id, ()))
    return out


def _rows(path: Path) -> list:
    try:
        value = json.loads(path.expanduser().read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise ValueError(f"config.graph.openie: {path} does not exist; mend the path") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"config.graph.openie: {path} cannot be read as JSON ({error}); copy the file again") from None
    if not isinstance(value, dict) or not isinstance(value.get("docs"), list):
        raise ValueError(f"{path}: no list \"docs\"; config.graph.openie takes what HippoRAG writes as openie_results_*.json")
    return value["docs"]


def _plain(text: str) -> str:
    return " ".join(text.split())


def _shared_out(row: Mapping, chunks: Sequence[Chunk]) -> dict[str, str]:
    """What an entry says, for each chunk of its document."""
    held = {x.id: {"entities": [], "triples": []} for x in chunks}
    texts = {x.id: fold(x.text) for x in chunks}

    def holding(name: object) -> str:
        key = fold(name) if isinstance(name, str) else ""
        found = [id for id, text in texts.items() if key and key in text]
        words = [id for id in found if re.search(whole(key), texts[id])] if len(found) > 1 else []
        return next(iter([*words, *found, *held]))

    if held:
        for name in row["extracted_entities"]:
            held[holding(name)]["entities"].append({"name": name, "type": "entity", "description": ""})
        for triple in row["extracted_triples"]:
            held[holding(triple[0] if isinstance(triple, list) and triple else None)]["triples"].append(triple)
    return {id: json.dumps(some, ensure_ascii=False) for id, some in held.items()}
