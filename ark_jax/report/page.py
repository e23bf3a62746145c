"""The report page: one HTML file with the results, training curves and examples of a run.

It uses no network, script or external font; its content security policy forbids them. Equal data
gives equal bytes.
"""

import importlib.resources
import json
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ark_jax.report import examples, results, svg
from ark_jax.report.html import (
    SECURITY_POLICY,
    auto_direction,
    empty_note,
    escape,
    figure,
    format_value,
    passage,
    table,
)
from ark_jax.runtime.log import duration

USAGE_HEADS = {  # fields of `llm.pricing.Usage` -> heads of the table of time and cost
    "calls": "LLM calls",
    "asked_again": "asked again",
    "input_tokens": "tokens in",
    "output_tokens": "tokens out",
    "cost": "USD",
}


def facts(data: Mapping) -> str:
    """The section of the run's settings and sizes, label by label."""
    if not data["facts"]:
        return empty_note("No facts about this run were recorded.")
    items = "".join(
        f"<div><dt>{escape(label)}</dt><dd>{format_value(x)}</dd></div>"
        for label, x in data["facts"]
    )
    return f'<dl class="facts">{items}</dl>'


def training_section(data: Mapping) -> str:
    """The section of loss and learning rate, stage by stage."""
    if not data["curves"]:
        return empty_note("No stage was trained in this run, so there are no curves.")
    figures = "".join(
        _training_figure(i, stage, rows) for i, (stage, rows) in enumerate(data["curves"].items())
    )
    return (
        "<p>The contrastive loss of each stage, with the learning rate below it. The losses of two "
        "stages cannot be compared, since their negatives differ.</p>"
        f'<div class="grid">{figures}</div>'
    )


def _training_figure(i: int, stage: str, rows: Sequence[Mapping]) -> str:
    steps, x_title = [row["step"] for row in rows], "step (updates)"
    loss = svg.line_chart(
        f"loss-{i}",
        f"Loss of {stage}",
        steps,
        [row["loss"] for row in rows],
        x_title=x_title,
        y_title="loss (nats)",
        noisy=True,
    )
    rate = svg.line_chart(
        f"rate-{i}",
        f"Learning rate of {stage}",
        steps,
        [row["learning_rate"] for row in rows],
        x_title=x_title,
        y_title="learning rate (per update)",
        height=130,
    )
    caption = f"{len(rows):,} steps" if loss else "No finite loss was recorded."
    return figure(loss + rate, stage, caption)


def counts(data: Mapping) -> str:
    """The section of records that were rejected, cut or set aside, so that no loss is silent."""
    if not data["counts"]:
        return empty_note("No records were counted as rejected, cut or set aside.")
    rows = [[escape(label), format_value(count)] for label, count in data["counts"]]
    out = table("Records rejected, cut or set aside", ["record", "#count"], rows, "narrow")
    if not data["quarantine"]:
        return out
    rows = [
        [
            escape(row["stage"]),
            f"<code>{escape(row['item'])}</code>",
            auto_direction(escape(row["reason"])),
            passage(row["text"], ()),
        ]
        for row in data["quarantine"]
    ]
    listed = table("Quarantined replies", ["step", "item", "reason", "reply"], rows, "read")
    summary = f"Examples of quarantined replies, with the reason ({len(rows)})"
    return f'{out}<details class="note"><summary>{summary}</summary>{listed}</details>'


def format_elapsed(seconds: float) -> str:
    """`1.3s`, `48s`, `1m11s`."""
    return f"{seconds:.1f}s" if seconds < 10 else duration(seconds)


def spent(data: Mapping) -> str:
    """The section of time, calls, tokens and money, step by step."""
    seconds, usage = dict(data["times"]), {row["stage"]: row for row in data["usage"]}
    if not seconds and not usage:
        return empty_note("No step was timed.")
    fields = list(USAGE_HEADS) if usage else []
    total, longest = sum(seconds.values()), max(seconds.values(), default=0.0)
    rows = []
    for stage in dict.fromkeys([*seconds, *usage]):
        elapsed = seconds.get(stage, 0.0)
        rows.append(
            [
                escape(stage),
                f'<span class="bar" style="width:{100 * elapsed / (longest or 1):.1f}%"></span>',
                format_elapsed(elapsed),
                f"{100 * elapsed / (total or 1):.1f} %",
                *_usage_cells(usage.get(stage), fields),
            ]
        )
    sums = {name: sum(row[name] for row in usage.values()) for name in fields}
    rows.append(["all", "", format_elapsed(total), "100.0 %", *_usage_cells(sums, fields)])
    heads = ["step", "in proportion", "#time", "#share"]
    heads += [f"#{USAGE_HEADS[name]}" for name in fields]
    return table("Time and cost by step", heads, rows, "times")


def _usage_cells(usage: Mapping | None, fields: Sequence[str]) -> list[str]:
    if usage is None:
        return ["–"] * len(fields)
    return [f"{usage[name]:.2f}" if name == "cost" else f"{usage[name]:,}" for name in fields]


def manifest(data: Mapping) -> str:
    """The section of the manifest as JSON, folded."""
    if not data["manifest"]:
        return empty_note("No manifest was recorded.")
    text = json.dumps(data["manifest"], indent=2, ensure_ascii=False)
    return (
        '<details class="card">'
        "<summary>Versions, digests and settings that reproduce this run</summary>"
        f'<pre tabindex="0">{escape(text)}</pre></details>'
    )


class Section(NamedTuple):
    """A part of the page: its id, its heading, and what makes its HTML of the page's data."""

    id: str
    heading: str
    build: Callable[[Mapping], str]


FACTS = Section("facts", "The run", facts)
RESULTS = Section("results", "Results", results.results)
TRAINING = Section("training", "Training", training_section)
MOVES = Section("moves", "Gains and losses", examples.moves)
ANSWERS = Section("answers", "Answers", examples.answers)
JUDGE = Section("judge", "The judge", results.judged)
COUNTS = Section("counts", "Set aside", counts)
SPENT = Section("spent", "Time and cost", spent)
MANIFEST = Section("manifest", "Manifest", manifest)
BASIC_SECTIONS = (FACTS, COUNTS, SPENT, MANIFEST)  # what every run can show


def render_page(data: dict, sections: Sequence[Section] = BASIC_SECTIONS) -> str:
    """The report as one HTML page.

    Args:
        data: plain JSON with the keys title, verdict, facts, metrics, table, curves, distributions,
            difficulty, community, examples, tally, wins, losses, answers, judge, counts,
            quarantine, usage, times and manifest. Those that the sections show must be present; if
            one is empty, its section says so.
        sections: the parts of the page, in their order.
    """
    statement, colon, numbers = data["verdict"].partition(": ")
    verdict = f'<p class="verdict">{escape(statement)}{colon.strip()}</p>'
    verdict += f'<p class="numbers">{escape(numbers)}</p>' if colon else ""
    style = (importlib.resources.files("ark_jax.report") / "report.css").read_text(encoding="utf-8")
    links = "".join(f'<li><a href="#{name}">{head}</a></li>' for name, head, _ in sections)
    body = "\n".join(
        f'<section id="{name}" aria-labelledby="{name}-head"><h2 id="{name}-head">{head}</h2>\n'
        f"{build(data)}</section>"
        for name, head, build in sections
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
{SECURITY_POLICY}
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(data["title"])}</title>
<style>
{style}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the report</a>
<div class="page">
<nav aria-label="Sections"><ul>{links}</ul></nav>
<main id="main">
<header><h1>{escape(data["title"])}</h1>{verdict}</header>
{body}
</main>
</div>
</body>
</html>
"""
