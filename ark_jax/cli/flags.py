"""The flags of a verb: a dataclass declares them for parsing, help and completion."""

import dataclasses
import difflib
import inspect
import os
import re
import textwrap
import typing
from collections.abc import Callable, Sequence
from dataclasses import MISSING
from pathlib import Path

WIDTH = 100  # columns of what is printed
INDENT = 23  # columns before what a flag means
FLAG = re.compile(r"--?([a-zA-Z][\w.-]*)(?:=(.*))?", re.DOTALL)
BOOLEANS = {"true": True, "True": True, "1": True, "false": False, "False": False, "0": False}


@dataclasses.dataclass(frozen=True)
class Spec:
    """How a field of a verb is written on the command line.

    Attributes:
        label: `--k=N`, `--json`, `--by=dense|bm25` with its choices, or `QUESTION`, which is no
            flag, as the help shows it.
        meaning: text for the help, which adds the default.
        read: text -> value; without it the field's type says how.
        verbs: verbs whose help shows it; empty for all that take it.
    """

    label: str
    meaning: str
    read: Callable[[str], object] | None = None
    verbs: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """`--k` of `--k=N`."""
        return self.label.partition("=")[0].strip('"')

    @property
    def is_flag(self) -> bool:
        """False for a word without dashes, such as `QUESTION`."""
        return self.label.startswith("--")


def flag(label: str, meaning: str, default: object = MISSING, **more):
    """A field of a verb, which must be given if it has no default; see `Spec`."""
    return dataclasses.field(default=default, metadata={"spec": Spec(label, meaning, **more)})


@typing.dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(flag,))
@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags:
    """The parsed words behind a verb. Each verb is a subclass that `verbs.VERBS` names.

    Subclasses become dataclasses without a decorator. A field of type `tuple[str, ...]` takes
    `--config.FIELD=VALUE` and all words that are no flags.

    Attributes:
        verb: its name.
        example: one command.
        remarks: what the help adds to the flags.
        needed: fields that usage shows as needed, though they have defaults.
        prints: whether it only shows something, so that it may end when nobody reads on.
    """

    verb: str
    example, remarks, needed, prints = "", "", (), True  # of the class

    def __init_subclass__(cls):
        dataclasses.dataclass(frozen=True, kw_only=True)(cls)

    run: typing.ClassVar[Callable[..., int]]  # does the work of a verb; returns the exit status

    @classmethod
    def parse(cls, verb: str, args: Sequence[str]) -> typing.Self:
        """The flags that words set.

        Raises:
            ValueError: a flag is unknown, missing or has a bad value.
        """
        return bind(cls, verb, *parse_flags(cls, verb, args))


def specs(verb_class: type[Flags], verb: str = "") -> dict[dataclasses.Field, Spec]:
    """The fields that the command line of a verb sets, with their specs.

    Words come first, in their order, then the verb's own flags, then those that it inherits.

    Args:
        verb: leaves out flags that the help of this verb does not show; empty: all fields.
    """
    fields = [field for field in dataclasses.fields(verb_class) if field.metadata]
    own_first = [name for c in verb_class.__mro__ for name in inspect.get_annotations(c)]
    words = [field for field in fields if not field.metadata["spec"].is_flag]
    flags = [field for field in fields if field.metadata["spec"].is_flag]
    flags.sort(key=lambda field: own_first.index(field.name))
    known = {field: field.metadata["spec"] for field in (*words, *flags)}
    return {f: spec for f, spec in known.items() if not verb or verb in (spec.verbs or (verb,))}


def parse_flags(verb_class: type[Flags], verb: str, args: Sequence[str]) -> tuple[dict, list[str]]:
    """Parses words: field -> value of its flag, and all other words in their order.

    Raises:
        ValueError: a flag is unknown or has a bad value.
    """
    known = {spec.name: field for field, spec in specs(verb_class).items() if spec.is_flag}
    values, words, waiting = {}, [], list(args)
    while waiting:
        word = waiting.pop(0)
        match = FLAG.fullmatch(word)
        if word == "--":
            return values, words + waiting
        if not match or ("." in match[1] and _rest_field(verb_class)):
            words.append(word)
            continue
        name, text = f"--{match[1]}", match[2]
        negated = known.get(name.replace("--no", "--", 1))
        if name not in known and text is None and negated and negated.type is bool:
            values[negated.name] = False
            continue
        if name not in known:
            nearest = difflib.get_close_matches(name, known, 1)
            hint = f" (did you mean {nearest[0]}?)" if nearest else ""
            raise bad_flag(verb, f"unrecognized arguments: {word}{hint}")
        field = known[name]
        if text is None and field.type is bool:
            text = "true"
        elif text is None:
            if not waiting or FLAG.fullmatch(waiting[0]):
                raise bad_flag(verb, f"argument {name}: expected one argument")
            text = waiting.pop(0)
        if name == "--config" and "config" in values:
            raise ValueError(f"--config={values['config']} and --config={text}: give one --config")
        values[field.name] = _read_value(verb, name, field, text)
    return values, words


