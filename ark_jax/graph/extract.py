"""Replies of an extraction model to entities and relations: tolerant of form, never silent about a loss.

Three formats are read; the reply itself says which it is.

- GraphRAG's: `("entity"<|>name<|>type<|>description)`, `("relationship"<|>source<|>target<|>description<|>strength)`,
  records apart by `##`, the end marked `<|COMPLETE|>`.
- LightRAG's: the same with keywords before the strength, and a record of `content_keywords`, which is passed over; or, as it
  writes now, lines of `entity<|#|>name<|#|>type<|#|>description` and of
  `relation<|#|>source<|#|>target<|#|>keywords<|#|>description`.
- JSON: `{"entities": [{"name", "type", "description"}], "relationships": [{"source", "target", "description", "keywords",
  "strength"}]}`, such records bare, or `{"triples": [[head, relation, tail]]}`.
"""

import contextlib
import dataclasses
import html
import json
import re
from collections.abc import Iterator

import json_repair

# A reply may be a model's endless repetition, so no pattern takes more than linear time: a run begins with a character that it
# does not repeat, or is possessive.
_THINK = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL | re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")

_DELIMITER = r"<{1,2}[\s/]*\|[\s|#]*>"  # <|> and <|#|>, and what becomes of them: < | > <||> </|> <<|>
_FIELD = re.compile(rf"{_DELIMITER}|(?<=[\"'”’])\s*\|\s*>")  # or half of one behind a quote: "It stands there."|>7
_KIND, _QUOTE = "entity|relationship|relation|content_keywords", "[\"'“”‘’`*]{0,3}"
# Behind a parenthesis a head is one anywhere, and of any kind if quoted; without, only where a record may begin.
_HEAD = re.compile(rf"\(\s*(?:{_QUOTE}(?P<kind>{_KIND}){_QUOTE}|[\"'“](?P<unknown>\w++)[\"'”])\s*(?:{_DELIMITER}|\|\s*>)"
                   rf"|(?:^|(?<=\#\#)|(?<=complete\|>))[ \t>*-]*{_QUOTE}(?P<bare>{_KIND}){_QUOTE}\s*(?P<delimiter>{_DELIMITER})",
                   re.IGNORECASE | re.MULTILINE)
_MARK, _AFTER = r"<\|\s*complete\s*\|>", "[\"'”’\\]*`,.;]*"  # _AFTER: what models write behind the last parenthesis
_END = re.compile(rf"{_MARK}|\){_AFTER}\s*##", re.IGNORECASE)
_BARE_END = re.compile(rf"{_MARK}|##|\n[ \t\r]*\n", re.IGNORECASE)
_LINE_END = re.compile(rf"{_MARK}|\n", re.IGNORECASE)
_LOOSE_END = re.compile(r"##[ \t\r]*$", re.MULTILINE)
_PARENTHESIS = re.compile(rf"\(|\)(?P<ends_line>{_AFTER}[ \t\r]*$)?", re.MULTILINE)

UNKNOWN = "unknown"  # the type of a node that nothing described
_NUMBER_WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
_NUMBER = rf"[-+]?\d{{1,6}}(?:\.\d+)?|{'|'.join(_NUMBER_WORDS)}"
_STRENGTH = re.compile(rf"(?:(?:relationship[ _])?(?:strength|weight|score)\s*[:=]?\s*)?(?P<value>{_NUMBER})"
                       rf"(?:\s*/\s*(?:{_NUMBER})|\s+(?:out )?of\s+(?:{_NUMBER}))?", re.IGNORECASE)
_GLUED = re.compile(r"\s*([\"“].*[\"”])\s*(\d{1,6})\s*", re.DOTALL)  # a lost delimiter: "It stands there."7

_JSON = re.compile(r"\{\s*[\"'“}]|\[\s*[\[{]")
_JSON_HEAD = re.compile(r"\{\s*[\"'“]?\w++[\"'”]?\s*:|\[\s*[\"'“]")  # an object, or a list of strings
_NAME, _LISTS = ("name", "title", "entity_name"), {"entities", "relationships", "relations", "triples"}
_DECODER = json.JSONDecoder(strict=False)
_LONGEST, _REPAIRED = 4096, 65536  # characters of a broken record, and of all of a reply's, to repair: that is quadratic


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
    keywords: str = ""


@dataclasses.dataclass(frozen=True)
class Quarantined:
    """A record that could not be read, kept for the report."""

    chunk: str
    reason: str
    text: str


