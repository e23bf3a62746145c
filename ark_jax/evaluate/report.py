"""The page a run ends with: results, training, mined passages and examples in one HTML file of its own.

No network, no script, no external font; the page's own policy forbids them. Equal data gives equal bytes.
"""

import importlib.resources
import json
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ark_jax.evaluate import figures
from ark_jax.evaluate.page import (
    box,
    escape,
    figure,
    marked,
    none,
    number,
    passage,
    references,
    span,
    table,
    value,
)
from ark_jax.log import duration

METRICS = {
    "recall": "gold passages found in the first {k}",
    "ndcg": "how high the gold passages stand in the first {k}",
    "mrr": "one over the rank of the first gold passage",
    "answer_f1": "word overlap of given and reference answer",
}
MARKS = (('<path class="seed" d="M10 1L19 10L10 19L1 10Z"/>', "seed: found from the answer"),
         ('<circle class="small" cx="10" cy="10" r="7"/>', "small community"),
         ('<circle class="large" cx="10" cy="10" r="7"/>', "large community only"),
         ('<path class="relation" d="M0 10L20 10"/>', "relation"),
         ('<path class="similar" d="M0 10L20 10"/>', "similar names or descriptions"))


def facts(data: Mapping) -> str:
    """What was run on what, label by label."""
    if not data["facts"]:
        return none("No facts about this run were recorded.")
    items = "".join(f"<div><dt>{escape(label)}</dt><dd>{value(x)}</dd></div>" for label, x in data["facts"])
    return f'<dl class="facts">{items}</dl>'


def known(v: Mapping | None) -> bool:
    """Whether a table value has a mean and an interval to show."""
    return v is not None and all(v[k] is not None and math.isfinite(v[k]) for k in ("mean", "low", "high"))


def result(v: Mapping | None, base: Mapping | None, best: float) -> str:
    """One system's value of one metric: mean, difference to `base` (None: none shown), interval."""
    if not known(v):
        return "–"
    star, delta = "", ""
    if round(v["mean"], 3) == best:
        star = '<span class="star" aria-hidden="true">★</span><span class="hidden">best: </span>'
    if known(base):
        d = round(v["mean"] - base["mean"], 3)
        kind, sign = ("up", "+") if d > 0 else ("down", "−") if d < 0 else ("same", "±")
        delta = f'<span class="delta {kind}">{sign}{abs(d):.3f}</span>'
    return (f'<span class="mean{" best" if star else ""}">{star}{number(v["mean"])}</span>{delta}'
            f'<span class="span">{number(v["low"])} to {number(v["high"])}</span>')


def results(data: Mapping) -> str:
    """Systems by metrics, as a table that stars the best (as shown, so ties too) and as intervals."""
    rows, metrics = data["table"], data["metrics"]
    if not rows or not metrics:
        return none("No system was evaluated in this run, so there are no results to show.")
    base = next((row["values"] for row in rows if row["system"] == "base"), {})
    body, panels = [[escape(row["system"])] for row in rows], ""
    for i, m in enumerate(metrics):
        values = [row["values"].get(m) for row in rows]
        means = [round(v["mean"], 3) for v in values if known(v)]
        best = max(means) if len(means) > 1 else math.nan
        for row, v, cells in zip(rows, values, body, strict=True):
            cells.append(result(v, base.get(m) if row["system"] != "base" else None, best))
        if not means:
            continue
        shown = [(row["system"], v["mean"], v["low"], v["high"])
                 for row, v in zip(rows, values, strict=True) if known(v)]
        reference = base[m]["mean"] if known(base.get(m)) else None
        drawing = figures.interval_plot(f"interval-{i}", f"{m} of every system", shown,
                                        x_title=f"{m} (0 to 1)", reference=reference)
        name, _, k = m.partition("@")
        panels += figure(drawing, m, METRICS.get(name, "").format(k=k))
    listed = table("Results by system", ["system", *("#" + m for m in metrics)], body, "results")
    return ("<p>Mean over the held-out questions, the difference to base and the 95 % bootstrap interval. "
            f"Higher is better; ★ marks the best.</p>{listed}"
            "<p>The same as intervals. The dashed line is base; every panel has a scale of its own. An "
            "interval speaks of one system: two that overlap may still differ.</p>"
            f'<div class="grid">{panels}</div>')


