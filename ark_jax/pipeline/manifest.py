"""The manifest of a finished stage: what it was made from, and the digests of its files."""

import json
import os
from pathlib import Path

from ark_jax import __version__
from ark_jax.pipeline.fingerprints import file_digest, fingerprint
from ark_jax.pipeline.stage import Stage, setting

MANIFEST_FILE = "manifest.json"


class Damaged(ValueError):
    """A manifest cannot be trusted; `why` names no path and fits into a list of stages."""

    def __init__(self, path: Path, why: str):
        super().__init__(f"{path}: {why}; `ark-jax run` makes stage {path.parent.name} again")
        self.why = why


def read_manifest(folder: Path) -> dict | None:
    """The manifest of a stage's folder, None if the stage is not finished.

    Raises:
        Damaged: it is not as it was written, or another version writes manifests of another form.
    """
    path = folder / MANIFEST_FILE
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (IsADirectoryError, ValueError, RecursionError):
        raise Damaged(path, f"{MANIFEST_FILE} is damaged") from None
    if why := _manifest_problem(manifest):
        raise Damaged(path, why)
    return manifest


def _manifest_problem(manifest: object) -> str:
    """What is wrong with the content of a manifest, in words; empty if nothing is."""
    match manifest:
        case {
            "stage": str(),
            "inputs": dict(),
            "config": dict(),
            "external": dict(),
            "version": str(),
            "outputs": dict(outputs),
            "counts": dict(),
        } if all(_is_output(value) for value in outputs.values()):
            # A manifest of version 0.4.0 may have no digest.
            if manifest.get("digest", _own_digest(manifest)) == _own_digest(manifest):
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
    """The digest of a manifest that covers all of it but the digest itself."""
    return fingerprint({name: value for name, value in manifest.items() if name != "digest"})


def write_manifest(folder: Path, stage: str, inputs: dict, outputs: dict, counts: dict) -> None:
    """Writes it whole or not at all, and durably."""
    manifest = {"stage": stage, **inputs, "outputs": outputs, "counts": counts}
    read_back = json.loads(json.dumps(manifest))  # keys are texts, as a reader finds them
    unfinished = folder / f"{MANIFEST_FILE}.new"
    text = json.dumps(manifest | {"digest": _own_digest(read_back)}, indent=1, ensure_ascii=False)
    unfinished.write_text(text + "\n", encoding="utf-8")
    sync(unfinished)
    os.replace(unfinished, folder / MANIFEST_FILE)


def settings_of(stage: Stage, config) -> dict:
    """Dotted field -> value, of the settings that decide a stage's output."""
    return {field: setting(config, field) for field in stage.settings}


def inputs_of(stage: Stage, config, fresh: dict[str, str]) -> dict:
    """Everything that decides a stage's output.

    Args:
        fresh: stages that are up to date -> the fingerprints of their outputs.
    """
    return {
        "inputs": {name: fresh[name] for name in stage.after},
        "config": settings_of(stage, config),
        "external": stage.external(config),
        "version": __version__,
    }


def outputs_of(folder: Path, skipped: tuple[Path, ...]) -> dict[str, list]:
    """file -> [bytes, sha256], of all files but those `skipped` and what lies below them."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    kept_files = [path for path in files if not any(map(path.is_relative_to, skipped))]
    for path in kept_files:
        sync(path)
    return {
        path.relative_to(folder).as_posix(): [path.stat().st_size, file_digest(path)]
        for path in kept_files
    }


def difference(manifest: dict, inputs: dict, folder: Path, *, verify: bool = False) -> str:
    """Why a finished stage no longer fits its inputs or its manifest, in words; empty if it does.

    Args:
        verify: compares the digests of its files too, not their sizes alone.
    """
    changed = changed_settings(manifest, inputs["config"]) or changed_inputs(manifest, inputs)
    return changed or damage(manifest, folder, verify=verify)


def changed_settings(manifest: dict, settings: dict) -> str:
    """With which settings a finished stage was made that are others now; empty if with these."""
    before = manifest["config"]
    return "; ".join(
        f"config.{field} was {before[field]}, is {value}"
        if field in before
        else f"config.{field} is new"
        for field, value in settings.items()
        if field not in before or before[field] != value
    )


def changed_inputs(manifest: dict, inputs: dict) -> str:
    """What a finished stage read that is another now, or who made it; empty if nothing changed."""
    if manifest["inputs"].keys() != inputs["inputs"].keys():
        before, now = (", ".join(parts["inputs"]) for parts in (manifest, inputs))
        return f"was made from {before}, is from {now}"
    for kind in ("inputs", "external"):
        for name, value in inputs[kind].items():
            if manifest[kind].get(name) != value:
                return f"{name} changed"
    if manifest["version"] != inputs["version"]:
        return f"made by ark_jax {manifest['version']}"
    return ""


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
