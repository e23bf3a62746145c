"""Schemas of configs: defaults, checks with clear messages, the reference."""

import dataclasses
import math

import pytest
from ml_collections import ConfigDict

from ark_jax import schema
from ark_jax.schema import field


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """How weights change."""

    rate: float = field(0.1, "Learning rate.", above=0, maximum=1)
    betas: tuple[float, float] = field((0.9, 0.99), "Decay of moments.", minimum=0)
    price: tuple[float, ...] = field((), "Price, in and out.", unit="USD", lengths=(0, 2))
    kind: str = field("adam", "Update rule.", choices=("adam", "sgd", "lion"))


@dataclasses.dataclass(frozen=True)
class Training:
    """One run."""

    seed: int = field(0, "Seed.", minimum=0, maximum=9)
    ids: tuple[str | int, ...] = field((), "Questions to use.")
    copies: bool = field(False, "Whether copies stay.")
    optimizer: Optimizer = Optimizer()


@dataclasses.dataclass(frozen=True)
class Mining:
    """What finds negatives."""

    by: str = field("near", "What finds them.", choices=("near", "far"), importable=True)


@dataclasses.dataclass(frozen=True)
class Slow(Optimizer):
    """Optimizer, but slow."""

    rate: float = 0.01


def refusal(name: str, value: object) -> str:
    """The message that refuses one value."""
    values = schema.to_config_dict(Training).to_dict()
    section = values["optimizer"] if name in values["optimizer"] else values
    section[name] = value
    with pytest.raises(ValueError) as error:
        schema.check(values, Training)
    return str(error.value)


def test_a_config_has_the_defaults_and_their_types():
    config = schema.to_config_dict(Training)
    assert config.optimizer.betas == (0.9, 0.99) and config.copies is False
    with pytest.raises(TypeError):
        config.seed = "one"
    schema.check(config, Training)


def test_a_section_inherits_fields_and_can_change_their_defaults():
    changed, kept = next(schema.fields(Slow)), next(schema.fields(Optimizer))
    assert changed == dataclasses.replace(kept, default=0.01) and kept.default == 0.1
    config = schema.to_config_dict(Slow)
    assert schema.section_of(config, Slow) == Slow() != schema.section_of(config, Optimizer)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("seed", 10, "config.seed=10: must be an integer, from 0 to 9. Seed."),
        ("seed", 1.0, "config.seed=1.0: must be an integer"),
        ("seed", True, "config.seed=True: must be an integer"),
        ("copies", 1, "config.copies=1: must be True or False. Whether copies stay."),
        ("ids", "abc", "config.ids='abc': must be a tuple of strings or integers"),
        ("ids", ("a", 7, 0.5), "config.ids[2]=0.5: must be a string or an integer"),
        ("rate", 0, "config.optimizer.rate=0: must be a finite number, above 0 and at most 1"),
        ("rate", math.nan, "config.optimizer.rate=nan: must be a finite number"),
        ("rate", 10**400, "config.optimizer.rate=1000"),
        ("betas", (0.9,), "betas=(0.9,): must be a tuple of 2 finite numbers, each at least 0"),
        ("betas", (0.9, -1), "betas[1]=-1: must be a finite number, at least 0. Decay"),
        ("price", (1.0,), "price=(1.0,): must be a tuple of 0 or 2 finite numbers. Price"),
        ("kind", "Adam", "config.optimizer.kind='Adam': must be adam, sgd or lion. Update"),
        ("kind", None, "config.optimizer.kind=None: must be adam, sgd or lion"),
        ("optimizer", 3, "config.optimizer=3: must be a section with fields"),
        ("sead", 3, "config has no field 'sead'; did you mean 'seed'?"),
        ("x", 3, "config has no field 'x'; its fields are seed, ids, copies, optimizer"),
    ],
)
def test_an_invalid_value_is_refused_with_its_name_and_rule(name, value, message):
    assert message in refusal(name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [("rate", 1), ("betas", [0, 1]), ("ids", (7, "a")), ("price", (0, 2.5)), ("ids", [])],
)
def test_integers_are_accepted_as_numbers_and_lists_as_tuples(name, value):
    config = schema.to_config_dict(Training)
    (config.optimizer if name in config.optimizer else config)[name] = value
    schema.check(config, Training)


@pytest.mark.parametrize("value", ["own:f", "package.own:function_2", "near"])
def test_a_users_function_is_accepted_in_place_of_a_choice(value):
    schema.check({"by": value}, Mining)


@pytest.mark.parametrize("value", ["own", "own.f", ":f", "own:", "own:a.b", "a b:c", "own:f()", 1])
def test_a_value_that_names_no_function_is_refused(value):
    with pytest.raises(ValueError, match="must be near, far or module:function"):
        schema.check({"by": value}, Mining)


def test_a_missing_field_is_refused():
    config = schema.to_config_dict(Training)
    del config.optimizer.rate
    with pytest.raises(ValueError, match=r"^config\.optimizer\.rate is missing; start from"):
        schema.check(config, Training)


def test_an_empty_config_is_refused_with_its_first_field():
    with pytest.raises(ValueError, match=r"^config\.seed is missing"):
        schema.check(ConfigDict(), Training)


def test_a_long_value_is_shortened():
    assert len(refusal("seed", "x" * 10_000)) < 200
