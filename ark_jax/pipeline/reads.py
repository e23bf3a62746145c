"""What a stage reads: arguments, settings, files and models that settings name, earlier stages.

A stage declares none of it. It sees the config through a view, and earlier stages by
`context / name`; each read is recorded with its value or its digest. A finished stage is up to date
as long as every recorded read still gives the same value (constructive traces: Mokhov, Mitchell,
Peyton Jones, "Build Systems à la Carte", 2018).

A field's schema decides what a read of it records: its value; the digest of what it names, if it
has a `content`; nothing, if `affects_output` is False.
"""

import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeGuard

from ark_jax import __version__, schema
from ark_jax.pipeline import fingerprints, own_functions
from ark_jax.schema import setting
from ark_jax.text import prompts

PARTS = ("inputs", "config", "external")  # stages, settings, contents that settings name
Record = dict[str, Any]  # the reads of a stage, as its manifest holds them


def empty_record(arguments: Mapping[str, object]) -> Record:
    """The record of a stage that has read nothing beside its arguments."""
    return {"arguments": {**arguments}, **{part: {} for part in PARTS}, "version": __version__}


def is_record(value: object) -> TypeGuard[Record]:
    """Whether a value has the form of a record."""
    return (
        isinstance(value, dict)
        and all(isinstance(value.get(part), dict) for part in ("arguments", *PARTS))
        and isinstance(value.get("version"), str)
    )


# Kind of content -> a function of a field and its value, which gives a digest of what it names.
CONTENTS: dict[str, Callable[[str, Any], str]] = {
    "model": lambda field, path: fingerprints.model_digest(path),
    "models": lambda field, paths: fingerprints.fingerprint(
        [fingerprints.model_digest(x) for x in paths]
    ),
    "input": lambda field, path: fingerprints.input_digest(path) if path else "",
    "files": lambda field, path: fingerprints.files_digest(path) if path else "",
    "file": lambda field, path: (
        fingerprints.file_digest(Path(path)) if Path(path).is_file() else ""
    ),
    "prompt": lambda field, path: prompts.text_digest(
        prompts.load_template(field.rpartition(".")[2], path)
    ),
    "function": own_functions.digest,
}


def value_now(part: str, name: str, config, fresh: Mapping[str, str]):
    """The current value of a read; None if there is nothing to read.

    Args:
        part: one of `PARTS`.
        name: a stage; a dotted field; or a kind of content, a blank and a dotted field.
        fresh: stages that are up to date -> the fingerprints of their outputs.
    """
    if part == "inputs":
        return fresh.get(name)
    kind, _, field = name.rpartition(" ")
    try:
        value = setting(config, field)
    except (KeyError, IndexError, TypeError):  # another version of the recipe has no such field
        return None
    if part == "config":
        return value
    return CONTENTS[kind](field, value)


def changed_settings(record: Record, arguments: Mapping[str, object], config) -> str:
    """Which arguments and settings differ from the record, in words; empty if none does."""
    names = {*record["arguments"], *arguments}
    changed = [
        f"was made with {name}={record['arguments'].get(name)}, is with {arguments.get(name)}"
        for name in sorted(names)
        if record["arguments"].get(name) != arguments.get(name)
    ]
    for field, recorded in record["config"].items():
        if (current := value_now("config", field, config, {})) != recorded:
            changed.append(f"config.{field} was {recorded}, is {current}")
    return "; ".join(changed)


def change(
    record: Record, arguments: Mapping[str, object], config, fresh: Mapping[str, str]
) -> str:
    """Which of a stage's recorded reads has another value now, in words; empty if none has."""
    if changed := changed_settings(record, arguments, config):
        return changed
    for name, recorded in record["inputs"].items():
        if fresh.get(name) != recorded:
            return f"{name} changed"
    for name, recorded in record["external"].items():
        if value_now("external", name, config, fresh) != recorded:
            kind, _, field = name.rpartition(" ")
            return f"the {kind} of config.{field} changed"
    if record["version"] != __version__:
        return f"made by ark_jax {record['version']}"
    return ""


