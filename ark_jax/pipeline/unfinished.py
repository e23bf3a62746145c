"""The folder of an unfinished stage: what it has read so far, and whether a run may go on there."""

from collections.abc import Callable
from pathlib import Path

from ark_jax.pipeline.fingerprints import fingerprint
from ark_jax.pipeline.manifest import MANIFEST_FILE, Damaged, damage, read_manifest
from ark_jax.pipeline.reads import PARTS, Record, empty_record, is_record
from ark_jax.runtime import mirror
from ark_jax.runtime.log import append_row, read_rows, say

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


def _set_aside(partial: Path, why: str) -> None:
    """Renames a folder of unfinished work to one that is named by its reads, and reports it."""
    place = partial.with_name(f"{partial.name}.{fingerprint(read_so_far(partial))[:8]}")
    if place.exists():
        mirror.remove_tree(place)  # older work with the same reads
    mirror.rename(partial, place)
    say(
        f"  unfinished work is set aside ({why}): a run with its settings goes on with it; delete "
        f"{place} if none will"
    )
