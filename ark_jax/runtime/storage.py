"""Files in a bucket (gs://, s3://) or on the model hub: each host copies them to a cache first."""

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from etils import epath

# The only files that are copied out of a bucket's folder.
FILE_SUFFIXES = (".json", ".jsonl", ".csv", ".txt", ".safetensors", ".model", ".jinja")
DOCUMENT_SUFFIXES = [
    ".tsv",
    ".parquet",
    ".md",
    ".markdown",
    ".rst",
    ".html",
    ".htm",
    ".xhtml",
    ".pdf",
    ".docx",
]  # copied too, but no part of a model
COPY_BYTES = 1 << 24  # copied at once
HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w.-]+(@[\w./-]+)?")
HUB_FILES = (
    "*.json",
    "*.safetensors",
    "*.txt",
    "*.model",
    "*/config.json",
    "*/pytorch_model.bin",  # of small modules
    "*.jinja",
    "artifact.metadata",  # ColBERT v2's settings
)


def cache_folder() -> Path:
    """The folder of converted models and compiled programs.

    It is $ARK_CACHE, else `ark_jax` in the XDG cache.
    """
    if folder := os.environ.get("ARK_CACHE"):
        return Path(folder).expanduser().absolute()
    if folder := os.environ.get("XDG_CACHE_HOME"):
        return Path(folder, "ark_jax").expanduser().absolute()
    try:
        return Path.home() / ".cache" / "ark_jax"
    except RuntimeError:
        raise RuntimeError(
            "this user has no home folder to cache models and programs in: set ARK_CACHE to a "
            "folder that may be written"
        ) from None


def is_hub_name(name: str) -> bool:
    """Whether a name is `owner/model` or `owner/model@REVISION`, and no local folder."""
    return bool(HUB_NAME.fullmatch(name)) and not Path(name).is_dir()


def hub_model(name: str, *, download: bool = True) -> Path:
    """The folder of a hub model in the hub's cache; its last part is the commit.

    Raises:
        FileNotFoundError: it is not in the cache, and `download` is false or the hub out of reach.
    """
    from huggingface_hub import snapshot_download

    model, _, revision = name.partition("@")
    fetch = lambda patterns: Path(
        snapshot_download(
            model,
            revision=revision or None,
            allow_patterns=list(patterns),
            local_files_only=not download,
        )
    )
    try:
        folder = fetch(HUB_FILES)
        if download and not any(folder.rglob("*.safetensors")):
            folder = fetch((*HUB_FILES, "pytorch_model*.bin"))  # there is nothing safer
    except FileNotFoundError as error:  # the hub's words name no model
        reason = str(error).partition("\n")[0]
        raise FileNotFoundError(
            f"{name}: no such folder, and no model of the hub in this machine's cache; mend the "
            f"name, or reach the hub ({reason[:120]})"
        ) from error
    return folder


def local_path(place: str | Path) -> Path:
    """The absolute path of a file or folder that must be on a file system.

    `Path` would take gs://b/x for a folder gs:/b/x below the current one.

    Raises:
        ValueError: it is the address of a bucket.
    """
    if "://" in str(place):
        raise ValueError(
            f"{place}: it needs locks, renames and memory maps, which a bucket lacks; give a "
            "place that all hosts share (NFS, Filestore). Data, models and the workdir of `ark-jax "
            "run` may lie in a bucket"
        )
    return Path(place).expanduser().absolute()


def absolute(place: str) -> str:
    """The absolute path; the address of a bucket stays as it is."""
    return place if "://" in place else str(local_path(place))


def local_copy(location: str | Path) -> Path:
    """The local path of a file or folder, which is copied first if it is in a bucket.

    A copy is used again until a size or modification time in the bucket changes.

    Raises:
        FileNotFoundError: the bucket has no file with a known suffix there, or this machine may not
            read it.
        RuntimeError: the package for this kind of bucket (gcsfs, s3fs) is not installed.
    """
    location = str(location)
    if "://" not in location:
        return Path(location).expanduser()
    root = epath.Path(location)
    files = _list_files(root)
    if not files:
        raise FileNotFoundError(
            f"{location}: no such file or folder, or no file in it with a suffix of "
            f"{', '.join((*FILE_SUFFIXES, *DOCUMENT_SUFFIXES))}, or this machine may not read it; "
            "check the address and its permissions"
        )
    versions = [[str(path), path.stat().length, path.stat().mtime] for path in files]
    digest = hashlib.sha256(json.dumps(versions).encode()).hexdigest()[:16]
    folder = cache_folder() / "buckets" / digest
    if not folder.is_dir():
        _fill_cache(folder, root, files)
    return folder / root.name


def _list_files(root: epath.Path) -> list[epath.Path]:
    """The file itself, or the files with a known suffix below a folder, sorted.

    Empty if there is nothing. Raises RuntimeError if the bucket's package is not installed.
    """
    try:
        if not root.exists():
            return []
    except ImportError as error:  # gcsfs or s3fs
        raise RuntimeError(f"{root}: {error}") from None
    return sorted(_walk_copied_files(root)) if root.is_dir() else [root]


def _walk_copied_files(folder: epath.Path) -> Iterator[epath.Path]:
    """The files below a folder that have a known suffix."""
    for path in folder.iterdir():
        if path.is_dir():
            yield from _walk_copied_files(path)
        elif path.suffix in (*FILE_SUFFIXES, *DOCUMENT_SUFFIXES):
            yield path


def _fill_cache(folder: Path, root: epath.Path, files: Sequence[epath.Path]) -> None:
    """Copies `files` into a temporary folder, then renames it: `folder` is complete or absent."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(dir=folder.parent))
    new.chmod(0o755)  # several users may share a cache
    for path in files:
        name = path.relative_to(root.parent)
        if ".." in name.parts:
            raise ValueError(f"{path}: its name leads out of {root}; rename it")
        _copy_file(path, new / name)
    try:
        new.rename(folder)
    except OSError:
        shutil.rmtree(new)
        if not folder.is_dir():  # otherwise another process made it first
            raise


def upload(folder: Path, location: str) -> None:
    """Copies a local folder into a bucket."""
    for path in folder.rglob("*"):
        if path.is_file():
            _copy_file(path, epath.Path(location) / path.relative_to(folder))


def _copy_file(source: Path | epath.Path, target: Path | epath.Path) -> None:
    """Copies the contents of a file; makes the folder of the copy."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with source.open("rb") as input_file, target.open("wb") as output_file:
        shutil.copyfileobj(input_file, output_file, COPY_BYTES)
