"""`ark-jax config`: every field of a config with its value, unit and meaning."""

import dataclasses
import inspect
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ark_jax import schema
from ark_jax.cli.config_flags import ConfigFlags
from ark_jax.cli.flags import flag, wrap_text
from ark_jax.runtime.log import show

if TYPE_CHECKING:
    from ark_jax.recipes.core.presets import Source


class Fields(ConfigFlags):
    """Prints the fields whose names begin with one of the words, or all."""

    fields: tuple[str, ...] = flag("PREFIX", "how the names begin, as train or llm.max", ())

    example = "ark-jax config train --config=ark:paper"
    remarks = "Without --config and --workdir they are ark's."
    needed = ()

    def run(self) -> int:
        from ark_jax import config as configs

        flags = self if self.config or self.workdir else dataclasses.replace(self, config="ark")
        config, words = flags.open_plain()
        if config is None:
            raise ValueError(f"{self.workdir} keeps no config of a run; give --config=FILE")
        prefixes = tuple(words) or ""  # every name begins with ""
        recipe = config.get("recipe", "ark")
        recipe_schema = configs.SCHEMAS.get(recipe)
        lines = (
            _schema_lines(recipe_schema, config, prefixes, configs.SOURCES[recipe])
            if recipe_schema
            else _plain_lines(config, prefixes)
        )
        text = "\n".join(lines).lstrip("\n")
        if not text:
            raise ValueError(
                f"no field begins with {' or '.join(words)}; `ark-jax config` lists all"
            )
        show(f"{text}\n")
        return 0


def _schema_lines(
    recipe_schema: type, config, prefixes: tuple[str, ...] | str, sources: Mapping[str, "Source"]
) -> Iterator[str]:
    """The lines of a config that has a schema, section by section, with what `sources` say."""
    values, last_section = schema.values(config), ""
    sections = schema.all_sections(recipe_schema)
    for spec in schema.fields(recipe_schema):
        if not spec.name.startswith(prefixes):
            continue
        section = spec.name.rpartition(".")[0]
        if section != last_section:
            yield from _title_lines(section, sections)
            last_section = section
        yield from _field_lines(spec, values[spec.name])
        yield from _source_lines(spec.name, values[spec.name], sources)


def _title_lines(section: str, sections: dict[str, type]) -> Iterator[str]:
    """An empty line, and what a section is for."""
    yield ""
    if not section:
        return
    meaning = " ".join(inspect.getdoc(sections[section]).split())
    yield from wrap_text(f"{section}: {meaning}")


def _field_lines(spec: schema.FieldSpec, value: object) -> Iterator[str]:
    """A line with the value, and what it may be and means below it."""
    changed = value != spec.default
    yield f"{'*' if changed else ' '} {spec.name} = {value!r}"
    default = f"default {spec.default!r}" if changed else ""
    facts = "; ".join(filter(None, (default, spec.unit, spec.describe())))
    for text in (spec.meaning, facts):
        yield from wrap_text(text, " " * 6)


def _source_lines(name: str, value: object, sources: Mapping[str, "Source"]) -> Iterator[str]:
    """What each source says about a field, with the preset's value if that is another."""
    for preset, source in sources.items():
        if row := source.fields.get(name):
            other = f"{row.value!r}, " if row.value != value else ""
            line = "; ".join(filter(None, (f"{other}{row.where}", row.reason)))
            yield from wrap_text(f"{preset}: {line}", " " * 6)


def _plain_lines(config, prefixes: tuple[str, ...] | str) -> Iterator[str]:
    """The lines of a config of the user's own recipe, which has no schema."""
    for name, value in schema.values(config).items():
        if name.startswith(prefixes):
            yield f"  {name} = {value!r}"
