"""What a search or an answer is as JSON."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ark_jax.index.index import Hit
    from ark_jax.index.reader import Answer


def hit_row(hit: "Hit") -> dict:
    """A passage: its fields, and its score with six digits."""
    return dataclasses.asdict(dataclasses.replace(hit, score=round(hit.score, 6)))


def search_row(question: str, by: str, hits: Sequence["Hit"]) -> dict:
    """The passages of a question, best first."""
    return {"question": question, "by": by, "passages": list(map(hit_row, hits))}


def comparison_row(question: str, by: str, hits: Mapping[str, Sequence["Hit"]]) -> dict:
    """The passages of a question by several models, each under its name."""
    compared = {name: list(map(hit_row, of_model)) for name, of_model in hits.items()}
    return {"question": question, "by": by, "compared": compared}


def answer_row(question: str, answer: "Answer", hits: Sequence["Hit"]) -> dict:
    """An answer, and the passages that it rests on.

    Args:
        hits: the passages that the reader was given.
    """
    return {
        "question": question,
        "answer": answer.text,
        "cited": answer.cited,
        "sources": [hit_row(hits[i]) for i in answer.sources],
        "read": [hit.chunk for hit in hits[: answer.read]],
        "reply": answer.reply,
    }
