"""The page a run ends with: results, training, mined passages and examples in one HTML file of its own.

No network, no script, no external font; the page's own policy forbids them. Equal data gives equal bytes.
"""

import importlib.resources
import json
import math
from collections.abc import Callable, Mapping

import numpy as np

from ark_jax.evaluate import cases, figures, outcomes
from ark_jax.evaluate.page import escape, figure, none, number, passage, span, table, value
from ark_jax.log import duration


def facts(data: Mapping) -> str:
    """What was run on what, label by label."""
    if not data["facts"]:
        return none("No facts about this run were recorded.")
    items = "".join(f"<div><dt>{escape(label)}</dt><dd>{value(x)}</dd></div>" for label, x in data["facts"])
    return f'<dl class="facts">{items}</dl>'


def training(data: Mapping) -> str:
    """Loss and learning rate of every stage."""
    if not data["curves"]:
        return none("No stage was trained in this run, so there are no curves.")
    out = ""
    for i, (stage, rows) in enumerate(data["curves"].items()):
        steps = [row["step"] for row in rows]
        loss = figures.line_chart(f"loss-{i}", f"Loss of {stage}", steps, [row["loss"] for row in rows],
                                  x_title="step (updates)", y_title="loss (nats)", noisy=True)
        rate = figures.line_chart(f"rate-{i}", f"Learning rate of {stage}", steps, [row["learning_rate"] for row in rows],
                                  x_title="step (updates)", y_title="learning rate (per update)", height=130)
        out += figure(loss + rate, stage, f"{len(rows):,} steps" if loss else "No finite loss was recorded.")
    return ("<p>The contrastive loss of each stage over its updates, and the learning rate under it. Losses of different stages "
            f'are not comparable: their negatives differ.</p><div class="grid">{out}</div>')


def separation(data: Mapping) -> str:
    """Cosines of positives and hard negatives, every stage over the same range, and how hard the negatives are."""
    if not data["distributions"]:
        return none("No hard negatives were mined in this run, so there are no similarities to compare.")
    pairs = {stage: (figures.finite(d["positive"]), figures.finite(d["negative"])) for stage, d in data["distributions"].items()}
    every = np.concatenate([cosines for pair in pairs.values() for cosines in pair])
    if not len(every):
        return none("No cosine similarities were recorded for the mined passages.")
    low, high = math.floor(every.min() * 20) / 20, math.ceil(every.max() * 20) / 20
    out = ""
    for i, (stage, (positive, negative)) in enumerate(pairs.items()):
        drawing = figures.histograms(f"cosines-{i}", f"Cosines of {stage}", ("positives", positive),
                                     ("hard negatives", negative), x_title="cosine similarity (−1 to 1)",
                                     x_range=(low, max(high, low + 0.05)))
        told = f"{len(positive):,} positives, {len(negative):,} hard negatives"
        if len(positive) and len(negative):
            above = np.searchsorted(np.sort(negative), positive, "left").mean() / len(negative)
            told += f"; a positive lies above a hard negative in {100 * above:.0f} % of all pairs"
        out += figure(drawing, stage, told)
    gap, listed = difficulty(data["difficulty"])
    return ("<p>How similar question and passage are to the model that mined for a stage. The more the two sides overlap, the "
            f'harder the negatives.</p><div class="grid">{out}{gap}</div>{listed}')


def difficulty(mined: Mapping[str, Mapping]) -> tuple[str, str]:
    """How hard each stage's negatives are, as intervals and, with what was left out of them, as a table."""
    gaps = [(stage, *(d["gap_to_hardest"][p] for p in ("p50", "p10", "p90")))
            for stage, d in mined.items() if "gap_to_hardest" in d]
    if not gaps:
        return "", ""
    drawing = figures.interval_plot("difficulty", "Gap to the hardest negative of every stage", gaps, reference=0.0,
                                    x_title="cosine of positive − of negative")
    rules = list(dict.fromkeys(rule for d in mined.values() for rule in d["dropped"]))
    rows = [[escape(stage), escape(d["model"]), f"{d['negatives']:,}", number(d.get("mean_gap_to_hardest")),
             f"{100 * d['share_above_the_positive']:.1f} %" if "share_above_the_positive" in d else "–",
             f"{d['holding_the_answer']:,}", *(f"{d['dropped'].get(rule, 0):,}" for rule in rules), f"{d['questions_without']:,}"]
            for stage, d in mined.items()]
    heads = ["stage", "mined by", "#negatives", "#mean gap", "#above the positive", "#with an answer",
             *(f"#dropped: {rule}" for rule in rules), "#questions without"]
    told = ("Nearest positive less hardest negative, question by question: median, 10th to 90th percentile. Left of 0 the "
            "negative is the more similar.")
    return (figure(drawing, "Difficulty", told), table("Hard negatives by stage", heads, rows, "even"))


