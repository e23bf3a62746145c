"""The text of HTML files, without navigation, scripts and other boilerplate."""

import itertools
import re
from collections.abc import Iterator

from lxml import etree, html

from ark_jax.data.records import Heading, Page, Unreadable, titled_page

HEADINGS = {f"h{level}": level for level in range(1, 7)}
_words = re.compile(r"\w+").findall  # of one string, for a list of names would fill a page
DROPPED = frozenset(
    _words(
        "script style nav template noscript iframe object svg math canvas head form button select "
        "input textarea audio video"
    )
)
DROPPED_ROLES = frozenset(("navigation", "banner", "contentinfo", "search"))
DROPPED_CLASSES = ("navheader", "navfooter")  # the links around a page of DocBook
MARGINS = ("header", "footer")  # boilerplate of a page, but not of an article
ARTICLES = ("article", "main")
# An empty line before and after, or a line break.
APART = HEADINGS.keys() | _words("p pre table blockquote figure section article hr")
LINES = frozenset(
    _words(
        "html body main div li dt dd tr ul ol dl br aside details summary figcaption caption "
        "header footer address fieldset thead tbody tfoot center hgroup"
    )
)
FEW = 100  # elements that are looked at around or in another one; a file may nest a million
_BLANKS = re.compile(r"[ \t\r\n\f]+")
_PERMALINK = re.compile(r"[¶#§🔗\s]*")


def html_page(data: bytes) -> Page:
    """The text of an HTML file, with about the lines that a browser shows.

    Raises:
        Unreadable: the file has no element.
    """
    title, text, headings = html_parts(data)
    return titled_page(text, headings, title)


def html_parts(data: bytes) -> tuple[str, str, list[Heading]]:
    """The title, the text and the headings of `html_page`."""
    try:
        data.decode("utf-8")
        encoding = "utf-8"
    except UnicodeDecodeError:
        encoding = None  # the parser takes it from the file's meta element
    parser = html.HTMLParser(encoding=encoding, huge_tree=True)
    try:
        root = html.document_fromstring(data, parser=parser)
    except (etree.ParserError, etree.XMLSyntaxError, ValueError) as error:
        raise Unreadable(f"is not HTML ({error}); check the file") from None
    title = " ".join(root.findtext(".//title", "").split())
    builder = _Builder()
    for content in _content(root):
        _write_element(content, builder)
    return title, builder.text.rstrip(), builder.headings


def _content(root) -> Iterator:
    """The main part of the page, or all of it."""
    mains = root.xpath("//main | //*[@role='main']")
    if len(mains) > 1:  # without those in others
        mains, inner = [], etree.iterwalk(root, events=("start",))
        for _, element in inner:
            if element.tag == "main" or element.get("role") == "main":
                mains.append(element)
                inner.skip_subtree()
    yield from mains or [root]


class _Builder:
    """Text that grows, with one blank between words and at most one empty line."""

    def __init__(self):
        self.parts: list[str] = []
        self.length = 0
        self.headings: list[Heading] = []
        self._break = 0  # line breaks before the next word
        self._blank = False

    @property
    def text(self) -> str:
        return "".join(self.parts)

    def break_lines(self, count: int) -> None:
        """Requests at least `count` line breaks before the next word."""
        self._break, self._blank = max(self._break, count), False

    def next_offset(self) -> int:
        """The offset of the next word."""
        return self.length + (self._break if self.length else 0)

    def _add(self, text: str) -> None:
        self.parts.append(text)
        self.length += len(text)

    def write(self, text: str) -> None:
        """Adds text whose runs of blanks count as one."""
        words = _BLANKS.sub(" ", text)
        if words.startswith(" "):
            self._blank = self._blank or not self._break
        if not words.strip(" "):
            return
        self._separate()
        self._add(words.strip(" "))
        self._blank = words.endswith(" ")

    def write_verbatim(self, text: str) -> None:
        """Adds text as it is, with its blanks and line breaks."""
        text = text.replace("\r\n", "\n")
        if self._break:
            text = text.lstrip("\n")
        if text:
            self._separate()
            self._add(text)

    def raise_number(self, text: str) -> None:
        """Marks the number that follows, if it stands right behind a letter or digit: 2^30."""
        letter = self.parts[-1][-1:] if self.parts else ""
        if text[:1].isdigit() and letter.isalnum() and not (self._break or self._blank):
            self._add("^")

    def _separate(self) -> None:
        """Adds the requested line breaks, or else the blank, before the next word."""
        if self.length:
            self._add("\n" * self._break if self._break else " " * self._blank)
        self._break, self._blank = 0, False

    def end_lines(self) -> None:
        """Takes trailing line breaks of verbatim text into the pending break."""
        while self.parts and not self.parts[-1].strip("\n"):
            self.length -= len(self.parts.pop())
        if self.parts:
            stripped = self.parts[-1].rstrip("\n")
            self.length -= len(self.parts[-1]) - len(stripped)
            self.parts[-1] = stripped


