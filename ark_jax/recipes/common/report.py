"""The report stage: one page on a whole run, from what its stages left in the workdir."""

import functools
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ark_jax.pipeline.manifest import read_manifest
from ark_jax.pipeline.stage import Context, Stage
from ark_jax.report.page import BASIC_SECTIONS, Section, render_page
from ark_jax.runtime.log import read_rows, say

Counts = dict[str, dict]  # stage -> the counts of its manifest


def labelled(counts: Counts, labels: Mapping[tuple[str, str], str]) -> list[list]:
    """A label and a number for each of these counts that a run has."""
    return [
        [label, counts[stage][name]]
        for (stage, name), label in labels.items()
        if name in counts.get(stage, ())
    ]


def with_report(
    stages: Sequence[Stage],
    title: str,
    gather: Callable[[Context, Counts], dict] = lambda context, counts: {},
    sections: Sequence[Section] = BASIC_SECTIONS,
) -> list[Stage]:
    """The stages, and a last one that writes a page about all of them.

    Args:
        gather: returns the data of the page's sections beside those of every run.
        sections: the parts of the page, in their order.
    """
    names = [stage.name for stage in stages]

    def render(context: Context, manifests: Mapping[str, dict]) -> str:
        counts = {name: manifest["counts"] for name, manifest in manifests.items()}
        return render_page(
            _basic_data(context, title, manifests) | gather(context, counts), sections
        )

    write = functools.partial(_write_report, stages=names, render=render)
    return [*stages, Stage("report", write, alone=True, shared=False)]


def _write_report(
    context: Context,
    folder: Path,
    *,
    stages: Sequence[str],
    render: Callable[[Context, Mapping[str, dict]], str],
) -> dict:
    page = render(context, {name: read_manifest(context / name) for name in stages})
    (folder / "report.html").write_text(page, encoding="utf-8")
    # A copy where a user looks for it; the manifest tracks the stage's own.
    shutil.copyfile(folder / "report.html", context.workdir / "report.html.new")
    (context.workdir / "report.html.new").rename(context.workdir / "report.html")
    say(f"  {context.workdir / 'report.html'}")
    return {"bytes": len(page.encode())}


def _basic_data(context: Context, title: str, manifests: Mapping[str, dict]) -> dict:
    """What the page can say of any method: counts, LLM usage, times, manifests."""
    counts = {name: manifest["counts"] for name, manifest in manifests.items()}
    facts = [
        [f"{stage}: {name.replace('_', ' ')}", value]
        for stage, values in counts.items()
        for name, value in values.items()
        if not isinstance(value, dict)
    ]
    usage = [
        {"stage": name, **values["llm"]}
        for name, values in counts.items()
        if values.get("llm", {}).get("calls")
    ]
    parts = ("counts", "config", "external", "version")
    return {
        "title": title,
        "verdict": f"All {len(manifests)} stages are done.",
        "facts": facts,
        "counts": [],
        "quarantine": [],
        "usage": usage,
        "times": _times(context, set(manifests)),
        "manifest": {name: {k: m[k] for k in parts} for name, m in manifests.items()},
    }


def load_curve(path: Path) -> list[dict]:
    """The rows of a training stage's curve.jsonl."""
    return list(map(json.loads, path.read_text(encoding="utf-8").splitlines()))


def _times(context: Context, stages: set[str]) -> list[list]:
    """[stage, seconds] of the latest run of each stage, in the order they ran."""
    latest: dict[str, float] = {}
    for row in read_rows(context.metrics.path):
        if isinstance(row, dict) and "seconds" in row and row["stage"] in stages:
            latest.pop(row["stage"], None)
            latest[row["stage"]] = row["seconds"]
    return [[stage, seconds] for stage, seconds in latest.items()]
