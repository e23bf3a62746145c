"""Checks of the numbers in a config.json, before a model is laid out by them."""

import math
from collections.abc import Callable, Mapping, Sequence

# Fields of a Config that are sizes, and their usual names in a config.json.
SIZES = {
    "vocab": "vocab_size",
    "width": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "ffn": "intermediate_size",
    "positions": "max_position_embeddings",
}


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


def refuse_unless(supported: bool, field: str, value: object) -> None:
    """Raises ValueError if a setting that changes the results is not supported."""
    if not supported:
        raise ValueError(
            f"config.json: {field}={value!r} changes the mathematics and is not implemented"
        )


def expect(hf: Mapping, **values: object) -> None:
    """Refuses fields that are there with another value."""
    for field, value in values.items():
        refuse_unless(hf.get(field, value) == value, field, hf.get(field))


def layer_kinds(settings: Mapping, is_local: Callable[[int], bool]) -> tuple[bool, ...]:
    """Whether each layer sees a window only; () if all see whole texts.

    Args:
        is_local: of a layer's number, for a config.json without layer_types.
    """
    count, names = settings["num_hidden_layers"], settings.get("layer_types")
    refuse_unless(count < 10_000, "num_hidden_layers", count)
    if names is None:
        local = tuple(map(is_local, range(count)))
    else:
        known = "full_attention", "sliding_attention"
        valid = isinstance(names, list) and len(names) == count and {*names} <= {*known}
        refuse_unless(valid, "layer_types", names)
        local = tuple(name == known[1] for name in names)
    return local if any(local) else ()
