"""Ids of nodes and relations that NSM's and GraftNet's files name by number."""

from pathlib import Path

from ark_jax.data.problems import Findings
from ark_jax.data.text_files import text_lines


class TermLists:
    """The lines of entities.txt and relations.txt in a folder, read when a number asks for one.

    Args:
        folder: where the files lie.
        findings: where their problems go.
    """

    def __init__(self, folder: Path, findings: Findings):
        self._folder, self._findings = folder, findings
        self._lines: dict[str, list[str]] = {}

    def id(self, part: str, value: object) -> object:
        """The id at a number; another value as it is; None for a number without a line.

        Args:
            part: "relation"; any other word is an entity.
            value: an id, or the number of a line from 0.
        """
        if type(value) is not int:
            return value
        name = "relations.txt" if part == "relation" else "entities.txt"
        if name not in self._lines:
            path = self._folder / name
            lines = text_lines(path, self._findings) if path.is_file() else ()
            self._lines[name] = [line.strip() for _, line in lines]
        lines = self._lines[name]
        return lines[value] if 0 <= value < len(lines) else None
