"""Answers by a function of the user's own, which `reader.backend` names."""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from ark_jax.data.records import Question
from ark_jax.pipeline import own_functions
from ark_jax.pipeline.parts import stored_rows
from ark_jax.runtime import distributed
from ark_jax.runtime.log import say


@runtime_checkable
class OwnReader(Protocol):
    """Answers a question from passages."""

    def __call__(self, question: str, passages: Sequence[str]) -> str:
        """Returns the answer, perhaps empty.

        Args:
            passages: what a system retrieves, best first; whole documents for the system `full`.
        """


def load(named: str) -> OwnReader:
    """The reader that `reader.backend` names; raises ValueError, as `own_functions.load`."""
    return own_functions.load("reader.backend", named, OwnReader)


def check(config) -> None:
    """Imports the function that `reader.backend` names, if it names one.

    Raises:
        ValueError: there is no such function, or it takes other parameters.
    """
    if own_functions.is_own(config.reader.backend):
        load(config.reader.backend)


def answer_all(
    named: str,
    passages: Mapping[tuple[str, str], Sequence[str]],
    questions: Sequence[Question],
    folder: Path,
) -> dict[tuple[str, str], str]:
    """(system, question) -> answer. Those of a system are stored in `folder`: a kill loses no more.

    Args:
        named: as `reader.backend`.

    Raises:
        ValueError: an answer is no text.
    """
    replies = {}
    for name in dict.fromkeys(system for system, _ in passages):
        rows = functools.partial(_rows, named, passages, name, questions)
        stored = stored_rows(folder / f"answers-{name}.parquet", rows)
        say(f"  read answers: {len(stored):,} of {name}")
        replies |= {(name, row["question"]): row["answer"] for row in stored}
    return replies


def _rows(
    named: str, passages: Mapping[tuple[str, str], Sequence[str]], name: str, questions: Sequence
) -> list[dict]:
    answers = answer(named, [(one.question, passages[name, one.id]) for one in questions])
    return [
        {"question": one.id, "answer": text} for one, text in zip(questions, answers, strict=True)
    ]


def answer(named: str, readings: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    """The answers to questions from their passages. The first process calls the function.

    Raises:
        ValueError: an answer is no text.
    """
    read = load(named)
    return distributed.on_first_process(
        lambda: [_answer(read, named, *reading) for reading in readings]
    )


def _answer(read: OwnReader, named: str, question: str, passages: Sequence[str]) -> str:
    text = read(question, list(passages))
    if not isinstance(text, str):
        raise ValueError(
            f"config.reader.backend={named!r} returned {type(text).__name__} for question "
            f"{question[:60]!r}: return a text"
        )
    return text.strip()
