"""Typed config sections: each field states its type, default, limits and meaning once.

A schema is a frozen dataclass. `field` makes its fields, or they are sections, which are frozen
dataclasses themselves:

    @dataclasses.dataclass(frozen=True)
    class Optimizer:
        \"""AdamW.\"""

        learning_rate: float = field(1e-5, "Peak learning rate.", above=0)

    @dataclasses.dataclass(frozen=True)
    class Training:
        \"""One training run.\"""

        seed: int = field(0, "Seed of every random draw.", minimum=0)
        optimizer: Optimizer = Optimizer()

A section that inherits another may give a field another default alone: `seed: int = 1`.

`to_config_dict(Training)` is the `ConfigDict` that users change, in a file or by flags. `check`
refuses inadmissible values before any work is spent on them. `reference` documents every field.
"""

import dataclasses
import difflib
import functools
import json
import operator
import re
import reprlib
import sys
import types
import typing
from collections.abc import Iterator

from ml_collections import ConfigDict

SINGULAR = {bool: "True or False", int: "an integer", float: "a finite number", str: "a string"}
PLURAL = {bool: "booleans", int: "integers", float: "finite numbers", str: "strings"}
IMPORT_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")  # module:function


def field(
    default,
    meaning: str,
    *,
    unit: str = "",
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
    choices: tuple = (),
    importable: bool = False,
    lengths: tuple[int, ...] = (),
    content: str = "",
    affects_output: bool = True,
):
    """A field of a section. Limits and choices of a tuple hold for each of its elements.

    Args:
        default: the value in a new config.
        meaning: one sentence for the reference and for error messages.
        unit: what a number counts or measures, as in "tokens".
        minimum: smallest admissible number.
        maximum: largest admissible number.
        above: a number that the value must exceed.
        choices: the only admissible values; empty: any.
        importable: whether a function of the user's own, as `module:function`, may stand in place
            of a choice.
        lengths: admissible lengths of a tuple annotated `tuple[T, ...]`; empty: any.
        content: what the value names, if a run depends on its content: a key of
            `pipeline.reads.CONTENTS`.
        affects_output: False if the value decides only how fast, where or at what price a run
            works, so that no stage runs again because of it.
    """
    limits = {
        "minimum": minimum,
        "maximum": maximum,
        "above": above,
        "choices": choices,
        "importable": importable,
    }
    metadata = {
        "meaning": meaning,
        "unit": unit,
        "lengths": lengths,
        "limits": limits,
        "content": "function" if importable else content,
        "affects_output": affects_output,
    }
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True)
class Rule:
    """Which values a field admits, or which elements its tuple."""

    kinds: tuple[type, ...]
    minimum: float | None
    maximum: float | None
    above: float | None
    choices: tuple
    importable: bool

    def admits(self, value: object) -> bool:
        """Whether a field may have this value, or its tuple this element."""
        if not any(_is_instance(value, kind) for kind in self.kinds):
            return False
        if self.importable and IMPORT_PATH.fullmatch(value):
            return True
        if self.choices:
            return value in self.choices
        return isinstance(value, str | bool) or self._is_within_limits(value)

    def _is_within_limits(self, number: float) -> bool:
        return (
            abs(number) <= sys.float_info.max  # neither NaN nor infinite
            and (self.minimum is None or number >= self.minimum)
            and (self.maximum is None or number <= self.maximum)
            and (self.above is None or number > self.above)
        )

    def describe(self) -> str:
        """What one value must be: "an integer, at least 1"."""
        if self.choices:
            return self.describe_limits()
        noun = " or ".join(SINGULAR[kind] for kind in self.kinds)
        return ", ".join(filter(None, (noun, self.describe_limits())))

    def describe_limits(self) -> str:
        """Choices or bounds: "xla or cudnn", "above 0 and at most 1"; empty if there are none."""
        if self.choices:
            function = ("module:function",) if self.importable else ()
            *choices, last = map(str, (*self.choices, *function))
            return f"{', '.join(choices)} or {last}" if choices else last
        if self.minimum is not None and self.maximum is not None:
            return f"from {self.minimum:,} to {self.maximum:,}"
        bounds = {"above": self.above, "at least": self.minimum, "at most": self.maximum}
        return " and ".join(f"{word} {x:,}" for word, x in bounds.items() if x is not None)


