"""Numbered documents: how a prompt shows them, and how replies cite and choose them.

A reply in tags is `<think>…Doc [2]…</think><answer>…</answer>`. `problem` says what is wrong with a
reply. No reply raises an error.
"""

import dataclasses
import re
from collections.abc import Sequence
from typing import NamedTuple

_CITATION = re.compile(r"\bdoc\s*\[\s*([0-9]+)\s*\]", re.IGNORECASE)
_LIST = re.compile(r"\[\s*[0-9]+\s*\](\s*,\s*\[\s*[0-9]+\s*\])*")
_MOST_DIGITS = 9  # of a number that a document may have


@dataclasses.dataclass(frozen=True)
class CitedAnswer:
    """What a reader replied."""

    answer: str
    thought: str
    citations: tuple[int, ...]  # documents that the thought cites, each once, in order
    outside: tuple[int, ...]  # cited numbers that no document has; -1 for a huge one
    problem: str  # what is wrong with the form of the reply; empty if nothing is


@dataclasses.dataclass(frozen=True)
class Choice:
    """Which documents a selector chose."""

    numbers: tuple[int, ...]  # each once, in order, from 1
    thought: str
    outside: tuple[int, ...]  # numbers that no document has; -1 for a huge one
    problem: str  # as in `CitedAnswer`


def number_passages(passages: Sequence[str]) -> list[str]:
    """The passages as a prompt shows them: `Doc [1] …`."""
    return [f"Doc [{number}] {passage}" for number, passage in enumerate(passages, 1)]


def reply_in_tags(thought: str, answer: str) -> str:
    """A reply as `parse_answer` and `parse_choice` take it, for training."""
    return f"<think> {thought} </think>\n<answer> {answer} </answer>"


def parse_answer(reply: str, documents: int, *, in_tags: bool = True) -> CitedAnswer:
    """Reads a reader's reply.

    Args:
        documents: the largest number that is a citation: how many documents were shown. (The
            released code counts numbers up to 25 or 31, however few were shown.)
        in_tags: the answer must stand in tags, once and not empty. Otherwise it is the first line
            after the thought, if there is one.
    """
    parts = _split_reply(reply)
    inside, outside = _split_numbers(_CITATION.findall(parts.thought), documents)
    answer, flaw = parts.answer, parts.answer_flaw
    if not in_tags:
        answer = parts.after_thought.strip().partition("\n")[0].strip()
        flaw = "" if answer else "no answer"
    problem = parts.thought_flaw or flaw
    return CitedAnswer(
        answer, parts.thought, _without_repeats(inside), _without_repeats(outside), problem
    )


def parse_choice(reply: str, candidates: int, *, strict: bool = True) -> Choice:
    """Reads a selector's reply, eq. 8.

    Args:
        candidates: how many documents were shown.
        strict: the reply must be a thought and an answer with nothing around them, and the answer
            a list like `[3], [5]` of documents that exist. False is the released code's rule: all
            numbers in the answer count, numbers without a document are ignored, and one document
            suffices. In both, no document may occur twice.
    """
    parts = _split_reply(reply)
    inside, outside = _split_numbers(re.findall("[0-9]+", parts.answer), candidates)
    flaws = [parts.answer_flaw]
    if strict:
        flaws = [
            parts.thought_flaw,
            "" if parts.thought else "no <think>",
            parts.answer_flaw,
            "" if _LIST.fullmatch(parts.answer) else "the answer is no list like [3], [5]",
            "text around thought and answer" if parts.around.strip() else "",
            f"a number that none of {candidates} documents has" if outside else "",
        ]
    elif parts.answer:
        flaws = []
    flaws += ["" if inside else "no document chosen"]
    flaws += ["a document twice" if len(set(inside)) < len(inside) else ""]
    problem = next(filter(None, flaws), "")
    return Choice(_without_repeats(inside), parts.thought, _without_repeats(outside), problem)


class _Parts(NamedTuple):
    """The parts of a reply between its tags."""

    thought: str
    thought_flaw: str
    after_thought: str
    answer: str  # in the first pair of tags after it
    answer_flaw: str
    around: str  # the text outside of thought and answer


def _split_reply(reply: str) -> _Parts:
    """Divides a reply at its tags; their case does not count."""
    lead, thought, after_thought, thought_flaw = _split_thought(reply)
    pieces = re.split("<answer>", after_thought, maxsplit=1, flags=re.IGNORECASE)
    if len(pieces) == 1:
        return _Parts(thought, thought_flaw, after_thought, "", "no <answer>", lead + after_thought)
    content, *tail = re.split("</answer>", pieces[1], maxsplit=1, flags=re.IGNORECASE)
    around = lead + pieces[0] + "".join(tail)
    answer = content.strip()
    if not tail:
        answer, flaw = "", "no </answer>"
    elif not answer:
        flaw = "the answer is empty"
    else:
        flaw = "<answer> twice" if re.search("</?answer>", tail[0] + content, re.IGNORECASE) else ""
    return _Parts(thought, thought_flaw, after_thought, answer, flaw, around)


def _split_thought(reply: str) -> tuple[str, str, str, str]:
    """The text before the thought, the thought, the text after it, and the thought's flaw or "".

    The opening tag may be missing, since chat templates may put it at the end of the prompt.
    """
    head, *tail = re.split("</think>", reply, maxsplit=1, flags=re.IGNORECASE)
    lead, *opened = re.split("<think>", head, maxsplit=1, flags=re.IGNORECASE)
    if not tail:
        return "", "", reply, "<think> without </think>" if opened else ""
    if not opened:
        return "", head.strip(), tail[0], ""
    return lead, opened[0].strip(), tail[0], ""


def _split_numbers(texts: Sequence[str], last: int) -> tuple[list[int], list[int]]:
    """The numbers from 1 to `last`, and the others; one of too many digits is -1."""
    numbers = [int(text) if len(text) <= _MOST_DIGITS else -1 for text in texts]
    inside = [number for number in numbers if 1 <= number <= last]
    return inside, [number for number in numbers if not 1 <= number <= last]


def _without_repeats(numbers: Sequence[int]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(numbers))
