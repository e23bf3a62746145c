"""The table of a sweep: a row for each run, as Parquet, Markdown and a page with plots.

Folds of a cross-validation are pooled. Runs that differ only in their seed are an arm: a difference
between two runs may come from their seeds, so arms are compared by the mean of each question over
the seeds that both arms have.
"""

import collections
import dataclasses
import fcntl
import json
import math
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ark_jax.evaluate.significance import bootstrap_interval, holm, sign_flip
from ark_jax.pipeline.recipe import Outcome, Pooled
from ark_jax.pipeline.tables import load_json
from ark_jax.report import svg
from ark_jax.report.page import Section, format_number, html, render
from ark_jax.report.results import (
    is_measured,
    is_significant,
    markdown_table,
    metric_heading,
    results,
    tested_p,
)
from ark_jax.runtime.log import duration, read_rows


def save_pooled(pooled: Pooled | None, folder: Path) -> None:
    """Writes questions.parquet and metrics.json, as a run does in its folder `evaluate`.

    None deletes the folder.
    """
    if pooled is None:
        shutil.rmtree(folder, ignore_errors=True)
        return
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(pooled.rows), folder / "questions.parquet")
    table = {"metrics": pooled.metrics, "table": pooled.table}
    (folder / "metrics.json").write_text(json.dumps(table), encoding="utf-8")


def pooled_parts(pooled: Pooled) -> tuple[str, Section]:
    """The table of systems by metrics, as Markdown and as a section of a page."""
    questions = len({row["question"] for row in pooled.rows})
    runs = len({row["run"] for row in pooled.rows})
    caption = [
        f"All {questions:,} questions of {runs} folds, each measured by models that were not "
        "trained on it, with 95 % bootstrap intervals over questions.",
        *pooled.notes,
    ]
    lines = [["system", *map(metric_heading, pooled.metrics)]]
    for row in pooled.table:
        lines.append([row["system"], *(_pooled_cell(row["values"].get(m)) for m in pooled.metrics)])
    table = markdown_table(lines)
    marks = "\\* differs from base." if "\\*" in table else ""
    shown = results(pooled.table, pooled.metrics)
    section = dataclasses.replace(shown, title="All folds", body=[*shown.body, *caption])
    return "\n\n".join(filter(None, [table, marks, *caption])), section


def _pooled_cell(value: Mapping | None) -> str:
    """Mean and interval, with a star if the difference to base is significant."""
    if not is_measured(value):
        return "–"
    mean, low, high = (format_number(value[name]) for name in ("mean", "low", "high"))
    mark = " \\*" if is_significant(value) else ""
    return f"{mean} [{low}, {high}]{mark}"


BASE = "base"
SEED = "seed"  # the field that runs of an arm differ in


def compare_arms(runs: Mapping[str, tuple[Mapping, Outcome]], metrics: Sequence[str]) -> list[dict]:
    """A row for each arm: `arm`, `seeds`, and `values` by metric.

    All but base have `against_base`. There are no rows unless base has several seeds. An arm has no
    values if it shares no seed with base, or has other questions.

    Args:
        runs: name -> changes of the config, and outcome.
    """
    arms: dict[str, dict[object, Outcome]] = {}
    names: dict[str, str] = {}
    for run, (changes, outcome) in runs.items():
        key = json.dumps({name: x for name, x in changes.items() if name != SEED}, sort_keys=True)
        arm = names.setdefault(key, run)
        arms.setdefault(arm, {})[changes.get(SEED)] = outcome
    if len(arms.get(BASE, {})) < 2 or len(arms) < 2:
        return []
    rows = [
        {"arm": arm, "seeds": len(by_seed), "values": _arm_values(by_seed, arms[BASE], metrics)}
        for arm, by_seed in arms.items()
    ]
    for metric in metrics:
        compared = [row["values"][metric] for row in rows[1:] if metric in row["values"]]
        corrected = holm([value["against_base"]["p"] for value in compared])
        for value, p in zip(compared, corrected, strict=True):
            value["against_base"]["p_holm"] = float(p)
    return rows


