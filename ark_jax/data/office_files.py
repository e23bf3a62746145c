"""Books, slides and sheets become pages: EPUB, PowerPoint, Excel."""

import datetime
import posixpath
import urllib.parse
import zipfile
from collections.abc import Iterator
from pathlib import Path

from ark_jax.data.records import Heading, Page, Unreadable, titled_page

LARGEST = 1 << 30  # bytes of what a file unpacks to; more is no document
_CONTAINER = "META-INF/container.xml"
_ENCRYPTION = "META-INF/encryption.xml"


def _check_size(path: Path) -> None:
    """Refuses a small file that would fill the memory."""
    with zipfile.ZipFile(path) as packed:
        size = sum(part.file_size for part in packed.infolist())
    if size > LARGEST:
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
            rows = (list(map(_cell_text, row)) for row in sheet.iter_rows(values_only=True))
            lines = [" | ".join(_without_end(row)) for row in rows if any(row)]
            if lines:
                text.add("\n".join([sheet.title, *lines]), [Heading(2, 0, sheet.title)])
        title = book.properties.title or ""
    finally:
        book.close()
    return titled_page(str(text), text.headings, title)


def first_sheet(path: Path) -> Iterator[list[str]]:
    """The rows of the first sheet as texts, all as long as the first one; no row is left out.

    Raises:
        Unreadable: the file is damaged, or its converter is not installed.
    """
    try:
        import openpyxl

        _check_size(path)
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
        rows = (list(map(_as_text, row)) for row in book.worksheets[0].iter_rows(values_only=True))
        width = 0
        for row in rows:
            width = width or len(row)
            yield [*row, *[""] * width][:width]
    except ImportError as error:
        message = f"needs the package {error.name}; pip install 'ark-jax[files]'"
        raise Unreadable(message) from None
    except Unreadable:
        raise
    except Exception as error:  # what openpyxl raises for damaged files is not documented
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:120]
        raise Unreadable(f"is damaged ({reason}); check the file") from None


def _without_end(cells: list[str]) -> list[str]:
    """The cells up to the last that is not empty."""
    last = max(i for i, cell in enumerate(cells) if cell)
    return cells[: last + 1]


def _cell_text(value: object) -> str:
    """A cell in one line."""
    return " ".join(_as_text(value).split())


def _as_text(value: object) -> str:
    """A cell as a sheet shows it: a whole number without a point, a day without a time."""
    if isinstance(value, datetime.datetime) and value.time() == datetime.time():
        value = value.date()
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return "" if value is None else str(value)
