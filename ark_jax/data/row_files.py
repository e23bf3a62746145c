"""Rows of a file, whatever holds them: JSON, JSONL, CSV, TSV or Parquet, told by the content."""

from collections.abc import Iterator
from pathlib import Path

from ark_jax.data.json_files import json_rows
from ark_jax.data.problems import Findings
from ark_jax.data.rows import InputRow
from ark_jax.data.table_files import parquet_rows, table_header, table_rows
from ark_jax.data.text_files import begins_as_json, is_parquet

SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".parquet")
CORPUS_COLUMNS = {"text", "question", "user_input"}  # a table that has one of them can be a corpus


def rows_of(path: Path, findings: Findings) -> Iterator[InputRow]:
    """The rows of a file; it may be missing or damaged, which is a problem."""
    if is_parquet(path):
        return parquet_rows(path, findings)
    return table_rows(path, findings) if _is_table(path) else json_rows(path, findings)


def _is_table(path: Path) -> bool:
    if path.suffix in (".csv", ".tsv"):
        return True
    return not begins_as_json(path) and bool(CORPUS_COLUMNS & set(table_header(path)[1]))


def named_file(folder: Path, stem: str) -> Path | None:
    """The file of rows with this name in a folder, such as questions.jsonl or questions.csv."""
    paths = (folder / f"{stem}{suffix}" for suffix in SUFFIXES)
    return next((path for path in paths if path.exists()), None)
