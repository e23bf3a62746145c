"""Runs side by side: a row for each, as Parquet, Markdown and a page with a plot."""

import collections
import dataclasses
import fcntl
import importlib.resources
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ark_jax.evaluate import figures, page, retrieval
from ark_jax.log import duration, read_rows
from ark_jax.pipeline import read_manifest
from ark_jax.stages.outcome import METRICS, NAMES

SCHEMA = pa.schema([*((name, pa.string()) for name in ("run", "state", "changes", "error", "system", "metric")),
                    *((name, pa.float64()) for name in ("mean", "low", "high", "difference", "difference_low",
                                                        "difference_high", *METRICS, "seconds"))])


@dataclasses.dataclass(frozen=True)
class Run:
    """A workdir of `ark-jax run` under some changes of the config."""

    name: str
    changes: dict
    workdir: Path
    log: Path

    @property
    def outcome(self) -> Path:
        """{"error": "" if it is done, "seconds": ..., "fields": what was given for all runs}; none while it is under way."""
        return self.workdir / "outcome.json"


def report(title: str, runs: Sequence[Run], folder: Path, metric: str) -> list[dict]:
    """Writes the results of all runs, of whichever are there, and returns them."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".results.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tasks of an array may end together: the last one writes what all have done
        rows = results(runs, metric)
        pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), folder / "results.parquet.new")
        os.replace(folder / "results.parquet.new", folder / "results.parquet")
        done = [row for row in rows if row["state"] == "done"]
        table = [["run", NAMES[metric], "difference to base", "changes", *(NAMES[m] for m in METRICS if m != metric), "time"],
                 *map(cells, done)]
        failed = [f"{row['run']} {row['state']}: {row['error'] or 'run again to go on'}" for row in rows if row not in done]
        times = ", ".join(f"{stage} {n}" for stage, n in times_made(runs).items()) or "never"
        told = (f"{NAMES[metric]} of the last stage with 95 % bootstrap intervals over questions, best first. "
                f"How often a stage was run for all {len(runs)} runs: {times}.")
        write(folder / "results.md", as_markdown(title, table, failed, told))
        write(folder / "results.html", as_html(title, table, failed, told, plot(done, metric)))
    return rows


def write(path: Path, text: str) -> None:
    """Whole or not at all."""
    path.with_suffix(".new").write_text(text, encoding="utf-8")
    os.replace(path.with_suffix(".new"), path)


def results(runs: Sequence[Run], metric: str) -> list[dict]:
    """A row of SCHEMA for each run, best first, those without a result last. The system is the retriever after its last
    stage; `difference` is that to the first run, the base."""
    rows, base = [], None
    outcomes = {run.name: json.loads(run.outcome.read_text(encoding="utf-8")) for run in runs if run.outcome.is_file()}
    given = outcomes.get(runs[0].name, {}).get("fields")
    for run in runs:
        outcome = outcomes.get(run.name)
        state = "unfinished" if outcome is None else "failed" if outcome["error"] else "done"
        if state == "done" and given is not None and outcome.get("fields", given) != given:
            state, outcome = "stale", {"error": f"made with {' '.join(outcome['fields']) or 'no fields'}, {runs[0].name} with "
                                                f"{' '.join(given) or 'none'}; run it again"}
        row = dict.fromkeys(SCHEMA.names) | (outcome or {"error": ""}) | {
            "run": run.name, "state": state, "changes": json.dumps(run.changes), "metric": metric}
        if state == "done":
            last = json.loads((run.workdir / "evaluate" / "metrics.json").read_text(encoding="utf-8"))["table"][-1]
            row |= {"system": last["system"], **last["values"].get(metric, {}),
                    **{m: v["mean"] for m, v in last["values"].items() if m in METRICS}}
            table = pq.read_table(run.workdir / "evaluate" / "questions.parquet", columns=["system", "question", metric])
            found = {r["question"]: r[metric] for r in table.to_pylist()
                     if r["system"] == last["system"] and r[metric] is not None}
            if run is runs[0]:
                base = found
            elif base and found:
                row |= difference(found, base, read_manifest(run.workdir / "evaluate")["config"])
        rows.append(row)
    known = lambda row: row["mean"] is not None and math.isfinite(row["mean"])
    return sorted(rows, key=lambda row: (row["state"] != "done", not known(row), -row["mean"] if known(row) else 0.0))


def difference(ours: dict[str, float], base: dict[str, float], settings: dict) -> dict[str, float]:
    """To the base; the interval is of differences question by question, so there is none if they were asked others."""
    mean = lambda of: sum(of.values()) / len(of)
    if ours.keys() != base.keys():
        return {"difference": mean(ours) - mean(base)}
    found = retrieval.interval([ours[q] - base[q] for q in base], draws=settings["evaluate.bootstrap"], seed=settings["seed"])
    return {"difference": found["mean"], "difference_low": found["low"], "difference_high": found["high"]}


def times_made(runs: Sequence[Run]) -> collections.Counter:
    """stage -> how often any of the runs had to run it, rather than take it from another; in the order of the first times."""
    rows = [row for run in runs for row in read_rows(run.workdir / "metrics.jsonl") if "seconds" in row]
    return collections.Counter(row["stage"] for row in sorted(rows, key=lambda row: row["time"]))


def cells(row: dict) -> list[str]:
    """Of a finished run, in words: name, metric, difference, its changes, the other metrics, time."""
    ends = lambda low, high: "" if low is None else f" [{page.number(low)}, {page.number(high)}]"
    sign = "+" if (row["difference"] or 0) > 0 else ""
    return [row["run"], page.number(row["mean"]) + ends(row["low"], row["high"]),
            sign + page.number(row["difference"]) + ends(row["difference_low"], row["difference_high"]),
            ", ".join(f"{field}={value}" for field, value in json.loads(row["changes"]).items()),
            *(page.number(row[name]) for name in METRICS if name != row["metric"]), duration(row["seconds"])]


def as_markdown(title: str, table: Sequence[Sequence[str]], failed: Sequence[str], told: str) -> str:
    lines = ["| " + " | ".join(line) + " |" for line in (table[0], ["---"] * len(table[0]), *table[1:])]
    return "\n".join([f"# {title}", "", *lines, "", *(f"- {line}" for line in failed), *([""] if failed else []), told, ""])


def plot(done: Sequence[dict], metric: str) -> str:
    """The runs' means and intervals, as HTML."""
    rows = [tuple(row[k] for k in ("run", "mean", "low", "high")) for row in done
            if row["mean"] is not None and math.isfinite(row["mean"])]
    base = next((row["mean"] for row in done if row["run"] == "base"), None)
    if not rows:
        return ""
    drawn = figures.interval_plot("runs", f"{NAMES[metric]} of every run", rows, x_title=NAMES[metric], reference=base)
    return page.figure(drawn, NAMES[metric], "means and 95 % intervals; the dashed line is base")


def as_html(title: str, table: Sequence[Sequence[str]], failed: Sequence[str], told: str, drawn: str) -> str:
    """The same as a page, with a drawing."""
    style = (importlib.resources.files("ark_jax.evaluate") / "report.css").read_text(encoding="utf-8")
    said = "\n".join(f"<p>{page.escape(line)}</p>" for line in (*failed, told))
    return f"""<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>{page.escape(title)}</title>
<style>{style}main {{ max-width: 62rem; margin: auto; padding: 2rem 1.5rem; }}</style></head>
<body><main><h2>{page.escape(title)}</h2>
{page.table(title, table[0], [list(map(page.escape, row)) for row in table[1:]], "results")}{drawn}
{said}
</main></body>
</html>
"""
