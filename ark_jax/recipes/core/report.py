"""The report stage: one page on a whole run, from what its stages left in the workdir."""

import functools
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ark_jax.evaluate.significance import smallest_difference
from ark_jax.pipeline.manifest import read_manifest
from ark_jax.pipeline.stage import Context, Stage
from ark_jax.pipeline.tables import save_rows
from ark_jax.report import sections
from ark_jax.report.page import QUESTIONS_FILE, Section, render
from ark_jax.runtime import mirror
from ark_jax.runtime.log import read_rows, say

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
    label = "Smallest difference that so many can tell from chance"
    return [[label, smallest]] if questions else []


def _stage_seconds(context: Context, stages: set[str]) -> list[list]:
    """[stage, seconds] of the latest run of each stage, in the order they ran."""
    latest: dict[str, float] = {}
    for row in read_rows(context.metrics.path):
        if isinstance(row, dict) and "seconds" in row and row["stage"] in stages:
            latest.pop(row["stage"], None)
            latest[row["stage"]] = row["seconds"]
    return [[stage, seconds] for stage, seconds in latest.items()]
