"""Files of text and office files become pages: text, title and headings."""

import contextlib
import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from ark_jax.data.encodings import HEAD_BYTES, UTF8, head_encoding, open_bytes
from ark_jax.data.office_files import epub_page, pptx_page, xlsx_page
from ark_jax.data.records import Heading, Page, Unreadable, titled_page
from ark_jax.data.text_files import TREC_TABLE, encoding_and_remark, is_trec_table

_FRONT_MATTER = re.compile(r"\A---\n(.*?)\n(?:---|\.\.\.)(?:\n|\Z)", re.DOTALL)
_FRONT_TITLE = re.compile(r"^title:\s*(.+?)\s*$", re.MULTILINE)
_NAMED_CHARSET = re.compile(rb"<[^>]*(?:charset|encoding)\s*=", re.IGNORECASE)
_NOT_IN_TEXT = re.compile("[\0\ud800-\udfff\ufffe\uffff]")
_LINE_HYPHEN = re.compile("[\x02\ufffe]\n?")  # PDFium's signs for a hyphen that ends a line


def _decode_file(path: Path, named: str) -> tuple[str, str]:
    """The text of a file, with line ends of Unix, and a remark on its encoding, or ""."""
    try:
        encoding, remark = encoding_and_remark(path, named)
        with open_bytes(path) as file:
            data = file.read()
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        name = "UTF-8" if encoding == UTF8 else encoding
        byte = f"byte 0x{data[error.start]:02x} in line {line}"
        raise Unreadable(f"is not {name} ({byte}); save it as UTF-8") from None
    except ValueError as error:
        raise Unreadable(str(error)) from None
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n"), remark


def text_page(path: Path, encoding: str) -> Page:
    """The text of a file.

    Raises:
        Unreadable: the file is a table of TREC, or not text.
    """
    text, remark = _decode_file(path, encoding)
    if is_trec_table(text):
        raise Unreadable(TREC_TABLE)
    return Page("", text, remark=remark)


def markdown_page(path: Path, encoding: str) -> Page:
    """The source of a Markdown file, without its front matter."""
    text, remark = _decode_file(path, encoding)
    title = ""
    if front := _FRONT_MATTER.match(text):
        named = _FRONT_TITLE.search(front[1])
        title = named[1].strip("\"'") if named else ""
        text = text[front.end() :]
    return titled_page(text, _markdown_headings(text), title)._replace(remark=remark)


def _markdown_headings(text: str) -> Iterator[Heading]:
    """Yields the headings of a Markdown text, in order, without their markup."""
    from markdown_it import MarkdownIt

    line_starts = [0, *itertools.accumulate(len(line) + 1 for line in text.split("\n"))]
    for token, inline in itertools.pairwise(MarkdownIt("commonmark").parse(text)):
        if token.type == "heading_open":
            pieces = (c.content for c in inline.children or () if c.type in ("text", "code_inline"))
            name = " ".join("".join(pieces).split())
            yield Heading(int(token.tag[1:]), line_starts[token.map[0]], name)


def html_file_page(path: Path, encoding: str) -> Page:
    """An HTML file, which may name its encoding itself."""
    from ark_jax.data.html import html_page

    data = path.read_bytes()
    if not encoding and head_encoding(data) == UTF8 and _NAMED_CHARSET.search(data[:HEAD_BYTES]):
        return html_page(data)
    text, remark = _decode_file(path, encoding)
    return html_page(text.encode())._replace(remark=remark)


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
    """Yields a heading for each bookmark: where its page has its words, or else begins."""
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


CONVERTERS: dict[str, Callable[[Path, str], Page]] = {
    ".txt": text_page,
    ".rst": text_page,
    ".md": markdown_page,
    ".markdown": markdown_page,
    ".html": html_file_page,
    ".htm": html_file_page,
    ".xhtml": html_file_page,
    ".pdf": lambda path, encoding: pdf_page(path),
    ".docx": lambda path, encoding: docx_page(path),
    ".epub": lambda path, encoding: epub_page(path),
    ".pptx": lambda path, encoding: pptx_page(path),
    ".xlsx": lambda path, encoding: xlsx_page(path),
}


def convert(path: Path, encoding: str = "") -> Page:
    """The page of a file with one of the suffixes of `CONVERTERS`.

    `encoding` is that of texts; "" detects it.

    Raises:
        Unreadable: the file is damaged, protected or empty.
        ImportError: the converter's package is not installed.
    """
    try:
        page = CONVERTERS[path.suffix.lower()](path, encoding)
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
