"""Parses the replies of an extraction model into entities and relations.

Damaged replies are read as far as possible, and what cannot be read is quarantined. The form of a
reply is recognised from its content:

- GraphRAG: `("entity"<|>name<|>type<|>description)` and
  `("relationship"<|>source<|>target<|>description<|>strength)`, separated by `##`, ended by
  `<|COMPLETE|>`.
- LightRAG: the same with keywords before the strength; its record `content_keywords` is ignored.
Its newer form is
  one record per line, `entity<|#|>name<|#|>type<|#|>description` or
  `relation<|#|>source<|#|>target<|#|>keywords<|#|>description`.
- JSON: `{"entities": [{"name", "type", "description"}], "relationships": [{"source", "target",
"description",
  "keywords", "strength"}]}`, the same records without the lists, or `{"triples": [[head, relation,
  tail]]}`.
"""

import contextlib
import dataclasses
import html
import json
import re
from collections.abc import Iterator

from ark_jax.text.thoughts import split_thought

# A reply may repeat itself endlessly, so all patterns take linear time: a repeated part is
# possessive or is preceded by a character that it does not match.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")

# <|> and <|#|>, and their damaged forms < | > <||> </|> <<|>
_DELIMITER = r"<{1,2}[\s/]*\|[\s|#]*>"
# or the second half of one after a quote: "It stands there."|>7
_FIELD = re.compile(rf"{_DELIMITER}|(?<=[\"'”’])\s*\|\s*>")
_KIND, _QUOTE = "entity|relationship|relation|content_keywords", "[\"'“”‘’`*]{0,3}"
# The head of a record. After a parenthesis it may be anywhere, and of any kind if quoted; without
# one it must be at the start of a record.
_HEAD = re.compile(
    rf"\(\s*(?:{_QUOTE}(?P<kind>{_KIND}){_QUOTE}|[\"'“](?P<unknown>\w++)[\"'”])"
    rf"\s*(?:{_DELIMITER}|\|\s*>)"
    rf"|(?:^|(?<=\#\#)|(?<=complete\|>))[ \t>*-]*{_QUOTE}(?P<bare>{_KIND}){_QUOTE}\s*"
    rf"(?P<delimiter>{_DELIMITER})",
    re.IGNORECASE | re.MULTILINE,
)
_MARK = r"<\|\s*complete\s*\|>"
_CLOSING = "[\"'”’\\]*`,.;]*"  # what models write after the last parenthesis
_END = re.compile(rf"{_MARK}|\){_CLOSING}\s*##", re.IGNORECASE)
_BARE_END = re.compile(rf"{_MARK}|##|\n[ \t\r]*\n", re.IGNORECASE)
_LINE_END = re.compile(rf"{_MARK}|\n", re.IGNORECASE)
_LOOSE_END = re.compile(r"##[ \t\r]*$", re.MULTILINE)
_PARENTHESIS = re.compile(rf"\(|\)(?P<ends_line>{_CLOSING}[ \t\r]*$)?", re.MULTILINE)

UNKNOWN = "unknown"  # the type of a node without a description
_WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
_NUMBER = rf"[-+]?\d{{1,6}}(?:\.\d+)?|{'|'.join(_WORDS)}"
_STRENGTH = re.compile(
    rf"(?:(?:relationship[ _])?(?:strength|weight|score)\s*[:=]?\s*)?(?P<value>{_NUMBER})"
    rf"(?:\s*/\s*(?:{_NUMBER})|\s+(?:out )?of\s+(?:{_NUMBER}))?",
    re.IGNORECASE,
)
# a description and a strength without a delimiter: "It stands there."7
_GLUED = re.compile(r"\s*([\"“].*[\"”])\s*(\d{1,6})\s*", re.DOTALL)

