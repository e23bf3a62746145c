"""What came of a run, as the report shows it: systems by metrics, tested against base, and a judge's verdicts."""

import math
from collections.abc import Mapping

from ark_jax.evaluate import figures
from ark_jax.evaluate.page import escape, figure, none, number, table

ALPHA = 0.05  # below which a difference counts as significant
METRICS = {  # name -> as it is shown, and what it tells
    "recall": ("recall", "needed passages found in the first {k}"),
    "precision": ("precision", "relevant passages among the first {k}"),
    "hit": ("hit rate", "whether any needed passage is in the first {k}"),
    "ndcg": ("nDCG", "how high the needed passages stand in the first {k}"),
    "mrr": ("MRR", "one over the rank of the first needed passage"),
    "map": ("MAP", "precision wherever a needed passage is found"),
    "answer_f1": ("answer F1", "words that given and reference answer share"),
    "exact_match": ("exact match", "whether the answer is a reference, but for case, punctuation and articles"),
    "rouge_l": ("ROUGE-L", "the longest run of words, gaps allowed, that given and reference answer share"),
}


def known(v: Mapping | None) -> bool:
    """Whether a table value has a mean and an interval to show."""
    return v is not None and all(v[k] is not None and math.isfinite(v[k]) for k in ("mean", "low", "high"))


def shown(metric: str) -> tuple[str, str]:
    """A metric's name and meaning on the page: `ndcg@10` -> `nDCG@10`, and a line about it."""
    name, at, k = metric.partition("@")
    name, meaning = METRICS.get(name, (name.replace("_", " "), ""))
    return name + at + k, meaning.format(k=k or "places")


def heading(metric: str) -> str:
    """A metric's name where it stands alone."""
    return shown(metric)[0]


def significant(v: Mapping | None) -> bool:
    """Whether a value differs from base's by more than chance, as far as that was tested."""
    return bool(v) and "against_base" in v and v["against_base"]["p_holm"] < ALPHA


def result(v: Mapping | None, base: Mapping | None, best: float) -> str:
    """One system's value of one metric: mean, difference to `base` (None: none shown) with its test, interval."""
    if not known(v):
        return "–"
    star, delta = "", ""
    if round(v["mean"], 3) == best:
        star = '<span class="star" aria-hidden="true">★</span><span class="hidden">best: </span>'
    if known(base):
        d = round(v["mean"] - base["mean"], 3)
        kind, sign = ("up", "+") if d > 0 else ("down", "−") if d < 0 else ("same", "±")
        p = v["against_base"]["p_holm"] if "against_base" in v else None
        test = "" if p is None else f' <small>p {"&lt; 0.001" if p < 0.001 else number(p)}</small>'
        sure, mark = (" sure", "*") if significant(v) else ("", "")
        delta = f'<span class="delta {kind}{sure}">{sign}{abs(d):.3f}{mark}{test}</span>'
    return (f'<span class="mean{" best" if star else ""}">{star}{number(v["mean"])}</span>{delta}'
            f'<span class="span">{number(v["low"])} to {number(v["high"])}</span>')


