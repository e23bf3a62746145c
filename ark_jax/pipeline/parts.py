"""Parts of an unfinished stage: files that a killed run has left and the next one goes on with.

The manifest of a finished stage tells damage to its files. Until there is one, `parts.jsonl` in the
stage's folder holds the name and digest of each part.
"""

import functools
import glob
from collections.abc import Callable
from pathlib import Path

from ark_jax.pipeline.fingerprints import file_digest
from ark_jax.pipeline.manifest import sync
from ark_jax.pipeline.tables import load_rows, save_rows
from ark_jax.runtime import distributed
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


def is_whole(path: Path) -> bool:
    """Whether a part is there and as it was written. Every process must call this."""
    return distributed.on_first_process(
        lambda: bool(whole_parts(path.parent, glob.escape(path.name)))
    )


def stored_rows(path: Path, make_rows: Callable[[], list[dict]]) -> list[dict]:
    """The rows of a Parquet file, which is made if it is missing or damaged.

    Every process must call this: all make the rows, and the first one writes them.
    """
    if not is_whole(path):
        rows = make_rows()
        distributed.on_first_process(lambda: store_part(path, functools.partial(save_rows, rows)))
    return load_rows(path)
