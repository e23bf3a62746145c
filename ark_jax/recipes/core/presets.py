"""The words after the colon of `--config=NAME:WORDS`, and what presets change."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ark_jax import schema


class Row(NamedTuple):
    """A field as a source has it: the value that a preset takes, and where it stands.

    With a reason the value is not the source's, or the source has none.
    """

    value: object
    where: str
    reason: str = ""


class Step(NamedTuple):
    """What a source does or reports and no field says, and the file that does it.

    Without a file it is missing. A reason says why, or in what the file departs from the source.
    """

    where: str
    what: str
    file: str  # below ark_jax; empty: missing
    reason: str = ""


class Source(NamedTuple):
    """A publication or released code, line by line."""

    title: str
    fields: Mapping[str, Row]  # dotted field -> row
    steps: Sequence[Step]


def values(sources: Mapping[str, Source]) -> dict[str, dict[str, object]]:
    """Preset -> dotted field -> value, of presets that follow sources."""
    return {
        preset: {name: row.value for name, row in source.fields.items()}
        for preset, source in sources.items()
    }


def named(words: str) -> list[str]:
    """The comma-separated words after a config file's colon, except `sweep=`, a sweep's name."""
    return [word for word in words.split(",") if word and not word.startswith("sweep=")]


def vary(config, words: Sequence[str], variants: Mapping[str, Callable], also: Sequence[str] = ()):
    """Applies the variants that `words` name to `config`, in order, and returns it.

    Args:
        variants: name -> function that changes a config in place.
        also: further words that an error message lists as admissible.
    """
    for word in words:
        if word not in variants:
            raise ValueError(f"preset {word!r}: must be one of {', '.join((*also, *variants))}")
        variants[word](config)
    return config


def preset_of(words: str, presets: Mapping[str, Mapping]) -> str:
    """The preset that the words after a colon name; the first preset if they name none."""
    names = named(words)
    if len(names) > 1:
        raise ValueError(f"{words!r}: one preset of {', '.join(presets)}, and sweep=NAME")
    return names[0] if names else next(iter(presets))


def with_preset(declared: type, presets: Mapping[str, Mapping], preset: str):
    """The default config of a schema with the changes of a preset."""
    if preset not in presets:
        raise ValueError(f"preset {preset!r}: must be one of {', '.join(presets)}")
    config = schema.to_config_dict(declared)
    config.update_from_flattened_dict(presets[preset])
    return config
