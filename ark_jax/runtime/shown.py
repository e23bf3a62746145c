"""How texts and objects show themselves: without control characters, in one line, as tables."""

import dataclasses
import html
import json
import re
import reprlib
from collections.abc import Callable, Iterable, Sequence

# Control characters other than a tab or the end of a line, marks that turn the direction of a line,
# and what no text may hold.
_CONTROLS = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufdd0-\ufdef\ufffe\uffff]"
    r"|\r(?!\n)"
)


def printable(text: str) -> str:
    """A text for a terminal, a log or a page, which no control character of it may steer.

    Those that are blanks become a blank, others U+FFFD.
    """
    return _CONTROLS.sub(lambda match: " " if match[0].isspace() else "\ufffd", text)


def json_line(row: object) -> str:
    """A line of JSON, in which control characters are escaped."""
    text = json.dumps(row, ensure_ascii=False)
    return _CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", text) + "\n"


def one_line(*names: str) -> Callable[[object], str]:
    """A `__repr__` that gives these attributes, shortened: `Retriever(base=..., width=384)`.

    Args:
        names: attributes; `len` stands for the object's length.
    """

    def show(self: object) -> str:
        values = ((x, len(self) if x == "len" else getattr(self, x)) for x in names)  # type: ignore
        facts = (
            f"{x}={value:,}" if type(value) is int else f"{x}={reprlib.repr(str(value))}"
            for x, value in values
        )
        return f"{type(self).__name__}({', '.join(facts)})"

    return show


def table_html(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table of HTML. Values are escaped, unless they have `__html__`."""
    texts = lambda row: (
        x.__html__() if hasattr(x, "__html__") else html.escape(_text(x)) for x in row
    )
    line = lambda tag, row: "<tr>" + "".join(f"<{tag}>{x}</{tag}>" for x in row) + "</tr>"
    body = "".join(line("td", texts(row)) for row in rows)
    return f"<table><thead>{line('th', texts(heads))}</thead><tbody>{body}</tbody></table>"


def record_html(record) -> str:
    """The `_repr_html_` of one NamedTuple or dataclass."""
    return Records([record])._repr_html_()


class Records(list):
    """A list of equal NamedTuples or dataclasses, which a notebook shows as a table."""

    def _repr_html_(self) -> str:
        if not self:
            return "<p>nothing found</p>"
        is_tuple = isinstance(self[0], tuple)
        names = self[0]._fields if is_tuple else [x.name for x in dataclasses.fields(self[0])]
        return table_html(names, ([getattr(record, x) for x in names] for record in self))


def _text(value: object) -> str:
    """A value of a cell: numbers with four decimals, long lists cut."""
    if isinstance(value, float):
        return f"{value:.4f}"
    if isinstance(value, tuple | list):
        return ", ".join(map(str, value[:10])) + (", …" if len(value) > 10 else "")
    return str(value)