def _arm_values(
    arm: Mapping[object, Outcome], base: Mapping[object, Outcome], metrics: Sequence[str]
) -> dict[str, dict]:
    """metric -> mean and interval of an arm, and its test against base."""
    seeds = [seed for seed in base if seed in arm]
    values = {}
    for metric in metrics:
        of_arm, of_base = (
            [outcomes[seed].by_question.get(metric, {}) for seed in seeds]
            for outcomes in (arm, base)
        )
        questions = list(of_base[0]) if seeds else []
        if not questions or any(set(x) != set(questions) for x in (*of_arm, *of_base)):
            continue
        arm_means, base_means = (
            np.array([[by_question[q] for q in questions] for by_question in outcomes]).mean(0)
            for outcomes in (of_arm, of_base)
        )
        seed = base[seeds[0]].seed
        values[metric] = bootstrap_interval(arm_means, seed=seed)
        if arm is not base:
            difference = bootstrap_interval(arm_means - base_means, seed=seed)
            (p,) = sign_flip((arm_means - base_means)[:, None], seed=seed)
            difference["difference"] = difference.pop("mean")
            values[metric]["against_base"] = difference | {"p": float(p)}
    return values


def arms_cells(rows: Sequence[dict], names: Mapping[str, str]) -> list[list[str]]:
    """The lines of a table of arms, its head first.

    Args:
        names: metric -> heading.
    """
    head = ["arm", "seeds", *names.values()]
    return [
        head,
        *(
            [row["arm"], str(row["seeds"]), *(_arm_cell(row["values"].get(m)) for m in names)]
            for row in rows
        ),
    ]


def _arm_cell(value: Mapping | None) -> str:
    """Mean, difference to base, its interval and p, as far as there are any."""
    if value is None:
        return "–"
    mean, against = format_number(value["mean"]), value.get("against_base")
    if against is None:
        return mean
    difference, low, high = (format_number(against[name]) for name in ("difference", "low", "high"))
    sign = "+" if against["difference"] > 0 else ""
    return f"{mean}: {sign}{difference} [{low}, {high}], {tested_p(against)}"


WORDS = "bm25"  # a system that needs no training
TEXTS = ("run", "state", "changes", "error", "system", "metric")
ARMS_NOTE = (
    "Runs that differ in their seed alone are one arm: means over seeds, the difference to base of "
    "each question's mean with its 95 % bootstrap interval, and p of a paired randomisation test, "
    "two-sided, Holm-corrected over arms."
)
NUMBERS = ("mean", "low", "high", "difference", "difference_low", "difference_high")


@dataclasses.dataclass(frozen=True)
class SweepRun:
    """A run of a sweep: its changes of the config, its workdir and its log."""

    name: str
    changes: dict
    workdir: Path
    log: Path

    @property
    def result_file(self) -> Path:
        """The file with `{"error", "seconds", "fields"}` of a run that has ended.

        `error` is empty if the run is done; `fields` are the flags that all runs were given.
        """
        return self.workdir / "outcome.json"


@dataclasses.dataclass(frozen=True)
class Comparison:
    """How the runs are compared.

    Attributes:
        metric: the metric that the table is sorted by.
        names: metric -> heading.
        read: reads the outcome of a finished workdir.
        pool: pools the results of finished workdirs, if the runs are folds. Folds have different
            questions, so none is compared with another.
    """

    metric: str
    names: Mapping[str, str]
    read: Callable[[Path], Outcome]
    pool: Callable[[Sequence[Path]], Pooled] | None = None

    @property
    def title(self) -> str:
        return self.names[self.metric]

    @property
    def other_metrics(self) -> list[str]:
        return [name for name in self.names if name != self.metric]

    @property
    def schema(self) -> pa.Schema:
        """The columns of results.parquet.

        Raises:
            ValueError: a metric has the name of another column.
        """
        numbers = (*NUMBERS, *self.names, "seconds")
        if taken := {*TEXTS, *NUMBERS, "seconds"} & {*self.names}:
            raise ValueError(f"metric {min(taken)!r}: a sweep's table has such a column; rename it")
        texts = [(name, pa.string()) for name in TEXTS]
        return pa.schema([*texts, *((name, pa.float64()) for name in numbers)])