def counts(data: Mapping) -> str:
    """What did not go through, so that no loss is silent."""
    if not data["counts"]:
        return none("No records were counted as rejected, cut or set aside.")
    rows = [[escape(label), value(n)] for label, n in data["counts"]]
    out = table("Records rejected, cut or set aside", ["what", "#how many"], rows, "narrow")
    if data["quarantine"]:
        rows = [[escape(q["stage"]), f"<code>{escape(q['item'])}</code>", span(escape(q["reason"])), passage(q["text"], ())]
                for q in data["quarantine"]]
        listed = table("Quarantined replies", ["step", "item", "reason", "reply"], rows, "read")
        out += f'<details class="note"><summary>{len(rows)} of what was quarantined, with the reason</summary>{listed}</details>'
    return out


def elapsed(seconds: float) -> str:
    """`1.3s`, `48s`, `1m11s`."""
    return f"{seconds:.1f}s" if seconds < 10 else duration(seconds)


def spent(data: Mapping) -> str:
    """Time, calls, tokens and money of every step."""
    seconds, usage = dict(data["times"]), {row["stage"]: row for row in data["usage"]}
    if not seconds and not usage:
        return none("No step was timed.")
    numbers = ("calls", "asked_again", "input_tokens", "output_tokens", "cost") if usage else ()
    tell = lambda name, x: f"{x:.2f}" if name == "cost" else f"{x:,}"
    total, longest = sum(seconds.values()), max(seconds.values(), default=0.0)
    rows = []
    for stage in dict.fromkeys([*seconds, *usage]):
        took = seconds.get(stage, 0.0)
        rows.append([escape(stage), f'<span class="bar" style="width:{100 * took / (longest or 1):.1f}%"></span>',
                     elapsed(took), f"{100 * took / (total or 1):.1f} %",
                     *(tell(name, usage[stage][name]) if stage in usage else "–" for name in numbers)])
    sums = {name: sum(row[name] for row in usage.values()) for name in numbers}
    rows.append(["all", "", elapsed(total), "100.0 %", *(tell(*item) for item in sums.items())])
    heads = {"calls": "LLM calls", "input_tokens": "tokens in", "output_tokens": "tokens out", "cost": "USD"}
    return table("Time and cost by step", ["step", "in proportion", "#time", "#share",
                                           *(f"#{heads.get(name, name.replace('_', ' '))}" for name in numbers)], rows, "times")


def manifest(data: Mapping) -> str:
    """The manifest as it is, folded."""
    if not data["manifest"]:
        return none("No manifest was recorded.")
    text = json.dumps(data["manifest"], indent=2, ensure_ascii=False)
    return ('<details class="card">'
            "<summary>Versions, digests and settings that make this run repeatable</summary>"
            f'<pre tabindex="0">{escape(text)}</pre></details>')


SECTIONS: tuple[tuple[str, str, Callable[[Mapping], str]], ...] = (
    ("facts", "The run", facts), ("results", "Results", outcomes.results), ("training", "Training", training),
    ("separation", "Positives and hard negatives", separation), ("community", "A community", cases.community),
    ("examples", "Examples", cases.examples), ("moves", "Gains and losses", cases.moves), ("answers", "Answers", cases.answers),
    ("judge", "The judge", outcomes.judged),
    ("counts", "Set aside", counts), ("spent", "Time and cost", spent), ("manifest", "Manifest", manifest))


def render(data: dict) -> str:
    """The report as one HTML page; `data` is plain JSON, gathered by the run.

    Its keys: title, verdict, facts, metrics, table, curves, distributions, difficulty, community, examples, tally, wins, losses,
    answers, judge, counts, quarantine, usage, times, manifest. All are present; an empty one is said to be empty on the page.
    """
    said, colon, numbers = data["verdict"].partition(": ")
    verdict = f'<p class="verdict">{escape(said)}{colon.strip()}</p>'
    verdict += f'<p class="numbers">{escape(numbers)}</p>' if colon else ""
    style = (importlib.resources.files("ark_jax.evaluate") / "report.css").read_text(encoding="utf-8")
    links = "".join(f'<li><a href="#{name}">{head}</a></li>' for name, head, _ in SECTIONS)
    body = "\n".join(f'<section id="{name}" aria-labelledby="{name}-head"><h2 id="{name}-head">{head}</h2>\n'
                     f"{build(data)}</section>" for name, head, build in SECTIONS)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
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