@dataclasses.dataclass(frozen=True)
class FieldSpec:
    """What a schema says about one field."""

    name: str  # dotted, as in "train.batch"
    default: object
    meaning: str
    unit: str
    rule: Rule
    is_tuple: bool
    lengths: tuple[int, ...]  # admissible lengths of a tuple; empty: any
    content: str  # what the value names, as of `field`; empty: nothing
    affects_output: bool

    def describe(self) -> str:
        """What the value must be: "a tuple of 3 integers, each at least 0"."""
        if not self.is_tuple:
            return self.rule.describe()
        lengths = " or ".join(map(str, self.lengths))
        noun = " or ".join(PLURAL[kind] for kind in self.rule.kinds)
        limits = self.rule.describe_limits()
        described = f"a tuple of {lengths} {noun}" if lengths else f"a tuple of {noun}"
        return f"{described}, each {limits}" if limits else described

    def check(self, value: object) -> None:
        """Refuses a value that the field does not admit.

        Raises:
            ValueError: the value, or an element of the tuple, is not admissible.
        """
        if not self.is_tuple:
            self._check_one(self.name, value)
            return
        is_sequence = isinstance(value, tuple | list)
        if not is_sequence or (self.lengths and len(value) not in self.lengths):
            raise self._refusal(self.name, value, self.describe())
        for i, element in enumerate(value):
            self._check_one(f"{self.name}[{i}]", element)

    def _check_one(self, name: str, value: object) -> None:
        if not self.rule.admits(value):
            raise self._refusal(name, value, self.rule.describe())

    def _refusal(self, name: str, value: object, admissible: str) -> ValueError:
        return ValueError(
            f"config.{name}={_short_repr(value)}: must be {admissible}. {self.meaning}"
        )


@functools.cache
def sections(schema: type) -> dict[str, type]:
    """The sections of a schema by name, without those of its sections (`all_sections`)."""
    annotations = typing.get_type_hints(schema)
    return {name: kind for name, kind in annotations.items() if dataclasses.is_dataclass(kind)}


def all_sections(schema: type, prefix: str = "") -> dict[str, type]:
    """The sections of a schema and of its sections, by dotted name."""
    by_name = {}
    for name, kind in sections(schema).items():
        by_name |= {f"{prefix}{name}": kind, **all_sections(kind, f"{prefix}{name}.")}
    return by_name


def fields(schema: type, prefix: str = "") -> Iterator[FieldSpec]:
    """Every field of a schema and of its sections, in the order of declaration."""
    annotations, nested = typing.get_type_hints(schema), sections(schema)
    for declared in dataclasses.fields(schema):
        name = f"{prefix}{declared.name}"
        if declared.name in nested:
            yield from fields(nested[declared.name], f"{name}.")
        else:
            metadata = _metadata(schema, declared.name)
            yield _field_spec(name, declared.default, metadata, annotations[declared.name])


def _metadata(schema: type, name: str) -> typing.Mapping:
    """The metadata that `field` stored, in the section or in one that it inherits."""
    declared = (vars(kind).get("__dataclass_fields__", {}).get(name) for kind in schema.__mro__)
    return next(field.metadata for field in declared if field and field.metadata)


def _field_spec(name: str, default: object, metadata: typing.Mapping, annotation) -> FieldSpec:
    """The spec of a field with a scalar type, a union, `tuple[T, ...]` or `tuple[T, T]`."""
    is_tuple = typing.get_origin(annotation) is tuple
    elements = typing.get_args(annotation) if is_tuple else (annotation,)
    is_fixed = is_tuple and elements[-1] is not ...
    lengths = (len(elements),) if is_fixed else metadata["lengths"]
    scalar = elements[0]
    kinds = typing.get_args(scalar) if isinstance(scalar, types.UnionType) else (scalar,)
    rule = Rule(kinds, **metadata["limits"])
    described = {key: metadata[key] for key in ("meaning", "unit", "content", "affects_output")}
    return FieldSpec(name, default, rule=rule, is_tuple=is_tuple, lengths=lengths, **described)


