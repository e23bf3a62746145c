"""Files of text, books and office files become pages: text, title and headings."""

import contextlib
import datetime
import itertools
import posixpath
import re
import stat
import urllib.parse
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from ark_jax.data.encodings import DENSEST, HEAD_BYTES, SMALL, UTF8, head_encoding, open_bytes
from ark_jax.data.records import Heading, Page, Unreadable, metadata_json, titled_page
from ark_jax.data.text_files import TREC_TABLE, encoding_and_remark, is_trec_table
from ark_jax.runtime.limited import Exceeded, limited

_FRONT_MATTER = re.compile(r"\A---\n(.*?)\n(?:---|\.\.\.)(?:\n|\Z)", re.DOTALL)
_FRONT_TITLE = re.compile(r"^title:(.+)$", re.MULTILINE)
_NAMED_CHARSET = re.compile(rb"<[^>]*(?:charset|encoding)\s*=", re.IGNORECASE)
_NOT_IN_TEXT = re.compile("[\0\ud800-\udfff\ufffe\uffff]")
_LINE_HYPHEN = re.compile("[\x02\ufffe]\n?")  # PDFium's signs for a hyphen that ends a line
# Limits of one file; what has more is no document.
LARGEST = 1 << 30  # bytes of what it unpacks to
LONGEST = 1 << 26  # characters of its text
MOST_PAGES = 50_000  # of a PDF
SECONDS, SECONDS_PER_MIB = 6.0, 4.0  # of a processor
MEMORY, MEMORY_PER_BYTE = 640 << 20, 8  # bytes
_CONTAINER = "META-INF/container.xml"
_ENCRYPTION = "META-INF/encryption.xml"


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
    title = metadata = ""
    if front := _FRONT_MATTER.match(text):
        metadata = _front_matter(front[1])
        named = _FRONT_TITLE.search(front[1])
        title = named[1].strip().strip("\"'") if named else ""
        text = text[front.end() :]
    page = titled_page(text, _markdown_headings(text), title)
    return page._replace(remark=remark, metadata=metadata)


def _front_matter(text: str) -> str:
    """The fields of a front matter, without the title, as `Document.metadata`."""
    import yaml

    try:
        # Aliases may make a short text endless.
        if any(isinstance(x, yaml.AliasEvent) for x in yaml.parse(text, yaml.SafeLoader)):
            return ""
        values = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return ""
    values = values if isinstance(values, dict) else {}
    return metadata_json({name: x for name, x in values.items() if name != "title"})


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
        if len(document) > MOST_PAGES:
            raise Unreadable(f"has {len(document):,} pages, more than {MOST_PAGES:,}; split it")
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

    _check_size(path)
    document = docx.Document(str(path))
    text, title = _Text(), ""
    for block in document.iter_inner_content():
        headings = []
        if isinstance(block, Table):
            rows = (" | ".join(cell.text for cell in row.cells) for row in block.rows)
            line = "\n".join(rows)
        else:
            line, style = block.text, block.style.name if block.style is not None else ""
            if style == "Title":
                title = title or line
            elif match := re.fullmatch(r"[Hh]eading ([1-9])", style or ""):
                headings.append(Heading(int(match[1]), 0, " ".join(line.split())))
        text.add(line, headings)
    title = title or document.core_properties.title or ""
    if title:  # the headings of level 1 are chapters
        text.headings = [h._replace(level=h.level + 1) for h in text.headings]
    return titled_page(str(text), text.headings, title)


def _check_size(path: Path) -> None:
    """Refuses a small file that would fill the memory."""
    with zipfile.ZipFile(path) as packed:
        size = sum(part.file_size for part in packed.infolist())
    if size > LARGEST or size > max(SMALL, DENSEST * path.stat().st_size):
        raise Unreadable(f"unpacks to {size >> 20:,} MiB; split it")


class _Text:
    """Parts of a document with an empty line between them, and headings in them."""

    def __init__(self):
        self._parts: list[str] = []
        self._length = 0
        self.headings: list[Heading] = []

    def add(self, part: str, headings: list[Heading]) -> None:
        """Adds a part, whose headings start in it."""
        if part.strip():
            self.headings += [h._replace(start=h.start + self._length) for h in headings]
            self._parts.append(part)
            self._length += len(part) + 2

    def __str__(self) -> str:
        return "\n\n".join(self._parts)


def epub_page(path: Path) -> Page:
    """The chapters of a book in their order, as HTML; the book's title is that of the page."""
    from lxml import etree

    from ark_jax.data.html import html_parts

    _check_size(path)
    parser = etree.XMLParser(resolve_entities=False, no_network=True)
    text = _Text()
    with zipfile.ZipFile(path) as packed:
        names = set(packed.namelist())
        container = etree.fromstring(packed.read(_CONTAINER), parser)
        package_name = container.xpath("string(//*[local-name()='rootfile']/@full-path)")
        package = etree.fromstring(packed.read(package_name), parser)
        hrefs = {
            item.get("id"): item.get("href")
            for item in package.xpath("//*[local-name()='manifest']/*[local-name()='item']")
        }
        for item in package.xpath("//*[local-name()='spine']/*[local-name()='itemref']"):
            href = urllib.parse.unquote(hrefs.get(item.get("idref")) or "")
            name = posixpath.normpath(posixpath.join(posixpath.dirname(package_name), href))
            if name not in names:
                continue
            try:
                _, part, headings = html_parts(packed.read(name))
            except Unreadable:  # an empty page
                continue
            # A chapter is none of the book's titles.
            text.add(part, [h._replace(level=h.level + 1) for h in headings])
    if not str(text) and _ENCRYPTION in names:
        raise Unreadable("is encrypted; save it without protection")
    title = " ".join(package.xpath("string(//*[local-name()='title'])").split())
    return titled_page(str(text), text.headings, title)


