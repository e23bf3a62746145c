"""What a config names outside the workdir: paths, models and endpoints, by the schema's fields."""

from collections.abc import Iterator

from ark_jax import schema
from ark_jax.pipeline.recipe import Recipe
from ark_jax.schema import setting

# Field -> the value of `backend` in its section with which a run reads what the field names.
BACKENDS = {"path": "local", "replies": "replay"}


def paths(recipe: Recipe, config, *contents: str) -> dict[str, str]:
    """Dotted field -> what it names, for the fields that a run reads.

    A field that names several has an entry `field, path` for each.

    Args:
        contents: kinds of content that the schema declares, such as "model".
    """
    found: dict[str, str] = {}
    for spec in _read_fields(recipe, config):
        value = setting(config, spec.name) if spec.content in contents else ""
        if isinstance(value, list):
            found |= {f"{spec.name}, {path}": path for path in value}
        elif value:
            found[spec.name] = value
    return found


def _read_fields(recipe: Recipe, config) -> Iterator[schema.FieldSpec]:
    """The fields of the schema that a run with this config reads."""
    unread = set(recipe.unread(config))
    for spec in schema.fields(recipe.schema) if recipe.schema else ():
        section, _, name = spec.name.rpartition(".")
        backend = setting(config, section).get("backend") if section else None
        is_read_by_backend = name not in BACKENDS or backend in (None, BACKENDS[name])
        if section not in unread and is_read_by_backend:
            yield spec


def data_path(recipe: Recipe, config) -> str | None:
    """The input of a run, perhaps empty; None if the method reads none."""
    fields = {spec.name for spec in schema.fields(recipe.schema)} if recipe.schema else set()
    return config.data.path if "data.path" in fields else None


def roles(recipe: Recipe, config) -> tuple[str, ...]:
    """The sections of the config that name a language model which a run asks."""
    sections = schema.sections(recipe.schema) if recipe.schema else {}
    endpoints = [name for name, kind in sections.items() if "base_url" in schema.own_fields(kind)]
    unread = set(recipe.unread(config))
    return tuple(name for name in endpoints if name not in unread)
