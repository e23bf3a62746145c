"""Checks of the numbers in a config.json, before a model is laid out by them."""

import math
from collections.abc import Mapping, Sequence


def check_sizes(settings: Mapping, names: Sequence[str], optional: Sequence[str] = ()) -> None:
    """Checks that fields of a config.json are integers of at least 1, where they are present.

    A field of `optional` may also be null.

    Raises:
        ValueError: a field is not. The message gives it, its value and what it must be.
    """
    for name in (*names, *optional):
        value = settings.get(name, 1)
        is_size = isinstance(value, int) and not isinstance(value, bool) and value > 0
        if not is_size and not (value is None and name in optional):
            raise _field_error(name, value, "an integer of at least 1")


def check_positive(settings: Mapping, names: Sequence[str]) -> None:
    """Checks that fields of a config.json are finite numbers above 0, where they are present.

    Raises:
        ValueError: a field is not. The message gives it, its value and what it must be.
    """
    for name in names:
        value = settings.get(name, 1)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (is_number and 0 < value < math.inf):
            raise _field_error(name, value, "a finite number above 0")


def _field_error(name: str, value: object, admissible: str) -> ValueError:
    shown = repr(value)[:60]
    return ValueError(f"config.json: {name}={shown}: must be {admissible}; fetch the file again")
