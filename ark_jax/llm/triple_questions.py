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
_MOST_LISTED = 12  # defects that a message names


@dataclasses.dataclass(frozen=True)
class AskedEnd:
    """One end of a triple that the prompt wants questions for.

    Attributes:
        number: number of the triple in its prompt, from 1.
        side: "head" or "tail".
        known: the name of the other end.
        answers: the names of this end.
    """

    number: int
    side: str
    known: str
    answers: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class WrittenQuestion:
    """A question in a reply. `number` is 0, and `side` empty, if the reply has no valid one."""

    number: int
    side: str
    question: str


def parse_triple_questions(reply: str) -> list[WrittenQuestion] | None:
    """The questions of a reply; None if it has no list of them. Never raises.

    If the list breaks off, its complete rows are read.
    """
    empty, loose = None, []
    for value in json_values(reply):
        if row := _parse_question(value):
            loose.append(row)
            continue
        rows = None if loose else _find_rows(value)
        if rows is None:
            continue
        written = [x for row in rows if (x := _parse_question(row))]
        if written:
            return written
        if not rows:
            empty = []
    return list(dict.fromkeys(loose)) or empty


def _find_rows(value: object) -> list | None:
    """The list of rows in a JSON value: itself, or a list in its object. None if there is none."""
    if isinstance(value, Mapping):
        lists = [value.get("questions"), *value.values()]
        value = next((x for x in lists if isinstance(x, list)), None)
    if not isinstance(value, list):
        return None
    return value if not value or any(isinstance(x, Mapping) for x in value) else None


def _parse_question(row: object) -> WrittenQuestion | None:
    """The question of a row; None if it has none."""
    if not isinstance(row, Mapping):
        return None
    fields = {str(key).lower(): value for key, value in row.items()}
    question = json_texts(fields.get("question"))
    if not question:
        return None
    first_text = lambda keys: next((x[0] for key in keys if (x := json_texts(fields.get(key)))), "")
    number = re.search(r"\d{1,9}", first_text(_NUMBER_KEYS))
    side = first_text(_SIDE_KEYS).strip().lower()
    return WrittenQuestion(
        int(number[0]) if number else 0,
        side if side in SIDES else "",
        " ".join(question[0].split()),
    )


def question_defect(question: str, known: str, answers: Iterable[str]) -> str:
    """What is wrong with the words of a question; empty if nothing is."""
    if not contains_words(question, known):
        return "the known entity is not named"
    if any(contains_words(question, answer) for answer in answers):
        return "the answer is in the question"
    return ""


def comparison_key(question: str) -> str:
    """A question without case, extra blanks and end punctuation, to find repeated questions."""
    return " ".join(question.casefold().split()).rstrip("?.! ")


def sort_questions(
    replies: Iterable[str], ends: Sequence[AskedEnd], count: int
) -> tuple[dict[AskedEnd, list[str]], list[tuple[WrittenQuestion, str]]]:
    """The usable questions of all replies for each end, and the others with their defects.

    Args:
        replies: all replies to a prompt, of which later ones may correct earlier ones.
        ends: the ends that the prompt asked for.
        count: most questions for each end; further ones are left out.
    """
    wanted = {(x.number, x.side): x for x in ends}
    usable: dict[AskedEnd, dict[str, str]] = {x: {} for x in ends}
    defects = []
    for reply in replies:
        earlier_keys = {end: set(texts) for end, texts in usable.items()}
        for written in parse_triple_questions(reply) or ():
            end = wanted.get((written.number, written.side))
            if end is None:
                defects.append((written, "no such end was asked for"))
                continue
            key = comparison_key(written.question)
            if key in earlier_keys[end]:  # a correction may repeat what was right
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
    replies: Sequence[str], ends: Sequence[AskedEnd], count: int, *, is_cut: bool = False
) -> str | None:
    """The message that asks the model to correct its replies; None if they are good.

    Args:
        replies: all replies so far.
        ends: the ends that the prompt asked for.
        count: questions wanted for each end.
        is_cut: whether the last reply broke off.
    """
    usable, defects = sort_questions(replies, ends, count)
    lacking = [(end, count - len(texts)) for end, texts in usable.items() if len(texts) < count]
    if not lacking:
        return None
    if all(parse_triple_questions(reply) is None for reply in replies):
        cut = "Your reply broke off before its first question. " if is_cut else ""
        return f"{cut}No questions with numbers of facts could be read from your reply. {_FORM}"
    listed = collections.Counter(
        f"fact {written.number}, {written.side or 'no end'}: {defect}"
        for written, defect in defects
    )
    bad = "; ".join(list(listed)[:_MOST_LISTED])
    missing = "; ".join(f"{n} for the {end.side} of fact {end.number}" for end, n in lacking)
    return f"Some questions cannot be used ({bad}). " * bool(bad) + (
        f"Questions are missing: {missing}. Write these only, and name the other end of the fact "
        f"in full. {_FORM}"
    )