def write_results(
    title: str, runs: Sequence[SweepRun], folder: Path, comparison: Comparison
) -> list[dict]:
    """Writes `results.parquet`, `.md` and `.html` of the runs so far, and returns their rows."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".results.lock").open("w") as lock:
        # Tasks of an array may end together: the last one writes the rows of all.
        fcntl.flock(lock, fcntl.LOCK_EX)
        rows = collect_rows(runs, comparison)
        table = pa.Table.from_pylist(rows, schema=comparison.schema)
        pq.write_table(table, folder / "results.parquet.new")
        os.replace(folder / "results.parquet.new", folder / "results.parquet")
        done = [row for row in rows if row["state"] == "done"]
        failed = [
            f"{row['run']} {row['state']}: {row['error'] or 'run again to go on'}"
            for row in rows
            if row not in done
        ]
        pooled, problem = _pool_folds(runs, len(done) == len(rows), comparison)
        failed += [problem] if problem else []
        if comparison.pool:
            save_pooled(pooled, folder / "pooled")
        measured = done if comparison.pool else [*done, *_untrained_rows(runs[0], comparison)]
        cells, caption = _table_lines(measured, comparison), _caption(runs, comparison)
        above, shown = "", []
        if pooled:
            above, *shown = pooled_parts(pooled)
        elif not comparison.pool:
            above, shown = _arms_parts(runs, done, comparison)
        write_text(folder / "results.md", as_markdown(title, cells, failed, caption, above))
        linked = [cells[0], *([_link(line[0], folder), *line[1:]] for line in cells[1:])]
        figures = interval_figures(measured, comparison.title)
        verdict = [] if comparison.pool else _verdict(done, comparison.title)
        page = as_html(title, linked, failed, caption, figures, shown, verdict)
        write_text(folder / "results.html", page)
    return rows


def _verdict(rows: Sequence[dict], heading: str) -> list[str]:
    """The best run, and whether its difference to base may be chance; no sentence without means."""
    best = rows[0] if rows and _has_mean(rows[0]) else None
    if best is None:
        return []
    head = f"{best['run']} has the highest {heading} of {len(rows)} runs, {best['mean']:.3f}"
    if best["difference_low"] is None:
        return [f"{head}."]
    interval = f"[{best['difference_low']:.3f}, {best['difference_high']:.3f}]"
    doubt = ", which chance may explain" * (best["difference_low"] <= 0)
    return [f"{head}: {best['difference']:+.3f} {interval} against base{doubt}."]


def _link(run: str, folder: Path) -> str:
    address = f"runs/{run}/report.html"
    return html.link(address, run) if (folder / address).is_file() else run


def _untrained_rows(run: SweepRun, comparison: Comparison) -> list[dict]:
    """Rows of what the first run measured without training: the untouched model, and BM25."""
    path = run.workdir / "evaluate" / "metrics.json"
    rows = []
    for i, measured in enumerate(load_json(path)["table"][:-1] if path.is_file() else ()):
        if i == 0 or measured["system"] == WORDS:
            outcome = Outcome(measured["system"], measured["values"])
            row = dict.fromkeys(comparison.schema.names) | _outcome_columns(outcome, comparison)
            rows.append(row | {"run": "untouched model" if i == 0 else WORDS, "changes": "{}"})
    return rows


def _table_lines(rows: Sequence[dict], comparison: Comparison) -> list[list[str]]:
    """The cells of finished runs, the head first; of folds without differences to base."""
    further = [x for x in comparison.other_metrics if any(row[x] is not None for row in rows)]
    other_names = [comparison.names[name] for name in further]
    head = ["run", comparison.title, "difference to base", "changes", *other_names, "time"]
    lines = [head, *(_run_cells(row, further) for row in rows)]
    return [[*line[:2], *line[3:]] for line in lines] if comparison.pool else lines


def _caption(runs: Sequence[SweepRun], comparison: Comparison) -> str:
    counts = stage_counts(runs).items()
    times = ", ".join(f"{stage} {count}" for stage, count in counts) or "never"
    return (
        f"{comparison.title} of the last stage with 95 % bootstrap intervals over questions, "
        "best first; base is the run without changes, and systems that nothing trained come last. "
        f"How often a stage was run for all {len(runs)} runs: {times}."
    )


def _arms_parts(
    runs: Sequence[SweepRun], done: Sequence[dict], comparison: Comparison
) -> tuple[str, list[Section]]:
    """The arms as Markdown and as sections of a page; both empty if base has only one seed."""
    ended = {row["run"] for row in done}
    outcomes = {
        run.name: (run.changes, comparison.read(run.workdir)) for run in runs if run.name in ended
    }
    rows = compare_arms(outcomes, list(comparison.names))
    if not rows:
        return "", []
    names = comparison.names.items()
    measured = {name: x for name, x in names if any(name in row["values"] for row in rows)}
    lines = arms_cells(rows, measured)
    table = html.table("Arms over seeds", lines[0], lines[1:])
    section = Section("Arms over seeds", "arms", [table, ARMS_NOTE])
    return f"{markdown_table(lines)}\n\n{ARMS_NOTE}", [section]


def _pool_folds(
    runs: Sequence[SweepRun], all_done: bool, comparison: Comparison
) -> tuple[Pooled | None, str]:
    """The pooled results of folds; None with the reason if they cannot be pooled yet."""
    if not comparison.pool:
        return None, ""
    if not all_done:
        return None, "the folds are pooled when all are done"
    try:
        return comparison.pool([run.workdir for run in runs]), ""
    except ValueError as error:
        return None, f"the folds cannot be pooled: {error}"


def write_text(path: Path, text: str) -> None:
    """Writes a file atomically."""
    path.with_suffix(".new").write_text(text, encoding="utf-8")
    os.replace(path.with_suffix(".new"), path)


def collect_rows(runs: Sequence[SweepRun], comparison: Comparison) -> list[dict]:
    """A row for each run, best first; runs without a result come last.

    The system of a row is the one that was tuned last. `difference` is that to the first run, base.
    """
    ended = {run.name: _read_result(run) for run in runs}
    fields = (ended[runs[0].name] or {}).get("fields")
    rows, base = [], None
    for run in runs:
        result = ended[run.name]
        state, error = _run_state(result, fields, runs[0].name)
        row = dict.fromkeys(comparison.schema.names) | {
            "run": run.name,
            "state": state,
            "error": error,
            "seconds": (result or {}).get("seconds"),
            "changes": json.dumps(run.changes),
            "metric": comparison.metric,
        }
        if state == "done":
            outcome = comparison.read(run.workdir)
            row |= _outcome_columns(outcome, comparison)
            if run is runs[0]:
                base = None if comparison.pool else outcome
            elif base:
                row |= compare_runs(base, outcome, comparison.metric)
        rows.append(row)
    return sorted(rows, key=_sort_key)


def _read_result(run: SweepRun) -> dict | None:
    if not run.result_file.is_file():
        return None
    return json.loads(run.result_file.read_text(encoding="utf-8"))


def _run_state(result: dict | None, flags: list | None, first: str) -> tuple[str, str]:
    """A run's state, and the error, if there is one.

    Args:
        result: content of the run's result file; None if it has not ended.
        flags: flags of the first run; a run with others cannot be compared.
        first: name of the first run.
    """
    if result is None:
        return "unfinished", ""
    if result["error"]:
        return "failed", result["error"]
    stored = result.get("fields", flags)
    if flags is None or stored == flags:
        return "done", ""
    error = (
        f"made with {' '.join(stored) or 'no fields'}, {first} with {' '.join(flags) or 'none'}; "
        "run it again"
    )
    return "stale", error


def _outcome_columns(outcome: Outcome, comparison: Comparison) -> dict:
    """The columns that come from a run's outcome: system, interval, and mean of each metric."""
    means = {
        name: value["mean"] for name, value in outcome.values.items() if name in comparison.names
    }
    sorted_by = outcome.values.get(comparison.metric, {})
    interval = {name: sorted_by[name] for name in ("mean", "low", "high") if name in sorted_by}
    return {"system": outcome.system, **interval, **means}


