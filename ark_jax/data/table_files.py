"""Rows of CSV, TSV and Parquet files, and of any file whose content shows its form."""

import ast
import collections
import contextlib
import csv
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ark_jax.data.converters import first_sheet, within_limits
from ark_jax.data.encodings import DENSEST, SMALL
from ark_jax.data.framework_rows import plain_row
from ark_jax.data.json_files import json_rows, parse_json
from ark_jax.data.problems import AS_IT_IS, Findings, Reading
from ark_jax.data.records import Unreadable
from ark_jax.data.rows import InputRow
from ark_jax.data.text_files import begins_as_json, head_text, is_arrow, is_parquet, text_lines

if TYPE_CHECKING:
    import pyarrow


DELIMITERS = (",", "\t", ";")
SMALL_ROWS = 1 << 20  # a file with more rows has a byte for each of them
LONGEST_LIST = 1 << 20  # characters of a cell that is a list as Python writes it
BATCH_ROWS = 256  # of a Parquet or Arrow file that are in memory at once
LIST_COLUMNS = (
    *("answers", "answer", "golden_answers", "possible_answers", "documents", "evidence"),
    *("contexts", "reference_contexts", "retrieved_contexts", "ground_truths"),  # ragas's
    *("pos", "neg"),
)
ID_COLUMNS = ("id", "_id", "document", "documents")  # Parquet may hold them as numbers
# A string as Python's `repr` writes it, and a list of them, as `str` of a list or of an array.
_STRING = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""")
_STRINGS = re.compile(rf"\[\s*(?:(?:{_STRING.pattern})[\s,]*)+\]")
_QUOTED_CELL = re.compile(r'"(?:[^"]|"")*"')


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

    An empty cell is a field that is missing. A cell of `LIST_COLUMNS` is a list as JSON or Python
    writes it, or one item.
    """
    delimiter, _ = table_header(path)
    for row in csv_rows(path, (), findings, delimiter):
        yield _row_of_cells(row, findings)


def _row_of_cells(row: InputRow, findings: Findings) -> InputRow:
    """The row of a table, of which each value is a cell's text."""
    named = findings.reading.named(row.values)
    cells = {name.strip().lower(): cell for name, cell in named.items()}
    values = {name: cell for name, cell in cells.items() if cell.strip()}
    known = InputRow(row.file, row.line, values, row.unit, cells.keys())
    known.of_cells = True
    for name in LIST_COLUMNS:
        if name in values:
            values[name] = _cell_items(values[name], name, known)
    return known


def sheet_rows(path: Path, findings: Findings) -> Iterator[InputRow]:
    """The rows of the first sheet of an Excel file, as `table_rows`."""
    try:
        rows = first_sheet(path)
        header = next(rows, [])
        if fault := _header_fault(header, ()):
            findings.problems.stop(path, fault[1], 1, fault[0])
            return
        for number, cells in enumerate(rows, 2):
            if any(cells):
                findings.problems.rows += 1
                named = {name: cell for name, cell in zip(header, cells, strict=True) if name}
                yield _row_of_cells(InputRow(str(path), number, named, "row"), findings)
    except Unreadable as error:
        findings.problems.add(path, str(error))


def sheet_has_rows(path: Path) -> bool:
    """Whether the first sheet of an Excel file is a table of documents or questions."""
    return bool(CORPUS_COLUMNS & {*_sheet_columns(path)})


def _sheet_columns(path: Path) -> list[str]:
    """The names in the first row of an Excel file, in lower case; none of a damaged file."""
    with contextlib.suppress(Unreadable):
        return [name.strip().lower() for row in first_sheet(path, 1) for name in row]
    return []


def _with_lists(row: InputRow) -> InputRow:
    """A row in which strings that are lists, as a table's cells may be, are lists."""
    for name in LIST_COLUMNS:
        value = row.values.get(name)
        if isinstance(value, str) and value.lstrip().startswith("["):
            items = _cell_items(value, name, row)
            # Other than a cell, a string of numbers was meant as it is.
            if items != [value] and all(isinstance(item, str) for item in items):
                row.values = {**row.values, name: items}
    return row


def _cell_items(cell: str, name: str, row: InputRow) -> list:
    """The items of a list as JSON or Python writes it; any other cell is one item."""
    text = cell.strip()
    if not text.startswith("["):
        return [cell]
    try:
        return parse_json(text)
    except (ValueError, RecursionError):
        pass
    if len(text) <= LONGEST_LIST and _STRINGS.fullmatch(text):
        try:
            # One by one: Python would join the strings of an array, which have no commas between.
            return [ast.literal_eval(string) for string in _STRING.findall(text)]
        except (ValueError, SyntaxError):
            pass
    if re.match(r"""\[\s*['"]""", text):
        fix = 'write one as JSON does, ["...", "..."]'
        row.add_problem(name, f"begins like a list but is not one ({text[:40]!r})", fix)
    return [cell]


