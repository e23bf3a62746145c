"""ARK's configs: what they hold, and what is refused before any work is spent."""

import functools
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ml_collections import ConfigDict
from support import config_goldens

from ark_jax import config, schema
from ark_jax.recipes.ark.config import Ark
from ark_jax.recipes.ark.recipe import check_ark

FIELDS = {spec.name: spec for spec in schema.fields(Ark)}
NUMERIC = [name for name, field in FIELDS.items() if {int, float} & set(field.rule.kinds)]
CHOSEN = [name for name, field in FIELDS.items() if field.rule.choices]
IDS = [name for name in NUMERIC if str in FIELDS[name].rule.kinds]


def as_dict() -> dict:
    """The default config as plain nested dicts, which take any value."""
    return config.ark().to_dict()


def put(values: dict, name: str, value: object) -> dict:
    """`values` with another value of one dotted field."""
    *sections, last = name.split(".")
    functools.reduce(dict.__getitem__, sections, values)[last] = value
    return values


def in_place(name: str, element: object) -> object:
    """A value of the field that is `element`, or a tuple that holds it."""
    field = FIELDS[name]
    if not field.is_tuple:
        return element
    length = max(field.lengths, default=1)
    default = (*field.default, *(1,) * length)[:length]
    return (element, *default[1:])


def refused(name: str, value: object) -> str:
    """The message that refuses a value of one field."""
    with pytest.raises(ValueError, match=rf"^config\.{re.escape(name)}\b") as error:
        schema.check(put(as_dict(), name, value), Ark)
    return str(error.value)


@pytest.mark.parametrize("name", config_goldens.NAMES)
def test_every_preset_equals_its_golden_values(name):
    resolved, golden = config_goldens.resolve(name), config_goldens.read(name)
    changes = [
        f"{field}: was {golden.get(field, 'absent')!r}, is {resolved.get(field, 'absent')!r}"
        for field in {**golden, **resolved}
        if (field in golden, golden.get(field)) != (field in resolved, resolved.get(field))
    ]
    assert not changes, f"{name}: {'; '.join(changes)}. If intended: {config_goldens.COMMAND}"


@pytest.mark.parametrize("name", config_goldens.NAMES)
def test_every_preset_is_valid(name):
    c = config_goldens.make_config(name)
    if name in ("paper", "official"):
        c.llm.backend = "openai"
    check_ark(c)


@pytest.mark.parametrize("preset", ["paper", "official"])
def test_published_presets_refuse_rules_in_place_of_a_model(preset):
    """ARK, section 4.2, "Model Selection": Gemini-2.5-Flash extracts, Gemini-2.5-Pro rewrites."""
    c = config.ark(preset)
    with pytest.raises(ValueError, match=r"set --config\.llm\.backend=openai.*ark:default"):
        check_ark(c)
    c.graph.openie = "records.json"  # which still leaves the rewriting
    with pytest.raises(ValueError, match=r"^config\.llm\.backend=none, but"):
        check_ark(c)
    c.train.stages = (1,)  # which reads no graph
    check_ark(c)


def test_the_papers_rates_and_batches_are_those_of_its_table():
    """ARK, Table 6: learning rate 6e-6, 10 epochs, 2 pairs x 8 accumulated batches; eq. 7."""
    paper, official = (config.ark(name).train for name in ("paper", "official"))
    assert paper.learning_rates == (6e-6, 6e-6, 6e-6) and sum(paper.epochs) == 10
    assert (paper.batch, paper.unit, paper.denominator) == (2 * 8, "pair", "own")
    # The released code's own rates (valleysprings/ARK a5c127b).
    assert official.learning_rates == (1e-5, 8e-6, 4e-6) and official.unit == "pair"


def test_shares_of_all_chunks_cannot_be_learned_by_pairs():
    c = config.ark("default")
    c.train.unit, c.train.loss = "pair", "distil"
    with pytest.raises(ValueError, match=r"^config\.train\.unit=pair .*train\.loss=distil"):
        check_ark(c)


def test_every_field_is_explained():
    for name, field in FIELDS.items():
        meaning = field.meaning
        assert meaning.endswith(".") and meaning[0].isupper() and "|" not in meaning, name


@pytest.mark.parametrize("name", NUMERIC)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None, True, [], {}])
def test_a_numeric_field_refuses_anything_but_finite_numbers(name, value):
    refused(name, in_place(name, value))


@pytest.mark.parametrize("name", [n for n in NUMERIC if n not in IDS])
def test_a_numeric_field_refuses_text(name):
    refused(name, in_place(name, "1"))


@pytest.mark.parametrize("name", NUMERIC)
def test_a_number_just_outside_its_bounds_is_refused(name):
    field = FIELDS[name]
    rule, is_integer = field.rule, float not in field.rule.kinds
    below = (lambda x: x - 1) if is_integer else lambda x: math.nextafter(x, -math.inf)
    above = (lambda x: x + 1) if is_integer else lambda x: math.nextafter(x, math.inf)
    if rule.minimum is not None:
        refused(name, in_place(name, below(rule.minimum)))
    if rule.above is not None:
        refused(name, in_place(name, rule.above))
    if rule.maximum is not None:
        refused(name, in_place(name, above(rule.maximum)))
    bounded = (rule.minimum, rule.above) != (None, None)
    assert bounded or rule.choices or name in IDS


@pytest.mark.parametrize("name", CHOSEN)
def test_a_misspelled_choice_is_refused(name):
    message = refused(name, in_place(name, "mispelt"))
    assert all(str(choice) in message for choice in FIELDS[name].rule.choices)


@pytest.mark.parametrize("name", [n for n, field in FIELDS.items() if field.lengths])
def test_a_tuple_with_a_wrong_length_is_refused(name):
    refused(name, (1,) * (max(FIELDS[name].lengths) + 1))


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-2, 4),
    st.floats(),
    st.binary(max_size=3),
    st.text(max_size=8),
    st.text("base+bm25stage0@", max_size=12),
)


def nest(inner: st.SearchStrategy) -> st.SearchStrategy:
    """Lists, tuples and dicts of what `inner` draws."""
    lists = st.lists(inner, max_size=4)
    names = st.text(max_size=4) | st.integers()
    return lists | lists.map(tuple) | st.dictionaries(names, inner, max_size=3)


JUNK = st.recursive(SCALARS, nest, max_leaves=6)
PLACES = [*FIELDS, *schema.sections(Ark)]


@given(st.dictionaries(st.sampled_from(PLACES), JUNK, min_size=1, max_size=4))
def test_any_invalid_config_raises_only_a_value_error(junk):
    """Whatever a config holds, the check ends well or with a ValueError."""
    values = as_dict()
    for name in sorted(junk, key=lambda name: -name.count(".")):  # sections last
        put(values, name, junk[name])
    try:
        schema.check(values, Ark)
        check_ark(ConfigDict(values))
    except ValueError as error:
        assert str(error).startswith("config.")
