"""Metadata of an index's documents: typed columns, and filters such as `year >= 2020`.

A filter is SQL's: comparisons, `in`, `like`, `between`, `is null`, `and`, `or`, `not`, brackets.
Texts are in single quotes, dates are ISO 8601 in quotes, odd names of columns are in double quotes.
A comparison with a missing value is neither true nor false. `'x' in tags` looks into a list.
"""

import datetime
import functools
import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

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
_DATES, _NUMBERS, _TEXT = pa.timestamp("us"), (pa.int64(), pa.float64()), pa.large_string()
_LISTS = pa.list_(_TEXT)
_COMPARE = {"=": pc.equal, "==": pc.equal, "!=": pc.not_equal, "<>": pc.not_equal}
_COMPARE |= {"<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal}
_TOKEN = re.compile(
    r"""(?P<text>'(?:[^']|'')*')|(?P<column>"(?:[^"]|"")+")|(?P<sign><=|>=|<>|!=|==|[=<>(),])"""
    r"""|(?P<number>[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?(?!\w))"""
    r"""|(?P<word>[^\W0-9][\w.-]*)"""
)
_KEYWORDS = {"and", "or", "not", "in", "is", "null", "like", "between", "true", "false"}


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
        for name, value in _values(text).items():
            rows, values = cells.setdefault(name, ([], []))
            rows.append(row)
            values.append(value)
    names = sorted(sorted(cells, key=lambda name: -len(cells[name][0]))[:MOST_COLUMNS])
    columns = {}
    for name in names:
        rows, values = cells[name]
        places = np.full(count, -1)
        places[rows] = np.arange(len(rows))
        columns[name] = _typed(values).take(pa.array(places, mask=places < 0))
    if not columns:
        return pa.array([{}] * count, pa.struct([]))
    return pa.StructArray.from_arrays(list(columns.values()), names)


def _values(metadata: str) -> dict:
    """The values by name; numbers stay as they were written."""
    return json.loads(metadata, parse_int=_Number, parse_float=_Number) if metadata else {}


def _typed(values: Sequence) -> pa.Array:
    """A column of values of JSON, none of which is null."""
    kinds = {type(value) for value in values}
    if kinds == {_Number}:
        if all(x.removeprefix("-").isdigit() and abs(int(x)) < 1 << 63 for x in values):
            return pa.array(map(int, values), pa.int64())
        return pa.array(map(float, values), pa.float64())
    if kinds == {bool}:
        return pa.array(values, pa.bool_())
    if kinds == {list}:
        return pa.array([list(map(_as_text, value)) for value in values], _LISTS)
    texts = list(map(_as_text, values))
    if kinds == {str} and all(map(_DATE.fullmatch, texts)):
        try:
            return pa.array(map(_parse_date, texts), _DATES)
        except (ValueError, OverflowError):
            pass
    return pa.array(texts, _TEXT)


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _parse_date(text: str) -> datetime.datetime:
    """A date or time in UTC, without its zone; ValueError for anything else."""
    if not _DATE.fullmatch(text):
        raise ValueError(text)
    time = datetime.datetime.fromisoformat(text)
    return time.astimezone(datetime.UTC).replace(tzinfo=None) if time.tzinfo else time


def _type_name(kind: pa.DataType) -> str:
    names = {pa.bool_(): "true or false", _DATES: "date", _LISTS: "list"}
    return names.get(kind, "number" if kind in _NUMBERS else "text")


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
        self._path, self._file, self._chunks = path, MappedTable(path), chunks
        if len(self._file) != documents:
            raise ValueError(f"{path.name} has {len(self._file):,} documents, not {documents:,}")
        self._is_known = FIELDS in self._file.table.column_names

    @functools.cached_property
    def _ends(self) -> Int[np.ndarray, " documents"]:
        """Where the chunks of each document end."""
        counts = self._file.table["chunks"].to_numpy()
        if counts.min() < 0 or counts.sum() != self._chunks:
            raise ValueError(f"{self._path} is damaged; make the index again")
        return np.cumsum(counts)

    @functools.cached_property
    def _columns(self) -> dict[str, pa.Array]:
        """name -> values of the documents."""
        table = self._file.table.select(["id", "chunks", FIELDS])
        table.validate(full=True)  # damaged offsets would lead outside of the file
        fields, ids = table[FIELDS].chunk(0), table["id"].chunk(0).cast(_TEXT)
        return {"id": ids, **{x.name: fields.field(i) for i, x in enumerate(fields.type)}}

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
        mask = _Filter(where, self._columns, len(self._file)).mask()
        return np.flatnonzero(np.repeat(mask, np.diff(self._ends, prepend=0)))

    def at(self, chunk: int) -> dict:
        """The metadata of a chunk's document."""
        if not self._is_known:
            return {}
        row = int(np.searchsorted(self._ends, chunk, "right"))
        return json.loads(self._file.table["metadata"][row].as_py() or "{}")


class _Token(NamedTuple):
    kind: str  # a group of _TOKEN, "keyword" or "end"
    text: str
    place: int


class _Filter:
    """Reads a filter, and applies each part as soon as it is read; a mask is true, false or null.

    Args:
        columns: name -> values of each document.
        rows: number of documents.
    """

    def __init__(self, where: str, columns: dict[str, pa.Array], rows: int):
        self._where, self._columns, self._rows = where, columns, rows
        self._tokens, self._next = self._split(), 0

    def mask(self) -> np.ndarray:
        """Whether each document passes, bool `[rows]`; ValueError if the filter is wrong."""
        try:
            mask = self._either()
        except RecursionError:
            self._fail("it is nested too deeply", 0)
        self._expect("", "`and`, `or` or the end")
        return np.asarray(pc.fill_null(mask, False))

    def _split(self) -> list[_Token]:
        tokens, place = [], 0
        if len(self._where) > MOST_CHARACTERS:
            self._fail(f"it has more than {MOST_CHARACTERS:,} characters", MOST_CHARACTERS)
        while place < len(self._where):
            if self._where[place].isspace():
                place += 1
                continue
            match = _TOKEN.match(self._where, place)
            if not match:
                is_open = self._where[place] in "'\""
                self._fail("a quote is not closed" if is_open else "this is not understood", place)
            kind, text = match.lastgroup or "", match[0]
            if kind == "word" and text.lower() in _KEYWORDS:
                kind, text = "keyword", text.lower()
            elif kind in ("text", "column"):
                text = text[1:-1].replace(text[0] * 2, text[0])
            tokens.append(_Token(kind, text, place))
            place = match.end()
        return [*tokens, _Token("end", "", place)]

    def _fail(self, message: str, place: int) -> NoReturn:
        """Raises ValueError with the place and the columns."""
        shown = self._where[place : place + 20].split("\n")[0]
        position = f"character {place + 1}, before {shown!r}" if shown else "the end"
        names = [f"{x} ({_type_name(y.type)})" for x, y in [*self._columns.items()][:40]]
        names += ["..."] * (len(self._columns) > 40)
        raise ValueError(f"where: {message}, at {position}; the columns are {', '.join(names)}")

    @property
    def _token(self) -> _Token:
        return self._tokens[self._next]

    def _take(self, *texts: str) -> str:
        """Goes behind the next token if it is one of these signs or keywords, and returns it."""
        kind, text, _ = self._token
        if kind not in ("sign", "keyword") or text not in texts:
            return ""
        self._next += 1
        return text

    def _expect(self, text: str, name: str = "") -> None:
        """Goes behind a sign or keyword, or checks the end; raises ValueError for anything else."""
        is_end = not text and self._token.kind == "end"
        if not (is_end or (text and self._take(text))):
            self._fail(f"{name or repr(text)} is expected", self._token.place)

    def _either(self) -> pa.Array:
        mask = self._both()
        while self._take("or"):
            mask = pc.or_kleene(mask, self._both())
        return mask

    def _both(self) -> pa.Array:
        mask = self._one()
        while self._take("and"):
            mask = pc.and_kleene(mask, self._one())
        return mask

    def _one(self) -> pa.Array:
        if self._take("not"):
            return pc.invert(self._one())
        if self._take("("):
            mask = self._either()
            self._expect(")")
            return mask
        return self._comparison()

    def _comparison(self) -> pa.Array:
        token = self._token
        if token.kind in ("text", "number"):
            self._next += 1
            self._expect("in")
            return self._in_list(token.text, self._column(_LISTS, "a list"))
        column = self._column()
        if sign := self._take(*_COMPARE):
            return self._compare(_COMPARE[sign], column)
        if self._take("is"):
            is_null = not self._take("not")
            self._expect("null")
            return pc.is_null(column) if is_null else pc.is_valid(column)
        is_not = bool(self._take("not"))
        if self._take("in"):
            mask = self._among(column)
        elif self._take("between"):
            least = self._compare(pc.greater_equal, column)
            self._expect("and")
            mask = pc.and_kleene(least, self._compare(pc.less_equal, column))
        elif self._take("like"):
            mask = pc.match_like(self._checked(column, _TEXT, token), self._value(column))
        elif is_not or column.type != pa.bool_():
            signs = "=, !=, <, <=, >, >=, in, like, between or is null"
            self._fail(f"{signs} is expected", self._token.place)
        else:
            mask = column
        return pc.invert(mask) if is_not else mask

    def _column(self, kind: pa.DataType | None = None, name: str = "") -> pa.Array:
        """The column that the next token names, and which must be of a type if one is given."""
        token = self._token
        if token.kind not in ("word", "column"):
            self._fail("a column is expected", token.place)
        names = {x.lower(): x for x in reversed(self._columns)} | {x: x for x in self._columns}
        known = names.get(token.text, names.get(token.text.lower()))
        if known is None:
            self._fail(f"there is no column {token.text!r}", token.place)
        self._next += 1
        return self._checked(self._columns[known], kind, token)

    def _checked(self, column: pa.Array, kind: pa.DataType | None, token: _Token) -> pa.Array:
        if kind is not None and column.type != kind:
            held = _type_name(column.type)
            self._fail(f"{token.text} is no {_type_name(kind)} but {held}", token.place)
        return column

    def _value(self, column: pa.Array) -> Any:
        """The next token as a value for a column, whose type it must have."""
        token, kind = self._token, _type_name(column.type)
        self._next += 1
        try:
            if kind == "number" and token.kind in ("number", "text"):
                number = float(token.text)
                is_whole = token.text.strip().removeprefix("-").isdigit()
                return int(token.text) if is_whole else number
            if kind == "true or false" and token.text.lower() in ("true", "false"):
                return token.text.lower() == "true"
            if token.kind == "text" and kind in ("text", "date"):
                return token.text if kind == "text" else _parse_date(token.text)
        except (ValueError, OverflowError):
            pass
        form = {
            "number": "a number",
            "true or false": "true or false",
            "text": "a text in single quotes",
            "date": "a date such as '2020-12-31'",
        }
        fix = form.get(kind, "nothing (write 'x' in COLUMN for a list)")
        self._fail(f"{fix} is expected", token.place)

    def _compare(self, function: Callable, column: pa.Array) -> pa.Array:
        """A comparison of a column with the next token."""
        value = self._value(column)
        if column.type == pa.int64() and not (type(value) is int and abs(value) < 1 << 63):
            # No whole number of 64 bits is between a fraction and its neighbour of 64 bits.
            return function(column.cast(pa.float64(), safe=False), float(value))
        return function(column, pa.scalar(value, column.type))

    def _among(self, column: pa.Array) -> pa.Array:
        """Whether the values of a column are among those in brackets."""
        self._expect("(")
        values = [self._value(column)]
        while self._take(","):
            values.append(self._value(column))
        self._expect(")")
        if column.type == pa.int64():
            values = [int(x) for x in values if x == x // 1 and abs(x) < 1 << 63]
        is_in = pc.is_in(column, value_set=pa.array(values, column.type))
        return pc.if_else(pc.is_valid(column), is_in, pa.scalar(None, pa.bool_()))

    def _in_list(self, text: str, lists: pa.Array) -> pa.Array:
        """Whether each list has a text."""
        mask = np.zeros(self._rows, bool)
        rows = pc.list_parent_indices(lists).filter(pc.equal(pc.list_flatten(lists), text))
        mask[rows.to_numpy()] = True
        return pa.array(mask, mask=~np.asarray(pc.is_valid(lists)))