def parse(reply: str, chunk: str) -> tuple[list[Entity], list[Relation], list[Quarantined]]:
    """Reads every well-formed record of a reply; what cannot be read comes back with a reason. Never raises.

    A missing end mark, code fences, `<think>` blocks, line breaks inside a description, stray, broken or missing delimiters and
    parentheses are no obstacle. Fields lose line breaks, HTML escapes and one pair of outer quotes.

    A relation's strength is its last field, behind a description, if that field is a number and nothing else: "7", "7.5", "$9$",
    "[8]", "7/10", "7 out of 10", "seven", "strength: 7"; below zero it is zero. Any other last field ("high", "Built in 1790")
    is text and joins the description, and the strength is 1. What stands between description and strength is keywords.

    A record cut off by the end of the reply is kept if it has all its fields, a relation's strength among them.
    """
    reply = _sound(reply)
    endless = [thought[0] for thought in _THINK.finditer(reply) if not thought[0].lower().endswith("</think>")]
    text = _THINK.sub(" ", reply)
    said = text.rpartition("</think>")[2]  # some chat templates open the block themselves
    text = re.sub(r"```\w*", " ", said if _HEAD.search(said) or _JSON.search(said) else text)
    values, end = _sound_json(text)
    # Tuples within JSON are text, and so is JSON within or behind tuples.
    records = _tuples(text, chunk) if _HEAD.search(text, end) else _json([*values, *_broken_json(text[end:])], chunk)
    found = {Entity: [], Relation: [], Quarantined: [Quarantined(chunk, "thought without an end", some) for some in endless]}
    for record in records:
        found[type(record)].append(record)
    if not any(found.values()):
        found[Quarantined].append(Quarantined(chunk, "no record in the reply", reply.strip()))
    return found[Entity], found[Relation], found[Quarantined]


# --- tuples ----------------------------------------------------------------------------------------------------------

def _tuples(text: str, chunk: str) -> Iterator[Entity | Relation | Quarantined]:
    heads = list(_HEAD.finditer(text))
    between = [text[: heads[0].start()]]
    for head, stop in zip(heads, [*(following.start() for following in heads[1:]), len(text)], strict=True):
        body, rest, closed = _cut(text[head.end() : stop], head)
        between.append(rest)
        kind = (head["kind"] or head["bare"] or head["unknown"]).lower()
        if kind == "content_keywords":
            continue
        cut_off = stop == len(text) and not closed
        yield _record(kind, _FIELD.split(body), cut_off, chunk) or Quarantined(
            chunk, f"unknown kind of record: {kind}" if head["unknown"] else f"{kind} cut off" if cut_off else
            f"{kind} with {len(_FIELD.split(body))} fields", text[head.start() : stop].strip())
    yield from (Quarantined(chunk, "delimiters outside a record", some.strip()) for some in between if _FIELD.search(some))


def _cut(text: str, head: re.Match) -> tuple[str, str, bool]:
    """Cuts what follows a head into (the record's fields, what stands behind it, whether the record has an end)."""
    line = "#" in (head["delimiter"] or "")  # LightRAG's
    end = (_LINE_END if line else _BARE_END if head["bare"] else _END).search(text) or _LOOSE_END.search(text)
    body, rest = (text[: end.start()], text[end.end() :]) if end else (text, "")
    if line or (end and end[0].startswith(")")):
        return body, rest, True
    # The closing parenthesis ends a line: the first one that balances, or else the last, as descriptions need not balance.
    depth, last = 0, None
    for found in _PARENTHESIS.finditer(body):
        depth += 1 if found[0] == "(" else -1
        if found["ends_line"] is not None:
            last = found
            if depth < 0:
                break
    if last and (depth < 0 or not head["bare"]):
        return body[: last.start()], body[last.end() :] + rest, True
    return body.rstrip("# \t\r\n"), rest, bool(end or head["bare"])


def _record(kind: str, fields: list[str], cut_off: bool, chunk: str) -> Entity | Relation | None:
    if kind != "entity" and (glued := _GLUED.fullmatch(fields[-1])):
        fields = [*fields[:-1], *glued.groups()]
    filled = [field for field in fields if field.strip()]
    complete = len(filled) >= (3 if kind == "entity" else 4)
    if cut_off and not complete:
        return None
    fields = [_clean(field) for field in (filled if complete else fields)]  # a doubled delimiter leaves a blank field
    if len(fields) < 3 or not fields[0]:
        return None
    if kind == "entity":
        return Entity(fields[0], fields[1] or UNKNOWN, " ".join(fields[2:]).strip(), chunk)
    source, target, *rest = fields
    if kind not in ("relationship", "relation") or not target:
        return None
    weight, keywords = _strength(rest[-1]) if len(rest) > 1 else None, ""
    if weight is not None:
        rest.pop()
        if len(rest) > 1:
            keywords = rest.pop()
    elif kind == "relation" and len(rest) > 1:
        keywords = rest.pop(0)
    return Relation(source, target, " ".join(rest).strip(), 1.0 if weight is None else weight, chunk, keywords)