def training(data: Mapping) -> str:
    """Loss and learning rate of every stage."""
    if not data["curves"]:
        return none("No stage was trained in this run, so there are no curves.")
    out = ""
    for i, (stage, rows) in enumerate(data["curves"].items()):
        steps = [row["step"] for row in rows]
        loss = figures.line_chart(f"loss-{i}", f"Loss of {stage}", steps, [row["loss"] for row in rows],
                                  x_title="step (updates)", y_title="loss (nats)", noisy=True)
        rate = figures.line_chart(f"rate-{i}", f"Learning rate of {stage}", steps,
                                  [row["learning_rate"] for row in rows], x_title="step (updates)",
                                  y_title="learning rate (per update)", height=130)
        out += figure(loss + rate, stage, f"{len(rows):,} steps" if loss else "No finite loss was recorded.")
    return ("<p>The contrastive loss of each stage over its updates, and the learning rate under it. Losses "
            "of different stages are not comparable: their negatives differ.</p>"
            f'<div class="grid">{out}</div>')


def separation(data: Mapping) -> str:
    """Cosines of positives and hard negatives, every stage over the same range."""
    if not data["distributions"]:
        return none("No hard negatives were mined in this run, so there are no similarities to compare.")
    pairs = {stage: (figures.finite(d["positive"]), figures.finite(d["negative"]))
             for stage, d in data["distributions"].items()}
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
    return ("<p>How similar question and passage are to the model that mined for a stage. The more the two "
            f'sides overlap, the harder the negatives.</p><div class="grid">{out}</div>')


def community(data: Mapping) -> str:
    """One question's community as a drawing and as a table."""
    c = data["community"]
    if not c or not c["nodes"]:
        return none("No knowledge-graph community was recorded for drawing.")
    key = "".join(f'<li><svg viewBox="0 0 20 20" aria-hidden="true">{mark}</svg>{meaning}</li>'
                  for mark, meaning in MARKS)
    drawing = figures.graph("graph", f"Community around {c['answer']}", c["nodes"], c["edges"])
    rows = [[escape(n["name"]), escape(n["type"]), figures.membership(n), number(n["rank"], 5)]
            for n in sorted(c["nodes"], key=lambda n: -n["rank"])]
    listed = table("Entities by rank", ["entity", "type", "community", "#PageRank"], rows, "entities")
    return ("<p>What stands near the answer in the knowledge graph. The larger a mark, the higher its "
            "personalised PageRank. Rewritten questions draw on these entities. Names that find no room "
            "are in the table below.</p>"
            f'<p class="question" dir="auto">{escape(c["question"])}</p>{references([c["answer"]])}'
            f'<figure class="wide"><figcaption><ul class="key">{key}</ul></figcaption>'
            f'{box("Graph of the community", drawing)}</figure>'
            f'<details class="note"><summary>All {len(rows)} entities as a table</summary>{listed}</details>')


def scored(caption: str, rows: Sequence[Mapping], answers: Sequence[str]) -> str:
    """Passages with the scores they were chosen by."""
    scores = ("forward", "backward", "retriever", "score")
    body = [[f"<code>{escape(row['chunk'])}</code>", passage(row["text"], answers),
             *(number(row[score]) for score in scores)] for row in rows]
    return table(caption, ["chunk", "passage", *("#" + score for score in scores)], body, "passages")


def example(e: Mapping, shown: bool) -> str:
    """One question with its rewrites, positives and hard negatives; folded unless `shown`."""
    rewrites = ""
    for size, texts in e["rewritten"].items():
        items = "".join(f'<li dir="auto">{escape(text)}</li>' for text in texts)
        rewrites += (f"<div><h4>Rewritten with the {escape(size)} community</h4>"
                     + (f"<ol>{items}</ol>" if texts else none("No rewrite was accepted.")) + "</div>")
    passages = (scored("Positives", e["positives"], e["answers"]) if e["positives"]
                else none("No positives were chosen."))
    for stage, rows in e["negatives"].items():
        passages += (scored(f"Hard negatives of {stage}", rows, e["answers"]) if rows
                     else none(f"No hard negatives were mined for {stage}."))
    return (f'<details class="card"{" open" if shown else ""}>'
            f'<summary><h3 dir="auto">{escape(e["question"])}</h3></summary>'
            f'{references(e["answers"])}<div class="two">{rewrites}</div>{passages}</details>')


def examples(data: Mapping) -> str:
    """What training saw, question by question; the first is unfolded."""
    if not data["examples"]:
        return none("No example questions were recorded.")
    return ("<p>What training saw: the question, its rewrites, the passages chosen as positives and the hard "
            "negatives mined with the rewrites. Forward scores the answer given passage and question, "
            "backward the question given passage and answer, retriever is the cosine. Reference answers are "
            "<mark>marked</mark>.</p>" + "".join(example(e, i == 0) for i, e in enumerate(data["examples"])))


