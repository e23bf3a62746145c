"""Replies of an extraction model to entities and relations: tolerant of form, never silent about a loss.

The wire format is GraphRAG's: `("entity"<|>name<|>type<|>description)` and
`("relationship"<|>source<|>target<|>description<|>strength)`, records apart by `##`, the end marked
`<|COMPLETE|>`.
"""

import dataclasses
import html
import math
import re

_RECORD_START = re.compile(r"\(\s*[\"'“”]?(entity|relationship)[\"'“”]?\s*<?\s*\|\s*>", re.IGNORECASE)
_FIELD = re.compile(r"<\s*\|\|?\s*>|(?<=[\"'”])\s*<?\|>")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")


@dataclasses.dataclass(frozen=True)
class Entity:
    name: str
    type: str
    description: str
    chunk: str


@dataclasses.dataclass(frozen=True)
class Relation:
    source: str
    target: str
    description: str
    weight: float
    chunk: str


@dataclasses.dataclass(frozen=True)
class Quarantined:
    """A record that could not be read, kept for the report."""

    chunk: str
    reason: str
    text: str


def parse(reply: str, chunk: str) -> tuple[list[Entity], list[Relation], list[Quarantined]]:
    """Reads every well-formed record of a reply; what cannot be read comes back with a reason.

    A missing end mark, code fences, `<think>` blocks, line breaks inside a description and stray
    record delimiters are no obstacle. Never raises.
    """
    text = re.sub(r"<think>.*?(</think>|\Z)", " ", reply, flags=re.DOTALL | re.IGNORECASE)
    text = re.sub(r"```\w*", " ", text)
    starts = [match.start() for match in _RECORD_START.finditer(text)]
    if not starts:
        return [], [], [Quarantined(chunk, "no record in the reply", reply.strip()[:500])]
    entities, relations, lost = [], [], []
    head = text[: starts[0]]
    if "<|>" in head:
        lost.append(Quarantined(chunk, "text with delimiters before the first record", head.strip()[:500]))
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        record = _strip_record(text[start:end])
        kind, *fields = (_clean(field) for field in _FIELD.split(record))
        kind = kind.lower()
        if kind == "entity" and len(fields) >= 3 and fields[0]:
            entities.append(Entity(fields[0], fields[1], " ".join(fields[2:]), chunk))
        elif kind == "relationship" and len(fields) >= 3 and fields[0] and fields[1]:
            weight, description = _strength(fields[2:])
            relations.append(Relation(fields[0], fields[1], description, weight, chunk))
        else:
            reason = f"{kind or 'record'} with {len(fields)} fields"
            lost.append(Quarantined(chunk, reason, record[:500]))
    return entities, relations, lost


def _strip_record(record: str) -> str:
    """Takes off the end mark, the delimiter with whatever follows it, and the outer parentheses."""
    record = re.split(r"<\|COMPLETE\|>|(?<=\))\s*##", record)[0].strip()
    record = re.sub(r"[#\s]+$", "", record)
    record = record.removeprefix("(").strip()
    return record[:-1] if record.endswith(")") else record


def _clean(field: str) -> str:
    field = _CONTROL.sub(" ", html.unescape(field))
    return " ".join(field.split()).strip("\"'“”").strip()


def _strength(fields: list[str]) -> tuple[float, str]:
    """The last field is the strength if it holds a number; otherwise it belongs to the description."""
    number = _NUMBER.search(fields[-1]) if len(fields) > 1 else None
    if number and math.isfinite(float(number[0])):
        return max(float(number[0]), 0.0), " ".join(fields[:-1])
    return 1.0, " ".join(fields)
