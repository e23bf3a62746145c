"""Lines of text files, read one at a time; missing files and damaged bytes become problems."""

import codecs
import contextlib
import difflib
import io
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

from ark_jax.data.encodings import (
    BROKEN_GZIP,
    HEAD_BYTES,
    UTF8,
    file_encoding,
    head_encoding,
    open_bytes,
)
from ark_jax.data.problems import Findings
from ark_jax.data.rows import SURROGATE, has_surrogate

LONGEST_LINE = 110 << 20  # characters; a longer line is no row
_PACKED = "is packed by gzip and damaged; copy it again"
NOT_TEXT = "is not text, or in an unknown encoding; save it as UTF-8"
TREC_TABLE = (
    "holds TREC's judgments (qrels) or rankings, not a text; write judgments as qrels/test.tsv of "
    "a BEIR folder"
)
TREC_LINES = 50  # lines by which a table of TREC is recognised
# Judgments: query, 0, document, grade, or three numbers without the 0. A ranking: query, Q0,
# document, rank, score, name.
_TREC_LINE = re.compile(
    r"\s*(?:\S+\s+0\s+\S+\s+-?\d+|\d+\s+\d+\s+-?\d+|\S+\s+Q0\s+\S+\s+\d+\s+\S+\s+\S+)\s*"
)


def missing_file(path: Path) -> str:
    """Says that a path does not exist, with similar names as the fix."""
    if not path.parent.is_dir():
        return f"does not exist, nor does the folder {path.parent}; mend the path"
    names = [child.name for child in path.parent.iterdir()]
    similar = difflib.get_close_matches(path.name, names, 3)
    if similar:
        fix = f"did you mean {' or '.join(similar)}?"
    else:
        fix = f"mend the path, or put it into {path.parent.absolute()}"
    return f"does not exist; {fix}"


def unreadable_file(path: Path, error: OSError) -> str:
    """Says why a file cannot be read, and the fix."""
    if isinstance(error, FileNotFoundError):
        return missing_file(path)
    return f"cannot be read ({error.strerror}); give a readable file"


def file_head(path: Path) -> bytes:
    """The first bytes of a file, unpacked, as far as it can be read."""
    head = b""
    with contextlib.suppress(OSError, *BROKEN_GZIP), open_bytes(path) as file:
        while len(head) < HEAD_BYTES and (part := file.read1(HEAD_BYTES - len(head))):
            head += part
    return head


def head_text(path: Path) -> str:
    """The first bytes of a file as text, without invalid ones; "" if it cannot be read."""
    head = file_head(path)
    return head.decode(head_encoding(head) or UTF8, "ignore")


def begins_with(path: Path, pattern: re.Pattern) -> bool:
    """Whether the head of a file matches a pattern; no folder does."""
    return path.is_file() and bool(pattern.match(head_text(path)))


def is_parquet(path: Path) -> bool:
    """Whether a file holds Parquet, by its name or its first bytes."""
    return path.suffix == ".parquet" or file_head(path).startswith(b"PAR1")


def is_arrow(path: Path) -> bool:
    """Whether a file is a stream of Arrow, as `datasets` saves one, by its name."""
    return path.suffix == ".arrow"


def is_trec_table(text: str) -> bool:
    """Whether a text is a table of TREC, by its first lines."""
    lines = list(itertools.islice(filter(str.strip, text.split("\n")), TREC_LINES))
    return bool(lines) and all(map(_TREC_LINE.fullmatch, lines))


def is_trec_judgments(text: str) -> bool:
    """Whether a text is a table of TREC's judgments, and not of a ranking."""
    return is_trec_table(text) and len(text.split("\n", 1)[0].split()) < 6


def begins_as_json(path: Path) -> bool:
    """Whether a file begins with an object or array of JSON."""
    return head_text(path).lstrip()[:1] in ("{", "[")


def encoding_and_remark(path: Path, named: str) -> tuple[str, str]:
    """The encoding of a file, and a remark on it; "" if it is UTF-8 or named.

    Args:
        named: the encoding that the user names, or "".

    Raises:
        OSError: it cannot be read.
        ValueError: it is not text, or a damaged file of gzip.
    """
    is_utf8 = named and codecs.lookup(named).name == "utf-8"
    try:
        encoding = UTF8 if is_utf8 else named or file_encoding(path)
    except BROKEN_GZIP:
        raise ValueError(_PACKED) from None
    if not encoding:
        raise ValueError(NOT_TEXT)
    if named or encoding == UTF8:
        return encoding, ""
    return encoding, f"read as {encoding}; if it is another, name it in config.data.encoding"


def text_lines(path: Path, findings: Findings, newline: str = "\n") -> Iterator[tuple[int, str]]:
    """The lines of a text file with their ends, and their numbers from 1.

    Invalid bytes are reported and become surrogates, which no row accepts.

    Args:
        findings: where problems go, and how the user says to read the file.
        newline: as for `open`. JSON strings may contain other line separators than "\\n".
    """
    blank, number = True, 0
    try:
        encoding, remark = encoding_and_remark(path, findings.reading.encoding)
        if remark:
            findings.remarks.add(path, f"is {remark}", rows=0)
        file = io.TextIOWrapper(open_bytes(path), encoding, "surrogateescape", newline)
        with file:
            while line := file.readline(LONGEST_LINE + 1):
                number += 1
                if len(line) > LONGEST_LINE:
                    message = (
                        f"line {number} is longer than {LONGEST_LINE >> 20} million characters; "
                        "write one row per line: nothing from there on was read"
                    )
                    findings.problems.stop(path, message, number)
                    return
                blank = blank and not line.strip()
                if has_surrogate(line):
                    findings.problems.add(path, _invalid_byte(number, line, encoding), number)
                yield number, line
    except BROKEN_GZIP:  # where the user names the encoding; else it was found above
        findings.problems.stop(path, f"{_PACKED}: nothing from there on was read", number + 1)
        return
    except OSError as error:
        findings.problems.add(path, unreadable_file(path, error))
        return
    except UnicodeError as error:  # of UTF-16 that is cut off
        fix = "copy it again, or name its config.data.encoding"
        reason = getattr(error, "reason", error)
        message = f"is not {encoding} ({reason}); {fix}: nothing from there on was read"
        findings.problems.stop(path, message, number + 1)
        return
    except ValueError as error:
        findings.problems.add(path, str(error))
        return
    if blank:
        findings.problems.add(path, "is empty; fill it or give another file")


def _invalid_byte(number: int, line: str, encoding: str) -> str:
    """The problem of a line with an invalid byte, for which a surrogate stands, and the fix."""
    start = SURROGATE.search(line).start()
    name = "UTF-8" if encoding == UTF8 else encoding
    head = line[:start].encode("utf-8" if encoding == UTF8 else encoding, "replace")
    place = f"byte {len(head) + 1} of line {number} (0x{ord(line[start]) & 0xFF:02x})"
    return f"{place} is not {name}; save the file as UTF-8"


def filled_lines(path: Path, findings: Findings) -> Iterator[tuple[int, str]]:
    """The lines of `text_lines` that are not blank, without their ends."""
    for number, line in text_lines(path, findings):
        if line.strip():
            yield number, line.rstrip("\r\n")


def read_text(path: Path, findings: Findings) -> str:
    """The whole text of a file, with the problems of `text_lines`."""
    return "".join(line for _, line in text_lines(path, findings))
