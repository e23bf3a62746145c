"""The report's results: systems by metrics, tests against base, a judge's verdicts."""

import math
from collections.abc import Mapping, Sequence

from ark_jax.report import svg
from ark_jax.report.page import Section, format_number, html

ALPHA = 0.05  # p-values below it count as significant
METRIC_DEFINITIONS = {  # name -> its heading, and its definition in a few words
    "recall": ("recall", "share of the needed passages in the first {k}"),
    "precision": ("precision", "share of the first {k} that is relevant"),
    "hit": ("hit rate", "whether any of the first {k} is relevant"),
    "ndcg": ("nDCG", "how high the needed passages rank in the first {k}"),
    "mrr": ("MRR", "one over the rank of the first needed passage"),
    "map": ("MAP", "mean precision at the ranks of the needed passages"),
    "answer_f1": ("answer F1", "overlap of words between answer and reference"),
    "exact_match": (
        "exact match",
        "whether the answer equals a reference, ignoring case, punctuation and articles",
    ),
    "answer_accuracy": ("accuracy", "share of the answers that the reply names"),
    "list_precision": ("list precision", "share of the reply's items that are right"),
    "list_recall": ("list recall", "share of the answers that an item of the reply names"),
    "list_f1": ("list F1", "harmonic mean of list precision and list recall"),
    "any_hit": ("Hit", "whether the reply names any answer"),
    "first_hit": ("Hit@1", "whether the first item of the reply is right"),
    "answer_triple": ("answer triple", "whether one of the first {k} triples bears an answer"),
    "answer_recall": ("answer recall", "share of the answers that are in the first {k} triples"),
    "path_hit": ("path hit", "whether one of the first {k} paths is a shortest path to an answer"),
    "detour": ("detour", "whether the first {k} paths hit an answer, none of them a path hit"),
    "wrong": ("error", "whether the first path reaches no answer"),
    "shortcut": ("shortcut error", "an error by a path that looks like the question"),
    "long_tail": ("long-tail error", "an error where the path asked for is rare in training"),
    "union": ("either error", "an error of either kind"),
    "f1": ("F1", "entities that the first path reaches against the answers"),
    "answer_coverage": ("answer coverage", "share of the answers that the paths found reach"),
    "p": ("answer probability", "probability that the reader gives a reference answer"),
    "rouge_l": ("ROUGE-L", "longest common subsequence of words between answer and reference"),
    "answer_likelihood": (
        "answer likelihood",
        "mean log-probability of a token of the reference as the reader's reply, in nats",
    ),
    **{
        f"judge_{criterion}": (f"{criterion} (judge)", "wins against the reference, ties as half")
        for criterion in ("faithfulness", "conciseness", "overall")
    },
}
VERDICT_HEADS = (
    "criterion",
    "#win rate",
    "#won",
    "#lost",
    "#tied",
    "#decided by position",
    "#disqualified",
    "#range over repeats",
    "#position bias",
    "#both orders agree",
)


def is_measured(value: Mapping | None) -> bool:
    """Whether a value of the table has a mean and an interval."""
    return value is not None and all(
        value[name] is not None and math.isfinite(value[name]) for name in ("mean", "low", "high")
    )


def describe_metric(metric: str) -> tuple[str, str]:
    """A metric's heading and definition: `ndcg@10` -> `nDCG@10`, `how high the ...`."""
    name, at_sign, k = metric.partition("@")
    heading, definition = METRIC_DEFINITIONS.get(name, (name.replace("_", " "), ""))
    return heading + at_sign + k, definition.format(k=k or "places")


def metric_heading(metric: str) -> str:
    """A metric's heading: `ndcg@10` -> `nDCG@10`."""
    return describe_metric(metric)[0]


def is_significant(value: Mapping | None) -> bool:
    """Whether a value was tested against the base and differs significantly.

    A gain of a hybrid does not count if it is worse than the part that it was tested against.
    """
    if not value or "against_base" not in value or value["against_base"]["p_holm"] >= ALPHA:
        return False
    gains = value["against_base"]["difference"] > 0
    return not (gains and "against_part" in value and value["against_part"]["difference"] < 0)


def describe_difference(metric: str, tested: Mapping) -> str:
    """A tested difference in words: `nDCG@10 +0.049 (p = 0.012)`."""
    p = tested["p_holm"]
    p_text = "p < 0.001" if p < 0.001 else f"p = {p:.2g}"
    return f"{metric_heading(metric)} {tested['difference']:+.3f} ({p_text})"


def against_parts(rows: Sequence[Mapping], metrics: Sequence[str]) -> list[str]:
    """A line for each hybrid, with its differences to the part that it was tested against."""
    lines = []
    for row in rows:
        values = {metric: row["values"].get(metric) or {} for metric in metrics}
        tested = {
            m: value["against_part"] for m, value in values.items() if "against_part" in value
        }
        if tested:
            part = next(iter(tested.values()))["part"]
            moves = ", ".join(describe_difference(m, tested[m]) for m in tested)
            lines.append(f"{row['system']} against {part}: {moves}")
    return lines


