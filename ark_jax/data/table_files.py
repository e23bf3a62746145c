"""CSV, TSV and Parquet files, and the rows of a file of any form, told by its content."""

import contextlib
import csv
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from ark_jax.data.json_files import json_rows, parse_json
from ark_jax.data.problems import Findings
from ark_jax.data.rows import InputRow
from ark_jax.data.text_files import begins_as_json, head_text, is_parquet, text_lines

DELIMITERS = (",", "\t", ";")
LIST_COLUMNS = (
    *("answers", "answer", "documents", "evidence", "contexts", "reference_contexts"),
    *("pos", "neg"),
)
ID_COLUMNS = ("id", "_id", "document", "documents")  # Parquet may hold them as numbers


def table_header(path: Path) -> tuple[str, list[str]]:
    """The delimiter of a CSV or TSV file and the names of its columns, in lower case."""
    lines = (line + "\n" for line in head_text(path).splitlines())
    first = next((line for line in lines if line.strip()), "")
    headers = []
    for delimiter in DELIMITERS:
        try:
            cells = next(csv.reader([first], delimiter=delimiter), [])
        except csv.Error:
            continue
        headers.append((delimiter, [cell.strip().lower() for cell in cells]))
    return max(headers, key=lambda header: len(header[1]), default=(",", []))


def table_rows(path: Path, findings: Findings) -> Iterator[InputRow]:
    """The rows of a CSV or TSV file whose header is in any case.

    An empty cell is a field that is missing. A cell of `LIST_COLUMNS` is a list as in JSON, or one
    item.
    """
    delimiter, _ = table_header(path)
    for row in csv_rows(path, (), findings, delimiter):
        cells = {name.strip().lower(): cell for name, cell in row.values.items()}
        values = {name: cell for name, cell in cells.items() if cell.strip()}
        for name in LIST_COLUMNS:
            if name in values:
                values[name] = _cell_items(values[name])
        yield InputRow(row.file, row.line, values, columns=cells.keys())


def _cell_items(cell: str) -> list:
    if cell.lstrip().startswith("["):
        with contextlib.suppress(ValueError, RecursionError):
            return parse_json(cell)
    return [cell]


def csv_rows(
    path: Path, columns: Sequence[str], findings: Findings, delimiter: str = ","
) -> Iterator[InputRow]:
    """The rows of a CSV file with a header, each with the line where it begins.

    Args:
        path: the file.
        columns: columns that the header must name.
        findings: where problems go.
        delimiter: the character between two cells.
    """
    problems, header, has_rows, before = findings.problems, [], False, 0
    for line, cells in csv_cells(path, findings, delimiter):
        if not header:
            header, before = cells, problems.total
            if fault := _header_fault(header, columns):
                problems.stop(path, fault[1], line, fault[0])
                return
            continue
        has_rows = True
        problems.rows += 1
        if any("\0" in cell for cell in cells):
            problems.add(path, "the row holds a NUL character; delete it", line)
        elif len(cells) == len(header):
            yield InputRow(str(path), line, dict(zip(header, cells, strict=True)))
        else:
            message = (
                f"{len(cells)} cells under a header of {len(header)}; put "
                "cells that hold the delimiter or line breaks in quotes"
            )
            problems.add(path, message, line)
    if header and not has_rows and problems.total == before:
        problems.add(path, "holds no row below the header; add one or delete the file")


def csv_cells(
    path: Path, findings: Findings, delimiter: str = ","
) -> Iterator[tuple[int, list[str]]]:
    """The rows of a CSV file that are not empty, each with the line where it begins."""
    csv.field_size_limit(sys.maxsize)  # by default a cell of 128 KiB, a long section, is an error
    lines = (line for _, line in text_lines(path, findings, newline=""))
    reader, next_line = csv.reader(lines, strict=True, delimiter=delimiter), 1
    try:
        for cells in reader:
            line, next_line = next_line, reader.line_num + 1
            if any(cells):
                yield line, cells
    except csv.Error as error:
        message = f"the row is broken CSV ({error}); check its quotes: nothing behind it was read"
        findings.problems.stop(path, message, next_line)


def _header_fault(header: list[str], columns: Sequence[str]) -> tuple[str, str] | None:
    """A column that is wrong, and what is."""
    if missing := [name for name in columns if name not in header]:
        fix = f"name {', '.join(columns)} in the first line"
        return missing[0], f"no such column among {header}; {fix}"
    names = [name.strip().lower() for name in header]
    if twice := [name for name in names if name and names.count(name) > 1]:
        return twice[0], f"the column {twice[0]!r} comes twice; rename one"
    return None


def parquet_rows(path: Path, findings: Findings, leave_out: str = "") -> Iterator[InputRow]:
    """The rows of a Parquet file. A null is a field that is missing, and a number an id.

    Args:
        path: the file.
        findings: where problems go.
        leave_out: a column that is not read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            columns = [name for name in names if name != leave_out] if leave_out else None
            for batch in file.iter_batches(batch_size=256, columns=columns):
                for row in range(len(batch)):
                    number += 1
                    findings.problems.rows += 1
                    try:
                        (values,) = batch.slice(row, 1).to_pylist()
                    except UnicodeDecodeError:
                        message = f"row {number} is not UTF-8; write the file again as UTF-8"
                        findings.problems.add(path, message, number)
                        continue
                    known = _parquet_values(values)
                    yield InputRow(str(path), number, known, unit="row", columns=values.keys())
    except (pa.ArrowException, OSError) as error:
        findings.problems.add(path, broken_parquet(error))
        return
    if not number:
        findings.problems.add(path, "holds no row; give another file")


def broken_parquet(error: Exception) -> str:
    reason = " ".join(str(error).split())[:200]
    return f"cannot be read as Parquet ({reason}); copy it again"


def _parquet_values(values: dict) -> dict:
    known = {name: value for name, value in values.items() if value is not None}
    for name in ID_COLUMNS:
        value = known.get(name)
        if isinstance(value, int):
            known[name] = str(value)
        elif isinstance(value, list):
            known[name] = [str(item) if isinstance(item, int) else item for item in value]
    return known


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