_JSON = re.compile(r"\{\s*[\"'“}]|\[\s*[\[{]")
# an object, or a list of strings
_JSON_HEAD = re.compile(r"\{\s*[\"'“]?\w++[\"'”]?\s*:|\[\s*[\"'“]")
_NAME_KEYS = ("name", "title", "entity_name")
_LIST_KEYS = {"entities", "relationships", "relations", "triples"}
_DECODER = json.JSONDecoder(strict=False)
# Repair takes quadratic time, so its input is limited.
_MAX_RECORD = 4096  # characters of a record
_MAX_REPAIR = 65536  # characters of all records of a reply


@dataclasses.dataclass(frozen=True)
class Entity:
    """An entity as a chunk describes it."""

    name: str
    type: str
    description: str
    chunk: str


@dataclasses.dataclass(frozen=True)
class Relation:
    """A relation as a chunk describes it."""

    source: str
    target: str
    description: str
    weight: float
    chunk: str
    keywords: str = ""


@dataclasses.dataclass(frozen=True)
class Quarantined:
    """A record that could not be read, for the report."""

    chunk: str
    reason: str
    text: str


def parse_reply(reply: str, chunk: str) -> tuple[list[Entity], list[Relation], list[Quarantined]]:
    """Parses a reply. Never raises.

    Missing end marks, code fences, thoughts, line breaks in descriptions, and stray, broken
    or missing delimiters and parentheses are tolerated. Fields lose line breaks, HTML escapes and
    one pair of outer quotes.

    The last field of a relation is its strength if it follows a description and is a number and
    nothing else: "7", "7.5", "$9$", "[8]", "7/10", "7 out of 10", "seven", "strength: 7". Negative
    numbers become 0. Any other last field ("high", "Built in 1790") belongs to the description, and
    the strength is 1. Fields between description and strength are keywords.

    A record that is cut off by the end of the reply is read if it has all its fields, for a
    relation including the strength.

    Returns:
        The entities, the relations, and the parts that could not be read, each with a reason.
    """
    reply = _without_surrogates(reply)
    text, unfinished = split_thought(reply)
    records: list[Entity | Relation | Quarantined] = []
    if unfinished:
        records.append(Quarantined(chunk, "thought without an end", unfinished))
    elif not (_HEAD.search(text) or _JSON.search(text)):
        text = reply  # a mark that closes nothing stands after the records
    text = re.sub(r"```\w*", " ", text)
    values, end = _leading_json(text)
    # Tuples inside JSON are text, and so is JSON inside or after tuples.
    if _HEAD.search(text, end):
        records += _tuple_records(text, chunk)
    else:
        records += _json_records([*values, *_broken_json(text[end:])], chunk)
    if not records:
        records.append(Quarantined(chunk, "no record in the reply", reply.strip()))
    kinds = (Entity, Relation, Quarantined)
    entities, relations, quarantined = (
        [record for record in records if isinstance(record, kind)] for kind in kinds
    )
    return entities, relations, quarantined


# --- tuples ---------------------------------------------------------------------------------------


def _tuple_records(text: str, chunk: str) -> Iterator[Entity | Relation | Quarantined]:
    """Yields the records of a reply in tuple form, in order. It must have at least one head.

    Delimiters outside a record are quarantined.
    """
    heads = list(_HEAD.finditer(text))
    stops = [*(head.start() for head in heads[1:]), len(text)]
    outside = [text[: heads[0].start()]]
    for head, stop in zip(heads, stops, strict=True):
        body, tail, closed = _split_record(text[head.end() : stop], head)
        outside.append(tail)
        kind = (head["kind"] or head["bare"] or head["unknown"]).lower()
        if kind == "content_keywords":
            continue
        cut_off = stop == len(text) and not closed
        fields = _FIELD.split(body)
        record = _tuple_record(kind, fields, cut_off, chunk)
        if record is None:
            if head["unknown"]:
                reason = f"unknown kind of record: {kind}"
            else:
                reason = f"{kind} cut off" if cut_off else f"{kind} with {len(fields)} fields"
            record = Quarantined(chunk, reason, text[head.start() : stop].strip())
        yield record
    for part in outside:
        if _FIELD.search(part):
            yield Quarantined(chunk, "delimiters outside a record", part.strip())


