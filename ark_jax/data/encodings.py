"""The encoding of a text file: what a byte order mark says, UTF-8, or what a detector finds."""

import codecs
import errno
import functools
import gzip
import io
import re
import zlib
from pathlib import Path
from typing import BinaryIO

# A packed file may unpack to so many times its size, or to so many bytes if that is more.
DENSEST, SMALL = 200, 1 << 24
HEAD_BYTES = 1 << 16  # what recognising a file looks at
_GZIP = b"\x1f\x8b"
BROKEN_GZIP = (EOFError, zlib.error, gzip.BadGzipFile)
UTF8 = "utf-8-sig"
WESTERN = "cp1252"  # of encodings that are equally likely, the most common; Latin-1 is a part of it
LONGEST_CHARACTER = 4  # bytes; a part of a line may end within one
_BLOCK = 1 << 20  # bytes
_MARKS = {
    codecs.BOM_UTF8: UTF8,
    codecs.BOM_UTF32_LE: "utf-32",  # before UTF-16's mark, with which it begins
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
# What people's programs write; among more, the detector mistakes short texts.
_CANDIDATES = (
    *(WESTERN, "cp1250", "cp1251", "cp1253", "koi8_r"),
    *("cp932", "euc_jp", "gb18030", "big5", "euc_kr"),
)
# A character of UTF-8 of several bytes; also half of a pair, which some programs write so.
_OF_UTF8 = re.compile(
    rb"[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}"
)
_NOT_ASCII = re.compile(rb"[\x80-\xff]")
_SYMBOL_IN_WORD = re.compile(r"[^\W\d_][¡-¶¸-¿][^\W\d_]")
_CONTROL = re.compile("[\0-\x08\x0e-\x1a\x1c-\x1f\x7f]")


def open_bytes(path: Path) -> BinaryIO:
    """Opens a file to be read; one that gzip packed is unpacked, whatever its name.

    Raises:
        OSError: it cannot be read. Reading a packed file may raise `BROKEN_GZIP`.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise OSError(errno.EINVAL, "it is a pipe or a device, no regular file")
    file = path.open("rb")
    if not file.peek(len(_GZIP)).startswith(_GZIP):
        return file
    file.close()
    return io.BufferedReader(_Unpacked(path))


class _Unpacked(io.RawIOBase):
    """What gzip packed, if it is not a multiple of its size that no text has."""

    def __init__(self, path: Path):
        self._file = gzip.open(path)  # noqa: SIM115
        self._most = max(SMALL, DENSEST * path.stat().st_size)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        if self._file.tell() > self._most:
            raise OSError(errno.EFBIG, f"it unpacks to more than {self._most >> 20:,} MiB")
        part = self._file.read1(len(buffer))
        buffer[: len(part)] = part
        return len(part)

    def seekable(self) -> bool:
        return True

    def seek(self, place: int, whence: int = 0) -> int:
        return self._file.seek(place, whence)

    def close(self) -> None:
        self._file.close()
        super().close()


def head_encoding(head: bytes) -> str:
    """The encoding that the first bytes of a file show, or else UTF-8; "" if they are not text."""
    for mark, encoding in _MARKS.items():
        if head.startswith(mark):
            return encoding
    if b"\0" not in head[:4096]:
        return UTF8
    first, second = head[:4096:2], head[1:4096:2]
    # Every second byte of most letters in UTF-16 is 0.
    for zeros, letters, encoding in ((second, first, "utf-16-le"), (first, second, "utf-16-be")):
        if zeros.count(0) > 0.5 * len(zeros) and not letters.count(0):
            return encoding
    return ""


def file_encoding(path: Path) -> str:
    """The encoding that a file seems to have; "" if it is not text.

    A file with damaged UTF-8 has UTF-8: it is more likely than another encoding if most of its
    bytes beyond ASCII are whole characters.

    Raises:
        OSError: it cannot be read.
        BROKEN_GZIP: it is packed and damaged.
    """
    with open_bytes(path) as file:
        head = file.read(HEAD_BYTES)
        if (encoding := head_encoding(head)) != UTF8:
            return encoding
        file.seek(0)
        decoder, has_characters = codecs.getincrementaldecoder("utf-8")(), False
        for block in iter(functools.partial(file.read, _BLOCK), b""):
            try:
                decoder.decode(block, final=len(block) < _BLOCK)
            except UnicodeDecodeError:
                return UTF8 if has_characters else _detect_encoding(block)
            has_characters = has_characters or not block.isascii()
    return UTF8


def _detect_encoding(block: bytes) -> str:
    """The encoding of a block that is not valid UTF-8: UTF-8 if it is damaged, "" if not text."""
    sample = _lines_beyond_ascii(block)
    remainder, characters = _OF_UTF8.subn(b"", sample)
    if characters >= len(_NOT_ASCII.findall(remainder)):
        return UTF8
    import charset_normalizer

    # In Western text no word has a symbol within, such as the "³" for the "ł" of Polish.
    is_western = not _SYMBOL_IN_WORD.search(sample.decode(WESTERN, "replace"))
    candidates = [name for name in _CANDIDATES if is_western or name != WESTERN]
    find = functools.partial(charset_normalizer.from_bytes, cp_isolation=candidates)
    ends = range(len(sample), max(len(sample) - LONGEST_CHARACTER, 0), -1)
    matches = next(filter(None, (list(find(sample[:end])) for end in ends)), [])
    if not matches or _CONTROL.search(str(matches[0])):
        return ""
    quality = lambda match: (match.chaos, -match.coherence)
    equal = [match for match in matches if quality(match) == quality(matches[0])]
    names = [name for match in equal for name in match.could_be_from_charset]
    return WESTERN if is_western and WESTERN in names else matches[0].encoding


def _lines_beyond_ascii(block: bytes) -> bytes:
    """Some lines of a block that are not ASCII, complete ones if possible."""
    lines = block.split(b"\n")
    if len(block) == _BLOCK and len(lines) > 2:
        lines = lines[1:-1]
    chosen, size = [], 0
    for line in lines:
        if not line.isascii() and size < HEAD_BYTES:
            chosen.append(line)
            size += len(line)
    return b"\n".join(chosen)
