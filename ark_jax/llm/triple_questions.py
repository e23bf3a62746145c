"""Reads questions about numbered triples from a model's reply, and says what is wrong with them."""

import collections
import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence

from ark_jax.llm.reply_json import json_texts, json_values
from ark_jax.text.word_boundaries import contains_words

SIDES = ("head", "tail")
_NUMBER_KEYS = ("triple", "fact", "number", "id")
_SIDE_KEYS = ("ask", "side", "asked", "end")
_FORM = "Reply in the JSON form that was asked for, and with nothing else."
_LISTED = 12  # defects that a remark names


@dataclasses.dataclass(frozen=True)
class Asked:
    """One end of a triple that a question is asked for.

    Attributes:
        number: of the triple in its prompt, from 1.
        side: "head" or "tail".
        known: the name of the other end.
        answers: the names of this end.
    """

    number: int
    side: str
    known: str
    answers: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Written:
    """A question as a reply has it; `number` is 0 and `side` empty where the reply has nonsense."""

    number: int
    side: str
    question: str


def parse_triple_questions(reply: str) -> list[Written] | None:
    """The questions of a reply; None if it has no list of them. Never raises.

    Of a list that breaks off, the whole rows are read.
    """
    empty, loose = None, []
    for value in json_values(reply):
        if row := _written(value):
            loose.append(row)
            continue
        rows = None if loose else _rows(value)
        if rows is None:
            continue
        written = [x for row in rows if (x := _written(row))]
        if written:
            return written
        if not rows:
            empty = []
    return list(dict.fromkeys(loose)) or empty


def _rows(value: object) -> list | None:
    if isinstance(value, Mapping):
        lists = [value.get("questions"), *value.values()]
        value = next((x for x in lists if isinstance(x, list)), None)
    if not isinstance(value, list):
        return None
    return value if not value or any(isinstance(x, Mapping) for x in value) else None


def _written(row: object) -> Written | None:
    if not isinstance(row, Mapping):
        return None
    fields = {str(key).lower(): value for key, value in row.items()}
    question = json_texts(fields.get("question"))
    if not question:
        return None
    text_of = lambda keys: next((x[0] for key in keys if (x := json_texts(fields.get(key)))), "")
    number = re.search(r"\d{1,9}", text_of(_NUMBER_KEYS))
    side = text_of(_SIDE_KEYS).strip().lower()
    return Written(
        int(number[0]) if number else 0,
        side if side in SIDES else "",
        " ".join(question[0].split()),
    )


def question_defect(question: str, known: str, answers: Iterable[str]) -> str:
    """What is wrong with a question by its words; empty if nothing is."""
    if not contains_words(question, known):
        return "the known entity is not named"
    if any(contains_words(question, answer) for answer in answers):
        return "the answer is in the question"
    return ""


def same_words(question: str) -> str:
    """Equal for questions that differ in nothing but case, blanks and the last mark."""
    return " ".join(question.casefold().split()).rstrip("?.! ")


def sort_questions(
    replies: Iterable[str], ends: Sequence[Asked], count: int
) -> tuple[dict[Asked, list[str]], list[tuple[Written, str]]]:
    """The usable questions of all replies by what they ask for, and the others with their defects.

    Args:
        replies: all replies to a prompt. In a later one the model may have mended an earlier.
        ends: what the prompt asked for.
        count: the questions wanted of each; what is beyond is left out.
    """
    wanted = {(x.number, x.side): x for x in ends}
    usable: dict[Asked, dict[str, str]] = {x: {} for x in ends}
    defects = []
    for reply in replies:
        before = {end: set(texts) for end, texts in usable.items()}
        for written in parse_triple_questions(reply) or ():
            end = wanted.get((written.number, written.side))
            if end is None:
                defects.append((written, "no such end was asked for"))
                continue
            key = same_words(written.question)
            if key in before[end]:  # a correction may repeat what was right
                continue
            defect = question_defect(written.question, end.known, end.answers)
            if not defect and key in usable[end]:
                defect = "the question comes twice"
            if defect:
                defects.append((written, defect))
            elif len(usable[end]) < count:
                usable[end][key] = written.question
    return {end: list(texts.values()) for end, texts in usable.items()}, defects


def questions_remark(
    replies: Sequence[str], ends: Sequence[Asked], count: int, *, is_cut: bool = False
) -> str | None:
    """What the model is told about its replies; None if they will do.

    Args:
        replies: all replies so far.
        ends: what the prompt asked for.
        count: the questions wanted of each.
        is_cut: the last reply broke off.
    """
    usable, defects = sort_questions(replies, ends, count)
    lacking = [(end, count - len(texts)) for end, texts in usable.items() if len(texts) < count]
    if not lacking:
        return None
    if all(parse_triple_questions(reply) is None for reply in replies):
        cut = "Your reply broke off before its first question. " if is_cut else ""
        return f"{cut}No questions with numbers of facts could be read from your reply. {_FORM}"
    last = collections.Counter(
        f"fact {written.number}, {written.side or 'no end'}: {defect}"
        for written, defect in defects
    )
    bad = "; ".join(list(last)[:_LISTED])
    missing = "; ".join(f"{n} for the {end.side} of fact {end.number}" for end, n in lacking)
    return f"Some questions cannot be used ({bad}). " * bool(bad) + (
        f"Questions are missing: {missing}. Write these only, and name the other end of the fact "
        f"in full. {_FORM}"
    )
