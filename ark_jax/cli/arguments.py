"""The flags of verbs that need no config."""

import argparse
import difflib
from collections.abc import Sequence
from typing import NoReturn

from ark_jax.cli import verbs

MISSING = "the following arguments are required: "  # how argparse begins


class Parser(argparse.ArgumentParser):
    """Flags of one verb. What is wrong with them is a ValueError of one line."""

    def __init__(self, verb: str):
        super().__init__(prog=f"ark-jax {verb}", add_help=False, allow_abbrev=False)
        self._example = verbs.verb_of(verb).example

    def error(self, message: str) -> NoReturn:
        if message.startswith(MISSING):
            names = message.removeprefix(MISSING).split(", ")
            needed = [name if name[0] == "-" else name.upper() for name in names]
            raise ValueError(f"{self.prog} needs {' and '.join(needed)}, as in: {self._example}")
        raise ValueError(f"bad flag: {message}; `{self.prog} --help` shows how it is used")

    def values(self, args: Sequence[str]) -> argparse.Namespace:
        """The values of flags; of an unknown flag the nearest known one is named.

        Raises:
            ValueError: a flag is unknown, missing or has a bad value.
        """
        values, unknown = self.parse_known_args(args)
        if unknown and not unknown[0].startswith("-"):
            raise ValueError(
                f"{self.prog}: unexpected {unknown[0]!r}; put quotes around a question or a path "
                f"with blanks, as in: {self._example}"
            )
        if unknown:
            known = [flag for action in self._actions for flag in action.option_strings]
            nearest = difflib.get_close_matches(unknown[0].partition("=")[0], known, 1)
            hint = f" (did you mean {nearest[0]}?)" if nearest else ""
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        return values


def at_least_one(text: str) -> int:
    """A number from 1 on, for a flag."""
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} must be at least 1")
    return number
