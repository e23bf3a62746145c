"""The sections that only a report of ARK has: mined negatives, a community, training questions."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ark_jax.report import graph_drawing, page, svg
from ark_jax.report.html import (
    empty_note,
    escape,
    figure,
    format_number,
    passage,
    references,
    scroll_box,
    table,
)

LEGEND = (  # marks of the graph, and their meaning
    ('<path class="seed" d="M10 1L19 10L10 19L1 10Z"/>', "seed: found from the answer"),
    ('<circle class="small" cx="10" cy="10" r="7"/>', "small community"),
    ('<circle class="large" cx="10" cy="10" r="7"/>', "large community only"),
    ('<path class="relation" d="M0 10L20 10"/>', "relation"),
    ('<path class="similar" d="M0 10L20 10"/>', "similar names or descriptions"),
)
SCORES = ("forward", "backward", "retriever", "score")


def separation(data: Mapping) -> str:
    """The section of the cosines and the difficulty of positives and hard negatives."""
    if not data["distributions"]:
        return empty_note(
            "No hard negatives were mined in this run, so there are no similarities to compare."
        )
    samples = {
        stage: (svg.finite(d["positive"]), svg.finite(d["negative"]))
        for stage, d in data["distributions"].items()
    }
    cosines = np.concatenate([sample for pair in samples.values() for sample in pair])
    if not len(cosines):
        return empty_note("No cosine similarities were recorded for the mined passages.")
    # One range for all stages, in steps of 0.05.
    low, high = math.floor(cosines.min() * 20) / 20, math.ceil(cosines.max() * 20) / 20
    x_range = low, max(high, low + 0.05)
    figures = "".join(
        _cosine_figure(i, stage, positive, negative, x_range)
        for i, (stage, (positive, negative)) in enumerate(samples.items())
    )
    gaps, listed = difficulty(data["difficulty"])
    return (
        "<p>The cosine of question and passage, by the model that mined a stage's negatives. The "
        "more the two histograms overlap, the harder the negatives are.</p>"
        f'<div class="grid">{figures}{gaps}</div>{listed}'
    )


def _cosine_figure(
    i: int, stage: str, positive: np.ndarray, negative: np.ndarray, x_range: tuple[float, float]
) -> str:
    drawing = svg.histograms(
        f"cosines-{i}",
        f"Cosines of {stage}",
        ("positives", positive),
        ("hard negatives", negative),
        x_title="cosine similarity (−1 to 1)",
        x_range=x_range,
    )
    caption = f"{len(positive):,} positives, {len(negative):,} hard negatives"
    if len(positive) and len(negative):
        negatives_below = np.searchsorted(np.sort(negative), positive, "left")
        percent = 100 * (negatives_below.mean() / len(negative))
        caption += f"; the positive has the higher cosine in {percent:.0f} % of all pairs"
    return figure(drawing, stage, caption)


def difficulty(mined: Mapping[str, Mapping]) -> tuple[str, str]:
    """The gaps to the hardest negatives as a figure, and each stage's negatives as a table."""
    gaps = [
        (stage, *(d["gap_to_hardest"][percentile] for percentile in ("p50", "p10", "p90")))
        for stage, d in mined.items()
        if "gap_to_hardest" in d
    ]
    if not gaps:
        return "", ""
    drawing = svg.interval_plot(
        "difficulty",
        "Gap to the hardest negative of every stage",
        gaps,
        reference=0.0,
        x_title="cosine of positive − of negative",
    )
    rules = list(dict.fromkeys(rule for d in mined.values() for rule in d["dropped"]))
    rows = [_difficulty_row(stage, d, rules) for stage, d in mined.items()]
    heads = [
        "stage",
        "mined by",
        "#negatives",
        "#mean gap",
        "#above the positive",
        "#with an answer",
        *(f"#dropped: {rule}" for rule in rules),
        "#questions without",
    ]
    caption = (
        "The cosine of the nearest positive minus that of the hardest negative: median, with 10th "
        "to 90th percentile over the questions. Below 0 the negative has the higher cosine."
    )
    return (
        figure(drawing, "Difficulty", caption),
        table("Hard negatives by stage", heads, rows, "even"),
    )


def _difficulty_row(stage: str, d: Mapping, rules: Sequence[str]) -> list[str]:
    above = "–"
    if "share_above_the_positive" in d:
        above = f"{100 * d['share_above_the_positive']:.1f} %"
    return [
        escape(stage),
        escape(d["model"]),
        f"{d['negatives']:,}",
        format_number(d.get("mean_gap_to_hardest")),
        above,
        f"{d['holding_the_answer']:,}",
        *(f"{d['dropped'].get(rule, 0):,}" for rule in rules),
        f"{d['questions_without']:,}",
    ]


