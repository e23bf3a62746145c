"""A row of an input file: its fields by name and type, and the problems found in it."""

import contextlib
import difflib
import math
import re
from collections.abc import Collection, Iterator, Mapping

from ark_jax.data.records import Problem, metadata_json

TYPE_NAMES = {
    str: "a string",
    list: "a list",
    dict: "an object",
    bool: "true or false",
    int: "a number",
    float: "a number",
    type(None): "null",
}

LONGEST_NAME = 40  # characters of a column's name that a message shows
GROUP_FIELDS = ("group", "type", "attribute1")  # the last one is FairytaleQA's

# Unicode's Default_Ignorable_Code_Point: soft hyphen, zero-width characters, direction marks,
# variation selectors, ...
INVISIBLE = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff"
)
# Anything but them, blanks, control characters and the Braille pattern without dots.
_VISIBLE = re.compile(rf"[^{INVISIBLE}\s\x00-\x1f\x7f-\x9f\u2800]")


def type_name(value: object) -> str:
    """What messages call the type of a JSON value."""
    return TYPE_NAMES.get(type(value), f"a {type(value).__name__}")


def has_visible(text: str) -> bool:
    """Whether `text` has a character that a reader sees."""
    return _VISIBLE.search(text) is not None


SURROGATE = re.compile("[\ud800-\udfff]")


def has_surrogate(text: str) -> bool:
    """Whether `text` contains a surrogate: half a pair, or a byte that was not valid UTF-8."""
    return not text.isascii() and SURROGATE.search(text) is not None


def text_fault(value: object, *, blank: bool = False) -> tuple[str, str] | None:
    """The defect of a value that should be text, and the fix; None for valid text.

    Args:
        blank: whether the text may be empty.
    """
    if not isinstance(value, str):
        return f"is {type_name(value)}", "write a string"
    if not blank and not value.strip():
        return "is empty", "fill it in or delete it"
    if not blank and not has_visible(value):
        return "holds only characters that show nothing", "fill it in or delete it"
    if has_surrogate(value):
        return "holds bytes or \\u escapes that are not valid UTF-8", "write whole characters"
    return None


