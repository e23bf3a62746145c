"""Replies of a rewriting model to questions, and what is wrong with them."""

import json
import re

import json_repair

from ark_jax.data.records import Question


def parse(reply: str) -> list[str]:
    """The distinct, non-empty questions of a reply: the first JSON in it that holds some, repaired if none is whole."""
    text = re.sub(r"<think>.*?(</think>|\Z)", " ", reply, flags=re.DOTALL | re.IGNORECASE)
    starts = [match.start() for match in re.finditer(r"[{\[]", text)]
    for start in starts:
        try:
            found = _questions(json.JSONDecoder().raw_decode(text, start)[0])
        except (ValueError, RecursionError):
            continue
        if found:
            return found
    return _questions(json_repair.loads(text[starts[0] :])) if starts else []


def _questions(value) -> list[str]:
    """Strings of a list, or of the first list in an object."""
    if isinstance(value, dict):
        value = next((x for x in value.values() if isinstance(x, list)), [])
    if not isinstance(value, list):
        return []
    return list(dict.fromkeys(" ".join(x.split()) for x in value if isinstance(x, str) and x.strip()))


def complaint(questions: list[str], original: Question, count: int) -> str | None:
    """What to tell the model about its reply; None if it will do."""
    plain = lambda text: " ".join(text.casefold().split()).rstrip("?.! ")
    same = [q for q in questions if plain(q) == plain(original.question)]
    if same:
        return "One of your versions is the original question. Write all versions anew, in the same JSON form."
    if len(questions) < count:
        return f"{count} different questions were asked for, {len(questions)} could be read. Reply with JSON only, all {count}."
    return None