def pptx_page(path: Path) -> Page:
    """The text of slides, their tables and notes; the title of a slide is a heading."""
    import pptx

    _check_size(path)
    slides = pptx.Presentation(str(path))
    text = _Text()
    for slide in slides.slides:
        title = slide.shapes.title
        name = " ".join(title.text_frame.text.split()) if title is not None else ""
        lines = [name] if name else []
        lines += [line for shape in slide.shapes if shape != title for line in _shape_lines(shape)]
        if slide.has_notes_slide and slide.notes_slide.notes_text_frame is not None:
            lines.append(slide.notes_slide.notes_text_frame.text)
        part = "\n".join(line for line in lines if line.strip()).replace("\v", "\n")
        text.add(part, [Heading(2, 0, name)] if name else [])
    return titled_page(str(text), text.headings, slides.core_properties.title or "")


def _shape_lines(shape) -> Iterator[str]:
    """The texts of a shape, and of all shapes in a group."""
    if shape.shape_type is not None and hasattr(shape, "shapes"):
        for part in shape.shapes:
            yield from _shape_lines(part)
    elif shape.has_text_frame:
        yield shape.text_frame.text
    elif getattr(shape, "has_table", False):
        for row in shape.table.rows:
            yield " | ".join(cell.text for cell in row.cells)


def xlsx_page(path: Path) -> Page:
    """The cells of all sheets, a row a line; the name of a sheet is a heading."""
    import openpyxl

    _check_size(path)
    book = openpyxl.load_workbook(path, read_only=True, data_only=True)
    text = _Text()
    try:
        for sheet in book.worksheets:
            cells = lambda row: [" ".join(_as_text(value).split()) for value in row]
            rows = (cells(row) for row in sheet.iter_rows(values_only=True))
            # Empty cells at the end of a row are left out.
            lines = [re.sub(r"( \| )+$", "", " | ".join(row)) for row in rows if any(row)]
            if lines:
                text.add("\n".join([sheet.title, *lines]), [Heading(2, 0, sheet.title)])
        title = book.properties.title or ""
    finally:
        book.close()
    return titled_page(str(text), text.headings, title)


def first_sheet(path: Path, count: int | None = None) -> Iterator[list[str]]:
    """The first `count` rows of the first sheet as texts, all as long as the first one.

    Raises:
        Unreadable: the file is damaged, or its converter is not installed.
    """
    yield from within_limits(_first_sheet, path, count)


def _first_sheet(path: Path, count: int | None) -> Iterator[list[str]]:
    """`first_sheet`, without limits."""
    try:
        import openpyxl

        _check_size(path)
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
        rows = (list(map(_as_text, row)) for row in book.worksheets[0].iter_rows(values_only=True))
        width = 0
        for row in itertools.islice(rows, count):
            width = width or len(row)
            yield [*row, *[""] * width][:width]
    except ImportError as error:
        message = f"needs the package {error.name}; pip install 'ark-jax[files]'"
        raise Unreadable(message) from None
    except (Unreadable, MemoryError):
        raise
    except Exception as error:  # what openpyxl raises for damaged files is not documented
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:120]
        raise Unreadable(f"is damaged ({reason}); check the file") from None


def _as_text(value: object) -> str:
    """A cell as a sheet shows it: a whole number without a point, a day without a time."""
    if isinstance(value, datetime.datetime) and value.time() == datetime.time():
        value = value.date()
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return "" if value is None else str(value)


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
        Unreadable: the file is damaged, protected, empty, or takes too much to read.
        ImportError: the converter's package is not installed.
    """
    (page,) = within_limits(_convert, path, encoding)
    return page


def within_limits(read: Callable[..., Iterator], path: Path, *arguments: object) -> Iterator:
    """What `read(path, *arguments)` yields in a process that no file can stop or fill.

    Raises:
        Unreadable: it takes too long or too much memory, or cannot be opened.
        Exception: what `read` raises.
    """
    try:
        facts = path.stat()
    except OSError as error:
        raise Unreadable(f"cannot be read ({error.strerror or error}); check the file") from None
    if not stat.S_ISREG(facts.st_mode):
        raise Unreadable("is no regular file, but a folder, a pipe or a device; delete it")
    try:
        yield from limited(
            *(read, path.absolute(), *arguments),  # the process may have another working folder
            seconds=SECONDS + SECONDS_PER_MIB * facts.st_size / (1 << 20),
            memory=MEMORY + MEMORY_PER_BYTE * facts.st_size,
        )
    except Exceeded as error:
        raise Unreadable(f"{error}; split it, or save it anew") from None


def _convert(path: Path, encoding: str) -> Iterator[Page]:
    """The page of `convert`, without limits."""
    try:
        page = CONVERTERS[path.suffix.lower()](path, encoding)
    except (Unreadable, ImportError, MemoryError):
        raise
    except OSError as error:
        raise Unreadable(f"cannot be read ({error.strerror or error}); check the file") from None
    except Exception as error:  # what the converters raise for damaged files is not documented
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:120]
        raise Unreadable(f"is damaged ({reason}); check the file") from None
    if not page.text.strip():
        raise Unreadable("holds no text; delete it or fill it")
    if len(page.text) > LONGEST:
        raise Unreadable(f"holds {len(page.text):,} characters, more than {LONGEST:,}; split it")
    yield page