class Reads:
    """What a running stage has read so far.

    Args:
        record: the reads of an earlier run that was killed, or an empty record.
        config: the settings themselves.
        fresh: stages that are up to date -> the fingerprints of their outputs.
        refuse: is called with the name of a stage that is not among them, and raises.
        keep: is called with each new read `[part, name, value]`, so that a run after a kill knows
            it; None on processes other than the first, which record no values.
    """

    def __init__(
        self,
        record: Record,
        config,
        fresh: Mapping[str, str],
        refuse: Callable[[str], None],
        keep: Callable[[list], None] | None,
    ):
        self.record, self._config, self._fresh = record, config, fresh
        self._refuse, self._keep = refuse, keep
        self._lock = threading.Lock()

    def note(self, part: str, name: str) -> None:
        """Records a read.

        Args:
            part, name: as of `value_now`.
        """
        if part == "inputs" and name not in self._fresh:
            self._refuse(name)
        with self._lock:
            if name in self.record[part]:
                return
            value = None
            if self._keep:
                value = value_now(part, name, self._config, self._fresh)
                self._keep([part, name, value])
            self.record[part][name] = value

    def is_fresh(self, stage: str) -> bool:
        """Whether a stage is up to date, so that it may be read."""
        return stage in self._fresh

    def names(self) -> list[list[str]]:
        """`[part, name]` of each read."""
        return [[part, name] for part in PARTS for name in self.record[part]]

    def view(self, kind: type | None):
        """The config as an instance of its schema, whose fields are recorded when they are read.

        Args:
            kind: the schema; None: every field is recorded by its value.
        """
        return _new_view(self._config, kind, self.note, "")


def element(section, name: str, index: int):
    """One element of a tuple among the settings; a run records that element alone."""
    return section.element(name, index) if isinstance(section, View) else section[name][index]


class View:
    """A section of the config that records which of its fields are read.

    It has fields as attributes and by name, like `ConfigDict`.
    """

    def __getattribute__(self, name: str):
        if name.startswith("_") or name in ("keys", "items", "values", "get", "element"):
            return object.__getattribute__(self, name)
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the config has no field {name!r}") from None

    def __setattr__(self, name: str, value: object):
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")

    def __getitem__(self, name: str):
        section, kind, note, prefix = self._source
        value, field = section[name], f"{prefix}{name}"
        if hasattr(value, "items"):
            return _new_view(
                value, schema.sections(kind).get(name) if kind else None, note, f"{field}."
            )
        for part, read in _reads_of_field(kind, name, value, field):
            note(part, read)
        return value

    def element(self, name: str, index: int):
        """One element of a tuple; the others are not recorded."""
        section, _, note, prefix = self._source
        note("config", f"{prefix}{name}.{index}")
        return section[name][index]

    def __contains__(self, name: str) -> bool:
        return name in self._source[0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._source[0])

    def __len__(self) -> int:
        return len(self._source[0])

    def get(self, name: str, default: object = None):
        """A field, which is recorded as read, or `default` if there is none."""
        try:
            return self[name]
        except KeyError:
            return default

    def keys(self) -> list[str]:
        return list(self)

    def values(self) -> list:
        """The values of all fields, each of which is recorded as read."""
        return [self[name] for name in self]

    def items(self) -> list[tuple[str, object]]:
        """The names and values of all fields, each of which is recorded as read."""
        return [(name, self[name]) for name in self]

    def __reduce__(self):
        # Reads of a copy in another process would not be recorded.
        raise TypeError("a section of the config cannot leave its process: pass on its values")


def _reads_of_field(
    kind: type | None, name: str, value: Any, field: str
) -> Iterator[tuple[str, str]]:
    """(part, name) of each read that is recorded when a field is read; see `value_now`."""
    declared = schema.own_fields(kind).get(name) if kind else None
    if declared and not declared.affects_output:
        return
    content = declared.content if declared else ""
    if content in ("", "models", "function"):  # the value itself decides, too
        yield "config", field
    if content and not (content == "function" and not own_functions.is_own(value)):
        yield "external", f"{content} {field}"


@functools.cache
def _view_class(kind: type | None) -> type:
    """`View` as a subclass of the schema, so that code that takes such a section takes a view."""
    return type(kind.__name__, (View, kind), {}) if kind else View


def _new_view(section, kind: type | None, note: Callable[[str, str], None], prefix: str):
    """A view of a section."""
    view: Any = object.__new__(_view_class(kind))
    object.__setattr__(view, "_source", (section, kind, note, prefix))
    return view
