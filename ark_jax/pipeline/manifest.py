"""The manifest of a finished stage: what it was made from, and the digests of its files."""

import json
import os
import re
from pathlib import Path

from ark_jax import __version__
from ark_jax.pipeline.fingerprints import file_digest, fingerprint
from ark_jax.pipeline.reads import Record, is_record

MANIFEST_FILE = "manifest.json"
EARLIER = re.compile(r"0[.][1-4][.]")  # versions whose manifests do not record what stages read


class Damaged(ValueError):
    """A manifest cannot be trusted; `why` names no path and fits into a list of stages."""

    def __init__(self, path: Path, why: str):
        super().__init__(f"{path}: {why}; `ark-jax run` makes stage {path.parent.name} again")
        self.why = why


def read_manifest(folder: Path) -> dict | None:
    """The manifest of a stage's folder, None if the stage is not finished.

    Raises:
        Damaged: it has been changed, or has the form of another version.
    """
    path = folder / MANIFEST_FILE
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (IsADirectoryError, ValueError, RecursionError):
        raise Damaged(path, f"{MANIFEST_FILE} is damaged") from None
    if reason := _manifest_problem(manifest):
        raise Damaged(path, reason)
    return manifest


def finished_manifest(folder: Path) -> dict:
    """The manifest of a finished stage.

    Raises:
        Damaged: as of `read_manifest`, or there is none.
    """
    if manifest := read_manifest(folder):
        return manifest
    raise Damaged(folder / MANIFEST_FILE, f"{MANIFEST_FILE} is missing")


def _manifest_problem(manifest: object) -> str:
    """What is wrong with the content of a manifest, in words; empty if nothing is."""
    match manifest:
        case {
            "stage": str(),
            "outputs": dict(outputs),
            "counts": dict(),
            "digest": str(digest),
        } if is_record(manifest) and all(map(_is_output, outputs.values())):
            if digest == _own_digest(manifest):
                return ""
        case {"version": str(version)} if version != __version__:
            return f"made by ark_jax {version}"
    return f"{MANIFEST_FILE} is damaged"


def _is_output(value: object) -> bool:
    """Whether a value has the form [bytes, sha256]."""
    match value:
        case [int(), str()]:
            return True
    return False


def _own_digest(manifest: dict) -> str:
    """The digest of a manifest's other fields, which it stores as `digest`."""
    return fingerprint({name: value for name, value in manifest.items() if name != "digest"})


def refuse_earlier(workdir: Path) -> None:
    """Raises ValueError if a workdir's stages were made by a version that recorded no reads."""
    for path in sorted(workdir.glob(f"*/{MANIFEST_FILE}")):
        try:
            manifest = json.loads(path.read_text(encoding="utf-8"))
            version = manifest["version"]
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            continue  # damaged; the stage's status reports it
        if isinstance(version, str) and EARLIER.match(version) and not is_record(manifest):
            raise ValueError(
                f"{workdir} was made by ark_jax {version}, and version {__version__} cannot go on "
                f"with it: give another --workdir, or install ark-jax=={version}"
            )


def write_manifest(folder: Path, stage: str, record: Record, outputs: dict, counts: dict) -> None:
    """Writes a stage's manifest to the disk; the file is complete or absent.

    Args:
        record: what the stage has read.
        outputs: from `output_digests`.
    """
    manifest = {"stage": stage, **record, "outputs": outputs, "counts": counts}
    read_back = json.loads(json.dumps(manifest))  # keys are texts, as a reader finds them
    unfinished = folder / f"{MANIFEST_FILE}.new"
    text = json.dumps(manifest | {"digest": _own_digest(read_back)}, indent=1, ensure_ascii=False)
    unfinished.write_text(text + "\n", encoding="utf-8")
    sync(unfinished)
    os.replace(unfinished, folder / MANIFEST_FILE)


def output_digests(folder: Path, skipped: tuple[Path, ...]) -> dict[str, list]:
    """file -> [bytes, sha256] of a folder's files, which are synced to the disk.

    Args:
        skipped: files and folders that are left out.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    kept_files = [path for path in files if not any(map(path.is_relative_to, skipped))]
    for path in kept_files:
        sync(path)
    return {
        path.relative_to(folder).as_posix(): [path.stat().st_size, file_digest(path)]
        for path in kept_files
    }


def damage(manifest: dict, folder: Path, *, verify: bool) -> str:
    """Which file of a finished stage is missing or damaged, in words; empty if none is."""
    for name, (size, digest) in manifest["outputs"].items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size or (verify and file_digest(path) != digest):
            return f"{name} is damaged"
    return ""


def sync(path: Path) -> None:
    """Waits until a file or folder is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
