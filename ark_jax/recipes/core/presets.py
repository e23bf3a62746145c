"""The words after the colon of `--config=NAME:WORDS`, and what presets change."""

from collections.abc import Callable, Mapping, Sequence

from ark_jax import schema


def named(words: str) -> list[str]:
    """The comma-separated words after a config file's colon, except `sweep=`, a sweep's name."""
    return [word for word in words.split(",") if word and not word.startswith("sweep=")]


def vary(config, words: Sequence[str], variants: Mapping[str, Callable], also: Sequence[str] = ()):
    """Applies the variants that `words` name to `config`, in order, and returns it.

    Args:
        words: names of variants.
        variants: name -> function that changes a config in place.
        also: further words that an error message lists as admissible.

    Raises:
        ValueError: no such variant.
    """
    for word in words:
        if word not in variants:
            raise ValueError(f"preset {word!r}: must be one of {', '.join((*also, *variants))}")
        variants[word](config)
    return config


def preset_of(words: str, presets: Mapping[str, Mapping]) -> str:
    """The preset that the words after a colon name; the first preset if they name none.

    Raises:
        ValueError: there are several words.
    """
    names = named(words)
    if len(names) > 1:
        raise ValueError(f"{words!r}: one preset of {', '.join(presets)}, and sweep=NAME")
    return names[0] if names else next(iter(presets))


def with_preset(declared: type, presets: Mapping[str, Mapping], preset: str):
    """The default config of a schema with the changes of a preset.

    Raises:
        ValueError: no such preset.
    """
    if preset not in presets:
        raise ValueError(f"preset {preset!r}: must be one of {', '.join(presets)}")
    config = schema.to_config_dict(declared)
    config.update_from_flattened_dict(presets[preset])
    return config