@functools.cache
def own_fields(schema: type) -> dict[str, FieldSpec]:
    """The fields of a section by name, without those of its sections."""
    return {spec.name: spec for spec in fields(schema) if "." not in spec.name}


def to_config_dict(schema: type) -> ConfigDict:
    """A config with the default of every field."""
    return ConfigDict(dataclasses.asdict(schema()))


def section_of(config: ConfigDict, schema: type):
    """A section of a config as an instance of its schema.

    An instance is returned as it is, since it may record which fields are read.
    """
    if isinstance(config, schema):
        return config
    return schema(
        **{declared.name: config[declared.name] for declared in dataclasses.fields(schema)}
    )


def from_json(plain: dict, schema: type | None) -> ConfigDict:
    """A config of JSON values, whose lists become tuples.

    Args:
        schema: gives the fields that `plain` lacks their defaults, and leaves out those that an
            earlier version had; None: there is none.
    """
    config = to_config_dict(schema) if schema else ConfigDict()
    config.update(_with_tuples(_without_unknown_fields(plain, schema) if schema else plain))
    return config


def _without_unknown_fields(plain: dict, schema: type) -> dict:
    """The config without fields that the schema lacks."""
    names, nested = {declared.name for declared in dataclasses.fields(schema)}, sections(schema)
    return {
        name: _without_unknown_fields(value, nested[name]) if name in nested else value
        for name, value in plain.items()
        if name in names
    }


def _with_tuples(value):
    """A JSON value with tuples in place of lists, at every depth."""
    if isinstance(value, dict):
        return {name: _with_tuples(inner) for name, inner in value.items()}
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value


def setting(config, field: str):
    """`setting(c, "train.epochs.0")` is `c.train.epochs[0]`, as plain JSON values."""
    value = config
    for part in field.split("."):
        value = value[int(part) if isinstance(value, tuple | list) else part]
    return to_json_value(value.to_dict() if hasattr(value, "to_dict") else value)


def to_json_value(value: object):
    """A value in the form that JSON gives back: tuples become lists."""
    return json.loads(json.dumps(value, default=list))


def values(config: ConfigDict) -> dict[str, object]:
    """Dotted field -> value, of all sections."""
    flat = {}
    for name, value in config.items():
        if isinstance(value, ConfigDict):
            flat |= {f"{name}.{inner}": leaf for inner, leaf in values(value).items()}
        else:
            flat[name] = value
    return flat


def check(config: ConfigDict, schema: type) -> None:
    """Refuses a config with a missing or unknown field, or a value that its field does not admit.

    An integer may stand for a number of any type, a list for a tuple.

    Raises:
        ValueError: the field, its value, what it may be, and what it means.
    """
    _check_names(config, schema, "config")
    for spec in fields(schema):
        spec.check(functools.reduce(operator.getitem, spec.name.split("."), config))


def _check_names(section: object, schema: type, path: str) -> None:
    """Checks that a section has the fields of its schema and no others."""
    if not isinstance(section, ConfigDict | dict):
        raise ValueError(f"{path}={_short_repr(section)}: must be a section with fields")
    names = [declared.name for declared in dataclasses.fields(schema)]
    if missing := [name for name in names if name not in section]:
        raise ValueError(f"{path}.{missing[0]} is missing; start from a config of ark_jax.config")
    if unknown := [str(name) for name in section if name not in names]:
        close = difflib.get_close_matches(unknown[0], names, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"its fields are {', '.join(names)}"
        raise ValueError(f"{path} has no field {unknown[0]!r}; {hint}")
    for name, nested in sections(schema).items():
        _check_names(section[name], nested, f"{path}.{name}")


def _is_instance(value: object, kind: type) -> bool:
    """`isinstance`, but an integer is a float too, and a boolean is neither."""
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, (int, float) if kind is float else kind)


def _short_repr(value: object) -> str:
    """The value as Python writes it, shortened if it is long."""
    shortener = reprlib.Repr()
    shortener.maxstring = shortener.maxother = 80
    return shortener.repr(value)
