"""The documents of an index and their chunks: given, cut, or taken over from an earlier index."""

import collections
import dataclasses
import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ark_jax.data.chunk_files import MappedChunks, save_chunks
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


class Stored:
    """The documents of an index, and their chunks."""

    def __init__(self, folder: Path):
        table = pa.ipc.open_file(pa.memory_map(str(folder / DOCUMENTS_FILE))).read_all()
        self.digests = dict(zip(*(column.to_pylist() for column in table.columns), strict=True))
        self._chunks = MappedChunks(folder)
        self._rows: dict[str, list[int]] = collections.defaultdict(list)
        for row, document in enumerate(self._chunks.documents()):
            self._rows[document].append(row)

    def part(self, document: str) -> Part:
        chunks = (self._chunks[row] for row in self._rows.get(document, ()))
        return Part(document, self.digests[document], chunks)


def parts_of(
    documents: Iterable[Document],
    chunks: Sequence[Chunk] | None,
    cutter: Callable[[], Cut],
    stored: Stored | None,
) -> Iterator[Part]:
    """The documents with their chunks: those that are given, stored ones, or new ones.

    Args:
        chunks: of all documents; None if they are to be cut.
        cutter: makes what cuts a document.
        stored: an index whose documents were cut by the same model and rules.

    Raises:
        ValueError: an id occurs twice.
    """
    cut = cutter() if chunks is None else _given(chunks)
    known = stored.digests if stored else {}
    seen = set()
    for document in documents:
        if document.id in seen:
            raise ValueError(f"document {document.id!r} occurs twice; give each an id of its own")
        seen.add(document.id)
        digest = GIVEN if chunks is not None else fingerprint(dataclasses.asdict(document))[:32]
        if stored and digest != GIVEN and known.get(document.id) == digest:
            yield stored.part(document.id)
        else:
            yield Part(document.id, digest, cut(document))


def _given(chunks: Sequence[Chunk]) -> Cut:
    rows = collections.defaultdict(list)
    for row, chunk in enumerate(chunks):
        rows[chunk.document].append(row)
    return lambda document: (chunks[row] for row in rows.get(document.id, ()))


def with_parts(stored: Stored, new: Iterable[Part], names: Collection[str]) -> Iterator[Part]:
    """The stored documents, of which those in `names` are replaced, and then the other new ones.

    Args:
        new: in any order, with all of `names`.
        names: their ids.
    """
    by_name = {}
    for part in new:
        by_name[part.document] = part._replace(chunks=list(part.chunks))
    for document in stored.digests:
        yield by_name.pop(document) if document in names else stored.part(document)
    yield from by_name.values()


def write_tables(folder: Path, parts: Iterable[Part]) -> tuple[int, np.ndarray]:
    """Writes chunks and documents; returns how many documents there are, and the chunks' keys."""
    names, digests, keys = [], [], []

    def chunks() -> Iterator[Chunk]:
        for part in parts:
            names.append(part.document)
            digests.append(part.digest)
            for chunk in part.chunks:
                keys.append(_key(chunk.passage))
                yield chunk

    save_chunks(chunks(), folder)
    table = pa.table({"id": pa.array(names, pa.string()), "digest": pa.array(digests, pa.string())})
    with pa.ipc.new_file(folder / DOCUMENTS_FILE, table.schema) as file:
        file.write_table(table)
    return len(names), np.array(keys, KEY)


def _key(passage: str) -> bytes:
    return hashlib.blake2b(passage.encode(), digest_size=KEY.itemsize).digest()


def chunk_keys(chunks: MappedChunks) -> np.ndarray:
    """The keys of passages, S16 `[n]`, as `vector_files` asks for them."""
    keys = (_key(chunks[i].passage) for i in range(len(chunks)))
    return np.fromiter(keys, KEY, len(chunks))
