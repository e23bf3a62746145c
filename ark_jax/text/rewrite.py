"""Replies of a rewriting model to questions, and what is wrong with them."""

import json_repair

from ark_jax.data.records import Question


def parse(reply: str) -> list[str]:
    """The distinct, non-empty questions of a reply; JSON is repaired, other text gives none."""
    found = json_repair.loads(reply[reply.find("{") if "{" in reply else 0 :])
    if isinstance(found, dict):
        found = next((value for value in found.values() if isinstance(value, list)), [])
    if not isinstance(found, list):
        return []
    return list(dict.fromkeys(" ".join(x.split()) for x in found if isinstance(x, str) and x.strip()))


def complaint(questions: list[str], original: Question, count: int) -> str | None:
    """What to tell the model about its reply; None if it will do."""
    same = [q for q in questions if q.casefold() == original.question.casefold()]
    if same:
        return "One of your versions is the original question. Write all versions anew, in the same JSON form."
    if len(questions) < count:
        return f"{count} different questions were asked for, {len(questions)} could be read. Reply with JSON only, all {count}."
    return None
