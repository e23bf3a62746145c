"""A model's reply without the thought that it writes before its answer."""

import itertools
import json
import re
from collections.abc import Iterator
from typing import NamedTuple

_TAG = "(?:think|thinking|thought|reasoning|reflection|scratchpad|seed:think)"
# form -> its opening and closing mark, as families of models write them
_FORMS = {
    "tag": (rf"<{_TAG}>", rf"</{_TAG}>"),
    "bracket": (r"\[THINK\]", r"\[/THINK\]"),  # Magistral
    "triangle": ("◁think▷", "◁/think▷"),  # Kimi
    "begin": (r"<\|begin_of_thought\|>", r"<\|end_of_thought\|>"),  # OpenThinker
    "start": (r"<\|START_THINKING\|>", r"<\|END_THINKING\|>"),  # Command
    "channel": (  # gpt-oss
        r"<\|channel\|>\s*(?:analysis|commentary)[^<]{0,80}<\|message\|>",
        r"<\|end\|>|(?=<\|channel\|>\s*final)",
    ),
    # gpt-oss where the server leaves out control tokens
    "bare": (r"\Aanalysis(?=[A-Z\s].*assistantfinal)", "assistantfinal"),
}
_CLOSINGS = {form: re.compile(marks[1], re.IGNORECASE) for form, marks in _FORMS.items()}
_OPENING = re.compile(
    "|".join(f"(?P<{form}>{marks[0]})" for form, marks in _FORMS.items()), re.IGNORECASE | re.DOTALL
)
_UNOPENED = re.compile(
    "|".join(_FORMS[form][1] for form in ("tag", "bracket", "triangle", "begin", "start")),
    re.IGNORECASE,
)
# What stands around an answer that follows a thought.
_BEFORE_ANSWER = re.compile(
    r"\s*(?:<\|start\|>\s*assistant\s*)?(?:<\|channel\|>\s*final[^<]{0,80}<\|message\|>"
    r"|<\|begin_of_solution\|>|<\|START_RESPONSE\|>)",
    re.IGNORECASE,
)
_AFTER_ANSWER = re.compile(r"<\|(?:return|end|end_of_solution|END_RESPONSE)\|>\s*\Z", re.IGNORECASE)
_ROLE = re.compile(r"\s*(?:<\|start\|>\s*assistant\s*)?")
_SENTENCE = re.compile(r"\w[ \t]+\Z")  # words before a mark that stands in a sentence
_LINE_END = re.compile(r"[ \t]*(?:\n|\Z)")
_PARENTHESIS = re.compile(r"[()]")
_DECODER = json.JSONDecoder(strict=False)


class Reply(NamedTuple):
    """The parts of a reply.

    Attributes:
        answer: what is no thought.
        unfinished: a thought without an end, which took the place of the answer; or "".
    """

    answer: str
    unfinished: str


def split_thought(reply: str) -> Reply:
    """Takes the thoughts out of a reply.

    A thought stands between marks, of which the first begins the reply or one of its lines. A
    closing mark alone ends a thought that the chat template opened. Marks within a sentence, a JSON
    value, a tuple or a fence are text.
    """
    start = 0
    past_role = lambda: _ROLE.match(reply, start).end()  # type: ignore[union-attr]
    while opening := _OPENING.match(reply, past_role()):
        closing = _closing(reply, opening)
        if not closing:
            return Reply("", reply[start:])
        start = closing.end()
    text = reply[start:]
    if not start and (closing := _unopened(text)):
        text = text[closing.end() :]
    parts, start, unfinished = [], 0, ""
    for opening in _marks(_OPENING, text):
        if opening.start() < start or not _begins_line(text, opening.start()):
            continue
        parts.append(text[start : opening.start()])
        closing = _closing(text, opening)
        start = closing.end() if closing else len(text)
        unfinished = "" if closing else text[opening.start() :]
    answer = " ".join([*parts, text[start:]])
    head = _BEFORE_ANSWER.match(answer)
    return Reply(_AFTER_ANSWER.sub("", answer[head.end() if head else 0 :]), unfinished)


def closed_thought(prompt: str) -> str:
    """A prompt whose chat template has opened a thought, with the mark that closes it again."""
    opening = re.search(rf"<({_TAG})>\s*\Z", prompt, re.IGNORECASE)
    return f"{prompt.rstrip()}\n\n</{opening[1]}>\n\n" if opening else prompt


def _closing(text: str, opening: re.Match) -> re.Match | None:
    """The mark that closes a thought."""
    return _CLOSINGS[opening.lastgroup or ""].search(text, opening.end())


def _unopened(text: str) -> re.Match | None:
    """The last mark that closes a thought without an opening mark."""
    first = _OPENING.search(text)
    last_mark = None
    for mark in _marks(_UNOPENED, text):
        if first and first.start() < mark.start():
            break
        in_sentence = _SENTENCE.search(text, max(mark.start() - 80, 0), mark.start())
        if not in_sentence or _LINE_END.match(text, mark.end()):
            last_mark = mark
    return last_mark


def _begins_line(text: str, place: int) -> bool:
    """Whether only blanks stand before a place in its line."""
    return not text[max(text.rfind("\n", 0, place), place - 80, 0) : place].strip()


def _marks(pattern: re.Pattern, text: str) -> Iterator[re.Match]:
    """Yields the marks in a text that are not within a JSON value, a tuple or a fence."""
    marks = list(pattern.finditer(text))
    spans, end = sorted(_quoted_spans(text), reverse=True) if marks else [], 0
    for mark in marks:
        while spans and spans[-1][0] < mark.start():
            end = max(end, spans.pop()[1])
        if mark.start() >= end:
            yield mark


def _quoted_spans(text: str) -> list[tuple[int, int]]:
    """Start and end of each JSON value, tuple and fence."""
    spans = [match.span() for match in re.finditer("```.*?```", text, re.DOTALL)]
    end = 0
    for match in re.finditer(r'\{\s*["}]|\[', text):
        if match.start() >= end:
            try:
                end = _DECODER.raw_decode(text, match.start())[1]
            except ValueError:
                continue
            except RecursionError:  # each of the thousand brackets would raise it again
                break
            spans.append((match.start(), end))
    places = [match.start() for match in _PARENTHESIS.finditer(text)]
    for start, end in itertools.pairwise(places):
        if text[start] == "(" and text[end] == ")" and "<|>" in text[start:end]:
            spans.append((start, end))
    return spans