def _split_record(text: str, head: re.Match) -> tuple[str, str, bool]:
    """Splits the text after a head."""
    is_line = "#" in (head["delimiter"] or "")  # LightRAG's newer form
    pattern = _LINE_END if is_line else _BARE_END if head["bare"] else _END
    end = pattern.search(text) or _LOOSE_END.search(text)
    body, tail = (text[: end.start()], text[end.end() :]) if end else (text, "")
    if is_line or (end and end[0].startswith(")")):
        return body, tail, True
    # The closing parenthesis is at the end of a line: the first one that balances, or else the
    # last, because parentheses in descriptions need not balance.
    depth, last = 0, None
    for match in _PARENTHESIS.finditer(body):
        depth += 1 if match[0] == "(" else -1
        if match["ends_line"] is not None:
            last = match
            if depth < 0:
                break
    if last and (depth < 0 or not head["bare"]):
        return body[: last.start()], body[last.end() :] + tail, True
    return body.rstrip("# \t\r\n"), tail, bool(end or head["bare"])


def _tuple_record(
    kind: str, fields: list[str], cut_off: bool, chunk: str
) -> Entity | Relation | None:
    """The record of these fields; None if some are missing."""
    if kind != "entity" and (glued := _GLUED.fullmatch(fields[-1])):
        fields = [*fields[:-1], *glued.groups()]
    filled = [field for field in fields if field.strip()]
    complete = len(filled) >= (3 if kind == "entity" else 4)
    if cut_off and not complete:
        return None
    # A doubled delimiter makes an empty field, which is dropped if the others are enough.
    fields = [_clean_field(field) for field in (filled if complete else fields)]
    if len(fields) < 3 or not fields[0]:
        return None
    if kind == "entity":
        return Entity(fields[0], fields[1] or UNKNOWN, " ".join(fields[2:]).strip(), chunk)
    source, target, *details = fields
    if kind not in ("relationship", "relation") or not target:
        return None
    weight, keywords = _strength(details[-1]) if len(details) > 1 else None, ""
    if weight is not None:
        details.pop()
        if len(details) > 1:
            keywords = details.pop()
    elif kind == "relation" and len(details) > 1:
        keywords = details.pop(0)
    description = " ".join(details).strip()
    return Relation(source, target, description, 1.0 if weight is None else weight, chunk, keywords)


# --- JSON -----------------------------------------------------------------------------------------


def _leading_json(text: str) -> tuple[list, int]:
    """The JSON values before the first tuple or broken value, and the end of the last one."""
    values, end = [], 0
    while (start := _JSON.search(text, end)) and not _HEAD.search(text, end, start.start()):
        try:
            value, end = _DECODER.raw_decode(text, start.start())
        except (ValueError, RecursionError):
            break
        values.append(value)
    return values, end


def _broken_json(text: str) -> Iterator:
    """Yields the records of broken JSON, repaired one by one; as text if that fails."""
    triples = re.search(r"[\"']triples[\"']\s*:", text)
    heads = [head for head in _JSON_HEAD.finditer(text) if triples or head[0][0] == "{"]
    budget = _MAX_REPAIR
    stops = [*(head.start() for head in heads), len(text)][1:]
    end = 0  # of the last record that was read whole
    for head, stop in zip(heads, stops, strict=True):
        start = head.start()
        if start < end or not text[head.end() : stop].strip(" \t\r\n[{"):
            continue  # within the record before, or the start of an object or list around records
        value = piece = text[start:stop].strip()
        try:
            # What looks like a head may be within a text of this record.
            value, length = _DECODER.raw_decode(text[start : max(stop, start + _MAX_RECORD)])
            end = start + length
        except (ValueError, RecursionError):
            if len(piece) <= min(budget, _MAX_RECORD):
                budget -= len(piece)
                value = _repaired(piece, cut_off=stop == len(text))
        yield {"triples": [value]} if isinstance(value, list) else value


