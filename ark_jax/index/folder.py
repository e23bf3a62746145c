"""The folder of an index: its manifest, its lock, and how new files replace the old ones.

| in the folder | what it is |
|---|---|
| manifest.json | names the folder of the files, with the size and sha256 of each |
| index-*/chunks.arrow | the chunks |
| index-*/documents.arrow | the documents, with a digest of each |
| index-*/vectors | unit vectors of the chunks or of their tokens, see `retrieval.vector_files` |
| index-*/words | BM25, see `retrieval.bm25_index` |
| unfinished | files of a killed program; the next one reuses its blocks of vectors |
| compared | vectors of other models, see `Index.with_model` |

The manifest is replaced last: after a kill the index is as it was, or new.
"""

import contextlib
import dataclasses
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from ark_jax.pipeline.fingerprints import fingerprint
from ark_jax.pipeline.manifest import MANIFEST_FILE, damage, output_digests, sync
from ark_jax.retrieval.array_files import write_text
from ark_jax.retrieval.bm25_index import TOKENIZERS
from ark_jax.retrieval.chunks import ChunkRules
from ark_jax.retrieval.fusion import Fusion
from ark_jax.retrieval.vector_files import UNFINISHED

PREFIX = "index-"  # of the folder that the manifest names
COMPARED = "compared"
LOCK = "lock"
VECTORS, WORDS = "vectors", "words"  # in the folder that the manifest names
AGAIN = "`ark-jax index` with the same corpus makes the index again"
SMALL = 1 << 20  # bytes of a file whose digest is compared whenever an index is opened
NEW_MANIFEST = f"{MANIFEST_FILE}.new"  # what a full disk or a kill may leave
_OWN = (MANIFEST_FILE, NEW_MANIFEST, LOCK, UNFINISHED, COMPARED)


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What an index was made from.

    Attributes:
        model: folder or hub name of the retriever.
        made_with: properties that decide the vectors: "model", the digest of the retriever,
            "dtype", "width", for vectors of tokens `vector_files.OF_TOKENS`, and for their codes
            "bits" and "rotation", its seed; "pool", if tokens share vectors.
        rules: how documents were cut.
        fusion: how rankings are joined.
        source: the fingerprint of input, model and rules; empty if it was not made from files.
        files: file -> [bytes, sha256].
        folder: name of the folder that holds them.
        documents: number of documents.
        chunks: number of chunks.
        reranker: folder or hub name of a pair scorer that orders what a search finds; empty: none.
        asked_by: the retriever's digest for questions; empty in an index of version 0.4.
        engine: what computed the vectors, see `multi_vector.open_retriever`; if ONNX gives others
            than the weights, the digest of its file is part of the retriever's.
        tokenizer: of BM25, one of `bm25_index.TOKENIZERS`; of version 0.4 the first.
    """

    model: str
    made_with: Mapping
    rules: ChunkRules
    fusion: Fusion
    source: str
    files: Mapping[str, list]
    folder: str
    documents: int
    chunks: int
    reranker: str = ""
    asked_by: str = ""
    engine: str = "jax"
    tokenizer: str = TOKENIZERS[0]


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of an index; None if there is none.

    Raises:
        ValueError: it is damaged, or another version made it.
    """
    path = folder / MANIFEST_FILE
    try:
        row = json.loads(path.read_text(encoding="utf-8"))
        if row.pop("digest") != fingerprint(row):
            raise ValueError("its digest is another")
        if row.get("tokenizer", TOKENIZERS[0]) not in TOKENIZERS:
            raise ValueError(f"tokenizer {row['tokenizer']!r} is none of {', '.join(TOKENIZERS)}")
        parts = {"rules": ChunkRules(**row["rules"]), "fusion": Fusion(**row["fusion"])}
        return Manifest(**(row | parts))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error}); {AGAIN}") from None


def manifest_of(folder: Path) -> Manifest:
    """As `read_manifest`; raises FileNotFoundError if the folder holds no index."""
    manifest = read_manifest(folder)
    if manifest is None:
        if folder.is_dir() and any(folder.iterdir()):
            fix = f"if these are documents, `ark-jax index MODEL {folder} --out=DIR`"
        else:
            fix = f"`ark-jax index MODEL CORPUS --out={folder}`"
        raise FileNotFoundError(f"{folder}: no index; {fix} makes one")
    return manifest


def is_index(folder: Path) -> bool:
    """Whether a folder holds an index, intact or damaged."""
    return (folder / MANIFEST_FILE).is_file() and any(folder.glob(f"{PREFIX}*"))


def damage_of(manifest: Manifest, folder: Path, *, verify: bool) -> str:
    """Which file is missing or damaged, in words; empty if none is.

    Args:
        verify: compares the digests of all files, not only sizes and the digests of small files.
    """
    place = folder / manifest.folder
    sizes = damage({"outputs": manifest.files}, place, verify=False)
    read = {name: x for name, x in manifest.files.items() if verify or x[0] <= SMALL}
    return sizes or damage({"outputs": read}, place, verify=True)


def check_digests(folder: Path) -> Manifest:
    """The manifest of an index whose files all have the digests that they were written with.

    Raises:
        FileNotFoundError: the folder holds no index.
        ValueError: a file is missing or damaged.
    """
    manifest = manifest_of(folder)
    if reason := damage_of(manifest, folder, verify=True):
        raise ValueError(f"{folder / manifest.folder}: {reason}; {AGAIN}")
    return manifest


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Locks the index, so that no other program changes it. Makes the folder if it is missing.

    Raises:
        RuntimeError: another program is changing it.
        ValueError: the folder holds other things than an index.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = sorted(path.name for path in folder.iterdir())
    foreign = [name for name in names if name not in _OWN and not name.startswith(PREFIX)]
    if foreign and MANIFEST_FILE not in names:
        raise ValueError(
            f"{folder} holds {foreign[0]} and no index; give a new or empty folder for the index"
        )
    with (folder / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RuntimeError(
                f"{folder}: another program is changing this index; wait until it has ended, or "
                "give another folder"
            ) from None
        yield


def publish(folder: Path, source: Path, fields: Mapping) -> Manifest:
    """Makes the files in `source` those of the index, and deletes the old ones.

    Args:
        fields: the manifest's fields without `files` and `folder`.
    """
    files = output_digests(source, ())
    row = {**fields, "files": files, "folder": f"{PREFIX}{fingerprint(files)[:16]}"}
    manifest = Manifest(**row)
    target = folder / manifest.folder
    if target.exists() and not damage({"outputs": files}, target, verify=True):
        shutil.rmtree(source)  # the same files are there
    else:
        shutil.rmtree(target, ignore_errors=True)
        source.rename(target)
    sync(folder)
    # Digest the row in the form that JSON gives back: tuples are lists.
    row = json.loads(json.dumps(dataclasses.asdict(manifest)))
    row["digest"] = fingerprint(row)
    unfinished = folder / NEW_MANIFEST
    write_text(unfinished, json.dumps(row, indent=1, ensure_ascii=False) + "\n")
    os.replace(unfinished, folder / MANIFEST_FILE)
    for path in folder.iterdir():
        is_old = path.name.startswith(PREFIX) and path != target
        if is_old or path.name == UNFINISHED:
            shutil.rmtree(path)
    return manifest