def results(data: Mapping) -> str:
    """Systems by metrics, as a table that stars the best (as shown, so ties too) and as intervals."""
    rows, metrics = data["table"], data["metrics"]
    if not rows or not metrics:
        return none("No system was evaluated in this run, so there are no results to show.")
    base = next((row["values"] for row in rows if row["system"] == "base"), {})
    tested = any("against_base" in v for row in rows for v in row["values"].values() if v)
    body, panels = [[escape(row["system"])] for row in rows], ""
    for i, m in enumerate(metrics):
        values = {row["system"]: v for row in rows if known(v := row["values"].get(m))}
        means = [round(v["mean"], 3) for v in values.values()]
        best = max(means) if len(set(means)) > 1 else math.nan
        for row, cells in zip(rows, body, strict=True):
            cells.append(result(row["values"].get(m), base.get(m) if row["system"] != "base" else None, best))
        name, meaning = shown(m)
        if drawing := compared(f"interval-{i}", name, values, tested):
            panels += figure(drawing, name, meaning)
    listed = table("Results by system", ["system", *("#" + shown(m)[0] for m in metrics)], body, "results")
    about, drawn = "", ("The same as intervals. The dashed line is base; every panel has a scale of its own. An interval speaks "
                        "of one system: two that overlap may still differ.")
    if tested:
        about = (f" An asterisk marks what chance hardly explains: p under {ALPHA} in a paired randomisation test against base, "
                 "corrected (Holm) for the number of systems.")
        drawn = ("Differences to base, question by question, with their 95 % bootstrap intervals. The dashed line is no "
                 "difference, a ring one that chance may explain; every panel has a scale of its own.")
    return ("<p>Mean over the held-out questions, the difference to base and the 95 % bootstrap interval. Higher is better; ★ "
            f'marks the best.{about}</p>{listed}<p>{drawn}</p><div class="grid">{panels}</div>')


def compared(id: str, name: str, values: Mapping[str, Mapping], tested: bool) -> str:
    """Systems' intervals of one metric or, where they were `tested`, of their differences to base."""
    if not values:
        return ""
    if not tested:
        rows = [(system, v["mean"], v["low"], v["high"]) for system, v in values.items()]
        return figures.interval_plot(id, f"{name} of every system", rows, x_title=f"{name} (0 to 1)",
                                     reference=values["base"]["mean"] if "base" in values else None)
    moved = {system: v["against_base"] for system, v in values.items() if "against_base" in v}
    rows = [(system, x["difference"], x["low"], x["high"]) for system, x in moved.items()]
    return figures.interval_plot(id, f"{name}, differences to base", rows, x_title=f"difference in {name}", reference=0.0,
                                 hollow={system for system in moved if not significant(values[system])}) if rows else ""


def judged(data: Mapping) -> str:
    """Win rates of the last stage's answers, and how far the judge is to be trusted."""
    judge = data["judge"]
    if not judge:
        return none("No judge compared answers in this run.")
    percent = lambda x: "–" if x is None else f"{100 * x:.0f} %"
    drawings, lists = "", ""
    for i, pair in enumerate(judge["pairs"]):
        name, rows = f"{pair['system']} against {pair['against']}", []
        rates = [(criterion, *(x["win_rate"][k] for k in ("mean", "low", "high")))
                 for criterion, x in pair["criteria"].items() if x["win_rate"]]
        drawing = figures.interval_plot(f"judge-{i}", f"Win rates of {name}", rates, x_title="win rate (0 to 1)",
                                        reference=0.5) if rates else ""
        drawings += figure(drawing, name, f"{pair['same']:,} of {pair['questions']:,} answers are the same")
        for criterion, x in pair["criteria"].items():
            numbers = [f"{x[k]:,}" for k in ("won", "lost", "tied", "inconsistent", "disqualified")]
            spread = [rate for rate in x["by_repeat"] if rate is not None]
            rows.append([escape(criterion), number((x["win_rate"] or {}).get("mean")), *numbers,
                         f"{number(min(spread))} to {number(max(spread))}" if spread else "–",
                         "–" if x["position_bias"] is None else number(x["position_bias"], 2), percent(x["agreement"])])
        heads = ["criterion", "#win rate", "#won", "#lost", "#tied", "#by place", "#disqualified", "#repeats", "#position bias",
                 "#both orders agree"]
        lists += table(f"Verdicts on {name}", heads, rows, "even")
    return (f"<p>{escape(judge['judge'])} compared answers in both orders, {judge['repeats']:,} times each: "
            f"{judge['verdicts']:,} verdicts. A win counts if both orders agree on it; a tie, equal answers and what the place "
            "decided are half a win. The bars are 95 % bootstrap intervals over questions, the dashed line is no preference. "
            "Position bias runs from −1 "
            f'(always the second) to 1 (always the first).</p><div class="grid">{drawings}</div>{lists}')
