"""Lines of text files, read one at a time; missing files and damaged bytes become problems."""

import difflib
from collections.abc import Iterator
from pathlib import Path

from ark_jax.data.problems import Findings
from ark_jax.data.rows import has_surrogate

HEAD_BYTES = 1 << 16  # what recognising a file looks at
LONGEST_LINE = 1 << 28  # characters; a longer line is no row
NOT_TEXT = "is binary or UTF-16, not UTF-8 text; save it as UTF-8"


def missing_file(path: Path) -> str:
    """Says that a path does not exist, with similar names as the fix."""
    if not path.parent.is_dir():
        return f"does not exist, nor does the folder {path.parent}; mend the path"
    names = [child.name for child in path.parent.iterdir()]
    similar = difflib.get_close_matches(path.name, names, 3)
    if similar:
        fix = f"did you mean {' or '.join(similar)}?"
    else:
        fix = f"mend the path, or put it into {path.parent}"
    return f"does not exist; {fix}"


def unreadable_file(path: Path, error: OSError) -> str:
    """Says why a file cannot be read, and the fix."""
    if isinstance(error, FileNotFoundError):
        return missing_file(path)
    return f"cannot be read ({error.strerror}); give a readable file"


def file_head(path: Path) -> bytes:
    """The first bytes of a file without a byte order mark; none if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(HEAD_BYTES).removeprefix(b"\xef\xbb\xbf")
    except OSError:
        return b""


def head_text(path: Path) -> str:
    """What `file_head` gives as text, without bytes that are none."""
    return file_head(path).decode("utf-8", "ignore")


def is_parquet(path: Path) -> bool:
    """Whether a file holds Parquet, by its name or its first bytes."""
    return path.suffix == ".parquet" or file_head(path).startswith(b"PAR1")


def begins_as_json(path: Path) -> bool:
    return file_head(path).lstrip()[:1] in (b"{", b"[")


def text_lines(path: Path, findings: Findings, newline: str = "\n") -> Iterator[tuple[int, str]]:
    """The lines of a UTF-8 file with their ends, and their numbers from 1.

    Invalid bytes are reported and become surrogates, which no row accepts.

    Args:
        path: the file.
        findings: where problems go.
        newline: as for `open`. JSON strings may contain other line separators than "\\n".
    """
    blank = True
    try:
        if b"\0" in file_head(path)[:4096]:
            findings.problems.add(path, NOT_TEXT)
            return
        with path.open(encoding="utf-8-sig", errors="surrogateescape", newline=newline) as file:
            number = 0
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
                    findings.problems.add(path, _invalid_byte(number, line), number)
                yield number, line
    except OSError as error:
        findings.problems.add(path, unreadable_file(path, error))
        return
    if blank:
        findings.problems.add(path, "is empty; fill it or give another file")


def _invalid_byte(number: int, line: str) -> str:
    """Names the first byte of a line that is not UTF-8."""
    data = line.encode("utf-8", "surrogateescape")
    try:
        data.decode("utf-8")
        raise AssertionError("a surrogate stands for an invalid byte")
    except UnicodeDecodeError as error:
        place = f"byte {error.start + 1} of line {number} (0x{data[error.start]:02x})"
        return f"{place} is not UTF-8; save the file as UTF-8"


def filled_lines(path: Path, findings: Findings) -> Iterator[tuple[int, str]]:
    """The lines of `text_lines` that are not blank, without their ends."""
    for number, line in text_lines(path, findings):
        if line.strip():
            yield number, line.rstrip("\r\n")


def read_text(path: Path, findings: Findings) -> str:
    """The whole text of a UTF-8 file; problems are those of `text_lines`."""
    return "".join(line for _, line in text_lines(path, findings))