def csv_rows(
    path: Path, columns: Sequence[str], findings: Findings, delimiter: str = ","
) -> Iterator[InputRow]:
    """The rows of a CSV file with a header, each with the line where it begins.

    Args:
        columns: columns that the header must name.
    """
    problems, header, has_rows, total = findings.problems, [], False, 0
    for line, cells in csv_cells(path, findings, delimiter):
        if not header:
            header, total = cells, problems.total
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
    if header and not has_rows and problems.total == total:
        problems.add(path, "holds no row below the header; add one or delete the file")


def csv_cells(
    path: Path, findings: Findings, delimiter: str = ","
) -> Iterator[tuple[int, list[str]]]:
    """The rows of a CSV file that are not empty, each with the line where it begins."""
    csv.field_size_limit(sys.maxsize)  # by default a cell of 128 KiB, a long section, is an error
    quoting = csv.QUOTE_MINIMAL
    if delimiter == "\t" and (count := _count_plain_quotes(path, findings)):
        quoting = csv.QUOTE_NONE
        message = f"{count:,} lines hold a quote of speech; all quotes of the file are read as text"
        findings.remarks.add(path, message, rows=0)
    lines = (line for _, line in text_lines(path, findings, newline=""))
    reader = csv.reader(lines, strict=True, delimiter=delimiter, quoting=quoting)
    next_line = 1
    try:
        for cells in reader:
            line, next_line = next_line, reader.line_num + 1
            if any(cells):
                yield line, cells
    except csv.Error as error:
        message = f"the row is broken CSV ({error}); check its quotes: nothing after it was read"
        findings.problems.stop(path, message, next_line)


def _count_plain_quotes(path: Path, findings: Findings) -> int:
    """The lines of a TSV file that hold a quote of speech; 0 if quotes enclose cells.

    Most programs write TSV without quotes around cells. A cell that begins with a quote and does
    not end with its partner in the same line is then speech, and its line has all columns. If
    quotes enclose cells, it has a line break, and lines of its row lack columns.
    """
    width, spoken, broken = 0, 0, 0
    for _, line in text_lines(path, Findings(findings.reading), newline=""):
        cells = line.rstrip("\r\n").split("\t")
        width = width or len(cells)
        if len(cells) != width:
            broken += bool(line.strip())
        else:
            spoken += any(c[:1] == '"' and not _QUOTED_CELL.fullmatch(c) for c in cells)
    return spoken if spoken > broken else 0


def _header_fault(header: list[str], columns: Sequence[str]) -> tuple[str, str] | None:
    """A column that is wrong, and why; None for a valid header."""
    if missing := [name for name in columns if name not in header]:
        fix = f"name {', '.join(columns)} in the first line"
        return missing[0], f"no such column among {header}; {fix}"
    names = [name.strip().lower() for name in header]
    counts = collections.Counter(filter(None, names))
    if twice := next((name for name, count in counts.items() if count > 1), ""):
        return twice, f"the column {twice!r} occurs twice; rename one"
    return None


def parquet_rows(path: Path, findings: Findings, leave_out: str = "") -> Iterator[InputRow]:
    """The rows of a Parquet or Arrow file. A null is a field that is missing, a number an id.

    Args:
        leave_out: a column that is not read.
    """
    import pyarrow as pa

    number = 0
    try:
        for batch in within_limits(_record_batches, path, leave_out):
            for row in range(len(batch)):
                number += 1
                findings.problems.rows += 1
                try:
                    (values,) = batch.slice(row, 1).to_pylist()
                except UnicodeDecodeError:
                    message = f"row {number} is not UTF-8; write the file again as UTF-8"
                    findings.problems.add(path, message, number)
                    continue
                values = findings.reading.listed(values)
                known = _values_of_parquet_row(values)
                yield InputRow(str(path), number, known, unit="row", columns=values.keys())
    except (pa.ArrowException, OSError) as error:
        findings.problems.add(path, broken_parquet(error))
        return
    except Unreadable as error:
        findings.problems.add(path, f"{error}")
        return
    if not number:
        findings.problems.add(path, "holds no row; give another file")