def rank(r: int | None) -> str:
    """A rank counted from 1, in words where the list ended before it."""
    return '<span class="beyond">beyond the list</span>' if r is None else f"{r:,}"


def moves(data: Mapping) -> str:
    """Questions whose first gold passage rose or fell between base and the last stage."""
    out = "<p>Rank of the first gold passage, base → last stage.</p>"
    for key, head, moved in (("wins", "Gains", "rose"), ("losses", "Losses", "fell")):
        rows = [[span(escape(move["question"])) + references(move["answers"]),
                 passage(move["passage"], move["answers"]), rank(move["before"]), rank(move["after"])]
                for move in data[key]]
        heads = ["question and answer", "gold passage", "#base", "#last"]
        out += f"<h3>{head}</h3>" + (table(head, heads, rows, "moves") if rows
                                     else none(f"No question is listed whose first gold passage {moved}."))
    return out


def answers(data: Mapping) -> str:
    """Read answers of several systems beside the reference."""
    if not data["answers"]:
        return none("No answers were read in this run.")
    systems = list(dict.fromkeys(system for row in data["answers"] for system in row["given"]))
    rows = []
    for row in data["answers"]:
        given = [row["given"].get(system) for system in systems]
        rows.append([span(escape(row["question"])), references(row["answers"]),
                     *("–" if text is None else span(marked(text, row["answers"])) for text in given)])
    return ("<p>What the generator answers from the passages that each system retrieves. Reference answers "
            "are <mark>marked</mark>.</p>"
            + table("Answers by system", ["question", "reference", *systems], rows, "read"))


def counts(data: Mapping) -> str:
    """What did not go through, so that no loss is silent."""
    if not data["counts"]:
        return none("No records were counted as rejected, cut or set aside.")
    rows = [[escape(label), value(n)] for label, n in data["counts"]]
    return table("Records rejected, cut or set aside", ["what", "#how many"], rows, "narrow")


def elapsed(seconds: float) -> str:
    """`1.3s`, `48s`, `1m11s`."""
    return f"{seconds:.1f}s" if seconds < 10 else duration(seconds)


def times(data: Mapping) -> str:
    """Where the time went."""
    if not data["times"]:
        return none("No step was timed.")
    total = sum(seconds for _, seconds in data["times"])
    longest = max(seconds for _, seconds in data["times"]) or 1.0
    rows = [[escape(label), f'<span class="bar" style="width:{100 * seconds / longest:.1f}%"></span>',
             elapsed(seconds), f"{100 * seconds / (total or 1.0):.1f} %"] for label, seconds in data["times"]]
    rows.append(["all", "", elapsed(total), "100.0 %"])
    return table("Wall-clock time by step", ["step", "in proportion", "#time", "#share"], rows, "times")


def usage(data: Mapping) -> str:
    """What the language model was asked, and what that cost."""
    if not data["usage"]:
        return none("No language model was asked.")
    numbers = ("calls", "requests", "asked_again", "input_tokens", "output_tokens")
    rows = [[escape(row["stage"]), *(f"{row[name]:,}" for name in numbers), f"{row['cost']:.2f}"] for row in data["usage"]]
    heads = ["step", *(f"#{name.replace('_', ' ')}" for name in numbers), "#USD"]
    return table("Calls of the language model", heads, rows, "narrow")


def manifest(data: Mapping) -> str:
    """The manifest as it is, folded."""
    if not data["manifest"]:
        return none("No manifest was recorded.")
    text = json.dumps(data["manifest"], indent=2, ensure_ascii=False)
    return ('<details class="card">'
            "<summary>Versions, digests and settings that make this run repeatable</summary>"
            f'<pre tabindex="0">{escape(text)}</pre></details>')


SECTIONS: tuple[tuple[str, str, Callable[[Mapping], str]], ...] = (
    ("facts", "The run", facts), ("results", "Results", results), ("training", "Training", training),
    ("separation", "Positives and hard negatives", separation), ("community", "A community", community),
    ("examples", "Examples", examples), ("moves", "Gains and losses", moves), ("answers", "Answers", answers),
    ("counts", "Set aside", counts), ("usage", "The language model", usage),
    ("times", "Time", times), ("manifest", "Manifest", manifest))


def render(data: dict) -> str:
    """The report as one HTML page; `data` is plain JSON, gathered by the run.

    Its keys: title, verdict, facts, metrics, table, curves, distributions, community, examples, wins, losses,
    answers, counts, usage, times, manifest. All are present; an empty one is said to be empty on the page.
    """
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
<header><h1>{escape(data["title"])}</h1><p class="verdict">{escape(data["verdict"])}</p></header>
{body}
</main>
</div>
</body>
</html>
"""