def markdown_table(lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table, whose head is the first line."""
    rule = ["---"] * len(lines[0])
    return "\n".join("| " + " | ".join(line) + " |" for line in (lines[0], rule, *lines[1:]))


def result_table(
    name: str,
    rows: Sequence[Mapping],
    metrics: Sequence[str],
    base: str,
    *,
    head: str = "system",
    starred: bool = False,
) -> str:
    """An HTML table of systems by metrics: means, tested differences to base, and intervals.

    Args:
        name: caption of the table.
        base: the system that the others are compared with; see `_base_of`.
        head: heading of the first column.
        starred: marks the best of each metric; means that are equal as shown are all marked.
    """
    body = [[row["system"]] for row in rows]
    for metric in metrics:
        values = {row["system"]: row["values"].get(metric) for row in rows}
        means = {round(value["mean"], 3) for value in values.values() if is_measured(value)}
        best = max(means) if starred and len(means) > 1 else math.nan
        compared = _base_of(values, base)
        for cells, (system, value) in zip(body, values.items(), strict=True):
            difference = values.get(compared) if system != compared else None
            cells.append(_value_cell(value, difference, best) if is_measured(value) else "–")
    heads = [head, *(f"#{metric_heading(metric)}" for metric in metrics)]
    return html.table(name, heads, body, "results")


def _base_of(values: Mapping[str, Mapping | None], base: str) -> str:
    """What a metric's values are compared with: the base, or if it has none, the first with one."""
    if base not in values or is_measured(values[base]):
        return base
    return next((system for system, value in values.items() if is_measured(value)), base)


def _value_cell(value: Mapping, base: Mapping | None, best: float) -> str:
    interval = f"{format_number(value['low'])} to {format_number(value['high'])}"
    difference = _difference_parts(value, base) if is_measured(base) else None
    is_best = round(value["mean"], 3) == best
    return html.measure(format_number(value["mean"]), interval, is_best, difference)


def _difference_parts(value: Mapping, base: Mapping) -> tuple[str, str, str]:
    """CSS class, text and p-value (or "") of the difference of the means to base."""
    difference = round(value["mean"] - base["mean"], 3)
    kind, sign = "same", "±"
    if difference:
        kind, sign = ("up", "+") if difference > 0 else ("down", "−")
    css, mark = (f"{kind} sure", "*") if is_significant(value) else (kind, "")
    return css, f"{sign}{abs(difference):.3f}{mark}", tested_p(value.get("against_base"))


def tested_p(tested: Mapping | None) -> str:
    """`p = 0.012` or `p < 0.001`; empty without a test."""
    if not tested:
        return ""
    p = tested["p_holm"]
    return "p < 0.001" if p < 0.001 else f"p = {format_number(p)}"


def results(
    table: Sequence[Mapping],
    metrics: Sequence[str],
    base: str = "base",
    questions: str = "the held-out questions",
    headline: str = "ndcg@10",
) -> Section:
    """A chart of all systems, a table of systems by metrics, and a plot of each metric.

    Args:
        base: the system that the others are compared with.
        questions: the questions that means are over, in words.
        headline: the metric of the chart; the first one if it is not measured.
    """
    if not table or not metrics:
        empty = "No system was evaluated in this run, so there are no results to show."
        return Section("Results", "results", [], empty)
    is_tested = any("against_base" in v for row in table for v in row["values"].values() if v)
    headline = headline if headline in metrics else metrics[0]
    above: list[str] = []
    below: list[str] = []
    for i, metric in enumerate(metrics):
        panels = above if metric == headline else below
        heading, definition = describe_metric(metric)
        values = {row["system"]: row["values"].get(metric) for row in table}
        measured = {system: value for system, value in values.items() if is_measured(value)}
        compared = _base_of(values, base)
        if (metric == headline or not is_tested) and measured:
            drawing = _mean_plot(f"mean-{i}", heading, measured, compared)
            panels.append(html.figure(drawing, heading, definition))
        if drawing := _difference_plot(f"interval-{i}", heading, measured, compared):
            title = f"{heading}, differences to {compared}"
            panels.append(html.figure(drawing, title, definition))
    mark = ""
    about_plots = (
        f"The dashed line is {base}; each panel has its own scale. Each interval belongs to one "
        "system, so two that overlap may still differ."
    )
    if is_tested:
        mark = (
            f" An asterisk marks a significant difference: p below {ALPHA} in a paired "
            f"randomisation test against {base}, Holm-corrected for the number of systems."
        )
        about_plots = (
            "Differences are of questions; the dashed line is no difference, and a ring is a "
            "difference that chance may explain. Each panel has its own scale."
        )
    body = [
        html.grid(above),
        f"Means over {questions}, differences to {base}, and 95 % bootstrap intervals. Higher is "
        f"better; ★ marks the best system.{mark}",
        result_table("Results by system", table, metrics, base, starred=True),
        *(f"{line}." for line in against_parts(table, metrics)),
        about_plots,
        html.grid(below),
    ]
    return Section("Results", "results", body)


def _mean_plot(id: str, heading: str, values: Mapping[str, Mapping], base: str) -> str:
    """A plot of every system's mean."""
    is_share = all(v["low"] >= 0 for v in values.values())
    return svg.interval_plot(
        id,
        f"{heading} of every system",
        [(system, v["mean"], v["low"], v["high"]) for system, v in values.items()],
        x_title=f"{heading} (0 to 1)" if is_share else heading,
        reference=values[base]["mean"] if base in values else None,
    )


def _difference_plot(id: str, heading: str, values: Mapping[str, Mapping], base: str) -> str:
    """A plot of the tested differences to base; empty without any."""
    tests = {system: v["against_base"] for system, v in values.items() if "against_base" in v}
    if not tests:
        return ""
    return svg.interval_plot(
        id,
        f"{heading}, differences to {base}",
        [(system, x["difference"], x["low"], x["high"]) for system, x in tests.items()],
        x_title=f"difference in {heading}",
        reference=0.0,
        hollow={system for system in tests if not is_significant(values[system])},
    )


def by_group(
    groups: Mapping[str, Sequence[Mapping]],
    metrics: Sequence[str],
    title: str = "By group",
    anchor: str = "groups",
) -> Section:
    """A table for each group of questions; systems are compared with the first one."""
    tables = [
        result_table(f"Results of {name}", rows, metrics, rows[0]["system"])
        for name, rows in groups.items()
    ]
    return Section(title, anchor, tables, "The test questions form one group.")


def by_test_set(evaluated: Mapping, metrics: Sequence[str]) -> list[Section]:
    """A section with a table for each of several test sets; none for one test set.

    Args:
        evaluated: the content of metrics.json.
    """
    tables = evaluated.get("groups")
    return [by_group(tables, metrics, "By test set", "sets")] if tables else []


def judge_verdicts(judge: Mapping) -> Section:
    """The judge's win rates for pairs of systems, and how reliable the judge is."""
    if not judge:
        return Section("The judge", "judge", [], "No judge compared answers in this run.")
    drawings, tables = [], []
    for i, pair in enumerate(judge["pairs"]):
        name = f"{pair['system']} against {pair['against']}"
        caption = f"{pair['same']:,} of {pair['questions']:,} answers are the same"
        drawing = _win_rate_plot(f"judge-{i}", name, pair["criteria"])
        drawings.append(html.figure(drawing, name, caption))
        rows = [_verdict_row(criterion, x) for criterion, x in pair["criteria"].items()]
        tables.append(html.table(f"Verdicts on {name}", VERDICT_HEADS, rows, "even"))
    intro = (
        f"{judge['judge']} compared the answers in both orders, {judge['repeats']:,} "
        f"times each: {judge['verdicts']:,} verdicts. An answer wins if both orders prefer it. A "
        "tie, two equal answers, and a verdict that changes with the order count as half a win. "
        "The bars are 95 % bootstrap intervals over the questions; the dashed line is no "
        "preference. "
        "Position bias runs from −1 (always the second answer) to 1 (always the first)."
    )
    return Section("The judge", "judge", [intro, html.grid(drawings), *tables])


def _win_rate_plot(id: str, name: str, criteria: Mapping[str, Mapping]) -> str:
    """A plot of win rates by criterion; empty if none was judged."""
    intervals = [
        (criterion, *(x["win_rate"][k] for k in ("mean", "low", "high")))
        for criterion, x in criteria.items()
        if x["win_rate"]
    ]
    if not intervals:
        return ""
    return svg.interval_plot(
        id, f"Win rates of {name}", intervals, x_title="win rate (0 to 1)", reference=0.5
    )


def _verdict_row(criterion: str, verdicts: Mapping) -> list[str]:
    names = ("won", "lost", "tied", "inconsistent", "disqualified")
    rates = [rate for rate in verdicts["by_repeat"] if rate is not None]
    rate_range = f"{format_number(min(rates))} to {format_number(max(rates))}" if rates else "–"
    agreement = verdicts["agreement"]
    return [
        criterion,
        format_number((verdicts["win_rate"] or {}).get("mean")),
        *(f"{verdicts[name]:,}" for name in names),
        rate_range,
        format_number(verdicts["position_bias"], 2),
        "–" if agreement is None else f"{100 * agreement:.0f} %",
    ]
