"""Rows of JSON and JSONL files. Problems are collected, and reading continues after them."""

import collections
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path

from ark_jax.data.problems import Findings
from ark_jax.data.rows import InputRow, has_surrogate, type_name
from ark_jax.data.text_files import head_text, read_text, text_lines

TRIED_LINES = 20  # lines without any object, after which a file is not JSONL
_JSON_BLANKS = re.compile(r"[ \t\r\n]*")
# What precedes the rows of TriviaQA ("Data") and of WebQSP ("Questions").
_WRAPPED = re.compile(
    r'\s*\{\s*(?:"\w+"\s*:\s*(?:"[^"]*"|[\d.]+)\s*,\s*)*"(?:Data|Questions)"\s*:\s*(?=\[)'
)


def json_rows(path: Path, findings: Findings) -> Iterator[InputRow]:
    """The objects of a JSON array, or of a JSONL file, which is read line by line.

    The array may be that of TriviaQA's or WebQSP's object, whose other fields are not read.
    """
    if head_text(path).lstrip().startswith("["):
        yield from _array_rows(read_text(path, findings), path, findings)
        return
    if _WRAPPED.match(head_text(path)):
        text = read_text(path, findings)
        start = _WRAPPED.match(text).end()
        yield from _array_rows(text[start:], path, findings, is_whole=False)
        return
    lines = text_lines(path, findings)
    head: list[tuple[int, str]] = []
    for number, line in lines:
        if line.strip():
            head.append((number, line))
        if line.lstrip().startswith("{") or len(head) == TRIED_LINES:
            break
    if head and not head[-1][1].lstrip().startswith("{"):
        findings.problems.add(path, _other_content([line for _, line in head]))
        return
    for number, line in itertools.chain(head, lines):
        if not line.strip():
            continue
        findings.problems.rows += 1
        if has_surrogate(line):
            continue
        try:
            value = parse_json(line.rstrip("\r\n"))  # so that a fault at the end is in line 1
        except (ValueError, RecursionError) as error:
            if line.strip() == "{":
                message = (
                    "the object runs over several lines; write each object on one "
                    "line, or all in one array, [...]"
                )
                findings.problems.stop(path, message, number)
                return
            findings.problems.add(
                path, f"{invalid_json(error)}; {_fix_of_broken_line(line)}", number
            )
            continue
        if isinstance(value, dict):
            yield InputRow(str(path), number, findings.reading.listed(value))
        else:
            message = f"the line is {type_name(value)}; write an object, {{...}}"
            findings.problems.add(path, message, number)


def _other_content(lines: list[str]) -> str:
    """What a file without JSON objects seems to be, and the fix."""
    for name, suffix, mark in (("TSV", ".tsv", "\t"), ("CSV", ".csv", ",")):
        if len(lines) > 1 and all(mark in line for line in lines):
            return (
                f"is {name}, not JSON; name the columns in its first line, "
                f"and let its name end in {suffix}"
            )
    return (
        f"is not JSON (it begins with {lines[0].strip()[:40]!r}); write an object per line, {{...}}"
    )


def _fix_of_broken_line(line: str) -> str:
    """What to do about a line that is not JSON."""
    if "\r{" in line:
        return "its lines end as on old Macs: save it with line ends of Unix or Windows"
    if not line.endswith("\n"):
        return "the last line is cut off: copy the file again or delete the line"
    return "mend the line"


def _array_rows(
    text: str, path: Path, findings: Findings, *, is_whole: bool = True
) -> Iterator[InputRow]:
    """Yields the objects of an array one by one, so that those before a syntax error are read.

    `is_whole` says that nothing follows the array.
    """
    if "[" not in text:  # the problem is reported already
        return
    problems = findings.problems
    decoder = json.JSONDecoder(object_pairs_hook=_object_of_pairs)
    position, number = _skip_blanks(text, text.index("[") + 1), 0
    if text.startswith("]", position):
        problems.add(path, "is an empty array; fill it or give another file")
        return
    try:
        while text[position - 1] != "]" or not number:
            number += 1
            problems.rows += 1
            value, position = decoder.raw_decode(text, _skip_blanks(text, position))
            if isinstance(value, dict):
                yield InputRow(str(path), number, findings.reading.listed(value), unit="row")
            else:
                message = f"row {number} is {type_name(value)}; write an object, {{...}}"
                problems.add(path, message, number)
            position = _skip_blanks(text, position) + 1
            if text[position - 1 : position] not in (",", "]"):
                raise json.JSONDecodeError("Expecting ',' or ']'", text, position - 1)
        if is_whole and text[position:].strip():
            raise json.JSONDecodeError("Text after the array", text, _skip_blanks(text, position))
    except (ValueError, RecursionError) as error:
        message = (
            f"row {number}: {invalid_json(error)}; mend it, or copy the file again if "
            "it is cut off: nothing after it was read"
        )
        problems.stop(path, message, number)


def _skip_blanks(text: str, position: int) -> int:
    """The position of the first character from `position` on that is not blank."""
    return _JSON_BLANKS.match(text, position).end()


def json_object(path: Path, findings: Findings) -> dict:
    """The object that a file holds; an empty one with a problem if it is damaged."""
    try:
        value = parse_json(read_text(path, findings))
    except (ValueError, RecursionError) as error:
        findings.problems.add(path, f"{invalid_json(error)}; mend it, or copy the file again")
        return {}
    return value if isinstance(value, dict) else {}


def parse_json(text: str) -> object:
    """The value of a JSON text.

    Raises:
        ValueError: it is not JSON, or an object has a key twice.
    """
    return json.loads(text, object_pairs_hook=_object_of_pairs)


def _object_of_pairs(pairs: list[tuple[str, object]]) -> dict:
    """The object of key and value pairs; ValueError if a key is given twice."""
    value = dict(pairs)
    if len(value) < len(pairs):
        key = collections.Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {key!r} is given twice in an object")
    return value


def invalid_json(error: Exception) -> str:
    """Says that a text is not JSON, and where and why if the error does."""
    if not isinstance(error, json.JSONDecodeError):
        return f"invalid JSON ({error})"
    line = f"line {error.lineno}, " if "\n" in error.doc.rstrip("\n") else ""
    return f"invalid JSON at {line}column {error.colno} ({error.msg})"