def _repaired(piece: str, *, cut_off: bool) -> object:
    """The object or list of a broken piece of JSON; the piece itself if it is beyond repair."""
    inner, closed, _ = piece.rpartition("}" if piece[0] == "{" else "]")
    if cut_off and not closed:
        return piece
    import json_repair

    with contextlib.suppress(ValueError, RecursionError):
        return json_repair.loads(inner + closed if closed else piece) or piece
    return piece


def _json_records(values: list, chunk: str) -> Iterator[Entity | Relation | Quarantined]:
    """Yields a record for each triple, and for each object that has the keys of a record or
    contains nothing nested. What is neither is quarantined."""
    queue = [("", value) for value in values]
    for key, value in queue:
        if isinstance(value, dict):
            value = {str(name).lower(): inner for name, inner in value.items()}
            nested = [
                (name, inner) for name, inner in value.items() if isinstance(inner, list | dict)
            ]
            if nested and (
                value.keys() & _LIST_KEYS or not value.keys() & {*_NAME_KEYS, "source", "target"}
            ):
                queue += nested
            elif value:
                yield _json_record(value, chunk)
        elif isinstance(value, list) and key != "triple":
            queue += [("triple" if key == "triples" else key, inner) for inner in value]
        elif isinstance(value, list):
            yield _triple_record(value, chunk)
        else:
            yield Quarantined(chunk, "no object", _json_or_text(value))


def _triple_record(value: list, chunk: str) -> Relation | Quarantined:
    """The relation of a list [head, relation, tail]."""
    parts = [_clean_field(part) if isinstance(part, str) else "" for part in value]
    if len(parts) == 3 and all(parts):
        return Relation(parts[0], parts[2], parts[1], 1.0, chunk)
    return Quarantined(chunk, f"triple with {len(parts)} parts", _json_or_text(value))


def _json_record(value: dict, chunk: str) -> Entity | Relation | Quarantined:
    """The relation of an object with source and target, or else the entity of one with a name."""

    def field(*keys: str) -> str:
        """The first of these fields that is there, as clean text; "" without any."""
        kinds = str | int | float | list
        content = next((value[key] for key in keys if isinstance(value.get(key), kinds)), "")
        if isinstance(content, list):
            content = ", ".join(item for item in content if isinstance(item, str))
        return _clean_field(str(content))

    name, source, target = field(*_NAME_KEYS), field("source"), field("target")
    if source and target:
        strength = _strength(field("strength", "weight"))
        weight = 1.0 if strength is None else strength
        return Relation(source, target, field("description"), weight, chunk, field("keywords"))
    if name:
        return Entity(name, field("type") or UNKNOWN, field("description"), chunk)
    return Quarantined(chunk, "object without a name, or source and target", _json_or_text(value))


# --- fields ---------------------------------------------------------------------------------------


def _strength(field: str) -> float | None:
    """The number that a field gives as a strength, at least 0; None for any other field."""
    match = _STRENGTH.fullmatch(field.strip(" \t$[](){}*\"'`.,;:~"))
    if not match:
        return None
    value = match["value"].lower()
    return max(float(_WORDS.index(value) if value in _WORDS else value), 0.0)


def _clean_field(field: str) -> str:
    """A field without line breaks, HTML escapes, and outer or unbalanced quotes."""
    with contextlib.suppress(ValueError):  # an escape with more digits than int() reads
        field = html.unescape(field)
    field = " ".join(_CONTROL.sub(" ", _without_surrogates(field)).split())
    unbalanced = field.count('"') % 2 == 1
    if len(field) > 1 and field[0] + field[-1] in ('""', "''", "“”", "‘’"):
        field = field[1:-1]
    elif unbalanced:
        field = field.removesuffix('"')
    return (field.removeprefix('"') if unbalanced else field).strip()


def _without_surrogates(text: str) -> str:
    """Replaces lone surrogates, which cannot be written as UTF-8."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _json_or_text(value: object) -> str:
    """A text as it is, any other value as JSON, for `Quarantined`."""
    with contextlib.suppress(RecursionError):
        return _without_surrogates(
            value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        )
    return "an object nested too deeply to be written"