def _has_mean(row: dict) -> bool:
    return row["mean"] is not None and math.isfinite(row["mean"])


def _sort_key(row: dict) -> tuple:
    return row["state"] != "done", not _has_mean(row), -row["mean"] if _has_mean(row) else 0.0


def compare_runs(base: Outcome, outcome: Outcome, metric: str) -> dict[str, float]:
    """The difference of a run to the base.

    The interval is over questions, so there is none if the runs have different questions.
    """
    values, base_values = (x.by_question.get(metric, {}) for x in (outcome, base))
    if not values or not base_values:
        means = [x.values.get(metric, {}).get("mean") for x in (outcome, base)]
        return {} if None in means else {"difference": means[0] - means[1]}
    if values.keys() != base_values.keys():
        mean = lambda numbers: sum(numbers.values()) / len(numbers)
        return {"difference": mean(values) - mean(base_values)}
    differences = [values[question] - base_values[question] for question in base_values]
    interval = bootstrap_interval(differences, seed=outcome.seed)
    return {
        "difference": interval["mean"],
        "difference_low": interval["low"],
        "difference_high": interval["high"],
    }


def stage_counts(runs: Sequence[SweepRun]) -> collections.Counter:
    """stage -> number of runs that computed it, not took it from another run; earliest first."""
    logs = (read_rows(run.workdir / "metrics.jsonl") for run in runs)
    rows = [row for log in logs for row in log if "seconds" in row]
    return collections.Counter(row["stage"] for row in sorted(rows, key=lambda row: row["time"]))


