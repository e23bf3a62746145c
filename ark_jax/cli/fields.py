"""`ark-jax config`: every field of a config with its value, unit and meaning."""

import dataclasses
import inspect
from collections.abc import Iterator

from ark_jax import schema
from ark_jax.cli.config_flags import ConfigFlags
from ark_jax.cli.flags import flag, wrapped
from ark_jax.runtime.log import show


class Fields(ConfigFlags):
    """Prints the fields whose names begin with one of the words, or all."""

    fields: tuple[str, ...] = flag("PREFIX", "how the names begin, as train or llm.max", ())

    example = "ark-jax config train --config=ark:paper"
    remarks = "Without --config and --workdir they are ark's."
    needed = ()

    def run(self) -> int:
        from ark_jax import config as configs

        named = self if self.config or self.workdir else dataclasses.replace(self, config="ark")
        config, words = named.open_plain()
        if config is None:
            raise ValueError(f"{self.workdir} keeps no config of a run; give --config=FILE")
        asked = tuple(words) or ""  # of which every name begins with the latter
        declared = configs.SCHEMAS.get(config.get("recipe", "ark"))
        lines = _declared(declared, config, asked) if declared else _undeclared(config, asked)
        text = "\n".join(lines).lstrip("\n")
        if not text:
            raise ValueError(
                f"no field begins with {' or '.join(words)}; `ark-jax config` lists all"
            )
        show(f"{text}\n")
        return 0


def _declared(declared: type, config, asked: tuple[str, ...] | str) -> Iterator[str]:
    """The lines of a config of our own recipes, section by section."""
    values, titled = schema.values(config), ""
    sections = schema.sections(declared)
    for spec in schema.fields(declared):
        if not spec.name.startswith(asked):
            continue
        section = spec.name.rpartition(".")[0]
        if section != titled:
            yield from _title(section, sections)
            titled = section
        yield from _field(spec, values[spec.name])


def _title(section: str, sections: dict[str, type]) -> Iterator[str]:
    yield ""
    if not section:
        return
    meaning = " ".join(inspect.getdoc(sections[section]).split())
    yield from wrapped(f"{section}: {meaning}")


def _field(spec: schema.FieldSpec, value: object) -> Iterator[str]:
    """A line with the value, and what it may be and means below it."""
    changed = value != spec.default
    yield f"{'*' if changed else ' '} {spec.name} = {value!r}"
    default = f"default {spec.default!r}" if changed else ""
    facts = "; ".join(filter(None, (default, spec.unit, spec.describe())))
    for text in (spec.meaning, facts):
        yield from wrapped(text, " " * 6)


def _undeclared(config, asked: tuple[str, ...] | str) -> Iterator[str]:
    """The lines of a recipe of the user's own, which says nothing about its fields."""
    for name, value in schema.values(config).items():
        if name.startswith(asked):
            yield f"  {name} = {value!r}"
