"""How a run ends: one page on it all, and its last lines: what is best, what to do next."""

import functools
import json
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ark_jax.evaluate.significance import smallest_difference
from ark_jax.pipeline.manifest import read_manifest
from ark_jax.pipeline.stage import Context, Stage
from ark_jax.pipeline.tables import load_json, load_rows, save_rows
from ark_jax.recipes.core.baselines import FILE, ROWS, STAGE
from ark_jax.recipes.core.tables import by_system
from ark_jax.report import sections
from ark_jax.report.page import QUESTIONS_FILE, Section, excerpt_range, render, split_at
from ark_jax.report.results import metric_heading
from ark_jax.runtime import mirror
from ark_jax.runtime.log import highlight, read_rows, say
from ark_jax.runtime.shown import printable

Counts = dict[str, dict]  # stage -> the counts of its manifest
Describe = Callable[[Context, Counts], tuple[list[str], list[Section]]]


def labelled_counts(counts: Counts, labels: Mapping[tuple[str, str], str]) -> list[list]:
    """[label, number] for each labelled count that a run has.

    Args:
        labels: (stage, name of the count) -> label.
    """
    return [
        [label, counts[stage][name]]
        for (stage, name), label in labels.items()
        if name in counts.get(stage, ())
    ]


def with_report(stages: Sequence[Stage], title: str, describe: Describe | None = None) -> list:
    """The stages, and a last one that writes a page about all of them.

    Args:
        describe: returns the sentences of the verdict, and the sections that come before time, cost
            and manifest.
    """
    names = [stage.name for stage in stages]
    write = functools.partial(
        _write_report, stages=names, title=title, describe=describe or _describe_counts
    )
    return [*stages, Stage("report", write, alone=True, shared=False)]


def _write_report(
    context: Context, folder: Path, *, stages: Sequence[str], title: str, describe: Describe
) -> dict:
    """Writes the page on the run, which any browser opens."""
    manifests = {name: read_manifest(context / name) for name in stages}
    counts = {name: manifest["counts"] for name, manifest in manifests.items()}
    verdict, shown = describe(context, counts)
    usage = [
        {"stage": name, **values["llm"]}
        for name, values in counts.items()
        if values.get("llm", {}).get("calls")
    ]
    parts = ("counts", "config", "external", "version")
    manifest = {name: {key: m[key] for key in parts} for name, m in manifests.items()}
    closing = [
        sections.time_and_cost(_stage_seconds(context, set(manifests)), usage),
        sections.manifest(manifest),
    ]
    page = render(title, verdict or [f"All {len(stages)} stages are done."], [*shown, *closing])
    (folder / "report.html").write_text(page, encoding="utf-8")
    save_rows([row for section in shown for row in section.rows], folder / QUESTIONS_FILE)
    # Copies where a user looks for them; the manifest tracks the stage's own.
    for name in ("report.html", QUESTIONS_FILE):
        shutil.copyfile(folder / name, context.workdir / f"{name}.new")
        (context.workdir / f"{name}.new").rename(context.workdir / name)
    say(f"  {mirror.address(context.workdir / 'report.html')}")
    return {"bytes": len(page.encode())}


def _describe_counts(context: Context, counts: Counts) -> tuple[list[str], list[Section]]:
    """No verdict, and all numbers that stages counted; for a recipe without `describe`."""
    facts = [
        [f"{stage}: {name.replace('_', ' ')}", value]
        for stage, values in counts.items()
        for name, value in values.items()
        if not isinstance(value, dict)
    ]
    return [], [sections.facts(facts), sections.set_aside([])]


def load_curve(path: Path) -> list[dict]:
    """The rows of a training stage's curve.jsonl."""
    return list(map(json.loads, path.read_text(encoding="utf-8").splitlines()))


def smallest_difference_fact(questions: int) -> list[list]:
    """[[label, difference]] for the facts of a report; empty without questions."""
    smallest = f"{smallest_difference(questions):.2f}" if questions else ""
    label = "Smallest difference that a test on so many detects"
    return [[label, smallest]] if questions else []


def _stage_seconds(context: Context, stages: set[str]) -> list[list]:
    """[stage, seconds] of the latest run of each stage, in the order they ran."""
    latest: dict[str, float] = {}
    for row in read_rows(context.metrics.path):
        if isinstance(row, dict) and "seconds" in row and row["stage"] in stages:
            latest.pop(row["stage"], None)
            latest[row["stage"]] = row["seconds"]
    return [[stage, seconds] for stage, seconds in latest.items()]


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
        rows_before, rows_after = rows[base], rows[last := [*rows][-1]]
        text_of = first(context)

        def helped(question: Any) -> tuple[int, float]:
            """How much training helped: by the answer in the texts, and by the metric."""
            old, new = rows_before[question.id], rows_after[question.id]
            holds = [len(split_at(text_of(row), question.answers)) > 1 for row in (old, new)]
            return holds[1] - holds[0], (new[headline] or 0.0) - (old[headline] or 0.0)

        best = max((x for x in questions(context) if x.id in rows_after), key=helped, default=None)
        if best is not None and max(helped(best)) > 0:
            asked, answers = best.question, best.answers
            lines.append(f"one question: {asked} ({' or '.join(answers)})")
            for head, row in ((f"before ({base})", rows_before), (f"after ({last})", rows_after)):
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
