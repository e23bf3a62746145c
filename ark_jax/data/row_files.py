"""Rows of JSON, JSONL and CSV files. Problems are collected, and reading continues after them."""

import collections
import csv
import difflib
import io
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from ark_jax.data.records import Problem
from ark_jax.data.rows import TYPE_NAMES, InputRow, has_surrogate

_JSON_BLANKS = re.compile(r"[ \t\r\n]*")


def file_problem(path: Path, message: str, line: int = 0) -> Problem:
    """A problem of a file that belongs to no field."""
    return Problem(str(path), line, "", message)


def missing_file(path: Path) -> Problem:
    """The problem that a path does not exist, with similar names as the fix."""
    if not path.parent.is_dir():
        return file_problem(
            path, f"does not exist, nor does the folder {path.parent}; mend the path"
        )
    names = [child.name for child in path.parent.iterdir()]
    similar = difflib.get_close_matches(path.name, names, 3)
    if similar:
        fix = f"did you mean {' or '.join(similar)}?"
    else:
        fix = f"mend the path, or put it into {path.parent}"
    return file_problem(path, f"does not exist; {fix}")


def csv_files(folder: Path, problems: list[Problem]) -> list[Path]:
    """The CSV files in a folder and its subfolders, in order."""
    paths = sorted(folder.rglob("*.csv")) if folder.is_dir() else []
    if not folder.exists():
        problems.append(missing_file(folder))
    elif not paths:
        problems.append(file_problem(folder, "holds no CSV file; put FairytaleQA's there"))
    return paths


def json_rows(path: Path, problems: list[Problem]) -> Iterator[InputRow]:
    """The objects of a JSON array or of a JSONL file."""
    text = _read_text(path, problems)
    if text.lstrip().startswith("["):
        yield from _array_rows(text, path, problems)
        return
    # Not splitlines, because JSON strings may contain U+2028 and other line separators.
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip() or has_surrogate(line):
            continue
        try:
            value = json.loads(line, object_pairs_hook=_object)
        except (ValueError, RecursionError) as error:
            if line.strip() == "{":
                message = (
                    "the object runs over several lines; write each object on one "
                    "line, or all in one array, [...]"
                )
                problems.append(file_problem(path, message, number))
                return
            fix = _broken_line_fix(line, number == len(lines))
            problems.append(file_problem(path, f"{_invalid_json(error)}; {fix}", number))
            continue
        if isinstance(value, dict):
            yield InputRow(str(path), number, value)
        else:
            message = f"the line is {TYPE_NAMES[type(value)]}; write an object, {{...}}"
            problems.append(file_problem(path, message, number))


def _broken_line_fix(line: str, is_last: bool) -> str:
    if "\r{" in line:
        return "its lines end as on old Macs: save it with line ends of Unix or Windows"
    if is_last:
        return "the last line is cut off: copy the file again or delete the line"
    return "mend the line"


def _array_rows(text: str, path: Path, problems: list[Problem]) -> Iterator[InputRow]:
    """Decodes one element at a time, so that the elements before a syntax error are read."""
    decoder = json.JSONDecoder(object_pairs_hook=_object)
    position, number = _skip_blanks(text, text.index("[") + 1), 0
    if text.startswith("]", position):
        problems.append(file_problem(path, "is an empty array; fill it or give another file"))
        return
    try:
        while text[position - 1] != "]" or not number:
            number += 1
            value, position = decoder.raw_decode(text, _skip_blanks(text, position))
            if isinstance(value, dict):
                yield InputRow(str(path), number, value, unit="row")
            else:
                message = f"row {number} is {TYPE_NAMES[type(value)]}; write an object, {{...}}"
                problems.append(file_problem(path, message, number))
            position = _skip_blanks(text, position) + 1
            if text[position - 1 : position] not in (",", "]"):
                raise json.JSONDecodeError("Expecting ',' or ']'", text, position - 1)
        if text[position:].strip():
            raise json.JSONDecodeError("Text after the array", text, _skip_blanks(text, position))
    except (ValueError, RecursionError) as error:
        message = (
            f"row {number}: {_invalid_json(error)}; mend it, or copy the file again if "
            "it is cut off: nothing behind it was read"
        )
        problems.append(file_problem(path, message, number))


def _skip_blanks(text: str, position: int) -> int:
    return _JSON_BLANKS.match(text, position).end()


def _object(pairs: list[tuple[str, object]]) -> dict:
    """The object of these fields; Python would keep the last of equal keys without a word."""
    value = dict(pairs)
    if len(value) < len(pairs):
        key = collections.Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {key!r} is given twice in an object")
    return value


def _invalid_json(error: Exception) -> str:
    if not isinstance(error, json.JSONDecodeError):
        return f"invalid JSON ({error})"
    line = f"line {error.lineno}, " if "\n" in error.doc else ""
    return f"invalid JSON at {line}column {error.colno} ({error.msg})"


def csv_rows(path: Path, columns: tuple[str, ...], problems: list[Problem]) -> Iterator[InputRow]:
    """The rows of a CSV file with a header, each with the line where it begins.

    Args:
        path: the file.
        columns: columns that the header must name.
        problems: the list to which problems are added.
    """
    text = _read_text(path, problems)
    csv.field_size_limit(sys.maxsize)  # by default a cell of 128 KiB, a long section, is an error
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    header, next_line, has_rows = [], 1, False
    try:
        for cells in reader:
            line, next_line = next_line, reader.line_num + 1
            if not any(cells):
                continue
            if not header:
                header = cells
                missing = [name for name in columns if name not in header]
                if missing:
                    message = (
                        f"no such column among {header}; "
                        f"name {', '.join(columns)} in the first line"
                    )
                    problems.append(Problem(str(path), line, missing[0], message))
                    return
                continue
            has_rows = True
            if len(cells) == len(header):
                yield InputRow(str(path), line, dict(zip(header, cells, strict=True)))
            else:
                message = (
                    f"{len(cells)} cells under a header of {len(header)}; put "
                    "cells that hold commas or line breaks in quotes"
                )
                problems.append(file_problem(path, message, line))
        if text and not has_rows:
            message = "holds no row below the header; add one or delete the file"
            problems.append(file_problem(path, message))
    except csv.Error as error:
        message = f"the row is broken CSV ({error}); check its quotes"
        problems.append(file_problem(path, message, next_line))


def _read_text(path: Path, problems: list[Problem]) -> str:
    """Reads UTF-8. Invalid bytes are reported and become surrogates, which no row accepts."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        problems.append(missing_file(path))
        return ""
    except OSError as error:
        message = f"cannot be read ({error.strerror}); give a readable file"
        problems.append(file_problem(path, message))
        return ""
    if b"\0" in data[:4096]:
        problems.append(file_problem(path, "is binary or UTF-16, not UTF-8 text; save it as UTF-8"))
        return ""
    text = data.decode("utf-8", "surrogateescape").removeprefix("\ufeff")
    if not text.strip():
        problems.append(file_problem(path, "is empty; fill it or give another file"))
    if has_surrogate(text):
        problems += _invalid_bytes(path, data)
    return text


def _invalid_bytes(path: Path, data: bytes) -> Iterator[Problem]:
    """A problem for each line that is not UTF-8."""
    for number, line in enumerate(data.split(b"\n"), 1):
        try:
            line.decode("utf-8")
        except UnicodeDecodeError as error:
            byte = line[error.start]
            message = (
                f"byte {error.start + 1} of line {number} (0x{byte:02x}) is not UTF-8; "
                "save the file as UTF-8"
            )
            yield file_problem(path, message, number)
