"""Makes the files of an index. Chunks and vectors of an earlier one are reused."""

import dataclasses
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from ark_jax import __version__
from ark_jax.data import readers
from ark_jax.data.problems import Reading
from ark_jax.data.records import Chunk
from ark_jax.data.spool import StoredChunks
from ark_jax.index import folder as folders
from ark_jax.index import tables
from ark_jax.index.folder import Manifest
from ark_jax.index.rows import Corpus, read_corpus
from ark_jax.models import pair_folder
from ark_jax.models.hf import resolve
from ark_jax.models.multi_vector import MultiVectorRetriever, open_retriever
from ark_jax.models.retriever import Retriever
from ark_jax.pipeline import fingerprints
from ark_jax.retrieval import codes, late, vector_files
from ark_jax.retrieval.bm25_index import TOKENIZER, write_bm25
from ark_jax.retrieval.chunks import ChunkRules, cut_documents
from ark_jax.retrieval.fusion import Fusion
from ark_jax.runtime.log import say
from ark_jax.text.token_vectors import TokenVectors, Vectors

FLOATS = (16, 32)  # bits of a component that is no code


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of an index; see `Index.build`."""

    model: str
    rules: ChunkRules
    bits: int
    fusion: Fusion
    reranker: str = ""
    engine: str = "jax"
    tokenizer: str = TOKENIZER
    pool: int = 1

    def __post_init__(self):
        if self.bits not in (0, *codes.BITS, *FLOATS):
            choices = ", ".join(map(str, (*codes.BITS, *FLOATS)))
            raise ValueError(f"bits={self.bits}: must be one of {choices}")
        if self.pool < 1:
            raise ValueError(f"pool={self.pool}: must be at least 1")


def build(
    folder: Path, settings: Settings, corpus: Corpus, reading: Reading = readers.AS_IT_IS
) -> None:
    """Makes the index in a folder, or updates it to this corpus; see `Index.build`."""
    _check_reranker(settings.reranker)
    with folders.locked(folder):
        manifest = _intact_manifest(folder)
        source = _source_fingerprint(settings, corpus, reading)
        is_same = manifest and source and manifest.source == source
        if is_same and tables.has_metadata(folder / manifest.folder):
            say(f"  index {folder}: nothing has changed")
            return
        documents, chunks = read_corpus(corpus, reading)
        retriever = open_retriever(settings.model, engine=settings.engine)
        made_with = vectors_made_with(retriever, settings.bits, settings.pool)
        origin = (made_with["model"], settings.rules)
        is_same = manifest and (manifest.made_with["model"], manifest.rules) == origin
        stored = tables.Stored(folder / manifest.folder) if is_same else None
        sources = tables.sources_of(documents, tables.source_finder(chunks, stored))
        parts = tables.parts_of(sources, stored, _chunk_cutter(chunks, settings))
        _write_index(folder, parts, settings, retriever, made_with, manifest, source)


def _check_reranker(model: str) -> None:
    """Raises ValueError if a model, unless it is empty, has nothing that scores pairs."""
    if model and not pair_folder.scores_pairs(model) and not pair_folder.is_decoder(resolve(model)):
        raise ValueError(
            f"reranker={model!r} scores no pairs of texts; give a sequence classifier with one "
            "label, a decoder that answers yes or no, as Qwen3-Reranker does, or one that ark_jax "
            "trained"
        )


def add(folder: Path, model: str, retriever: Retriever, corpus: Corpus) -> None:
    """Adds documents to the index in a folder; see `Index.add`.

    Args:
        model: folder or hub name of the retriever.
    """
    with folders.locked(folder):
        manifest = _intact_manifest(folder)
        if manifest is None:
            raise ValueError(f"{folder}: the index is damaged; {folders.AGAIN}")
        bits = stored_bits(manifest.made_with)
        pool = manifest.made_with.get("pool", 1)
        kept = manifest.reranker, manifest.engine, manifest.tokenizer, pool
        settings = Settings(model, manifest.rules, bits, manifest.fusion, *kept)
        made_with = vectors_made_with(retriever, bits, pool)
        documents, chunks = read_corpus(corpus)
        if not isinstance(documents, Sequence):
            documents = list(documents)
        stored = tables.Stored(folder / manifest.folder)
        if not tables.has_metadata(folder / manifest.folder):
            say(f"  index {folder}: documents of before have no metadata; {folders.AGAIN}")
        find = tables.source_finder(chunks, stored)
        sources = tables.sources_with(stored, documents, find)
        parts = tables.parts_of(sources, stored, _chunk_cutter(chunks, settings))
        _write_index(folder, parts, settings, retriever, made_with, manifest)


def _chunk_cutter(chunks: Sequence[Chunk] | None, settings: Settings) -> tables.Cut | None:
    """The function that cuts documents into chunks; None if the corpus has chunks."""
    if chunks is not None:
        return None
    return lambda documents: cut_documents(documents, None, settings.model, settings.rules)


def _write_index(
    folder: Path,
    parts: Iterable[tables.Part],
    settings: Settings,
    retriever: Retriever,
    made_with: dict,
    manifest: Manifest | None,
    source: str = "",
) -> Manifest:
    """Writes an index, which replaces the earlier one.

    Args:
        folder: of the index, which must be locked.
        made_with: the manifest's field.
        manifest: the earlier index, if its files are intact.
        source: the manifest's field.

    Raises:
        ValueError: no document has any text.
        OSError: a file cannot be written; the earlier index stays as it was.
    """
    new = folder / vector_files.UNFINISHED / "files"
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    documents, keys = tables.write_tables(new, parts)
    if not len(keys):
        raise ValueError("no document holds any text, so there is nothing to index")
    chunks = StoredChunks(new)
    earlier = None
    floats = {x: y for x, y in made_with.items() if x not in ("bits", "rotation")}
    if manifest and dict(manifest.made_with) in (made_with, {**floats, "dtype": "float32"}):
        earlier = folder / manifest.folder / folders.VECTORS
        if dict(manifest.made_with) != made_with:
            bits = stored_bits(made_with)
            say(f"  index {folder}: its vectors of 32 bits a component are converted to {bits}")
    elif manifest:
        names = [*made_with, *manifest.made_with]
        changed = next(x for x in names if manifest.made_with.get(x) != made_with.get(x))
        say(f"  index {folder}: made with another {changed}; all chunks are embedded again")
    embed = embedder(retriever, chunks, made_with)
    vector_files.extend_vectors(
        folder, earlier, keys, embed, made_with, new / folders.VECTORS, "embed chunks"
    )
    write_bm25(new / folders.WORDS, (chunk.passage for chunk in chunks), settings.tokenizer)
    facts = {
        "model": settings.model,
        "made_with": made_with,
        "rules": settings.rules,
        "fusion": settings.fusion,
        "source": source,
        "documents": documents,
        "chunks": len(chunks),
        "reranker": settings.reranker,
        "tokenizer": settings.tokenizer,
        "asked_by": retriever.digest("query"),
        "engine": settings.engine,
    }
    return folders.publish(folder, new, facts)


def vectors_made_with(retriever: Retriever, bits: int = 0, pool: int = 1) -> dict:
    """The properties that decide the vectors of chunks; see `Manifest.made_with`.

    Args:
        bits: of a component; 0: 2 where each token has a vector, else 32.
        pool: vectors of a text's tokens that become one, see `late.pool`.

    Raises:
        ValueError: so few bits, or pooling, need a vector for each token.
    """
    is_of_tokens = isinstance(retriever, MultiVectorRetriever)
    bits = bits or (2 if is_of_tokens else 32)
    form: dict = {"dtype": f"float{bits}"}
    if bits in codes.BITS:
        form = {"dtype": codes.DTYPE.name, "bits": bits, "rotation": codes.ROTATION}
        if not is_of_tokens:
            raise ValueError(
                f"bits={bits}: this model has one vector for each text, whose components take 16 "
                "or 32; fewer need a vector for each token, as ark_jax.MultiVectorRetriever gives"
            )
    kind: dict = {**vector_files.OF_TOKENS} if is_of_tokens else {}
    if pool > 1:
        kind["pool"] = pool
        if not is_of_tokens:
            raise ValueError(f"pool={pool}: this model has one vector for each text; leave it out")
    return {"model": retriever.digest("document"), **form, "width": retriever.width, **kind}


def stored_bits(made_with: Mapping) -> int:
    """Bits of a component of the vectors with these properties."""
    return made_with.get("bits") or 8 * np.dtype(made_with["dtype"]).itemsize


def embedder(retriever: Retriever, chunks: StoredChunks, made_with: Mapping) -> vector_files.Embed:
    """A function: positions of chunks `[b]` -> their unit vectors."""
    factor = made_with.get("pool", 1)

    def embed(positions: np.ndarray) -> Vectors:
        passages = [chunks[int(i)].passage for i in positions]
        chunks.forget()
        vectors = retriever.encode(passages, kind="document")
        return late.pool(vectors, factor) if isinstance(vectors, TokenVectors) else vectors

    return embed


def _intact_manifest(folder: Path) -> Manifest | None:
    """The manifest of an index without damage. Else it says what is wrong and returns None."""
    try:
        manifest = folders.read_manifest(folder)
        reason = folders.damage_of(manifest, folder, verify=True) if manifest else ""
    except ValueError as error:
        reason = str(error).partition(";")[0]
    if reason:
        say(f"  index {folder}: {reason}; it is made again")
        return None
    return manifest


def _source_fingerprint(settings: Settings, corpus: Corpus, reading: Reading) -> str:
    """The fingerprint of input, reading, model and settings; empty for documents in memory."""
    if not isinstance(corpus, str | Path):
        return ""
    of_reading = [reading.encoding, reading.columns, reading.tolerate]
    options = {"reading": of_reading} if any(of_reading) else {}
    return fingerprints.fingerprint(
        {
            **options,
            "input": fingerprints.read_input_digest(str(corpus)),
            "model": [settings.model, fingerprints.read_model_digest(settings.model)],
            "settings": dataclasses.asdict(settings),
            "version": __version__,
        }
    )
