"""Files of text and office files become pages: text, title and headings."""

import contextlib
import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from ark_jax.data.headings import Heading, Page, Unreadable, titled_page
from ark_jax.data.text_files import NOT_TEXT

_FRONT_MATTER = re.compile(r"\A---\n(.*?)\n(?:---|\.\.\.)(?:\n|\Z)", re.DOTALL)
_FRONT_TITLE = re.compile(r"^title:\s*(.+?)\s*$", re.MULTILINE)
_NOT_IN_TEXT = re.compile("[\0\ud800-\udfff\ufffe\uffff]")
_LINE_HYPHEN = re.compile("[\x02\ufffe]\n?")  # what PDFium has for a hyphen that ends a line


def _text_bytes(path: Path) -> bytes:
    data = path.read_bytes()
    if b"\0" in data:
        raise Unreadable(NOT_TEXT)
    return data


def _text(path: Path) -> str:
    """The text of a UTF-8 file, with line ends of Unix.

    Raises:
        Unreadable: it is binary, or other text.
    """
    data = _text_bytes(path)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        message = f"is not UTF-8 (byte 0x{data[error.start]:02x} in line {line}); save it as UTF-8"
        raise Unreadable(message) from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def markdown_page(path: Path) -> Page:
    """The source of a Markdown file, without its front matter."""
    from markdown_it import MarkdownIt

    text, title = _text(path), ""
    if front := _FRONT_MATTER.match(text):
        named = _FRONT_TITLE.search(front[1])
        title = named[1].strip("\"'") if named else ""
        text = text[front.end() :]
    starts = [0]
    for line in text.split("\n"):
        starts.append(starts[-1] + len(line) + 1)
    headings = []
    tokens = MarkdownIt("commonmark").parse(text)
    for token, inline in itertools.pairwise(tokens):
        if token.type == "heading_open":
            pieces = (c.content for c in inline.children or () if c.type in ("text", "code_inline"))
            name = " ".join("".join(pieces).split())
            headings.append(Heading(int(token.tag[1:]), starts[token.map[0]], name))
    return titled_page(text, headings, title)


def html_file_page(path: Path) -> Page:
    from ark_jax.data.html import html_page

    return html_page(_text_bytes(path))


def pdf_page(path: Path) -> Page:
    """The text of all pages of a PDF file; its bookmarks are the headings."""
    import pypdfium2

    try:
        document = pypdfium2.PdfDocument(path)
    except pypdfium2.PdfiumError as error:
        if "password" in str(error).lower():
            raise Unreadable("is encrypted; save it without a password") from None
        raise
    with contextlib.closing(document):
        pages = [
            _page_text(document[i].get_textpage().get_text_range()) for i in range(len(document))
        ]
        starts = [0, *itertools.accumulate(len(page) + 2 for page in pages)]
        text = "\n\n".join(pages)
        if not text.strip():
            raise Unreadable("holds no text, perhaps it was scanned; run OCR first")
        headings = sorted(_bookmarks(document, text, starts), key=lambda heading: heading.start)
        title = _page_text(document.get_metadata_dict().get("Title", ""))
    # No heading of a PDF is known to be its title.
    page = titled_page(text, [h._replace(level=h.level + 1) for h in headings])
    return page._replace(title=title)


def _page_text(text: str) -> str:
    """The text of a page, with line ends of Unix and without hyphens at the ends of lines."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _NOT_IN_TEXT.sub("", _LINE_HYPHEN.sub("", text)).strip()


def _bookmarks(document, text: str, starts: list[int]) -> Iterator[Heading]:
    """The bookmarks that lead to a page, at their words on it or else where the page begins."""
    for bookmark in document.get_toc():
        target, words = bookmark.get_dest(), _page_text(bookmark.get_title()).split()
        number = target.get_index() if target else None
        if not words or number is None or not 0 <= number < len(starts) - 1:
            continue
        pattern = re.compile(r"\s+".join(map(re.escape, words)), re.IGNORECASE)
        match = pattern.search(text, starts[number], starts[number + 1])
        start = match.start() if match else min(starts[number], len(text))
        yield Heading(bookmark.level + 1, start, " ".join(words))


def docx_page(path: Path) -> Page:
    """The paragraphs and tables of a Word file."""
    import docx
    from docx.table import Table

    document = docx.Document(str(path))
    lines: list[str] = []
    headings, length, title = [], 0, ""
    for block in document.iter_inner_content():
        if isinstance(block, Table):
            rows = (" | ".join(cell.text for cell in row.cells) for row in block.rows)
            line = "\n".join(rows)
        else:
            line, style = block.text, block.style.name if block.style is not None else ""
            if style == "Title":
                title = title or line
            elif match := re.fullmatch(r"[Hh]eading ([1-9])", style or ""):
                headings.append(Heading(int(match[1]), length, " ".join(line.split())))
        if line.strip():
            lines.append(line)
            length += len(line) + 2
    title = title or document.core_properties.title or ""
    if title:  # the headings of level 1 are chapters
        headings = [heading._replace(level=heading.level + 1) for heading in headings]
    return titled_page("\n\n".join(lines), headings, title)


CONVERTERS: dict[str, Callable[[Path], Page]] = {
    ".txt": lambda path: Page("", _text(path)),
    ".rst": lambda path: Page("", _text(path)),
    ".md": markdown_page,
    ".markdown": markdown_page,
    ".html": html_file_page,
    ".htm": html_file_page,
    ".xhtml": html_file_page,
    ".pdf": pdf_page,
    ".docx": docx_page,
}


def convert(path: Path) -> Page:
    """The page of a file with one of the suffixes of `CONVERTERS`.

    Raises:
        Unreadable: the file is damaged, protected or empty.
        ImportError: the converter's package is not installed.
    """
    try:
        page = CONVERTERS[path.suffix.lower()](path)
    except (Unreadable, ImportError):
        raise
    except OSError as error:
        raise Unreadable(f"cannot be read ({error.strerror or error}); check the file") from None
    except Exception as error:  # what the converters raise for damaged files is not documented
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:120]
        raise Unreadable(f"is damaged ({reason}); check the file") from None
    if not page.text.strip():
        raise Unreadable("holds no text; delete it or fill it")
    return page
