"""Vectors by key in a folder: computed once, mapped into memory, and extended for new keys.

`manifest.json` says what the vectors were made with and names the folder that holds them:

| file | content |
|---|---|
| vectors.npy | float32 or float16 [n e]; if each token has a vector, [tokens e], or their `codes` |
| offsets.npy | int64 [n + 1], if each token has a vector: where those of each text begin |
| keys.npy | 16 bytes for each text |

While vectors are computed, `unfinished` holds finished blocks of them, with which a killed run goes
on. The manifest is replaced last, so that the folder is as it was before or complete.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from tokenize import TokenError  # by which numpy reads headers

import numpy as np

from ark_jax.retrieval import codes
from ark_jax.retrieval.array_files import check_starts, write_array, write_arrays
from ark_jax.runtime import distributed
from ark_jax.runtime.log import Progress, say
from ark_jax.text.token_vectors import TokenVectors, Vectors, join

BLOCK = 2048  # texts whose vectors are computed and written at once
OF_TOKENS = {"vectors": "tokens"}  # further item of `made_with` if each token has a vector
KEY = np.dtype("S16")
# What reading a damaged array may raise.
UNREADABLE = (
    OSError, ValueError, TypeError, KeyError, SyntaxError, TokenError, EOFError, MemoryError
)  # fmt: skip
MANIFEST = "manifest.json"
UNFINISHED = "unfinished"
OFFSETS = "offsets.npy"
ARRAYS = ("keys.npy", "vectors.npy")
Embed = Callable[[np.ndarray], Vectors]  # positions of keys [b] -> their vectors


def open_vectors(
    folder: Path, keys: np.ndarray, embed: Embed, made_with: dict, label: str = "embed"
) -> Vectors:
    """The vectors of keys, mapped into memory; those that the folder lacks are computed.

    Every process must call this; process 0 writes.

    Args:
        folder: where the vectors are stored.
        keys: S16 `[n]`, in the order of the wanted vectors; equal ones have equal vectors.
        embed: computes vectors.
        made_with: "dtype" and "width" of the vectors, and whatever else decides them, for JSON;
            with `OF_TOKENS` if `embed` gives `TokenVectors`, and with "bits" if these are stored as
            `codes`. Where it differs from the folder's, all vectors are computed again.
        label: of the progress line.

    Raises:
        OSError: the folder cannot be written.
    """
    with _locked(folder):
        stored = distributed.on_first_process(lambda: _usable_folder(folder, made_with))
        if not stored or not np.array_equal(np.load(folder / stored / "keys.npy"), keys):
            name, earlier = _folder_name(made_with, keys), folder / stored if stored else None
            extend_vectors(folder, earlier, keys, embed, made_with, folder / name, label)
            distributed.on_first_process(lambda: _publish(folder, name, len(keys), made_with))
            stored = name
        return read_vectors(folder / stored)


def read_vectors(folder: Path) -> Vectors:
    """The vectors that a folder holds, mapped into memory.

    Raises:
        FileNotFoundError: it holds none.
    """
    values = np.load(folder / "vectors.npy", mmap_mode="r")
    if not (folder / OFFSETS).is_file():
        return values
    return TokenVectors(values, np.load(folder / OFFSETS))


def check_vectors(vectors: Vectors, texts: int, made_with: Mapping) -> None:
    """Raises ValueError if vectors cannot be those of so many texts, see `open_vectors`."""
    values, count = vectors, texts
    if isinstance(vectors, TokenVectors):
        values, count = vectors.values, len(vectors.values)
        check_starts(vectors.offsets, texts, count, OFFSETS)
    wanted = (count, _columns(made_with)), np.dtype(made_with["dtype"])
    in_order = values.flags.f_contiguous if "bits" in made_with else values.flags.c_contiguous
    if (values.shape, values.dtype) != wanted or not in_order:
        description = f"{values.dtype} {list(values.shape)}"
        raise ValueError(f"vectors.npy holds {description}, not {wanted[1]} {list(wanted[0])}")


def _columns(made_with: Mapping) -> int:
    """Numbers of a stored vector: its components, or the integers of its code."""
    width = made_with["width"]
    return codes.columns(width, made_with["bits"]) if "bits" in made_with else width


def _publish(folder: Path, name: str, texts: int, made_with: dict) -> None:
    """Replaces the manifest, so that it names a new folder, and deletes the other folders."""
    digests = {path.name: _file_digest(path) for path in sorted((folder / name).iterdir())}
    manifest = {"made_with": made_with, "folder": name, "texts": texts, "digests": digests}
    unfinished = folder / f"{MANIFEST}.new"
    unfinished.write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    os.replace(unfinished, folder / MANIFEST)
    for path in folder.iterdir():
        if path.is_dir() and path.name != name:
            shutil.rmtree(path)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Locks the folder against other programs; waits while one has it."""
    if not distributed.is_first_process():
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"  index {folder}: waits for another program that uses it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _usable_folder(folder: Path, made_with: dict) -> str:
    """The name of the folder of usable vectors; "" if there are none, with a line that says why."""
    if not (folder / MANIFEST).is_file():
        return ""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        name, stored_values = str(manifest["folder"]), dict(manifest["made_with"])
        _check_arrays(folder / name, manifest["digests"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        say(f"  index {folder}: damaged ({reason}); all texts are embedded again")
        return ""
    changed = [key for key, value in made_with.items() if stored_values.get(key) != value]
    if changed:
        say(f"  index {folder}: made with another {changed[0]}; all texts are embedded again")
        return ""
    return name


def _check_arrays(folder: Path, digests: dict[str, str]) -> None:
    """Raises ValueError or OSError if an array of a folder is not what its manifest says."""
    for name in {*ARRAYS, *digests}:
        # One pass over the file, which every search makes too.
        if _file_digest(folder / name) != digests[name]:
            raise ValueError(f"{name} has changed since it was written")


def extend_vectors(
    folder: Path,
    stored: Path | None,
    keys: np.ndarray,
    embed: Embed,
    made_with: dict,
    target: Path,
    label: str = "embed",
) -> None:
    """Computes the vectors that are missing, and writes all of them and their keys.

    Every process must call this; process 0 writes.

    Args:
        folder: `unfinished` in it holds the finished blocks.
        stored: the folder of earlier vectors, which have the wanted form or are float32; None if
            there are none.
        keys, embed, made_with: as in `open_vectors`.
        target: the folder that is written; it appears when it is whole.
        label: of the progress line.

    Raises:
        OSError: a folder cannot be written; it names the file.
    """
    of_tokens = made_with.items() >= OF_TOKENS.items()
    # A text of many vectors takes more memory.
    size = max(BLOCK // 4, 1) if of_tokens else BLOCK
    old = np.load(stored / "keys.npy") if stored else np.zeros(0, KEY)
    places = _positions_in(old, keys)
    new = np.flatnonzero(places < 0)
    if stored and len(new):
        say(f"  index {folder}: {len(new):,} of {len(keys):,} texts are new and are embedded")
    blocks = folder / UNFINISHED / _folder_name(made_with, keys[new])
    numbers = range(-(-len(new) // size))
    stored_blocks = distributed.on_first_process(lambda: sorted(_finished_blocks(blocks)))
    if stored_blocks:
        say(f"  index {folder}: goes on after {len(stored_blocks):,} of {len(numbers):,} blocks")
    with Progress(label, len(new), "texts") as bar:
        for number in numbers:
            positions = new[number * size : (number + 1) * size]
            if number not in stored_blocks:
                vectors = embed(positions)
                if distributed.is_first_process():
                    _write_block(blocks, number, vectors, made_with)
            bar.add(len(positions))

    def write() -> None:
        """Writes the earlier vectors and those of the finished blocks into `target`."""
        finished = _finished_blocks(blocks)
        offsets = _joined_offsets(places, stored, finished) if of_tokens else None
        shape = (int(offsets[-1]) if of_tokens else len(keys), _columns(made_with))
        parts = _joined_vectors(places, stored, finished, size, made_with)
        _write_vectors(target, keys, (shape, made_with["dtype"], parts), offsets)

    distributed.on_first_process(write)


def _positions_in(old: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """The position of each key in `old`, or -1: int64 `[n]`."""
    if not len(old):
        return np.full(len(keys), -1)
    order = np.argsort(old)
    places = order[np.minimum(np.searchsorted(old, keys, sorter=order), len(old) - 1)]
    return np.where(old[places] == keys, places, -1)


def _folder_name(made_with: dict, keys: np.ndarray) -> str:
    """A hash of the keys and of what decides their vectors."""
    digest = hashlib.sha256(json.dumps(made_with, sort_keys=True).encode())
    digest.update(keys.tobytes())
    return digest.hexdigest()[:16]


def _finished_blocks(blocks: Path) -> dict[int, Path]:
    """number -> file of the complete blocks. Damaged ones are deleted.

    The name of a block holds the digest of its content.
    """
    finished = {}
    for path in sorted(blocks.glob("*-*.npy")):
        number, _, digest = path.stem.partition("-")
        if number.isdigit() and _file_digest(path) == digest:
            finished[int(number)] = path
        else:
            say(f"  warning: {path} has been damaged: it is made again")
            path.unlink()
    return finished


def _file_digest(path: Path) -> str:
    """The first sixteen hex digits of a file's SHA-256."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def _write_block(blocks: Path, number: int, vectors: Vectors, made_with: dict) -> None:
    """Writes a block into a file that appears when it is complete, see `_finished_blocks`."""
    blocks.mkdir(parents=True, exist_ok=True)
    unfinished = blocks / f"{number:06d}.new"
    stored = _stored_form(vectors, made_with)
    is_of_tokens = isinstance(stored, TokenVectors)
    write_arrays(unfinished, [stored.offsets, stored.values] if is_of_tokens else [stored])
    unfinished.rename(blocks / f"{number:06d}-{_file_digest(unfinished)}.npy")


def _stored_form(vectors: Vectors, made_with: dict) -> Vectors:
    """Vectors, or those that have it already, in the form that `made_with` names."""
    if isinstance(vectors, TokenVectors):
        return TokenVectors(_stored_form(vectors.values, made_with), vectors.offsets)
    if "bits" in made_with and vectors.dtype != codes.DTYPE:
        return codes.pack(vectors, made_with["bits"])
    return vectors.astype(made_with["dtype"], copy=False)


def _read_block(path: Path) -> Vectors:
    """The vectors of a block that `_write_block` wrote."""
    with path.open("rb") as file:
        array = np.load(file)
        return TokenVectors(np.load(file), array) if array.ndim == 1 else array


def _joined_offsets(places: np.ndarray, stored: Path | None, blocks: dict[int, Path]) -> np.ndarray:
    """Where the vectors of each text begin, int64 `[n + 1]`, in order of the keys."""
    lengths, is_old = np.zeros(len(places), np.int64), places >= 0
    if is_old.any():
        lengths[is_old] = np.diff(np.load(stored / OFFSETS))[places[is_old]]
    # The offsets are the first array of a block's file.
    new = [np.diff(np.load(blocks[number])) for number in sorted(blocks)]
    lengths[~is_old] = np.concatenate(new) if new else 0
    return np.concatenate([[0], np.cumsum(lengths)])


def _joined_vectors(
    places: np.ndarray, stored: Path | None, blocks: dict[int, Path], size: int, made_with: dict
) -> Iterator[np.ndarray]:
    """Yields the vectors in order of the keys, `size` texts at a time.

    Args:
        places: the position of each key among the vectors of `stored`, or -1 for a new one.
        stored: the folder of earlier vectors.
        blocks: number -> file of the new vectors, `size` in each.
        made_with: their form, which earlier vectors take.
    """
    numbers = np.cumsum(places < 0) - 1  # of new keys among the new ones
    for start in range(0, len(places), size):
        part_places, part_numbers = places[start : start + size], numbers[start : start + size]
        is_new = part_places < 0
        parts = []  # rows of this part, and their vectors
        if not is_new.all():
            rows = np.flatnonzero(~is_new)
            # Mapped again for each part: pages that were read do not stay in memory.
            old = read_vectors(stored)[part_places[rows]]
            parts.append((rows, _stored_form(old, made_with)))
        for block in np.unique(part_numbers[is_new] // size).tolist():
            rows = np.flatnonzero(is_new & (part_numbers // size == block))
            parts.append((rows, _read_block(blocks[block])[part_numbers[rows] % size]))
        order = np.argsort(np.concatenate([rows for rows, _ in parts]))
        joined = join([vectors for _, vectors in parts])[order]
        yield joined.values if isinstance(joined, TokenVectors) else joined


def _write_vectors(
    folder: Path,
    keys: np.ndarray,
    vectors: tuple[tuple[int, int], str, Iterable[np.ndarray]],
    offsets: np.ndarray | None,
) -> None:
    """Writes the arrays into a folder that appears when they are complete.

    Args:
        vectors: shape, dtype and parts of their array.
        offsets: `[n + 1]`, if each token has a vector.
    """
    if folder.is_dir():  # of a run that was killed before it replaced the manifest
        shutil.rmtree(folder)
    unfinished = folder.with_suffix(".new")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    shape, dtype, parts = vectors
    write_array(unfinished / "keys.npy", keys.shape, keys.dtype, [keys])
    is_packed = np.dtype(dtype) == codes.DTYPE
    write_array(unfinished / "vectors.npy", shape, np.dtype(dtype), parts, by_columns=is_packed)
    if offsets is not None:
        write_array(unfinished / OFFSETS, offsets.shape, offsets.dtype, [offsets])
    unfinished.rename(folder)
