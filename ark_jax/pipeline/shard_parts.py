"""A map over shards whose results lie in files, so that the next run goes on behind a kill."""

import contextlib
import operator
import shutil
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path

from ark_jax.pipeline.parts import store_part, whole_parts
from ark_jax.runtime.map_shards import Prepare, Shard, are_few, map_shards

FOLDER = "shards"  # in that of the stage, until the stage has merged them


def map_stored(
    folder: Path, name: str, prepare: Prepare, shards: Iterable[Shard]
) -> Iterator[bytes]:
    """`map_shards`, of work that makes bytes; what an earlier run has made is read from its files.

    A few shards are not worth a file.

    Args:
        folder: of the stage.
        name: of this map, among those of the stage.
        shards: the same in every run of the stage.
    """
    few, shards = are_few(shards)
    if few:
        yield from map_shards(prepare, shards)
        return
    files = folder / FOLDER
    files.mkdir(exist_ok=True)
    stored = {path.name for path in whole_parts(files, f"{name}-*.bin")}
    path = lambda number: files / f"{name}-{number:06d}.bin"
    numbers: list[int] = []  # of the missing shards, ahead of their results

    def missing() -> Iterator[Shard]:
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