def _record_batches(path: Path, leave_out: str) -> Iterator["pyarrow.RecordBatch"]:
    """The rows of a Parquet or Arrow file in batches, without one column."""
    import pyarrow as pa

    room = max(SMALL, DENSEST * path.stat().st_size)
    for batch in _packed_batches(path, leave_out):
        # One long text may be the cell of a million rows.
        columns = [x.dictionary_decode() if hasattr(x, "dictionary") else x for x in batch.columns]
        batch = pa.RecordBatch.from_arrays(columns, batch.schema.names)
        room -= batch.nbytes
        if room < 0:
            raise Unreadable("unpacks to far more than its size; write it anew without packing")
        yield batch


def _packed_batches(path: Path, leave_out: str) -> Iterator["pyarrow.RecordBatch"]:
    """`_record_batches` as the file has them.

    Raises:
        Unreadable: it has more rows than bytes.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    kept = lambda names: [name for name in names if name != leave_out]
    if not is_arrow(path):
        with pq.ParquetFile(path) as file:
            rows, size = file.metadata.num_rows, path.stat().st_size
            if rows > max(SMALL_ROWS, size):
                fix = "write it anew without packing"
                raise Unreadable(f"has {rows:,} rows in {size:,} bytes; {fix}")
            columns = kept(file.schema_arrow.names) if leave_out else None
            yield from file.iter_batches(BATCH_ROWS, columns=columns, use_threads=False)
        return
    with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as stream:
        for batch in stream:
            batch = batch.select(kept(batch.schema.names))
            for start in range(0, len(batch), BATCH_ROWS):
                yield batch.slice(start, BATCH_ROWS)


def broken_parquet(error: Exception) -> str:
    """Says that a file is neither Parquet nor Arrow, and why."""
    reason = " ".join(str(error).split())[:200]
    return f"cannot be read as Parquet or Arrow ({reason}); copy it again"


def _values_of_parquet_row(values: dict) -> dict:
    """The values that are not null; numbers in columns of ids become strings."""
    known = {name: value for name, value in values.items() if value is not None}
    for name in ID_COLUMNS:
        value = known.get(name)
        if isinstance(value, int):
            known[name] = str(value)
        elif isinstance(value, list):
            known[name] = [str(item) if isinstance(item, int) else item for item in value]
    return known


SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".parquet")
SHEET = ".xlsx"
QUESTIONS = "questions"  # how a file of them is called, beside its documents
CORPUS_COLUMNS = {"text", "question", "user_input"}  # a table that has one of them can be a corpus


def rows_of(path: Path, findings: Findings) -> Iterator[InputRow]:
    """The rows of a file of any form; a missing or damaged file is a problem."""
    if path.suffix.lower() == SHEET:
        rows = sheet_rows(path, findings)
    elif is_parquet(path) or is_arrow(path):
        rows = map(_with_lists, parquet_rows(path, findings))
    elif path.suffix in (".csv", ".tsv") or _has_known_header(path, findings.reading):
        rows = table_rows(path, findings)
    else:
        rows = map(_with_lists, json_rows(path, findings))
    return map(plain_row, rows)


def _has_known_header(path: Path, reading: Reading) -> bool:
    """Whether the first line names a column of a corpus, or one that the user names."""
    if begins_as_json(path):
        return False
    _, names = table_header(path)
    return bool(CORPUS_COLUMNS & {*names}) or reading.has_column(names)


def distinct_stems(files: Sequence[Path]) -> list[str]:
    """The names of files without suffix; equal ones get their folder as a prefix."""
    stems = [path.stem for path in files]
    return [
        f"{path.parent.name}/{stem}" if stems.count(stem) > 1 else stem
        for path, stem in zip(files, stems, strict=True)
    ]


def named_file(folder: Path, stem: str, reading: Reading = AS_IT_IS) -> Path | None:
    """The file of rows with this name in a folder, such as questions.jsonl or questions.csv.

    An Excel file is one if its first sheet has the columns of questions; else it is a document.
    """
    paths = (folder / f"{stem}{suffix}" for suffix in SUFFIXES)
    sheet = folder / f"{stem}{SHEET}"
    return next((path for path in paths if path.exists()), None) or (
        sheet if stem == QUESTIONS and is_sheet_of_questions(sheet, reading) else None
    )


def is_sheet_of_questions(path: Path, reading: Reading) -> bool:
    """Whether the first sheet of an Excel file has a column of questions, or one that is named."""
    columns = _sheet_columns(path) if path.is_file() else []
    return "question" in columns or reading.has_column(columns)
