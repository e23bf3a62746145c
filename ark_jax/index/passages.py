"""Passages of an index: as JSON, and as lines for a terminal."""

import dataclasses
import functools
import itertools
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # these modules start jax
    from ark_jax.index.index import Hit
    from ark_jax.index.reader import Answer


def hit_row(hit: "Hit") -> dict:
    """The fields of a passage, with its score rounded to six digits."""
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


LINES = 3  # of a passage
NARROWEST = 40  # columns of one side of a comparison


def table(hits: Sequence["Hit"], columns: int | None = None) -> list[str]:
    """The lines that show passages one below another, best first.

    Args:
        columns: width of the lines; None: of the terminal.
    """
    blocks = (
        _passage_lines(rank, hit, columns or _terminal_columns())
        for rank, hit in enumerate(hits, 1)
    )
    return list(itertools.chain(*blocks)) or ["no passage has a word of the question"]


def side_by_side(results: Mapping[str, Sequence["Hit"]]) -> list[str]:
    """The lines that show the passages of several models in columns.

    Args:
        results: name of the model -> its passages, best first.
    """
    width = max((_terminal_columns() - 3) // len(results), NARROWEST)
    rows = [tuple(results), tuple("-" * width for _ in results)]
    for rank in range(max(map(len, results.values()))):
        blocks = [
            _passage_lines(rank + 1, hits[rank], width) if rank < len(hits) else []
            for hits in results.values()
        ]
        rows += itertools.zip_longest(*blocks, fillvalue="")
    return [" | ".join(cell[:width].ljust(width) for cell in row).rstrip() for row in rows]


def _terminal_columns() -> int:
    return min(shutil.get_terminal_size().columns, 120)


def _passage_lines(rank: int, hit: "Hit", width: int) -> list[str]:
    """The lines of a passage: rank, score, document, offsets and title, and then its text."""
    place = f"{rank:>2}  {hit.score:.4f}  {hit.document} [{hit.start}:{hit.end}]"
    title = f"  {hit.title}" if hit.title not in ("", hit.document) else ""
    wrap = functools.partial(textwrap.wrap, width=width, placeholder=" ...")
    head = wrap(place + title, max_lines=1, drop_whitespace=False)
    indent = {"initial_indent": "    ", "subsequent_indent": "    "}
    return [*head, *wrap(" ".join(hit.text.split()), max_lines=LINES, **indent)]
