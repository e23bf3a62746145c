"""How the user says to read files, and what is found: problems, with repeated ones as examples."""

import collections
import csv
import dataclasses
import functools
import io
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from ark_jax.data.records import Problem

LISTS = ("answers", "documents", "evidence", "contexts")
FIELDS = (
    *("id", "title", "text", "question", "answer", "context", "group", "document", "start", "end"),
    *LISTS,
)


@dataclasses.dataclass(frozen=True)
class Reading:
    """How files are to be read.

    Attributes:
        encoding: that of all texts; "" detects it for each file.
        columns: which columns of rows are fields, as in "question=Prompt,answers=Response"; a
            column with a comma is quoted as in CSV.
        tolerate: the share of rows that may have problems.
        is_shared: whether the columns are those of other files too, so that one may lack some.
        seen: the names of columns that rows had, if `columns` names any.

    Raises:
        ValueError: the encoding or a field is unknown, something is given twice, or the share is
            none.
    """

    encoding: str = ""
    columns: str = ""
    tolerate: float = 0.0
    is_shared: bool = False
    seen: dict[str, None] = dataclasses.field(default_factory=dict, compare=False)

    def __post_init__(self):
        try:
            io.TextIOWrapper(io.BytesIO(), self.encoding or "utf-8")
        except LookupError:
            names = "utf-8, utf-16, cp1252, latin-1 or shift_jis"
            raise ValueError(
                f"config.data.encoding: {self.encoding!r} is unknown; name one, such as {names}"
            ) from None
        _ = self.by_field  # raises for invalid columns
        if not 0 <= self.tolerate <= 1:
            fault = f"is {self.tolerate:g}; give a share from 0 to 1"
            raise ValueError(f"--tolerate (config.data.tolerate) {fault}")

    @property
    def is_of_documents(self) -> bool:
        """Whether it says something that holds for documents alone, not for graphs."""
        return bool(self.columns)

    @functools.cached_property
    def by_field(self) -> dict[str, str]:
        """field -> its column."""
        by_field: dict[str, str] = {}
        for part in next(csv.reader([self.columns], skipinitialspace=True), []):
            field, equals, column = (word.strip() for word in part.partition("="))
            if not (equals and column and field in FIELDS):
                fault = f"{part!r} is not FIELD=COLUMN with one of the fields {', '.join(FIELDS)}"
            elif field in by_field or column in by_field.values():
                fault = f"{part!r} gives a field or a column twice"
            else:
                by_field[field] = column
                continue
            raise ValueError(f"--columns (config.data.columns): {fault}")
        return by_field

    def named(self, values: Mapping[str, object]) -> Mapping[str, object]:
        """The values of a row with fields for names; a named column hides one with its name.

        The case of a column counts only if two differ in nothing else.
        """
        if not self.by_field:
            return values
        self.seen.update(dict.fromkeys(values))
        columns = {field: _match(column, values) for field, column in self.by_field.items()}
        used = {*columns.values(), *self.by_field}
        fields = {field: values[name] for field, name in columns.items() if name in values}
        return {**fields, **{name: value for name, value in values.items() if name not in used}}

    def listed(self, values: Mapping[str, object]) -> Mapping[str, object]:
        """As `named`, for rows whose values have types: one text in a list's place is an item."""
        values = self.named(values)
        lists = {name: values.get(name) for name in LISTS if name in self.by_field}
        return {**values, **{name: [v] for name, v in lists.items() if isinstance(v, str)}}

    def has_column(self, names: list[str]) -> bool:
        """Whether a column that is named is among these."""
        return any(_match(column, names) is not None for column in self.by_field.values())

    def unseen(self) -> list[str]:
        """The columns that are named and that no row had, though one should."""
        if self.is_shared:
            return []
        return [name for name in self.by_field.values() if _match(name, self.seen) is None]


AS_IT_IS = Reading()  # detects the encoding, and takes columns by their names


def _match(column: str, names) -> str | None:
    """The name among `names` that equals a column, if need be without regard to case; or None."""
    if column in names:
        return column
    return next((name for name in names if name.strip().lower() == column.lower()), None)


