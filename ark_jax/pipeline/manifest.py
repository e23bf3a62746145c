"""The manifest of a finished stage, and the folder of an unfinished one with its reads so far."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

from ark_jax import __version__
from ark_jax.pipeline.fingerprints import file_digest, fingerprint
from ark_jax.pipeline.reads import PARTS, Record, empty_record, is_record
from ark_jax.runtime import mirror
from ark_jax.runtime.log import append_row, read_rows, say

MANIFEST_FILE = "manifest.json"
EARLIER = re.compile(r"0[.][1-4][.]")  # versions whose manifests do not record what stages read


class Damaged(ValueError):
    """A manifest cannot be trusted; `why` names no path and fits into a list of stages."""

    def __init__(self, path: Path, reason: str):
        super().__init__(f"{path}: {reason}; `ark-jax run` makes stage {path.parent.name} again")
        self.why = reason


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
    match value:
        case [int(), str()]:
            return True
    return False


def _own_digest(manifest: dict) -> str:
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


READS = "reads.jsonl"  # what an unfinished stage has read: its arguments, then read by read
Change = Callable[[Record], str]  # which read has another value now, in words; empty if none


def begin(partial: Path, arguments: dict, change: Change) -> Record:
    """Prepares the folder that a stage works in, and returns its reads so far.

    Work that was begun with other settings or inputs is set aside. Work that was set aside before
    is continued if all its reads have the same values now.
    """
    if partial.exists() and (reason := _reason_not_to_resume(partial, change)) is not None:
        _set_aside(partial, reason)
    if not partial.exists():
        asides = sorted(partial.parent.glob(f"{partial.name}.*"))
        if earlier := next(
            (path for path in asides if _reason_not_to_resume(path, change) is None), None
        ):
            mirror.rename(earlier, partial)
            say(f"  goes on with {earlier.name}, which was set aside")
    if (partial / MANIFEST_FILE).exists() and not is_whole(partial, change):
        say("  what was finished here has been damaged since: it is made again")
        mirror.remove_tree(partial)
    partial.mkdir(parents=True, exist_ok=True)
    if (record := read_so_far(partial)) is not None:
        return record
    append_row(empty_record(arguments), partial / READS)
    return empty_record(arguments)


def keep_read(partial: Path, read: list) -> None:
    """Adds a read, `[part, name, value]`, to those of an unfinished stage."""
    append_row(read, partial / READS, sync=False)  # a kill of the process loses nothing


def read_so_far(partial: Path) -> Record | None:
    """What an unfinished stage has read; None if that is not known."""
    rows = list(read_rows(partial / READS))
    if not rows or not is_record(rows[0]):
        return None
    record = rows[0]
    for row in rows[1:]:
        match row:
            case [str(part), str(name), value] if part in PARTS:
                record[part][name] = value
            case _:
                return None
    return record


def is_whole(folder: Path, change: Change) -> bool:
    """Whether a folder holds an undamaged finished stage, whose reads have the same values now."""
    try:
        manifest = read_manifest(folder)
    except Damaged:
        return False
    return (
        manifest is not None and not change(manifest) and not damage(manifest, folder, verify=True)
    )


def _reason_not_to_resume(partial: Path, change: Change) -> str | None:
    """Why a run cannot go on in a folder, in words; None if it can."""
    record = read_so_far(partial)
    if record is None:
        return "what it has read is unknown" if any(partial.glob("[!.]*")) else None
    return change(record) or None


def _set_aside(partial: Path, reason: str) -> None:
    """Renames a folder of unfinished work to one that is named by its reads, and reports it."""
    place = partial.with_name(f"{partial.name}.{fingerprint(read_so_far(partial))[:8]}")
    if place.exists():
        mirror.remove_tree(place)  # older work with the same reads
    mirror.rename(partial, place)
    say(
        f"  unfinished work is set aside ({reason}): a run with its settings goes on with it; "
        f"delete {place} if none will"
    )
