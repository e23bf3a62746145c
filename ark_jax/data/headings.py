"""Headings of a document: its title and sections."""

from collections.abc import Iterable
from typing import NamedTuple

from ark_jax.data.records import Section


class Heading(NamedTuple):
    level: int  # from 1
    start: int  # offset in the text
    name: str


class Page(NamedTuple):
    """The text of a file; `title` is empty if the file has none.

    `remark` is what its user should know of how it was read.
    """

    title: str
    text: str
    sections: tuple[Section, ...] = ()
    remark: str = ""


class Unreadable(Exception):
    """A file that cannot be converted; the message says why, and what to do."""


def titled_page(text: str, headings: Iterable[Heading], title: str = "") -> Page:
    """A page whose first heading of level 1 is its title, or else `title`.

    The heading that is the title starts no section.
    """
    headings = [heading for heading in headings if heading.name]
    first = next((heading for heading in headings if heading.level == 1), None)
    above: list[Heading] = []
    sections = []
    for heading in headings:
        if heading is first:
            above = []
            continue
        above = [parent for parent in above if parent.level < heading.level]
        above.append(heading)
        path = " > ".join(parent.name for parent in above)
        sections.append(Section(heading.start, path))
    return Page(first.name if first else title.strip(), text, tuple(sections))