# --- JSON ------------------------------------------------------------------------------------------------------------

def _sound_json(text: str) -> tuple[list, int]:
    """The JSON values before the first tuple and the first broken value, and where the last of them ends."""
    values, end = [], 0
    while (start := _JSON.search(text, end)) and not _HEAD.search(text, end, start.start()):
        try:
            value, end = _DECODER.raw_decode(text, start.start())
        except (ValueError, RecursionError):
            break
        values.append(value)
    return values, end


def _broken_json(text: str) -> Iterator:
    """Its values record by record, so that one beyond repair, which stays text, costs no other."""
    triples = re.search(r"[\"']triples[\"']\s*:", text)
    heads = [head for head in _JSON_HEAD.finditer(text) if triples or head[0][0] == "{"]
    left = _REPAIRED
    for head, stop in zip(heads, [*(head.start() for head in heads), len(text)][1:], strict=True):
        if not text[head.end() : stop].strip(" \t\r\n[{"):
            continue  # what holds the records
        value = piece = text[head.start() : stop].strip()
        with contextlib.suppress(ValueError, RecursionError):
            try:
                value = _DECODER.raw_decode(piece)[0]
            except (ValueError, RecursionError):
                inner, closed, _ = piece.rpartition("}" if piece[0] == "{" else "]")
                if len(piece) <= min(left, _LONGEST) and (closed or stop < len(text)):
                    left -= len(piece)
                    value = json_repair.loads(inner + closed if closed else piece) or piece
        yield {"triples": [value]} if isinstance(value, list) else value


def _json(values: list, chunk: str) -> Iterator[Entity | Relation | Quarantined]:
    """Walks objects and lists down to what should be a record: an object with a record's keys, or with nothing further within."""
    todo = [("", value) for value in values]
    for key, value in todo:
        if isinstance(value, dict):
            value = {str(name).lower(): inner for name, inner in value.items()}
            nested = [(name, inner) for name, inner in value.items() if isinstance(inner, list | dict)]
            if nested and (value.keys() & _LISTS or not value.keys() & {*_NAME, "source", "target"}):
                todo += nested
            elif value:
                yield _json_record(value, chunk)
        elif isinstance(value, list) and key != "triple":
            todo += [("triple" if key == "triples" else key, inner) for inner in value]
        elif isinstance(value, list):
            parts = [_clean(part) if isinstance(part, str) else "" for part in value]
            yield Relation(parts[0], parts[2], parts[1], 1.0, chunk) if len(parts) == 3 and all(parts) else \
                Quarantined(chunk, f"triple with {len(parts)} parts", _dumps(value))
        else:
            yield Quarantined(chunk, "no object", _dumps(value))


def _json_record(value: dict, chunk: str) -> Entity | Relation | Quarantined:
    def field(*keys: str) -> str:
        found = next((value[key] for key in keys if isinstance(value.get(key), str | int | float | list)), "")
        return _clean(", ".join(x for x in found if isinstance(x, str)) if isinstance(found, list) else str(found))

    name, source, target = field(*_NAME), field("source"), field("target")
    if source and target:
        weight = _strength(field("strength", "weight"))
        return Relation(source, target, field("description"), 1.0 if weight is None else weight, chunk, field("keywords"))
    if name:
        return Entity(name, field("type") or UNKNOWN, field("description"), chunk)
    return Quarantined(chunk, "object without a name, or source and target", _dumps(value))


# --- fields ----------------------------------------------------------------------------------------------------------

def _strength(field: str) -> float | None:
    found = _STRENGTH.fullmatch(field.strip(" \t$[](){}*\"'`.,;:~"))
    if not found:
        return None
    value = found["value"].lower()
    return max(float(_NUMBER_WORDS.index(value) if value in _NUMBER_WORDS else value), 0.0)


def _clean(field: str) -> str:
    with contextlib.suppress(ValueError):  # an escape of more digits than an integer may have
        field = html.unescape(field)
    field = " ".join(_CONTROL.sub(" ", _sound(field)).split())
    half = field.count('"') % 2 == 1
    if len(field) > 1 and field[0] + field[-1] in ('""', "''", "“”", "‘’"):
        field = field[1:-1]
    elif half:
        field = field.removesuffix('"')
    return (field.removeprefix('"') if half else field).strip()


def _sound(text: str) -> str:
    """Without lone surrogates, which no file can hold."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _dumps(value: object) -> str:
    with contextlib.suppress(RecursionError):
        return _sound(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
    return "an object nested too deeply to be written"