SYSTEMATIC = 20  # a fault of more rows of a file than this is listed by examples
EXAMPLES = 3
# What differs between two rows with the same fault: quoted values, numbers, remarks in brackets.
_VALUES = re.compile(r"'[^']*'|\"[^\"]*\"|\d+|\(.*\)")


class Problems(list[Problem]):
    """A list of problems that counts rows, and lists a fault of many rows by examples.

    Attributes:
        rows: how many rows were read. In a folder of files, each file is a row.
        bad_rows: how many of them have a problem.
        fatal: whether a fault of a whole file is among them, which no tolerance covers.
    """

    def __init__(self):
        super().__init__()
        self.rows, self.bad_rows, self.fatal = 0, 0, False
        self._counts: collections.Counter[tuple[str, str, str]] = collections.Counter()
        self._last_place = ("", 0)
        self._of_files: set[Problem] = set()

    def append(self, problem: Problem) -> None:
        """Adds a problem; that of a whole file is added once, however many rows report it."""
        if not problem.line:
            if problem in self._of_files:
                return
            self._of_files.add(problem)
        place = (problem.file, problem.line)
        self.fatal = self.fatal or not problem.line
        self.bad_rows += place != self._last_place
        self._last_place = place
        kind = _fault_key(problem)
        self._counts[kind] += problem.rows
        if self._counts[kind] <= SYSTEMATIC or not problem.line:
            super().append(problem)

    def add(
        self, path: str | Path, message: str, line: int = 0, field: str = "", rows: int = 1
    ) -> None:
        """Adds a problem of a file; arguments are those of `Problem`."""
        self.append(Problem(str(path), line, field, message, rows))

    def extend(self, problems: Iterable[Problem]) -> None:
        for problem in problems:
            self.append(problem)

    def __iadd__(self, problems: Iterable[Problem]) -> "Problems":
        self.extend(problems)
        return self

    def stop(self, path: Path, message: str, line: int = 0, field: str = "") -> None:
        """Adds a problem after which a file was not read further."""
        self.add(path, message, line, field)
        self.fatal = True

    @property
    def total(self) -> int:
        """How many problems there are, with those that are not listed."""
        return self._counts.total()

    def condense(self) -> None:
        """Replaces a fault of more than `SYSTEMATIC` rows by examples and a count."""
        listed: list[Problem] = []
        seen: collections.Counter[tuple[str, str, str]] = collections.Counter()
        for problem in self:
            kind = _fault_key(problem)
            seen[kind] += 1
            if self._counts[kind] <= SYSTEMATIC or not problem.line or seen[kind] <= EXAMPLES:
                listed.append(problem)
            if problem.line and self._counts[kind] > SYSTEMATIC and seen[kind] == EXAMPLES:
                surplus = self._counts[kind] - EXAMPLES
                fix = problem.message.rsplit("; ", 1)[-1]
                message = f"{surplus:,} more rows have this fault; {fix}"
                listed.append(Problem(problem.file, 0, problem.field, message, surplus))
        self[:] = listed


def _fault_key(problem: Problem) -> tuple[str, str, str]:
    """File, field and message without values: equal for two rows with the same fault."""
    return problem.file, problem.field, _VALUES.sub("", problem.message)


@dataclasses.dataclass
class Findings:
    """Problems of an input that was read, and remarks on parts that were ignored.

    `reading` is how the user says to read it.
    """

    reading: Reading = dataclasses.field(default_factory=Reading)
    problems: Problems = dataclasses.field(default_factory=Problems)
    remarks: Problems = dataclasses.field(default_factory=Problems)

    def condensed(self) -> "Findings":
        """These findings, in which a fault of many rows is listed by examples."""
        self.problems.condense()
        self.remarks.condense()
        return self

    def settle(self, row) -> bool:
        """Adds the problems of a finished `InputRow`, or else its remarks; whether it is ok."""
        self.problems += row.problems
        if row.ok:
            self.remarks += row.remarks
        return row.ok
