"""Data and models that lie in a bucket (gs://, s3://): copied into the cache of each host before they are opened."""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from etils import epath

from ark_jax.models.wheels import cache_folder

KINDS = (".json", ".jsonl", ".csv", ".txt", ".safetensors", ".model", ".jinja")  # that we read


def local(place: str | Path) -> Path:
    """A file or folder as it is, unless it lies in a bucket: then its copy, made again when a size or time there changes.

    Raises:
        FileNotFoundError: nothing of ours there, or no right to see it.
    """
    place = str(place)
    if "://" not in place:
        return Path(place).expanduser()
    root = epath.Path(place)
    try:
        root.exists()
    except ImportError as error:  # what speaks to a bucket is a package of its own: gcsfs, s3fs
        raise RuntimeError(f"{place}: {error}") from None
    files = sorted(_files(root)) if root.is_dir() else [root] if root.exists() else []
    if not files:
        raise FileNotFoundError(f"{place}: no such file or folder, none with {', '.join(KINDS)} in it, or no right to see it")
    seen = [[str(path), path.stat().length, path.stat().mtime] for path in files]
    folder = cache_folder() / "buckets" / hashlib.sha256(json.dumps(seen).encode()).hexdigest()[:16]
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        new = Path(tempfile.mkdtemp(dir=folder.parent))
        new.chmod(0o755)  # a cache may be shared
        for path in files:
            own = new / path.relative_to(root.parent)
            own.parent.mkdir(parents=True, exist_ok=True)
            with path.open("rb") as source, own.open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 24)
        try:
            new.rename(folder)
        except OSError:
            shutil.rmtree(new)
            if not folder.is_dir():  # else another process was sooner
                raise
    return folder / root.name


def _files(folder: epath.Path) -> Iterator[epath.Path]:
    for path in folder.iterdir():
        if path.is_dir():
            yield from _files(path)
        elif path.suffix in KINDS:
            yield path


def save(folder: Path, place: str) -> None:
    """Copies a folder into a bucket."""
    for path in folder.rglob("*"):
        if path.is_file():
            target = epath.Path(place) / path.relative_to(folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            with path.open("rb") as source, target.open("wb") as out:
                shutil.copyfileobj(source, out, 1 << 24)
