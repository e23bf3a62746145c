"""The documents of an index and their chunks: given, cut, or reused from an earlier index."""

import collections
import dataclasses
import hashlib
import itertools
import operator
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ark_jax.data.records import Chunk, Document
from ark_jax.data.spool import StoredChunks, save_chunks
from ark_jax.data.text_columns import ROWS
from ark_jax.index.metadata import DOCUMENTS_FILE, FIELDS, typed_fields
from ark_jax.pipeline.fingerprints import fingerprint
from ark_jax.retrieval.vector_files import KEY

GIVEN = ""  # digest of a document whose chunks were given: they are never reused
Cut = Callable[[Iterable[Document]], Iterable[Chunk]]


class Part(NamedTuple):
    """A document of an index and its chunks."""

    document: str
    digest: str
    chunks: Iterable[Chunk]
    metadata: str = ""  # as of the document


class Uncut(NamedTuple):
    """A document whose chunks are to be cut."""

    document: Document
    digest: str


# Where the chunks of a document come from; a string is the id of a stored document that stays.
Source = str | Part | Uncut


def has_metadata(folder: Path) -> bool:
    """Whether the files of an index have the metadata of its documents."""
    file = pa.memory_map(str(folder / DOCUMENTS_FILE))
    return FIELDS in pa.ipc.open_file(file).schema.names


class Stored:
    """The documents of an index, and their chunks."""

    def __init__(self, folder: Path):
        table = pa.ipc.open_file(pa.memory_map(str(folder / DOCUMENTS_FILE))).read_all()
        self._table = table
        self._rows = {name: row for row, name in enumerate(table["id"].to_pylist())}
        self._chunks = StoredChunks(folder)
        # Chunks are stored in the order of their documents.
        names = table["id"].cast(pa.large_string())
        rows = pc.index_in(self._chunks.documents(), value_set=names).to_numpy()
        self._ends = np.cumsum(np.bincount(rows, minlength=len(names)))

    def __iter__(self) -> Iterator[str]:
        """The ids of the documents, in order."""
        return iter(self._rows)

    def digest(self, document: str) -> str:
        """The digest of a document; empty if there is no such document."""
        row = self._rows.get(document)
        return GIVEN if row is None else self._table["digest"][row].as_py()

    def part(self, document: str) -> Part:
        """A stored document, whose chunks are read one by one from disk."""
        row = self._rows[document]
        start = self._ends[row - 1] if row else 0
        if not row % ROWS:
            self._chunks.forget()
        chunks = (self._chunks[int(i)] for i in range(start, self._ends[row]))
        is_known = FIELDS in self._table.column_names
        metadata = self._table["metadata"][row].as_py() if is_known else ""
        return Part(document, self.digest(document), chunks, metadata)


def source_finder(
    chunks: Sequence[Chunk] | None, stored: Stored | None
) -> Callable[[Document], Source]:
    """Makes the function that finds where the chunks of a document come from.

    Args:
        chunks: of the corpus; None if documents are to be cut.
        stored: an index whose documents were cut by the same model and rules.
    """
    if chunks is not None:
        chunks_of = _chunks_by_document(chunks)
        return lambda document: Part(document.id, GIVEN, chunks_of(document), document.metadata)

    def find(document: Document) -> Source:
        row = dataclasses.asdict(document)
        metadata = row.pop("metadata")  # changes no chunk
        digest = fingerprint(row)[:32]
        if stored and stored.digest(document.id) == digest:
            return stored.part(document.id)._replace(metadata=metadata)
        return Uncut(document, digest)

    return find


def _chunks_by_document(chunks: Sequence[Chunk]) -> Callable[[Document], Iterable[Chunk]]:
    """Makes a function: document -> its chunks, read from `chunks` when they are needed."""
    rows = collections.defaultdict(list)
    for row, chunk in enumerate(chunks):
        rows[chunk.document].append(row)
    return lambda document: (chunks[row] for row in rows.get(document.id, ()))