def community_section(data: Mapping) -> str:
    """The section of a question's community, as a drawing and as a table."""
    example = data["community"]
    if not example or not example["nodes"]:
        return empty_note(
            "No community is drawn: the run rewrote no question, or found no community."
        )
    nodes = sorted(example["nodes"], key=lambda node: -node["rank"])
    rows = [
        [
            escape(n["name"]),
            escape(n["type"]),
            graph_drawing.membership(n),
            format_number(n["rank"], 5),
        ]
        for n in nodes
    ]
    heads = ["entity", "type", "community", "#PageRank"]
    listed = table("Entities by rank", heads, rows, "entities")
    title = f"Community around {example['answer']}"
    drawing = graph_drawing.graph("graph", title, example["nodes"], example["edges"])
    legend = "".join(
        f'<li><svg viewBox="0 0 20 20" aria-hidden="true">{mark}</svg>{meaning}</li>'
        for mark, meaning in LEGEND
    )
    return (
        "<p>The entities near the answer in the knowledge graph. Larger marks have a higher "
        "personalised PageRank. The rewritten questions use these entities. The table below has "
        "all names; the drawing leaves out those without room.</p>"
        f'<p class="question" dir="auto">{escape(example["question"])}</p>'
        f"{references([example['answer']])}"
        f'<figure class="wide"><figcaption><ul class="key">{legend}</ul></figcaption>'
        f"{scroll_box('Graph of the community', drawing)}</figure>"
        f'<details class="note"><summary>All {len(rows)} entities as a table</summary>{listed}'
        "</details>"
    )


def examples(data: Mapping) -> str:
    """The section of training examples, question by question; the first is open."""
    if not data["examples"]:
        return empty_note("No example questions were recorded.")
    cards = "".join(_example_card(example, i == 0) for i, example in enumerate(data["examples"]))
    has = lambda part: any(example[part] for example in data["examples"])
    rewrites, origin = (" its rewrites,", " with the rewrites") if has("rewritten") else ("", "")
    negatives = f", and the hard negatives mined{origin}" if has("negatives") else ""
    return (
        f"<p>The training data of some questions: the question,{rewrites} the passages chosen as "
        f"positives{negatives}. Forward is the score of the answer given passage and question. "
        "Backward is the score of the question given passage and answer. Retriever is the cosine. "
        f"Reference answers are <mark>marked</mark>.</p>{cards}"
    )


def _example_card(example: Mapping, is_open: bool) -> str:
    """One question with its rewrites, positives and hard negatives."""
    answers = example["answers"]
    lists = "".join(_rewrite_list(size, texts) for size, texts in example["rewritten"].items())
    rewrites = f'<div class="two">{lists}</div>' if lists else ""
    passages = empty_note("No positives were chosen.")
    if example["positives"]:
        passages = _scored_passages("Positives", example["positives"], answers)
    for stage, rows in example["negatives"].items():
        if rows:
            passages += _scored_passages(f"Hard negatives of {stage}", rows, answers)
        else:
            passages += empty_note(f"No hard negatives were mined for {stage}.")
    return (
        f'<details class="card"{" open" if is_open else ""}>'
        f'<summary><h3 dir="auto">{escape(example["question"])}</h3></summary>'
        f"{references(answers)}{rewrites}{passages}</details>"
    )


def _rewrite_list(size: str, texts: Sequence[str]) -> str:
    items = "".join(f'<li dir="auto">{escape(text)}</li>' for text in texts)
    content = f"<ol>{items}</ol>" if texts else empty_note("No rewrite was accepted.")
    return f"<div><h4>Rewritten with the {escape(size)} community</h4>{content}</div>"


def _scored_passages(caption: str, rows: Sequence[Mapping], answers: Sequence[str]) -> str:
    """A table of passages with the scores they were chosen by."""
    body = [
        [
            f"<code>{escape(row['chunk'])}</code>",
            passage(row["text"], answers),
            *(format_number(row[score]) for score in SCORES),
        ]
        for row in rows
    ]
    heads = ["chunk", "passage", *("#" + score for score in SCORES)]
    return table(caption, heads, body, "passages")


SECTIONS = (
    page.FACTS,
    page.RESULTS,
    page.TRAINING,
    page.Section("separation", "Positives and hard negatives", separation),
    page.Section("community", "A community", community_section),
    page.Section("examples", "Examples", examples),
    page.MOVES,
    page.ANSWERS,
    page.JUDGE,
    page.COUNTS,
    page.SPENT,
    page.MANIFEST,
)
