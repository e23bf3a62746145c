"""Documents that are given as files, rows or dataframes."""

import dataclasses
import datetime
import itertools
import json
import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from ark_jax.data import readers
from ark_jax.data.problems import Reading
from ark_jax.data.records import Chunk, Document
from ark_jax.data.records import Corpus as ReadCorpus
from ark_jax.runtime.log import say

Corpus = str | Path | Iterable[object]
# What turns a dataframe into dicts: of polars, Arrow and pandas.
_TO_ROWS = {"to_dicts": (), "to_pylist": (), "to_dict": ("records",)}


def read_corpus(
    corpus: Corpus, reading: Reading = readers.AS_IT_IS
) -> tuple[Iterable[Document], Sequence[Chunk] | None]:
    """The documents of a corpus, and its chunks, if it has some.

    Args:
        corpus: a path, several, a dataframe, dicts as `ark-jax check` reads, or documents.

    Raises:
        BadInput: the files or rows have problems.
    """
    if isinstance(corpus, str | Path):
        read = _load(corpus, reading)
        return read.documents, read.chunks
    rows = iter(rows_of(corpus))
    first = next(rows, None)
    records = itertools.chain([] if first is None else [first], rows)
    if first is None or isinstance(first, Document):
        return records, None
    if isinstance(first, str | Path):
        return itertools.chain(*(_load(x, reading).documents for x in records)), None
    with tempfile.TemporaryDirectory() as folder:
        path = write_rows(records, Path(folder) / "documents.jsonl")
        return list(readers.load(path, reading=reading).documents), None


def _load(path: str | Path, reading: Reading) -> ReadCorpus:
    """Reads files, and says what of them is passed over."""
    read = readers.load(path, reading=reading)
    for remark in read.remarks:
        say(f"  {remark}")
    return read


def rows_of(source: Iterable[object]) -> Iterable[object]:
    """The rows of a dataframe as dicts; anything else as it is."""
    for name, words in _TO_ROWS.items():
        if hasattr(source, name):
            rows = getattr(source, name)(*words)  # pandas writes NaN where a value is missing
            return [{x: y for x, y in row.items() if not _is_missing(y)} for row in rows]
    if isinstance(source, dict) or not isinstance(source, Iterable):
        raise ValueError(f"rows: {type(source).__name__}; give a path, a list or a dataframe")
    return source


def _is_missing(value: object) -> bool:
    """Whether a cell is empty: None, NaN or NaT."""
    return value is None or (isinstance(value, float | datetime.date) and value != value)


def write_rows(rows: Iterable[object], path: Path) -> Path:
    """Writes rows, or those of a dataframe, as JSONL, and returns the path.

    Raises:
        ValueError: a row cannot be written as JSON.
    """
    lines = []
    for number, row in enumerate(rows_of(rows), 1):
        is_record = dataclasses.is_dataclass(row) and not isinstance(row, type)
        try:
            if is_record:
                row = dataclasses.asdict(row)
                row["metadata"] = json.loads(row.pop("metadata", "") or "{}")
                row.pop("sections", None)  # no format of rows has them
            lines.append(json.dumps(row, default=lambda value: value.isoformat()))
        except (TypeError, AttributeError) as error:
            raise ValueError(
                f"{path.stem}, row {number}: {error}; give dicts of strings and lists of strings"
            ) from None
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".new")
    unfinished.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    os.replace(unfinished, path)
    return path
