"""The last lines of a run: its best system, a question before and after, commands to go on with."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_json, load_rows
from ark_jax.recipes.core.baselines import FILE, ROWS, STAGE
from ark_jax.recipes.core.tables import by_system
from ark_jax.report.page import excerpt_range, split_at
from ark_jax.report.results import metric_heading
from ark_jax.runtime import mirror
from ark_jax.runtime.log import highlight

METRICS = 4  # columns of the table


class Asked(Protocol):
    """A question that was measured."""

    @property
    def id(self) -> str: ...
    @property
    def question(self) -> str: ...
    @property
    def answers(self) -> Sequence[str]: ...


class Example(NamedTuple):
    """A question, and what two systems give first: the one before training and the last one."""

    asked: Asked
    given: Mapping[str, str]  # system -> its text

    def lines(self) -> list[str]:
        """The question, and an excerpt of both texts with the answers marked."""
        answers = self.asked.answers
        lines = [f"one question: {self.asked.question} ({' or '.join(answers)})"]
        for time, (system, text) in zip(("before", "after"), self.given.items(), strict=True):
            start, end = excerpt_range(text, answers)
            printable = "".join(x if x.isprintable() else " " for x in text[start:end])
            parts = split_at(" ".join(printable.split()), answers)
            marked = "".join(highlight(x) if i % 2 else x for i, x in enumerate(parts))
            cut = f"{'… ' * (start > 0)}{marked or '(nothing)'}{' …' * (end < len(text))}"
            lines.append(f"  {time} ({system}): {cut}")
        return lines


def find_example(
    context: Context,
    metric: str,
    questions: Sequence[Asked],
    first: Callable[[dict], str],
    base: str = "base",
) -> Example | None:
    """The question that training helped most; None if it helped none.

    Where possible only the text after training has the answer.

    Args:
        questions: those of the evaluate stage.
        first: a row of `questions.parquet` -> the text that its system gives first.
        base: the system before training.
    """
    path = context.workdir / "evaluate" / ROWS
    rows = by_system(load_rows(path)) if path.is_file() else {}
    if base not in rows:
        return None
    before, after = rows[base], rows[last := [*rows][-1]]

    def helped(asked: Asked) -> tuple[int, float]:
        """How much training helped with a question, by the answer in the text and by the metric."""
        old, new = before[asked.id], after[asked.id]
        has_answer = [len(split_at(first(row), asked.answers)) > 1 for row in (old, new)]
        return has_answer[1] - has_answer[0], (new[metric] or 0.0) - (old[metric] or 0.0)

    best = max((x for x in questions if x.id in after), key=helped, default=None)
    if best is None or max(helped(best)) <= 0:
        return None
    return Example(best, {base: first(before[best.id]), last: first(after[best.id])})


def best_table(workdir: Path, headline: str) -> list[str]:
    """A line for each system with its means, by falling `headline`; none if nothing was measured.

    It has the untrained systems that the closing table leaves out, too.
    """
    means: dict[str, dict[str, float]] = {}
    columns = [headline]
    for stage in (STAGE, "evaluate"):
        if (path := workdir / stage / FILE).is_file():
            stored = load_json(path)
            columns += stored["metrics"]
            for row in stored["table"]:
                values = {metric: value["mean"] for metric, value in row["values"].items()}
                means[row["system"]] = means.get(row["system"], {}) | values
    columns = list(dict.fromkeys(columns))[:METRICS]
    ranked = sorted(means, key=lambda x: means[x].get(headline, float("-inf")), reverse=True)
    if not ranked or headline not in means[ranked[0]]:
        return []
    width = max(map(len, ("system", *ranked)))
    heads = [metric_heading(metric) for metric in columns]
    lines = ["  ".join(("  " + "system".ljust(width), *heads))]
    for system in ranked:
        cells = (f"{x:.3f}" if (x := means[system].get(m)) is not None else "–" for m in columns)
        padded = (cell.rjust(len(head)) for cell, head in zip(cells, heads, strict=True))
        note = f"  {highlight('best')}" if system == ranked[0] else ""
        lines.append("  ".join(("  " + system.ljust(width), *padded)) + note)
    return lines


def ending(
    context: Context,
    headline: str,
    questions: Callable[[Context], Sequence[Asked]],
    first: Callable[[Context], Callable[[dict], str]],
    command: Callable[[Context, str], str],
    base: str = "base",
) -> list[str]:
    """The lines that end a run.

    Args:
        headline: the metric that the best system has the highest mean of.
        questions, first, base: as in `find_example`, which gets what they return for the context.
        command: (context, question) -> a shell command that uses what was trained.
    """
    table = best_table(context.workdir, headline)
    example = None
    if table:
        example = find_example(context, headline, questions(context), first(context), base)
    shown = command(context, example.asked.question if example else "QUESTION")
    return [*table, *(example.lines() if example else ()), shown.replace(f"{Path.cwd()}/", "")]


def retrieve_command(context: Context, question: str) -> str:
    """The shell command that retrieves from the graph again, for all questions of a file."""
    data, export = context.config.data, f"{mirror.address(context.workdir)}/export"
    flags = {"model": export, "graph": data.path, "names": data.names, "questions": data.questions}
    words = " ".join(f"--{name}={shlex.quote(path)}" for name, path in flags.items() if path)
    return f"use it on a graph: ark-jax retrieve {words} > found.jsonl"