def _run_cells(row: dict, further: Sequence[str]) -> list[str]:
    """The cells of a finished run: name, metric, difference, changes, other metrics, time."""
    interval = lambda low, high: (
        "" if low is None else f" [{format_number(low)}, {format_number(high)}]"
    )
    sign = "+" if (row["difference"] or 0) > 0 else ""
    difference_interval = interval(row["difference_low"], row["difference_high"])
    changes = json.loads(row["changes"]).items()
    return [
        row["run"],
        format_number(row["mean"]) + interval(row["low"], row["high"]),
        sign + format_number(row["difference"]) + difference_interval,
        ", ".join(f"{field}={value}" for field, value in changes),
        *(format_number(row[name]) for name in further),
        "–" if row["seconds"] is None else duration(row["seconds"]),
    ]


def as_markdown(
    title: str, table: Sequence[Sequence[str]], failed: Sequence[str], caption: str, above: str = ""
) -> str:
    """The table of runs as Markdown.

    Args:
        table: its lines, the head first.
        failed: a line for each run that is not done.
        above: Markdown to put before the table.
    """
    failures = [*(f"- {line}" for line in failed), *([""] if failed else [])]
    heads = [f"# {title}", *(["", above, "", "## Runs"] if above else [])]
    return "\n".join([*heads, "", markdown_table(table), "", *failures, caption, ""])


def interval_figures(measured: Sequence[dict], title: str) -> str:
    """Plots of means, and of the paired differences to base, as HTML; empty without any."""
    base = next((row["mean"] for row in measured if row["run"] == "base"), None)
    figures = []
    for head, columns, line, note in (
        (title, ("mean", "low", "high"), base, "means"),
        (f"{title}, difference to base", NUMBERS[3:], 0.0, "paired differences of questions"),
    ):
        shown = [(row["run"], *(row[name] for name in columns)) for row in measured]
        if not (rows := [row for row in shown if None not in row and math.isfinite(row[1])]):
            continue
        drawing = svg.interval_plot(
            f"runs-{columns[0]}", f"{head} of every run", rows, x_title=head, reference=line
        )
        dashed = "" if base is None else "; the dashed line is base"
        figures.append(html.figure(drawing, head, f"{note}, with 95 % intervals{dashed}"))
    return html.grid(figures) if figures else ""


def as_html(
    title: str,
    table: Sequence[Sequence[str]],
    failed: Sequence[str],
    caption: str,
    figures: str,
    above: Sequence[Section] = (),
    verdict: Sequence[str] = (),
) -> str:
    """The same table as an HTML page, under its figures; `above` are sections before it."""
    heads, *lines = table
    numeric = [
        i > 0 and all(line[i][:1] in "–−+0123456789" for line in lines) for i in range(len(heads))
    ]
    marked = ["#" * number + head for head, number in zip(heads, numeric, strict=True)]
    body = [figures, html.table(title, marked, lines), *failed, caption]
    return render(title, verdict, [*above, Section("Runs", "runs", list(filter(None, body)))])
