"""The sources of presets: rows that name fields and files, and tables that are current."""

import pytest
from support import paper_tables
from support.paths import REPOSITORY

from ark_jax import config, schema

SOURCES = [
    pytest.param(recipe, preset, id=f"{recipe}-{preset}")
    for recipe, sources in config.SOURCES.items()
    for preset in sources
]


@pytest.mark.parametrize(("recipe", "preset"), SOURCES)
def test_rows_name_fields_and_admissible_values(recipe, preset):
    specs = {spec.name: spec for spec in schema.fields(config.SCHEMAS[recipe])}
    for name, row in config.SOURCES[recipe][preset].fields.items():
        specs[name].check(row.value)
        assert row.where and not row.where.endswith("."), name


@pytest.mark.parametrize(("recipe", "preset"), SOURCES)
def test_steps_name_a_file_or_say_why_none(recipe, preset):
    for step in config.SOURCES[recipe][preset].steps:
        assert step.where and step.what
        assert (REPOSITORY / "ark_jax" / step.file).is_file() if step.file else step.reason, step


@pytest.mark.parametrize(("recipe", "preset"), SOURCES)
def test_every_field_that_a_preset_changes_has_a_source(recipe, preset):
    values = schema.values(getattr(config, recipe)(preset))
    specs = schema.fields(config.SCHEMAS[recipe])
    changed = {spec.name for spec in specs if values[spec.name] != spec.default}
    assert changed <= set(config.SOURCES[recipe][preset].fields)


@pytest.mark.parametrize("recipe", config.SOURCES)
def test_the_table_beside_the_preset_is_current(recipe):
    written = paper_tables.path_of(recipe).read_text(encoding="utf-8")
    assert written == paper_tables.table(recipe), f"write it again: {paper_tables.COMMAND}"
