"""Metadata of an index's documents: typed columns, and filters such as `year >= 2020`.

A filter is SQL's: comparisons, `in`, `like`, `between`, `is null`, `and`, `or`, `not`, brackets.
Texts are in single quotes, dates are ISO 8601 in quotes, odd names of columns are in double quotes.
A comparison with a missing value is neither true nor false. `'x' in tags` looks into a list.
"""

import contextlib
import datetime
import functools
import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Int

from ark_jax.data.text_columns import MappedTable

DOCUMENTS_FILE = "documents.arrow"
FIELDS = "fields"  # the column of typed metadata, a struct
MOST_COLUMNS = 256  # of metadata; those that fewest documents have are no columns
MOST_CHARACTERS = 1 << 16  # of a filter
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9]{2}:.*)?", re.DOTALL)
_DATES, _TEXT = pa.timestamp("us"), pa.large_string()
_LISTS = pa.list_(_TEXT)
_COMPARE = {"=": pc.equal, "==": pc.equal, "!=": pc.not_equal, "<>": pc.not_equal}
_COMPARE |= {"<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal}
_TOKEN = re.compile(
    r"""(?P<text>'(?:[^']|'')*')|(?P<column>"(?:[^"]|"")+")|(?P<sign><=|>=|<>|!=|==|[=<>(),])"""
    r"""|(?P<number>[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?(?!\w))"""
    r"""|(?P<blank>\s+)|(?P<word>[^\W0-9][\w.-]*)"""
)
_KEYWORDS = {"and", "or", "not", "in", "is", "null", "like", "between"}
_KINDS = {pa.bool_(): "true or false", _DATES: "date", _LISTS: "list", _TEXT: "text"}
_KINDS |= {pa.int64(): "number", pa.float64(): "number"}
_FORMS = {"true or false": "true or false", "list": "a list: write 'x' in LIST"}
_FORMS |= {"number": "a number", "text": "a text in single quotes"}
_FORMS |= {"date": "a date such as '2020-12-31'"}
_INT64 = range(-(1 << 63), 1 << 63)


class _Number(str):
    """A number as it was written."""


def typed_fields(metadata: Iterable[str]) -> pa.StructArray:
    """The values of each name as a column, whose type fits all of them.

    Numbers, booleans, dates (timestamps of UTC) and lists of texts have their types; all others are
    texts as they were written.

    Args:
        metadata: of each document, as `Document.metadata`.
    """
    count, cells = 0, {}
    for row, text in enumerate(metadata):
        count = row + 1
        row_values = json.loads(text or "{}", parse_int=_Number, parse_float=_Number)
        for name, value in row_values.items():
            rows, values = cells.setdefault(name, ([], []))
            rows.append(row)
            values.append(value)
    if not cells:
        return pa.array([{}] * count, pa.struct([]))
    names = sorted(sorted(cells, key=lambda name: -len(cells[name][0]))[:MOST_COLUMNS])
    columns = []
    for rows, values in map(cells.__getitem__, names):
        places = np.full(count, -1)
        places[rows] = np.arange(len(rows))
        columns.append(_typed(values).take(pa.array(places, mask=places < 0)))
    return pa.StructArray.from_arrays(columns, names)


def _typed(values: Sequence) -> pa.Array:
    """A column of values of JSON, none of which is null."""
    kinds = {type(value) for value in values}
    if kinds == {_Number}:
        if all(x.removeprefix("-").isdigit() and int(x) in _INT64 for x in values):
            return pa.array(map(int, values), pa.int64())
        return pa.array(map(float, values), pa.float64())
    if kinds == {bool}:
        return pa.array(values, pa.bool_())
    if kinds == {list}:
        return pa.array([list(map(_as_text, value)) for value in values], _LISTS)
    texts = list(map(_as_text, values))
    if kinds == {str} and all(map(_DATE.fullmatch, texts)):
        with contextlib.suppress(ValueError, OverflowError):
            return pa.array(map(_parse_date, texts), _DATES)
    return pa.array(texts, _TEXT)


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _parse_date(text: str) -> datetime.datetime:
    """A date or time in UTC, without its zone; ValueError for anything else."""
    if not _DATE.fullmatch(text):
        raise ValueError(text)
    time = datetime.datetime.fromisoformat(text)
    return time.astimezone(datetime.UTC).replace(tzinfo=None) if time.tzinfo else time


class Metadata:
    """The metadata of an index's documents, which are mapped into memory.

    Raises:
        FileNotFoundError, pyarrow.ArrowException, ValueError: the file is missing or damaged.
    """

    def __init__(self, path: Path, documents: int, chunks: int):
        """
        Args:
            documents, chunks: how many there must be.
        """
        file = MappedTable(path)
        self._path, self._table, self._chunks = path, file.table, chunks
        if len(file) != documents:
            raise ValueError(f"{path.name} has {len(file):,} documents, not {documents:,}")
        self._table.validate(full=True)  # damaged offsets would lead outside of the file
        self._is_known = FIELDS in self._table.column_names
        file.forget()

    @functools.cached_property
    def _ends(self) -> Int[np.ndarray, " documents"]:
        """Where the chunks of each document end."""
        counts = self._table["chunks"].to_numpy()
        if counts.min() < 0 or counts.sum() != self._chunks:
            raise ValueError(f"{self._path} is damaged; make the index again")
        return np.cumsum(counts)

    @functools.cached_property
    def _columns(self) -> dict[str, pa.Array]:
        """name -> values of the documents."""
        fields, ids = self._table[FIELDS].chunk(0), self._table["id"].chunk(0)
        columns = {x.name: fields.field(i) for i, x in enumerate(fields.type)}
        return columns | {"id": ids.cast(_TEXT)}

    def passing(self, where: str) -> Int[np.ndarray, " n"]:
        """The positions of the chunks whose documents a filter lets through, in order.

        Raises:
            ValueError: the filter is wrong, or an earlier version made the index.
        """
        if not self._is_known:
            raise ValueError(
                f"where: the index {self._path.parent.parent} was made without metadata; "
                "`ark-jax index` with the same corpus adds them and embeds nothing again"
            )
        mask = _Filter(where, self._columns, len(self._table)).mask()
        return np.flatnonzero(np.repeat(mask, np.diff(self._ends, prepend=0)))

    def at(self, chunk: int) -> dict:
        """The metadata of a chunk's document."""
        if not self._is_known:
            return {}
        row = int(np.searchsorted(self._ends, chunk, "right"))
        return json.loads(self._table["metadata"][row].as_py() or "{}")


class _Filter:
    """Reads a filter, and applies each part as soon as it is read; a mask is true, false or null.

    Args:
        columns: name -> values of each document.
        rows: number of documents.
    """

    def __init__(self, where: str, columns: dict[str, pa.Array], rows: int):
        self._where, self._columns, self._rows = where, columns, rows
        self._name = ""  # of the column that was read last
        if len(where) > MOST_CHARACTERS:
            self._fail(f"it has more than {MOST_CHARACTERS:,} characters", 0)
        self._tokens = self._split()  # kind, text and place of each, the last one first

    def mask(self) -> np.ndarray:
        """Whether each document passes, bool `[rows]`; ValueError if the filter is wrong."""
        try:
            mask = self._either()
        except RecursionError:
            self._fail("it is nested too deeply", 0)
        if self._tokens[-1][0] != "end":
            self._fail("`and`, `or` or the end is expected")
        return np.asarray(pc.fill_null(mask, False))

    def _split(self) -> list[tuple[str, str, int]]:
        tokens, place = [], 0
        while place < len(self._where):
            match = _TOKEN.match(self._where, place)
            if not match:
                is_open = self._where[place] in "'\""
                self._fail("a quote is not closed" if is_open else "this is not understood", place)
            kind, text = match.lastgroup or "", match[0]
            if kind == "word" and text.lower() in _KEYWORDS:
                kind, text = "sign", text.lower()
            elif kind in ("text", "column"):
                text = text[1:-1].replace(text[0] * 2, text[0])
            if kind != "blank":
                tokens.append((kind, text, place))
            place = match.end()
        return [("end", "", place), *reversed(tokens)]

    def _fail(self, message: str, place: int = -1) -> NoReturn:
        """Raises ValueError with the columns and a place, by default that of the next token."""
        place = self._tokens[-1][2] if place < 0 else place
        shown = self._where[place : place + 20].split("\n")[0]
        position = f"character {place + 1}, before {shown!r}" if shown else "the end"
        columns = ", ".join(f"{x} ({_KINDS[y.type]})" for x, y in self._columns.items())
        raise ValueError(f"where: {message}, at {position}; the columns are {columns:.1000}")

    def _take(self, *texts: str) -> str:
        """Takes the next token if it is one of these signs or keywords, and returns it."""
        kind, text, _ = self._tokens[-1]
        return self._tokens.pop()[1] if kind == "sign" and text in texts else ""

    def _expect(self, text: str) -> None:
        """Takes a sign or keyword; raises ValueError for anything else."""
        if not self._take(text):
            self._fail(f"{text!r} is expected")

    def _either(self) -> pa.Array:
        conjunction = lambda: self._joined("and", pc.and_kleene, self._one)
        return self._joined("or", pc.or_kleene, conjunction)

    def _joined(self, word: str, join: Callable, part: Callable[[], pa.Array]) -> pa.Array:
        mask = part()
        while self._take(word):
            mask = join(mask, part())
        return mask

    def _one(self) -> pa.Array:
        if self._take("not"):
            return pc.invert(self._one())
        if self._take("("):
            mask = self._either()
            self._expect(")")
            return mask
        kind, text, _ = self._tokens[-1]
        if kind not in ("text", "number"):
            return self._test(self._column())
        self._tokens.pop()
        self._expect("in")
        return self._in_list(text)

    def _test(self, column: pa.Array) -> pa.Array:
        """The rest of a comparison, whose column was read."""
        if sign := self._take(*_COMPARE):
            return self._compare(_COMPARE[sign], column)
        if self._take("is"):
            function = pc.is_valid if self._take("not") else pc.is_null
            self._expect("null")
            return function(column)
        is_not = bool(self._take("not"))
        if self._take("in"):
            mask = self._among(column)
        elif self._take("between"):
            least = self._compare(pc.greater_equal, column)
            self._expect("and")
            mask = pc.and_kleene(least, self._compare(pc.less_equal, column))
        elif column.type == _TEXT and self._take("like"):
            mask = pc.match_like(column, self._value(column))
        elif is_not or column.type != pa.bool_():
            like = "like, " * (column.type == _TEXT)
            self._fail(f"=, !=, <, <=, >, >=, in, {like}between or is null is expected")
        else:
            mask = column
        return pc.invert(mask) if is_not else mask

    def _column(self) -> pa.Array:
        """The values of the column that the next token names, if need be in another case."""
        kind, text, _ = self._tokens[-1]
        if kind not in ("word", "column"):
            self._fail("a column is expected")
        lowered = {name.lower(): name for name in self._columns}
        self._name = text if text in self._columns else lowered.get(text.lower(), "")
        if not self._name:
            self._fail(f"there is no column {text!r}")
        self._tokens.pop()
        return self._columns[self._name]

    def _value(self, column: pa.Array) -> Any:
        """The next token as a value for a column, whose type it must have."""
        form, (kind, text, _) = _KINDS[column.type], self._tokens[-1]
        value: Any = None
        with contextlib.suppress(ValueError, OverflowError):
            if form == "number" and kind in ("number", "text"):
                value = float(text)
                if column.type == pa.int64() and text.removeprefix("-").isdigit():
                    value = int(text) if int(text) in _INT64 else 2 * value  # beyond 2^63, rounded
            elif form == "true or false":
                value = {"true": True, "false": False}.get(text.lower())
            elif form != "list" and kind == "text":
                value = text if form == "text" else _parse_date(text)
        if value is None:
            self._fail(f"{self._name} is {_FORMS[form]}")
        self._tokens.pop()
        return value

    def _compare(self, function: Callable, column: pa.Array) -> pa.Array:
        """A comparison of a column with the next token."""
        value = self._value(column)
        if column.type == pa.int64() and isinstance(value, float):
            # A fraction is so small, and another number so large, that rounding changes no result.
            return function(column.cast(pa.float64(), safe=False), value)
        return function(column, pa.scalar(value, column.type))

    def _among(self, column: pa.Array) -> pa.Array:
        """Whether the values of a column are among those in brackets."""
        self._expect("(")
        values = [self._value(column)]
        while self._take(","):
            values.append(self._value(column))
        self._expect(")")
        if column.type == pa.int64():
            values = [int(x) for x in values if x == x // 1 and int(x) in _INT64]
        is_in = pc.is_in(column, value_set=pa.array(values, column.type))
        return pc.if_else(pc.is_valid(column), is_in, pa.scalar(None, pa.bool_()))

    def _in_list(self, text: str) -> pa.Array:
        """Whether each list of the next column has a text."""
        place, lists = self._tokens[-1][2], self._column()
        if lists.type != _LISTS:
            self._fail(f"{self._name} is no list", place)
        mask = np.zeros(self._rows, bool)
        rows = pc.list_parent_indices(lists).filter(pc.equal(pc.list_flatten(lists), text))
        mask[rows.to_numpy()] = True
        return pa.array(mask, mask=~np.asarray(pc.is_valid(lists)))
