"""What a config names outside the workdir, by what its schema says of the fields' contents."""

from collections.abc import Iterator

from ark_jax import schema
from ark_jax.pipeline.recipe import Recipe
from ark_jax.schema import setting

# Where a section has a `backend`, one of its values reads what a field names.
BACKENDS = {"path": "local", "replies": "replay"}


def paths(recipe: Recipe, config, *contents: str) -> dict[str, str]:
    """dotted field -> what it names, of the fields with one of these contents that a run reads.

    Of a field that names several, each is an entry: `field, path`.
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
    unread = set(recipe.unread(config))
    for spec in schema.fields(recipe.schema) if recipe.schema else ():
        section, _, name = spec.name.rpartition(".")
        backend = setting(config, section).get("backend") if section else None
        is_asked = name not in BACKENDS or backend in (None, BACKENDS[name])
        if section not in unread and is_asked:
            yield spec


def data_path(recipe: Recipe, config) -> str | None:
    """The input of a run, perhaps empty; None if the method reads none."""
    fields = {spec.name for spec in schema.fields(recipe.schema)} if recipe.schema else set()
    return config.data.path if "data.path" in fields else None


def roles(recipe: Recipe, config) -> tuple[str, ...]:
    """The sections of the config that ask a language model."""
    sections = schema.sections(recipe.schema) if recipe.schema else {}
    endpoints = [name for name, kind in sections.items() if "base_url" in schema.own_fields(kind)]
    unread = set(recipe.unread(config))
    return tuple(name for name in endpoints if name not in unread)