def sources_of(
    documents: Iterable[Document], find: Callable[[Document], Source]
) -> Iterator[Source]:
    """The sources of documents.

    Raises:
        ValueError: an id occurs twice.
    """
    names = set()
    for document in documents:
        _check_unused(document, names)
        names.add(document.id)
        yield find(document)


def sources_with(
    stored: Stored, documents: Sequence[Document], find: Callable[[Document], Source]
) -> Iterator[Source]:
    """The sources of the stored documents, then of new ones.

    A new document replaces the stored one with its id.

    Raises:
        ValueError: an id occurs twice among the new documents.
    """
    rows: dict[str, int] = {}
    for row, document in enumerate(documents):
        _check_unused(document, rows)
        rows[document.id] = row
    for name in stored:
        row = rows.pop(name, None)
        yield name if row is None else find(documents[row])
    for row in rows.values():
        yield find(documents[row])


def parts_of(sources: Iterable[Source], stored: Stored | None, cut: Cut | None) -> Iterator[Part]:
    """The documents of the sources with their chunks; each part is read before the next.

    Args:
        stored: the earlier index of stored documents.
        cut: the chunks of documents, in order; None if no document is to be cut.
    """
    to_part = lambda source: stored.part(source) if isinstance(source, str) else source
    if cut is None:
        yield from map(to_part, sources)
        return
    waiting: collections.deque[str | Part] = (
        collections.deque()
    )  # parts whose turn comes after chunks that are being cut

    def uncut() -> Iterator[Document]:
        """Yields documents to cut; puts every source into `waiting`, in order."""
        for source in sources:
            if isinstance(source, Uncut):
                document = source.document
                waiting.append(Part(document.id, source.digest, (), document.metadata))
                yield source.document
            else:
                waiting.append(source)

    for name, chunks in itertools.groupby(cut(uncut()), operator.attrgetter("document")):
        while (part := to_part(waiting.popleft())).document != name:
            yield part
        yield part._replace(chunks=chunks)
    while waiting:
        yield to_part(waiting.popleft())


def _check_unused(document: Document, names: Container[str]) -> None:
    """Raises ValueError if the document's id is among the names."""
    if document.id in names:
        raise ValueError(f"document {document.id!r} occurs twice; give each an id of its own")


def write_tables(folder: Path, parts: Iterable[Part]) -> tuple[int, np.ndarray]:
    """Writes chunks and documents; returns the number of documents and the chunks' keys `[n]`."""
    names, digests, counts, metadata, keys = [], [], [], [], bytearray()

    def chunks() -> Iterator[Chunk]:
        for part in parts:
            names.append(part.document)
            digests.append(part.digest)
            metadata.append(part.metadata)
            start = len(keys)
            for chunk in part.chunks:
                keys.extend(_passage_key(chunk.passage))
                yield chunk
            counts.append((len(keys) - start) // KEY.itemsize)

    save_chunks(chunks(), folder)
    table = pa.table(
        {
            "id": pa.array(names, pa.string()),
            "digest": pa.array(digests, pa.string()),
            "chunks": pa.array(counts, pa.int64()),
            "metadata": pa.array(metadata, pa.large_string()),
            FIELDS: typed_fields(metadata),
        }
    )
    with pa.ipc.new_file(folder / DOCUMENTS_FILE, table.schema) as file:
        file.write_table(table)
    return len(names), np.frombuffer(keys, KEY)


def _passage_key(passage: str) -> bytes:
    """The digest by which the vector of a passage is found again."""
    return hashlib.blake2b(passage.encode(), digest_size=KEY.itemsize).digest()


def chunk_keys(chunks: StoredChunks) -> np.ndarray:
    """The keys of passages, S16 `[n]`, as `vector_files` takes them."""
    keys = (_passage_key(chunk.passage) for chunk in chunks)
    return np.fromiter(keys, KEY, len(chunks))
