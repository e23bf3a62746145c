"""The last lines of a run: its best system, a question before and after, what to do next."""

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_json, load_rows
from ark_jax.recipes.core.baselines import FILE, ROWS, STAGE
from ark_jax.recipes.core.tables import by_system
from ark_jax.report.page import excerpt_range, split_at
from ark_jax.report.results import metric_heading
from ark_jax.runtime import mirror
from ark_jax.runtime.log import highlight
from ark_jax.runtime.shown import printable

COLUMNS = 4  # metrics of the table


def ending(
    context: Context,
    headline: str,
    questions: Callable[[Context], Sequence[Any]],
    first: Callable[[Context], Callable[[dict], str]],
    command: Callable[[Context, str], str],
    base: str = "base",
) -> list[str]:
    """The lines that end a run. Those on systems and questions are left out if none was measured.

    Args:
        headline: the metric that the best system has the highest mean of.
        questions: those of the evaluate stage, with `id`, `question` and `answers`.
        first: gives, for the context, a row of `questions.parquet` -> what its system gives first.
        command: (context, question) -> a shell command that uses what was trained.
        base: the system before training.
    """
    lines, asked = best_table(context.workdir, headline), "QUESTION"
    path = context.workdir / "evaluate" / ROWS
    rows = by_system(load_rows(path)) if lines and path.is_file() else {}
    if base in rows:
        before, after = rows[base], rows[last := [*rows][-1]]
        text_of = first(context)

        def helped(question: Any) -> tuple[int, float]:
            """How much training helped: by the answer in the texts, and by the metric."""
            old, new = before[question.id], after[question.id]
            has = [len(split_at(text_of(row), question.answers)) > 1 for row in (old, new)]
            return has[1] - has[0], (new[headline] or 0.0) - (old[headline] or 0.0)

        best = max((x for x in questions(context) if x.id in after), key=helped, default=None)
        if best is not None and max(helped(best)) > 0:
            asked, answers = best.question, best.answers
            lines.append(f"one question: {asked} ({' or '.join(answers)})")
            for head, row in ((f"before ({base})", before), (f"after ({last})", after)):
                lines.append(f"  {head}: {marked_excerpt(text_of(row[best.id]), answers)}")
    return [*lines, command(context, asked).replace(f"{Path.cwd()}/", "")]


def marked_excerpt(text: str, answers: Sequence[str]) -> str:
    """The part of a text around the first answer, on one line, with the answers marked."""
    start, end = excerpt_range(text, answers)
    parts = split_at(" ".join(printable(text[start:end]).split()), answers)
    marked = "".join(highlight(x) if i % 2 else x for i, x in enumerate(parts))
    return f"{'… ' * (start > 0)}{marked or '(nothing)'}{' …' * (end < len(text))}"


def best_table(workdir: Path, headline: str) -> list[str]:
    """A line for each system with its means, best first; none if nothing was measured.

    It has the untrained systems that the closing table leaves out, too.
    """
    means: dict[str, dict[str, float]] = {}
    columns = [headline]
    for path in (workdir / STAGE / FILE, workdir / "evaluate" / FILE):
        stored = load_json(path) if path.is_file() else {"table": ()}
        for row in stored["table"]:
            columns += row["values"]
            values = {metric: value["mean"] for metric, value in row["values"].items()}
            means[row["system"]] = means.get(row["system"], {}) | values
    columns = list(dict.fromkeys(columns))[:COLUMNS]
    ranked = sorted(means, key=lambda x: means[x].get(headline, float("-inf")), reverse=True)
    if not ranked or headline not in means[ranked[0]]:
        return []
    width = max(map(len, ("system", *ranked)))
    heads = [metric_heading(metric).rjust(6) for metric in columns]
    lines = ["  ".join(("  " + "system".ljust(width), *heads))]
    for system in ranked:
        cells = (f"{x:.3f}" if (x := means[system].get(m)) is not None else "–" for m in columns)
        padded = (cell.rjust(len(head)) for cell, head in zip(cells, heads, strict=True))
        lines.append("  ".join(("  " + system.ljust(width), *padded)))
    lines[1] += f"  {highlight('best')}"
    return lines


def retrieve_command(context: Context, question: str) -> str:
    """The shell command that retrieves from the graph again, for all questions of a file."""
    data, export = context.config.data, f"{mirror.address(context.workdir)}/export"
    flags = {"model": export, "graph": data.path, "names": data.names, "questions": data.questions}
    words = " ".join(f"--{name}={shlex.quote(path)}" for name, path in flags.items() if path)
    return f"use it on a graph: ark-jax retrieve {words} > found.jsonl"
