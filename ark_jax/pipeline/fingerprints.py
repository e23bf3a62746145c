"""Digests of what decides a stage's output: settings, files, folders of a model."""

import functools
import hashlib
import json
import os
from pathlib import Path

from ark_jax.data import readers
from ark_jax.runtime import storage

HEAD = 1 << 20  # bytes that `model_digest` reads from the start of each file
SAMPLES, SAMPLE = 64, 1 << 16  # and samples of so many bytes, spread over the rest


def fingerprint(value) -> str:
    """The sha256 of a JSON value, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def file_digest(path: Path) -> str:
    """The sha256 of a file's contents; this process reads a file that did not change once."""
    status = path.stat()
    return _contents_digest(path, status.st_size, status.st_mtime_ns, status.st_ino)


@functools.cache
def _contents_digest(path: Path, size: int, modified: int, inode: int) -> str:
    """The other arguments decide whether what was read before still holds."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@functools.cache
def model_digest(name_or_folder: str) -> str:
    """A digest that changes when a model does; a hub name stands for itself.

    Of a folder it covers the names, sizes and contents of all files. Of a large file it reads the
    start and samples from everywhere, since training changes the weights of every layer.
    """
    folder = storage.local_copy(name_or_folder)
    if not (name_or_folder and folder.is_dir()):
        return name_or_folder
    digest = hashlib.sha256()
    files = (
        path
        for path in folder.rglob("*")
        if path.suffix in storage.FILE_SUFFIXES and path.is_file()
    )
    for path in sorted(files):
        size = path.stat().st_size
        digest.update(f"{path.relative_to(folder).as_posix()} {size} ".encode())
        with path.open("rb") as file:
            digest.update(file.read(HEAD))
            for sample in range(SAMPLES if size > HEAD else 0):
                file.seek(HEAD + (size - HEAD) * sample // SAMPLES)
                digest.update(file.read(SAMPLE))
    return digest.hexdigest()


@functools.cache
def input_digest(path: str) -> str:
    """A digest of the names and contents of the files that a reader of this path opens."""
    root = storage.local_copy(path)
    files = [file for file in readers.files(root) if file.is_file()]
    digests = [os.path.relpath(file, root) + file_digest(file) for file in files]
    return hashlib.sha256("".join(digests).encode()).hexdigest()
