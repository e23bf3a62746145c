"""Digests of what decides a stage's output: settings, files, folders of a model."""

import contextlib
import functools
import glob
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ark_jax.data import readers
from ark_jax.runtime import storage

LARGE = 1 << 24  # bytes of a file from which on its digest is cached on disk


def fingerprint(value) -> str:
    """The sha256 of a JSON value, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def file_digest(path: Path) -> str:
    """The sha256 of a file's contents. A process reads a file again only if it has changed."""
    return _contents_digest(path, _file_version(path))


def _file_version(path: Path) -> tuple[int, ...]:
    """Numbers that change with a file's contents. Programs can set its mtime, but not its ctime."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns


@functools.cache
def _contents_digest(path: Path, version: tuple[int, ...]) -> str:
    """The sha256 of a file. `version` is a key of the cache: a changed file is read again."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@functools.cache
def model_digest(name_or_folder: str) -> str:
    """`read_model_digest`, cached: a process reads the folder once."""
    return read_model_digest(name_or_folder)


def read_model_digest(name_or_folder: str) -> str:
    """A digest that changes when a model does.

    For a folder it covers the names and contents of all its model files. For a hub name it is the
    name, with the commit that the hub's cache holds.
    """
    folder = storage.local_copy(name_or_folder)
    if not (name_or_folder and folder.is_dir()):
        return _hub_commit(name_or_folder)
    digest = hashlib.sha256()
    files = (
        path
        for path in folder.rglob("*")
        if path.suffix in (*storage.FILE_SUFFIXES, ".bin", ".onnx", ".onnx_data") and path.is_file()
    )
    for path in sorted(files):
        digest.update(f"{path.relative_to(folder).as_posix()} {_weights_digest(path)} ".encode())
    return digest.hexdigest()


def _hub_commit(name: str) -> str:
    """`owner/model, commit HASH`; the name alone if it is in no cache, or no hub name."""
    if not storage.is_hub_name(name):
        return name
    try:
        return f"{name}, commit {storage.hub_model(name, download=False).name}"
    except OSError:
        return name


def _weights_digest(path: Path) -> str:
    """`file_digest`, which is cached on disk for a large file, since hashing takes seconds."""
    if path.stat().st_size < LARGE:
        return file_digest(path)
    known = list(_file_version(path))
    return remembered(str(path.resolve()), known, lambda: file_digest(path))


def remembered(name: str, known: list, compute: Callable[[], Any]) -> Any:
    """A JSON value, which is cached on disk under a name for as long as `known` is the same."""
    file = hashlib.sha256(name.encode()).hexdigest()
    path = storage.cache_folder() / "digests" / f"{file}.json"
    try:
        *seen, value = json.loads(path.read_text())
    except (OSError, ValueError, TypeError):
        seen = None
    if seen == known:
        return value
    value = compute()
    with contextlib.suppress(OSError):  # a cache that cannot be written only costs time
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}")
        unfinished.write_text(json.dumps([*known, value]))
        os.replace(unfinished, path)
    return value


@functools.cache
def input_digest(path: str) -> str:
    """`read_input_digest`, cached: a process reads the files once."""
    return read_input_digest(path)


def read_input_digest(path: str) -> str:
    """A digest of the names and contents of the files that a reader of this path opens."""
    digests = []
    for root in map(storage.local_copy, readers.split_paths(path)):
        files = [file for file in readers.files(root) if file.is_file()]
        digests += [os.path.relpath(file, root) + file_digest(file) for file in files]
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def files_digest(path: str) -> str:
    """A digest of the names and contents of a file, a folder's files, or those of a pattern."""
    local = storage.local_copy(path)
    if local.is_dir():
        files = sorted(file for file in local.rglob("*") if file.is_file())
    elif local.is_file():
        files = [local]
    else:
        files = [Path(file) for file in sorted(glob.glob(str(local), recursive=True))]
    return fingerprint([[file.name, file_digest(file)] for file in files if file.is_file()])
