"""Reads the report's page: a strict parser, tables as plain text."""

import re
from html import unescape
from html.parser import HTMLParser


class ParsedPage(HTMLParser):
    """The elements and texts of a page. Every element must be closed in order."""

    def __init__(self, text: str):
        super().__init__()
        self.open, self.elements, self.texts = [], [], []
        self.feed(text)
        self.close()
        assert self.open == [], f"left open: {self.open}"

    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"<{tag}> repeats an attribute: {names}"
        self.elements.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-1:]}"
        self.open.pop()

    def handle_data(self, data):
        self.texts.append((tuple(self.open), data))

    def text(self, tag: str) -> list[str]:
        """The texts inside elements of this name."""
        return [data for path, data in self.texts if tag in path]

    def all(self, tag: str) -> list[dict]:
        """The attributes of all elements of this name."""
        return [attrs for name, attrs in self.elements if name == tag]


def table_cells(page: str, caption: str) -> list[list[str]]:
    """The rows of a table as plain text, with blanks between the parts of a cell."""
    table = page.split(f"<caption>{caption}</caption>")[1].split("</table>")[0]
    rows = [
        re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in table.split("<tr>")[1:]
    ]
    return [
        [" ".join(unescape(re.sub(r"<[^>]+>", " ", cell)).split()) for cell in row] for row in rows
    ]
