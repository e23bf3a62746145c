"""Adapters to other software: a module each, which imports that software."""

import importlib
from collections.abc import Iterable
from types import ModuleType


def load(name: str) -> ModuleType:
    """The module of an adapter.

    Raises:
        RuntimeError: the software is not installed.
    """
    try:
        return importlib.import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        raise RuntimeError(
            f"{name} needs the package {error.name}: pip install 'ark-jax[integrations]'"
        ) from None


_SIGNS = {"eq": "=", "ne": "!=", "gt": ">", "gte": ">=", "lt": "<", "lte": "<=", "nin": "not in"}


def compared(name: str, operator: str, value: object) -> str:
    """A comparison of other software as a filter of `Index.search`.

    Args:
        name: of a column.
        operator: a sign, or a word such as "gte", "$gte", "in", "nin", "like" or "contains".
    """
    column, word = '"' + name.replace('"', '""') + '"', operator.lower().removeprefix("$")
    if word in ("contain", "contains"):
        return f"{_literal(str(value))} in {column}"
    if value is None and word in ("eq", "=", "==", "ne", "!="):
        return f"{column} is {'not ' if word[0] in 'n!' else ''}null"
    return f"{column} {_SIGNS.get(word, word)} {_literal(value)}"


def joined(word: str, parts: Iterable[str]) -> str:
    """Filters joined by "and" or "or"."""
    return f" {word} ".join(f"({part})" for part in parts)


def _literal(value: object) -> str:
    """A value, or a list of them, as a filter has it."""
    if isinstance(value, list | tuple | set):
        return f"({', '.join(map(_literal, value))})"
    if isinstance(value, bool | int | float):
        return str(value).lower()
    text = value.isoformat() if hasattr(value, "isoformat") else str(value)
    return "'" + text.replace("'", "''") + "'"