class InputRow:
    """One row of an input file, whose fields are read by name and type.

    A field with a problem gives an empty value, and the problem is added to `problems`, so that one
    pass finds all problems. A record made from the row is valid only if the row is `ok`. `remarks`
    describe parts of a valid row that are ignored. `names` holds what the file calls a field, where
    messages would call it something else. `of_cells` says whether all values are texts of cells.

    Args:
        line: number of the line or row, from 1.
        unit: "line", or "row" if `line` counts the elements of an array.
        columns: of the table that holds the row, if one does.
    """

    def __init__(
        self,
        file: str,
        line: int,
        values: Mapping[str, object],
        unit: str = "line",
        columns: Collection[str] = (),
    ):
        self.file, self.line, self.values, self.unit = file, line, values, unit
        self.columns = columns
        self.names: Mapping[str, str] = {}
        self.of_cells = False
        self.problems: list[Problem] = []
        self.remarks: list[Problem] = []

    def with_values(
        self, values: Mapping[str, object], names: Mapping[str, str] | None = None
    ) -> "InputRow":
        """The row with other values and names, and the same lists of problems and remarks."""
        changed = InputRow(self.file, self.line, values, self.unit)
        changed.names, changed.of_cells = names or {}, self.of_cells
        changed.problems, changed.remarks = self.problems, self.remarks
        return changed

    @property
    def ok(self) -> bool:
        return not self.problems

    @property
    def key(self) -> str:
        """The name of the id's field: "id" or "_id"."""
        return "id" if "id" in self.values and "_id" not in self.values else "_id"

    @property
    def group(self) -> str:
        """The text in a field of `GROUP_FIELDS`, by which results are broken down, or ""."""
        values = (self.values.get(name) for name in GROUP_FIELDS)
        return next((value for value in values if text_fault(value) is None), "")

    def add_problem(self, field: str, defect: str, fix: str) -> None:
        self.problems.append(self._problem(field, defect, fix))

    def add_remark(self, field: str, defect: str, outcome: str) -> None:
        self.remarks.append(self._problem(field, defect, outcome))

    def remark_unread(self, field: str, fact: str) -> None:
        """Adds a remark, once for the file, on a field of valid rows that is not read."""
        self.remarks.append(Problem(self.file, 0, field, fact, 0))

    def remark_repeat(self, line: int) -> None:
        """Adds a remark that a row without an id repeats another line."""
        defect = f"the {self.unit} repeats {self.unit} {line}"
        self.add_remark("", defect, "it is read once")

    def _problem(self, field: str, defect: str, consequence: str) -> Problem:
        place = f" in row {self.line}" if self.unit == "row" else ""
        name = self.names.get(field, field)
        return Problem(self.file, self.line, name, f"{defect}{place}; {consequence}")

    def metadata(self, *fields: str) -> str:
        """All fields but these, and those of an object `metadata`, as `Document.metadata`."""
        inner = self.values.get("metadata")
        inner, known = (inner, (*fields, "metadata")) if isinstance(inner, dict) else ({}, fields)
        values = {name: x for name, x in (inner | {**self.values}).items() if name not in known}
        return metadata_json(values, of_cells=self.of_cells)

    def has(self, field: str, *, required: bool = True) -> bool:
        """Whether the row has the field. A likely misspelling is a problem in any case.

        That of a column is a problem of the whole file.
        """
        if field in self.values:
            return True
        if match := self._misspelled(field):
            defect, fix = f"is missing, but there is {match!r}", f"rename {match!r} to {field!r}"
            if self.columns:
                message = f"the column {defect}; {fix}"
                self.problems.append(Problem(self.file, 0, field, message))
            else:
                self.add_problem(field, defect, fix)
        elif required and self.columns and field not in self.columns:
            names = ", ".join(name[:LONGEST_NAME] for name in [*self.columns][:12])
            fix = f"add it, or say which one it is: --columns={field}=COLUMN (config.data.columns)"
            message = f"the column is missing; {fix}; there are {names}"
            self.problems.append(Problem(self.file, 0, field, message))
        elif required:
            self.add_problem(field, "is missing", "add it")
        return False

    def _misspelled(self, field: str) -> str:
        """The name that is probably a misspelling of a missing field; "" if there is none."""
        if field in self.columns:  # a column with an empty cell
            return ""
        similar = [name for name in self.values if abs(len(name) - len(field)) < 2]
        return next(iter(difflib.get_close_matches(field, similar, 1, 0.8)), "")

    def claim_id(self, lines: dict[str, int], field: str, id: str) -> None:
        """Registers the row's id in `lines`, id -> line; an id of another row is a problem."""
        if id in lines:
            defect = f"repeats {id!r} of {self.unit} {lines[id]}"
            self.add_problem(field, defect, "give every row its own id")
        elif id:
            lines[id] = self.line

    def text(self, field: str, *, required: bool = True, blank: bool = False) -> str:
        """The string in a field; `blank` allows an empty one."""
        if not self.has(field, required=required):
            return ""
        value = self.values[field]
        if fault := text_fault(value, blank=blank):
            self.add_problem(field, *fault)
            return ""
        return value

    def items(self, field: str, *, required: bool = True) -> list:
        """The list in a field, with at least one item if the field is required."""
        if not self.has(field, required=required):
            return []
        value = self.values[field]
        if not isinstance(value, list):
            self.add_problem(field, f"is {type_name(value)}", "write a list, [...]")
            return []
        return self._checked_length(field, value, required)

    def _checked_length(self, field: str, value: list, required: bool) -> list:
        """The list itself; a problem if it is required and empty."""
        if required and not value:
            self.add_problem(field, "is empty", "list at least one item")
        return value

    def pairs(self, field: str, columns: tuple[str, str], *, required: bool = True) -> list:
        """The items of a list of pairs, which may also be written as an object of two lists."""
        value = self.values.get(field)
        if not isinstance(value, dict):
            return self.items(field, required=required)
        lists = [value.get(column) for column in columns]
        if not all(isinstance(items, list) for items in lists) or len(lists[0]) != len(lists[1]):
            self.add_problem(
                field,
                f"is an object without {' and '.join(columns)}, two lists of one length",
                "write them, or a list",
            )
            return []
        return self._checked_length(
            field, [list(pair) for pair in zip(*lists, strict=True)], required
        )

    def texts(self, field: str, *, required: bool = True) -> tuple[str, ...]:
        """The strings of a list; an empty one is a problem."""
        values = self.items(field, required=required)
        faults = [(i, text_fault(value)) for i, value in enumerate(values, 1)]
        faults = [(i, fault) for i, fault in faults if fault]
        for i, (defect, fix) in faults:
            self.add_problem(field, f"item {i} {defect}", fix)
        return () if faults else tuple(values)

    def offset(self, field: str) -> int | None:
        """The number from 0 in a field; None without the field."""
        if not self.has(field, required=False):
            return None
        value = self.values[field]
        if isinstance(value, str) and value.isdecimal():  # a cell of a table
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            self.add_problem(field, f"is {value!r:.20}", "write a number from 0")
            return None
        return value

    def number(self, field: str) -> float:
        """The finite number in a field; 0 with a problem."""
        if not self.has(field):
            return 0.0
        value = self.values[field]
        with contextlib.suppress(TypeError, ValueError):
            number = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
            if math.isfinite(number):
                return number
        self.add_problem(field, f"is {value!r:.20}", "write a finite number")
        return 0.0

    def flag(self, field: str, default: bool) -> bool:
        """The boolean in a field, or `default` without the field."""
        if not self.has(field, required=False):
            return default
        value = self.values[field]
        if not isinstance(value, bool):
            self.add_problem(field, f"is {type_name(value)}", "write true or false")
            return default
        return value

    def objects(self, field: str, *, required: bool = True) -> Iterator["InputRow"]:
        """The objects of a list, as rows. Iteration adds their problems to this row."""
        for i, value in enumerate(self.items(field, required=required), 1):
            if not isinstance(value, dict):
                self.add_problem(field, f"item {i} is {type_name(value)}", "write an object, {...}")
                continue
            part = InputRow(self.file, self.line, value, self.unit)
            yield part
            self.problems += [
                Problem(p.file, p.line, field, f"item {i}: {p.field} {p.message}")
                for p in part.problems
            ]
