"""Collects the problems of an input: counts rows, and lists repeated faults by examples."""

import collections
import dataclasses
import re
from collections.abc import Iterable
from pathlib import Path

from ark_jax.data.reading import Reading
from ark_jax.data.records import Problem

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
                more = self._counts[kind] - EXAMPLES
                fix = problem.message.rsplit("; ", 1)[-1]
                message = f"{more:,} more rows have this fault; {fix}"
                listed.append(Problem(problem.file, 0, problem.field, message, more))
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
