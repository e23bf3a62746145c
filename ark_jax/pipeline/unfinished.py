"""The folder of an unfinished stage: what it was begun with, and whether a run may go on there."""

import json
import os
import shutil
from pathlib import Path

from ark_jax.pipeline.fingerprints import fingerprint
from ark_jax.pipeline.manifest import MANIFEST_FILE, Damaged, difference, read_manifest, sync
from ark_jax.runtime.log import say

BEGUN = "inputs.json"  # the inputs that an unfinished stage was begun with
NEW_BEGUN = f".{BEGUN}.new"  # while it is written


def begin(inputs: dict, partial: Path) -> dict | None:
    """Prepares the folder that a stage works in.

    Returns:
        the counts, if a kill came after the manifest: the folder has only to be put into place.
    """
    if partial.exists() and (why := _other_inputs(partial, inputs)) is not None:
        _set_aside(partial, why)
    earlier = _place_aside(partial, inputs)
    if earlier.is_dir() and not partial.exists():
        os.replace(earlier, partial)
        say(f"  goes on with {earlier.name}, which was set aside")
    if (partial / MANIFEST_FILE).exists():
        if is_whole(partial, inputs):
            return read_manifest(partial)["counts"]
        say("  what was finished here has been damaged since: it is made again")
        shutil.rmtree(partial)
    partial.mkdir(parents=True, exist_ok=True)
    if not (partial / BEGUN).is_file():
        unfinished = partial / NEW_BEGUN
        unfinished.write_text(json.dumps(inputs, indent=1, ensure_ascii=False), encoding="utf-8")
        sync(unfinished)
        os.replace(unfinished, partial / BEGUN)
    return None


def is_whole(folder: Path, inputs: dict) -> bool:
    """Whether a folder holds a stage that was finished with these inputs, bit for bit."""
    try:
        manifest = read_manifest(folder)
    except Damaged:
        return False
    return manifest is not None and not difference(manifest, inputs, folder, verify=True)


def _other_inputs(partial: Path, inputs: dict) -> str | None:
    """In what an unfinished stage was begun with other inputs, in words; None if with these."""
    begun = _read_begun(partial)
    if begun is None:
        return None if not any(partial.glob("[!.]*")) else "what it was begun with is unknown"
    if begun == inputs:
        return None
    return difference(begun | {"outputs": {}}, inputs, partial) or "its inputs changed"


def _read_begun(partial: Path) -> dict | None:
    """The inputs that an unfinished stage was begun with; None if they are missing or damaged."""
    try:
        begun = json.loads((partial / BEGUN).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    parts = ("inputs", "config", "external", "version")
    return begun if isinstance(begun, dict) and all(part in begun for part in parts) else None


def _place_aside(partial: Path, inputs: object) -> Path:
    return partial.with_name(f"{partial.name}.{fingerprint(inputs)[:8]}")


def _set_aside(partial: Path, why: str) -> None:
    """Keeps unfinished work that was begun with other inputs, in a folder of its own."""
    place = _place_aside(partial, _read_begun(partial))
    if place.exists():
        shutil.rmtree(place)  # of the same inputs, and older
    os.replace(partial, place)
    say(
        f"  unfinished work is set aside ({why}): a run with its settings goes on with it; delete "
        f"{place} if none will"
    )
