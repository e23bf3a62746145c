"""The sections that only a report of BAR-RAG has."""

import math
from collections.abc import Mapping, Sequence

from ark_jax.report import svg
from ark_jax.report.html import (
    auto_direction,
    empty_note,
    escape,
    figure,
    format_number,
    highlight,
    passage,
    references,
    table,
)
from ark_jax.report.page import Section
from ark_jax.report.results import metric_heading, result_cell

BINS = 10  # of a histogram of p


def sizes(data: Mapping) -> str:
    """The section of each metric by the number of retrieved passages."""
    if not data["sizes"]:
        return empty_note("No other numbers of passages were measured.")
    columns = {f"first {size}": rows for size, rows in data["sizes"].items()}
    systems = [row["system"] for row in next(iter(columns.values()))]
    out = (
        "<p>By how many of the retrieved passages a reader gets. Differences are to "
        f"{escape(data['base'])}.</p>"
    )
    for metric in data["metrics"]:
        body = [[escape(system)] for system in systems]
        for rows in columns.values():
            values = {row["system"]: row["values"][metric] for row in rows}
            for cells, system in zip(body, systems, strict=True):
                base = values[data["base"]] if system != data["base"] else None
                cells.append(result_cell(values[system], base, math.nan))
        name = f"{metric_heading(metric)} by number of passages"
        out += table(name, ["reader", *(f"#{x}" for x in columns)], body, "results")
    return out


def needed(data: Mapping) -> str:
    """The section of answers from the passages that hold them."""
    if not data["needed"]:
        return empty_note("No held-out question has a passage that is known to hold its answer.")
    return (
        "<p>What the readers answer from the passages that hold the answer, wherever the retriever "
        "ranks them. Questions without such a passage are left out.</p>"
        + _compared("reader", "the needed passages alone", data["needed"])
    )


def removal(data: Mapping) -> str:
    """The section of answers without the passages that they cite, and from these alone."""
    measured = {name: part for name, part in data["removal"].items() if part["table"]}
    if not measured:
        return empty_note("No answer was measured without the passages that it cites.")
    out = (
        "<p>Each reader answers again without the passages that its answer cites, and from these "
        "alone. An answer without citations cites the passages that contain it. A reader that uses "
        "what it is given falls in the first case and not in the second.</p>"
    )
    for system, part in measured.items():
        name = f"{system}, {part['questions']:,} questions whose answer cites a passage"
        out += f"<h3>{escape(name)}</h3>" + _compared("passages", name, part["table"])
    return out


def _compared(head: str, name: str, rows: Sequence[Mapping]) -> str:
    """A table whose rows are compared with the one that has no test."""
    metrics = list(rows[0]["values"])
    base = next(row for row in rows if "against_base" not in row["values"][metrics[0]])
    body = [
        [
            escape(row["system"]),
            *(
                result_cell(
                    row["values"][m], base["values"][m] if row is not base else None, math.nan
                )
                for m in metrics
            ),
        ]
        for row in rows
    ]
    return table(name, [head, *(f"#{metric_heading(m)}" for m in metrics)], body, "results")


def ways(data: Mapping) -> str:
    """The section of p by how a set of passages is chosen."""
    comparison = data["ways"]
    if not comparison:
        return empty_note("No selector was trained in this run.")
    *compared, selected = comparison["p"]
    figures = "".join(
        figure(
            svg.histograms(
                f"ways-{i}",
                f"p of {selected} and of {way} sets",
                (selected, comparison["p"][selected]),
                (way, comparison["p"][way]),
                x_title="p, the probability of a reference answer",
                x_range=(0.0, 1.0),
                things="questions",
                bins=BINS,
            ),
            f"{selected} and {way}",
            f"{len(comparison['p'][selected]):,} held-out questions",
        )
        for i, way in enumerate(compared)
    )
    return (
        f"<p>p of held-out questions under the reader {escape(comparison['reader'])}, from "
        "passages that are drawn, nearest to the question, or selected. The selector is rewarded "
        f'for a p near its centre.</p><div class="grid">{figures}</div>'
        + _compared("passages", "p by way of choosing", comparison["table"])
    )


def learning(data: Mapping) -> str:
    """The section of rewards and losses by step."""
    figures = ""
    for i, curve in enumerate(data["learning"]):
        steps = list(range(1, len(curve["values"]) + 1))
        drawing = svg.line_chart(
            f"learning-{i}",
            f"{curve['shows']} of {curve['stage']}",
            steps,
            curve["values"],
            x_title="step",
            y_title=curve["shows"],
            noisy=True,
        )
        if drawing:
            figures += figure(drawing, curve["stage"], f"{curve['shows']}, {len(steps):,} steps")
    return f'<div class="grid">{figures}</div>' if figures else empty_note("Nothing was trained.")


def examples(data: Mapping) -> str:
    """The section of questions that the last reader gained most on, and least."""
    if not data["examples"]:
        return empty_note("No held-out question is there to show.")
    note = "<p>Questions on which p rose most in training, and least. p stands in brackets.</p>"
    return note + "".join(_example(i, example) for i, example in enumerate(data["examples"]))


def _example(number: int, example: Mapping) -> str:
    answers = example["answers"]
    replies = "".join(
        f"<li><b>{escape(system)}</b> ({format_number(reply['p'])}): "
        f"{auto_direction(highlight(reply['answer'] or '–', answers))}</li>"
        for system, reply in example["given"].items()
    )
    shown = "".join(passage(text, answers) for text in example["passages"])
    return (
        f'<details class="card"{" open" if number == 0 else ""}>'
        f'<summary><h3 dir="auto">{escape(example["question"])}</h3></summary>'
        f"{references(answers)}<ul>{replies}</ul><h4>What they read</h4>{shown}</details>"
    )


SIZES = Section("sizes", "Numbers of passages", sizes)
NEEDED = Section("needed", "The needed passages alone", needed)
REMOVAL = Section("removal", "Without cited passages", removal)
WAYS = Section("ways", "Ways to choose passages", ways)
LEARNING = Section("learning", "Learning", learning)
EXAMPLES = Section("examples", "Questions and answers", examples)
