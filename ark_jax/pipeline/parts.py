"""Parts of a stage's work, which are kept when it is killed, and shards that become parts."""

import contextlib
import functools
import glob
import operator
import shutil
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path

from ark_jax.pipeline.fingerprints import file_digest
from ark_jax.pipeline.manifest import sync
from ark_jax.pipeline.tables import load_rows, save_rows
from ark_jax.runtime import distributed
from ark_jax.runtime.log import append_row, read_rows, say
from ark_jax.runtime.map_shards import Prepare, Shard, map_shards, peek_shards

PARTS = "parts.jsonl"


def store_part(path: Path, write: Callable[[Path], None]) -> None:
    """Lets `write` make a file, records its digest and moves it to `path`: complete or absent."""
    unfinished = path.with_suffix(".new")
    write(unfinished)
    sync(unfinished)
    append_row([path.name, file_digest(unfinished)], path.parent / PARTS)
    unfinished.rename(path)


def whole_parts(folder: Path, pattern: str) -> list[Path]:
    """The undamaged parts whose names match, sorted. Damaged ones are deleted, with a warning."""
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
    """Whether a part exists undamaged; a damaged one is deleted. Every process must call it."""
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


FOLDER = "shards"  # in the stage's folder, until the stage has merged the results


def map_stored(
    folder: Path, name: str, prepare: Prepare, shards: Iterable[Shard]
) -> Iterator[bytes]:
    """`map_shards` for results in bytes, which are stored; those of an earlier run are read.

    The results of a few shards are not stored.

    Args:
        folder: of the stage.
        name: of this map, among those of the stage.
        shards: the same in every run of the stage.
    """
    peeked, shards = peek_shards(shards)
    if peeked:
        yield from map_shards(prepare, shards)
        return
    files = folder / FOLDER
    files.mkdir(exist_ok=True)
    stored = {path.name for path in whole_parts(files, f"{name}-*.bin")}
    path = lambda number: files / f"{name}-{number:06d}.bin"
    numbers: list[int] = []  # of the missing shards, ahead of their results

    def missing() -> Iterator[Shard]:
        """The shards without a stored result."""
        for number, shard in enumerate(shards):
            if path(number).name not in stored:
                numbers.append(number)
                yield shard

    number = 0
    results: Generator[bytes, None, None] = map_shards(prepare, missing())
    with contextlib.closing(results):
        for result in results:
            missing_number = numbers.pop(0)
            while number < missing_number:
                yield path(number).read_bytes()
                number += 1
            store_part(path(number), operator.methodcaller("write_bytes", result))
            yield result
            number += 1
    while path(number).name in stored:
        yield path(number).read_bytes()
        number += 1


def forget_shards(folder: Path) -> None:
    """Deletes the files of a stage's maps, whose results the stage has merged."""
    shutil.rmtree(folder / FOLDER, ignore_errors=True)
