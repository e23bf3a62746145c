"""The user's settings for how files are read, where their content does not show it."""

import csv
import dataclasses
import functools
import io
from collections.abc import Mapping

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