def bind(verb_class: type[Flags], verb: str, values: dict, words: Sequence[str]) -> Flags:
    """An instance of a verb, with the values of flags and with the other words as its fields.

    Raises:
        ValueError: there are too many words, or a flag or word is missing.
    """
    values, words, rest_field = dict(values), list(words), _rest_field(verb_class)
    for field, spec in specs(verb_class).items():
        if words and not spec.is_flag and field is not rest_field:
            values[field.name] = words.pop(0)
    if rest_field:
        values[rest_field.name], words = tuple(words), []
    if words:
        raise ValueError(
            f"ark-jax {verb}: unexpected {words[0]!r}; put quotes around a question or a path "
            f"with blanks, as in: {verb_class.example}"
        )
    required = {f.name: s.name for f, s in specs(verb_class).items() if f.default is MISSING}
    if lacking := [label for name, label in required.items() if name not in values]:
        raise ValueError(
            f"ark-jax {verb} needs {' and '.join(lacking)}, as in: {verb_class.example}"
        )
    return verb_class(verb=verb, **values)


def _rest_field(verb_class: type[Flags]) -> dataclasses.Field | None:
    """The field that takes fields of a config and all other words; None if there is none."""
    return next((field for field in specs(verb_class) if field.type == tuple[str, ...]), None)


def bad_flag(verb: str, message: str) -> ValueError:
    """The error of a bad flag."""
    return ValueError(f"bad flag: {message}; `ark-jax {verb} --help` shows how it is used")


def _read_value(verb: str, name: str, field: dataclasses.Field, text: str) -> object:
    """The value of a text, as the field's spec or type reads it. Raises ValueError."""
    spec = field.metadata["spec"]
    if field.type in (Path, Path | None) and not spec.read:
        return read_folder(text, name)
    choices = BOOLEANS if field.type is bool else spec.label.partition("=")[2].split("|")
    if len(choices) > 1 and text not in choices:
        known = ", ".join(map(repr, choices))
        raise bad_flag(verb, f"argument {name}: invalid choice: {text!r} (choose from {known})")
    try:
        return (spec.read or READERS.get(field.type, str))(text)
    except ValueError as error:
        raise bad_flag(verb, f"argument {name}: {error}") from None


def read_positive(text: str) -> int:
    """A whole number, at least 1. Raises ValueError."""
    if not re.fullmatch(r"[+-]?\d+", text):
        raise ValueError(f"{text!r} is not a whole number")
    if int(text) < 1:
        raise ValueError(f"{int(text)} must be at least 1")
    return int(text)


READERS = {int: read_positive, int | None: read_positive, float | None: float, bool: BOOLEANS.get}


def read_folder(text: str, name: str) -> Path | None:
    """The folder that a flag names; None if it is empty.

    Raises:
        ValueError: it is in a bucket, or a file has its path.
    """
    if not text:
        return None
    from ark_jax.runtime.storage import local_path

    try:
        path = local_path(text)
    except ValueError as error:
        raise ValueError(f"{name}={error}") from None
    nearest = next(place for place in (path, *path.parents) if os.path.exists(place))
    if not os.path.isdir(nearest):
        raise ValueError(f"{name}={text}: {nearest} is a file; give another folder")
    return path


def usage(verb_class: type[Flags], verb: str) -> str:
    """The usage line behind the verb: words, needed flags, and [FLAGS] if there are others."""
    parts, ending = [], ""
    for field, spec in specs(verb_class, verb).items():
        if field.default is MISSING or field.name in verb_class.needed:
            parts.append(spec.label)
        elif spec.is_flag:
            ending = " [FLAGS]"
        else:
            parts.append(f"[{spec.label}]")
    return (" ".join(parts) + ending).lstrip()


def describe_flags(verb_class: type[Flags], verb: str) -> str:
    """The help on each flag, with its meaning and default, and then the remarks."""
    lines = []
    for field, spec in specs(verb_class, verb).items():
        has_default = type(field.default) in (int, str) and field.default
        meaning = f"{spec.meaning}; default: {field.default}" if has_default else spec.meaning
        label = f"  {spec.label:<{INDENT - 3}} "
        label += " " * (len(label) > INDENT)
        lines += wrap_text(meaning, " " * INDENT, label)
    return "\n".join([*lines, *wrap_text(verb_class.remarks)])


def wrap_text(text: str, indent: str = "", first: str = "") -> list[str]:
    """Lines of a text for a terminal; the first one begins with `first`, if given."""
    indents = {"initial_indent": first or indent, "subsequent_indent": indent}
    return textwrap.wrap(text, WIDTH, break_on_hyphens=False, **indents)
