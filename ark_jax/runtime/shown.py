"""How objects show themselves: `repr` in one line, and tables in notebooks."""

import dataclasses
import html
import reprlib
from collections.abc import Callable, Iterable, Sequence


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
