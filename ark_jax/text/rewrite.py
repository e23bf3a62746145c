"""Replies of a rewriting model to questions, and what is wrong with them."""

import json
import re

from ark_jax.data.records import Question
from ark_jax.text.replies import mended, spoken


def parse(*replies: str) -> list[str]:
    """The distinct, non-empty questions of one reply after the other."""
    found: dict[str, str] = {}
    for reply in replies:
        for question in _parse(reply):
            found.setdefault(plain(question), question)
    return list(found.values())


def plain(question: str) -> str:
    """By which two questions are the same: without case, spacing and last mark."""
    return " ".join(question.casefold().split()).rstrip("?.! ")


def _parse(reply: str) -> list[str]:
    """Questions of the first JSON in a reply that calls them so, else of the first that holds some; mended if none is whole."""
    text = spoken(reply)
    starts = [match.start() for match in re.finditer(r"[{\[]", text)]
    otherwise: list[str] = []
    for start in starts:
        try:
            value = json.JSONDecoder().raw_decode(text, start)[0]
        except ValueError:
            continue
        except RecursionError:  # and once more from each of its thousand brackets
            break
        found = _questions(value)
        if found and isinstance(value, dict) and "questions" in value:
            return found
        otherwise = otherwise or found
    return otherwise or (_questions(mended(text[starts[0] :])) if starts else [])


def _questions(value) -> list[str]:
    """Strings of a list, or of that list in an object which is called so, else of the first."""
    if isinstance(value, dict):
        value = next((x for x in (value.get("questions"), *value.values()) if isinstance(x, list)), [])
    if not isinstance(value, list):
        return []
    return [" ".join(x.split()) for x in value if isinstance(x, str) and x.strip()]


def complaint(questions: list[str], original: Question, count: int) -> str | None:
    """What to tell the model about its reply; None if it will do."""
    new = [q for q in questions if plain(q) != plain(original.question)]
    if len(new) >= count:
        return None
    same = " One of them is the original question." if len(new) < len(questions) else ""
    return (f"{count} different questions were asked for, {len(new)} could be used.{same} Write {count - len(new)} more "
            "that differ from one another and from the original; reply in the same JSON form only.")
