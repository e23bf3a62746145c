"""The documents of an index and their chunks: given, cut, or taken over from an earlier index."""

import collections
import dataclasses
import hashlib
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ark_jax.data.chunk_files import ROWS, MappedChunks, save_chunks
from ark_jax.data.records import Chunk, Document
from ark_jax.pipeline.fingerprints import fingerprint
from ark_jax.retrieval.vector_files import KEY

DOCUMENTS_FILE = "documents.arrow"
GIVEN = ""  # digest of a document whose chunks were given: no later one may take them over
Cut = Callable[[Document], Iterable[Chunk]]


class Part(NamedTuple):
    """A document of an index and its chunks."""

    document: str
    digest: str
    chunks: Iterable[Chunk]


MakePart = Callable[[Document], Part]


class Stored:
    """The documents of an index, and their chunks."""

    def __init__(self, folder: Path):
        table = pa.ipc.open_file(pa.memory_map(str(folder / DOCUMENTS_FILE))).read_all()
        self._digests = table["digest"]
        self._rows = {name: row for row, name in enumerate(table["id"].to_pylist())}
        self._chunks = MappedChunks(folder)
        # The chunks of a document follow each other, and lie in the order of the documents.
        names = table["id"].cast(pa.large_string())
        rows = pc.index_in(self._chunks.documents(), value_set=names).to_numpy()
        self._ends = np.cumsum(np.bincount(rows, minlength=len(names)))

    def __iter__(self) -> Iterator[str]:
        """The ids of the documents, in order."""
        return iter(self._rows)

    def digest(self, document: str) -> str:
        """The digest of a document; empty if there is no such document."""
        row = self._rows.get(document)
        return GIVEN if row is None else self._digests[row].as_py()

    def part(self, document: str) -> Part:
        row = self._rows[document]
        start = self._ends[row - 1] if row else 0
        if not row % ROWS:
            self._chunks.forget()
        chunks = (self._chunks[int(i)] for i in range(start, self._ends[row]))
        return Part(document, self.digest(document), chunks)


def part_maker(
    chunks: Sequence[Chunk] | None, cutter: Callable[[], Cut], stored: Stored | None
) -> MakePart:
    """What gives a document its chunks: those of the corpus, stored ones, or new ones.

    Args:
        chunks: of the corpus; None if documents are to be cut.
        cutter: makes what cuts a document.
        stored: an index whose documents were cut by the same model and rules.
    """
    cut = cutter() if chunks is None else _given(chunks)

    def make(document: Document) -> Part:
        digest = GIVEN if chunks is not None else fingerprint(dataclasses.asdict(document))[:32]
        if stored and digest != GIVEN and stored.digest(document.id) == digest:
            return stored.part(document.id)
        return Part(document.id, digest, cut(document))

    return make


def _given(chunks: Sequence[Chunk]) -> Cut:
    rows = collections.defaultdict(list)
    for row, chunk in enumerate(chunks):
        rows[chunk.document].append(row)
    return lambda document: (chunks[row] for row in rows.get(document.id, ()))


def parts_of(documents: Iterable[Document], make: MakePart) -> Iterator[Part]:
    """The documents with their chunks.

    Raises:
        ValueError: an id occurs twice.
    """
    names = set()
    for document in documents:
        _check_new(document, names)
        names.add(document.id)
        yield make(document)


def with_parts(stored: Stored, documents: Sequence[Document], make: MakePart) -> Iterator[Part]:
    """The stored documents, of which those with the id of a new one are replaced, and then the
    other new ones.

    Raises:
        ValueError: an id occurs twice among the new ones.
    """
    rows: dict[str, int] = {}
    for row, document in enumerate(documents):
        _check_new(document, rows)
        rows[document.id] = row
    for name in stored:
        row = rows.pop(name, None)
        yield stored.part(name) if row is None else make(documents[row])
    for row in rows.values():
        yield make(documents[row])


def _check_new(document: Document, names: Container[str]) -> None:
    if document.id in names:
        raise ValueError(f"document {document.id!r} occurs twice; give each an id of its own")


def write_tables(folder: Path, parts: Iterable[Part]) -> tuple[int, np.ndarray]:
    """Writes chunks and documents; returns how many documents there are, and the chunks' keys."""
    names, digests, keys = [], [], bytearray()

    def chunks() -> Iterator[Chunk]:
        for part in parts:
            names.append(part.document)
            digests.append(part.digest)
            for chunk in part.chunks:
                keys.extend(_key(chunk.passage))
                yield chunk

    save_chunks(chunks(), folder)
    table = pa.table({"id": pa.array(names, pa.string()), "digest": pa.array(digests, pa.string())})
    with pa.ipc.new_file(folder / DOCUMENTS_FILE, table.schema) as file:
        file.write_table(table)
    return len(names), np.frombuffer(keys, KEY)


def _key(passage: str) -> bytes:
    return hashlib.blake2b(passage.encode(), digest_size=KEY.itemsize).digest()


def chunk_keys(chunks: MappedChunks) -> np.ndarray:
    """The keys of passages, S16 `[n]`, as `vector_files` asks for them."""
    keys = (_key(chunk.passage) for chunk in chunks)
    return np.fromiter(keys, KEY, len(chunks))
