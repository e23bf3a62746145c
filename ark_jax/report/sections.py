"""The sections that several recipes show: facts, training, examples, losses, time and cost."""

import json
import math
from collections.abc import Collection, Mapping, Sequence

from markupsafe import Markup

from ark_jax.report import svg
from ark_jax.report.page import Section, format_value, html
from ark_jax.runtime.log import duration

USAGE_HEADS = {  # fields of `llm.pricing.Usage` -> heads of the table of time and cost
    "calls": "LLM calls",
    "asked_again": "asked again",
    "input_tokens": "tokens in",
    "output_tokens": "tokens out",
    "cost": "USD",
}


def facts(items: Sequence[Sequence]) -> Section:
    """The run's settings and sizes, from pairs of label and value."""
    body = [html.facts([[label, format_value(x)] for label, x in items])] if items else []
    return Section("The run", "facts", body, "No facts about this run were recorded.")


def training(curves: Mapping[str, Sequence[Mapping]]) -> Section:
    """Loss and learning rate of each stage, and the cosines of what it compares, if recorded.

    Args:
        curves: stage -> the rows of its curve.jsonl.
    """
    figures = [_training_figure(i, *curve) for i, curve in enumerate(curves.items())]
    introduction = (
        "The loss or reward of each stage, with the learning rate below it. The losses of two "
        "stages cannot be compared, since what they learn from differs. Cosines are means over a "
        "batch; training may lower both as long as those of negatives fall further."
    )
    body = [introduction, html.grid(figures)] if curves else []
    empty = "No stage was trained in this run, so there are no curves."
    return Section("Training", "training", body, empty)


def _training_figure(i: int, stage: str, rows: Sequence[Mapping]) -> str:
    """The charts of one stage; `i` makes their ids unique."""
    drawings = [
        svg.line_chart(
            f"{name}-{i}",
            f"{title} of {stage}",
            [row["step"] for row in rows],
            [row.get(column, math.nan) for row in rows],
            x_title="step (updates)",
            y_title=f"{title.lower()} ({unit})",
            height=height,
            noisy=name != "rate",
        )
        for name, column, title, unit, height in (
            ("loss", "loss", "Loss", "nats", 210),
            ("reward", "reward", "Reward", "mean of a step", 210),
            ("rate", "learning_rate", "Learning rate", "per update", 130),
            ("positive", "positive_cosine", "Positives", "mean cosine", 130),
            ("negative", "negative_cosine", "Negatives", "mean cosine", 130),
        )
    ]
    caption = f"{len(rows):,} steps" if any(drawings[:2]) else "No finite loss was recorded."
    return html.figure(Markup("").join(drawings), stage, caption)


def set_aside(counts: Sequence[Sequence], quarantine: Sequence[Mapping] = ()) -> Section:
    """Records that were rejected, cut or set aside.

    Args:
        counts: labels and numbers.
        quarantine: replies that could not be used: stage, item, reason and text.
    """
    rows = [[label, format_value(count)] for label, count in counts]
    body = [html.table("Records rejected, cut or set aside", ["record", "#count"], rows, "narrow")]
    if quarantine:
        texts = lambda row: (html.auto(row["reason"]), html.passage(row["text"]))
        rows = [[row["stage"], html.code(row["item"]), *texts(row)] for row in quarantine]
        heads = ["step", "item", "reason", "reply"]
        summary = f"Examples of quarantined replies, with the reason ({len(rows)})"
        body.append(html.fold(summary, html.table("Quarantined replies", heads, rows, "read")))
    empty = "No records were counted as rejected, cut or set aside."
    return Section("Set aside", "counts", body if counts else [], empty)


def format_elapsed(seconds: float) -> str:
    """`1.3s`, `48s`, `1m11s`."""
    return f"{seconds:.1f}s" if seconds < 10 else duration(seconds)


def time_and_cost(times: Sequence[Sequence], usage: Sequence[Mapping]) -> Section:
    """Time, calls, tokens and cost of each step.

    Args:
        times: pairs of stage and seconds.
        usage: `stage` and the fields of `USAGE_HEADS`, for stages that ask a language model.
    """
    seconds, used = dict(times), {row["stage"]: row for row in usage}
    fields = USAGE_HEADS if usage else {}
    total, longest = sum(seconds.values()), max(seconds.values(), default=0.0)
    rows = []
    for stage in dict.fromkeys([*seconds, *used]):
        elapsed = seconds.get(stage, 0.0)
        bar = html.bar(f"{100 * elapsed / (longest or 1):.1f}")
        timed = [stage, bar, format_elapsed(elapsed), f"{100 * elapsed / (total or 1):.1f} %"]
        rows.append([*timed, *_usage_cells(used.get(stage), fields)])
    sums = {name: sum(row[name] for row in used.values()) for name in fields}
    closing = ["all", "", format_elapsed(total), "100.0 %", *_usage_cells(sums, fields)]
    heads = ["step", "in proportion", "#time", "#share", *(f"#{x}" for x in fields.values())]
    listed = html.table("Time and cost by step", heads, [*rows, closing], "times")
    return Section("Time and cost", "spent", [listed] if rows else [], "No step was timed.")


def _usage_cells(usage: Mapping | None, fields: Collection[str]) -> list[str]:
    """The cells of a step's use of a language model; dashes if there is none."""
    if usage is None:
        return ["–"] * len(fields)
    return [f"{usage[name]:.2f}" if name == "cost" else f"{usage[name]:,}" for name in fields]


def manifest(data: Mapping) -> Section:
    """The manifest as JSON, folded away."""
    summary = "Versions, digests and settings that reproduce this run"
    shown = html.json_fold(summary, json.dumps(data, indent=2, ensure_ascii=False))
    return Section("Manifest", "manifest", [shown] if data else [], "No manifest was recorded.")
