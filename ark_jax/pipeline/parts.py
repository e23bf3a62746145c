"""Parts of an unfinished stage: files that a killed run has left and the next one goes on with.

The manifest of a finished stage tells damage to its files. Until there is one, `parts.jsonl` in the
stage's folder holds the name and digest of each part.
"""

from collections.abc import Callable
from pathlib import Path

from ark_jax.pipeline.fingerprints import file_digest
from ark_jax.pipeline.manifest import sync
from ark_jax.runtime.log import append_row, read_rows, say

PARTS = "parts.jsonl"


def store_part(path: Path, write: Callable[[Path], None]) -> None:
    """Has `write` make a file, which is at `path` whole or not at all."""
    unfinished = path.with_suffix(".new")
    write(unfinished)
    sync(unfinished)
    append_row([path.name, file_digest(unfinished)], path.parent / PARTS)
    unfinished.rename(path)


def whole_parts(folder: Path, pattern: str) -> list[Path]:
    """The parts whose names match, sorted. Damaged ones are deleted, with a warning."""
    rows = [row for row in read_rows(folder / PARTS) if isinstance(row, list)]
    stored = {tuple(row) for row in rows if all(isinstance(value, str) for value in row)}
    paths = []
    for path in sorted(folder.glob(pattern)):
        if (path.name, file_digest(path)) in stored:
            paths.append(path)
        else:
            say(f"  warning: {path} has been damaged: it is made again")
            path.unlink()
    return paths