def _write_element(root, builder: _Builder) -> None:
    """Writes an element and all below it, without recursion, since pages may be nested deeply."""
    verbatim, open_heading = 0, None
    above = itertools.islice(root.iterancestors(), FEW)
    articles = sum(element.tag in ARTICLES for element in above)  # around the current element
    walk = etree.iterwalk(root, events=("start", "end", "comment", "pi"))
    for event, element in walk:
        tag = element.tag if isinstance(element.tag, str) else ""
        if event == "start":
            if _is_dropped(element, tag, articles):
                walk.skip_subtree()
                continue
            articles += tag in ARTICLES
            _request_breaks(builder, tag)
            if tag == "sup":
                builder.raise_number(_first_text(element))
            verbatim += tag == "pre"
            if tag in ("td", "th") and element.getprevious() is not None:
                builder.write(" | ")
            if tag in HEADINGS and open_heading is None:
                open_heading = (element, builder.next_offset(), len(builder.parts))
            _write_text(builder, element.text, verbatim)
            continue
        if event == "end" and not _is_dropped(element, tag, articles):
            articles -= tag in ARTICLES
            if open_heading is not None and open_heading[0] is element:
                _, start, first = open_heading
                name = " ".join("".join(builder.parts[first:]).split())
                builder.headings.append(Heading(HEADINGS[tag], start, name))
                open_heading = None
            if tag == "pre":
                verbatim -= 1
                builder.end_lines()
            _request_breaks(builder, tag)
        if element is not root:
            _write_text(builder, element.tail, verbatim)


def _request_breaks(builder: _Builder, tag: str) -> None:
    """Requests the line breaks around an element."""
    if tag in APART:
        builder.break_lines(2)
    elif tag in LINES:
        builder.break_lines(1)


def _write_text(builder: _Builder, text: str | None, verbatim: int) -> None:
    """Writes text; `verbatim` is how many elements around it keep blanks."""
    if text and verbatim:
        builder.write_verbatim(text)
    elif text:
        builder.write(text)


def _first_text(element) -> str:
    """The text of an element as far as `FEW` steps through it lead."""
    walk = etree.iterwalk(element, events=("start", "end", "comment", "pi"))
    text = lambda event, inner: inner.text if event == "start" else inner.tail
    steps = itertools.islice(walk, FEW)
    return "".join(text(*step) or "" for step in steps if step != ("end", element))


def _is_dropped(element, tag: str, articles: int) -> bool:
    """Whether an element is boilerplate or invisible; so many articles are around it."""
    is_around = element.get("role") in DROPPED_ROLES or element.get("class") in DROPPED_CLASSES
    if tag in DROPPED or is_around or element.get("hidden") is not None:
        return True
    if tag in MARGINS:
        return not articles
    # The sign beside a heading that links to the heading itself.
    is_permalink = tag == "a" and (element.get("href") or "").startswith("#")
    return is_permalink and bool(_PERMALINK.fullmatch(_first_text(element)))
