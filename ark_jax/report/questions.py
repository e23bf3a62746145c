"""All measured questions: a table of a page that sorts, filters and opens, and the same as rows."""

import dataclasses
import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from ark_jax.report.page import Section, excerpt_range, html, split_at

SHOWN = 4  # texts of a system that an opened question shows
LONGEST_ANSWER = 300  # characters
MOST_TEXT = 1_000_000  # characters of texts in a page; those of the smallest changes are left out


@dataclasses.dataclass(frozen=True)
class Asked:
    """A question, and what each system made of it.

    Attributes:
        values: system -> rank of the first text that is needed, from 1, or a score; None: it has
            none.
        found: system -> its first texts, each with whether it is needed.
        given: system -> its answer, if it answers.
    """

    id: str
    question: str
    answers: Sequence[str]
    values: Mapping[str, float | None]
    found: Mapping[str, Sequence[tuple[str, bool]]]
    given: Mapping[str, str | None]


def ask_rankings(
    questions: Sequence,
    rows: Mapping[str, Mapping[str, Mapping]],
    needed: Callable[[Any], Collection],
    ranked: Callable[[Mapping], Sequence],
    text: Callable[[Any], str],
) -> list[Asked]:
    """The questions with the ranks of what they need.

    Args:
        questions: each has `id`, `question` and `answers`.
        rows: system -> question id -> row of `questions.parquet`.
        needed: question -> what is needed.
        ranked: row -> what a system ranks, best first.
        text: the text of what is ranked.
    """
    asked = []
    for question in questions:
        wanted, values, found = needed(question), {}, {}
        given = {name: by_question[question.id].get("answer") for name, by_question in rows.items()}
        for name, of_question in rows.items():
            listed = ranked(of_question[question.id])
            places = (place for place, item in enumerate(listed, 1) if item in wanted)
            values[name] = next(places, None)
            found[name] = [(text(item), item in wanted) for item in listed[:SHOWN]]
        answers = list(question.answers)
        asked.append(Asked(question.id, question.question, answers, values, found, given))
    return asked


def question_section(
    asked: Sequence[Asked],
    compared: tuple[str, str],
    measure: str,
    *,
    ranks: bool = True,
    mark: str = "needed",
    note: str = "",
) -> Section:
    """The table of all questions.

    Args:
        compared: the two systems whose values make the change, and whose texts are shown.
        measure: what the values are, in words.
        ranks: whether they are ranks; otherwise higher is better.
        mark: stands before a text that is needed.
        note: a sentence about the answers.
    """
    changes = [round(_change(entry, compared, ranks), 4) for entry in asked]
    order = sorted(range(len(asked)), key=lambda i: -abs(changes[i]))
    spent, sides = 0, {}
    for i in order:
        sides[i] = _sides(asked[i], compared) if spent < MOST_TEXT else []
        spent += len(json.dumps(sides[i]))
    systems = list(asked[0].values) if asked else []
    rows = [
        [entry.question, entry.answers, [entry.values[x] for x in systems], changes[i], sides[i]]
        for i, entry in ((i, asked[i]) for i in order)
    ]
    tally = {
        "rose": sum(change > 0 for change in changes),
        "fell": sum(change < 0 for change in changes),
        "stayed": sum(change == 0 for change in changes),
    }
    counted = ", ".join(f"{count:,} {direction}" for direction, count in tally.items())
    intro = (
        f"{measure[0].upper()}{measure[1:]}, by each system. From {compared[0]} to {compared[1]}, "
        f"{counted}; the largest changes come first. A question opens on a click. {note}"
    )
    data = {"systems": systems, "ranks": ranks, "mark": mark, "rows": rows}
    text = json.dumps(data, ensure_ascii=False)
    shown = html.question_table(f"All questions: {measure}", Markup(text.replace("<", "\\u003c")))
    kept = [_row(entry, change) for entry, change in zip(asked, changes, strict=True)]
    empty = "No question was measured in this run."
    return Section("All questions", "questions", [intro, shown] if asked else [], empty, kept)


def _change(asked: Asked, compared: tuple[str, str], ranks: bool) -> float:
    """How much the second system is better than the first; ranks count by their reciprocals."""
    first, second = (asked.values[name] for name in compared)
    if ranks:
        return (1 / second if second else 0.0) - (1 / first if first else 0.0)
    return second - first if first is not None and second is not None else 0.0


def _sides(asked: Asked, compared: tuple[str, str]) -> list[list]:
    """[heading, passages, answer] of both systems, as report.js takes them."""
    sides = []
    for name in dict.fromkeys(compared):
        passages = []
        for text, needed in asked.found[name]:
            start, end = excerpt_range(text, asked.answers)
            parts = split_at(text[start:end], asked.answers)
            parts[0] = "… " * (start > 0) + parts[0]
            parts[-1] += " …" * (end < len(text))
            passages.append([int(needed), *parts])
        answer = (asked.given[name] or "")[:LONGEST_ANSWER]
        sides.append([name, passages, split_at(answer, asked.answers) if answer else None])
    return sides


def _row(asked: Asked, change: float) -> dict:
    replies = {f"answer of {name}": x for name, x in asked.given.items()}
    direction = "stayed" if not change else "rose" if change > 0 else "fell"
    values = {
        name: None if x is None or not math.isfinite(x) else float(x)
        for name, x in asked.values.items()
    }
    texts = {"id": asked.id, "question": asked.question, "answers": list(asked.answers)}
    return {**texts, "change": direction, **values, **replies}
