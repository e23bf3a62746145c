"""The evaluate stage: every system on the test questions, over all and by group."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ark_jax.evaluate.significance import what_can_be_told
from ark_jax.graph.triples import Triples
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import save_json, save_rows
from ark_jax.recipes.common.graph_data import load_graph
from ark_jax.recipes.common.table import as_text, tabulate
from ark_jax.recipes.gpr.data import HEADLINE, TestQuestion, load_test
from ark_jax.recipes.gpr.read import read_triples
from ark_jax.recipes.gpr.retrieve import SEARCH_SETTINGS, Systems, parse_metric, retrieve_all
from ark_jax.runtime.log import say

EVALUATION_SETTINGS = (
    *(
        f"evaluate.{name}"
        for name in (
            "metrics",
            "baselines",
            "hybrids",
            "read",
            "triples",
            "max_new_tokens",
            "bootstrap",
            "randomisation",
        )
    ),
    *(f"reader.{name}" for name in ("backend", "base_url", "temperature")),
    *SEARCH_SETTINGS,
    "seed",
)
# Always measured, for curves over k and to compare runs by.
CUTOFFS = (1, 5, 10, 20, 50, 100)
CURVES = tuple(f"{name}@{k}" for name in ("answer_triple", "answer_recall") for k in CUTOFFS)

# Scores of a list of answers -> columns; the field reports either hit as "Hit".
LISTS = {
    "accuracy": "answer_accuracy",
    "precision": "list_precision",
    "recall": "list_recall",
    "f1": "list_f1",
    "hit": "any_hit",
    "hit@1": "first_hit",
}
SHOWN = ("f1", "hit", "hit@1")


def evaluate(context: Context, folder: Path, *, systems: Systems) -> dict:
    """Retrieves and measures; stores a row per system and question, and the tables."""
    questions, graph = load_test(context), load_graph(context)
    if not questions:
        save_json({"metrics": (), "table": [], "groups": {}}, folder / "metrics.json")
        return {"questions": 0}
    rankings = retrieve_all(context, systems, folder)
    replies, counts = read_triples(context, graph, rankings, questions)
    columns = context.config.evaluate.metrics
    searched = tuple(dict.fromkeys((*columns, *CURVES)))
    measured = (*searched, *(LISTS.values() if replies else ()))
    columns = (*columns, *(LISTS[name] for name in SHOWN if replies))
    rows = [
        {"system": name, "question": question.id, "group": question.group}
        | {"ranked": ranking[question.id]}
        | measure(graph, question, ranking[question.id], searched)
        | _scores(replies.get((name, question.id)))
        for name, ranking in rankings.items()
        for question in questions
    ]
    save_rows(rows, folder / "questions.parquet")
    table = _tabulate(rows, measured, context)
    names = list(dict.fromkeys(question.group for question in questions))
    groups = {
        name: _tabulate([row for row in rows if row["group"] == name], measured, context)
        for name in (names if len(names) > 1 else ())
    }
    save_json({"metrics": columns, "table": table, "groups": groups}, folder / "metrics.json")
    means = {row["system"]: {m: v["mean"] for m, v in row["values"].items()} for row in table}
    context.metrics.write("evaluate", **means)
    for name, part in groups.items():
        say(f"  {name}: {sum(question.group == name for question in questions):,} questions")
        say(as_text(part, columns))
    if groups:
        say(f"  all: {len(questions):,} questions")
    say(as_text(table, columns))
    say(f"  {len(questions):,} questions: {what_can_be_told(len(questions), HEADLINE)}")
    return {"questions": len(questions), "systems": len(rankings), **counts}


def _scores(reply: Mapping | None) -> dict:
    """A reply and its scores, under the names of columns; None where nothing was read."""
    scores = reply or {}
    return {"answer": scores.get("answer")} | {
        column: scores.get(name) for name, column in LISTS.items()
    }


def _tabulate(rows: list[dict], metrics: Sequence[str], context: Context) -> list[dict]:
    settings = context.config.evaluate
    return tabulate(
        rows,
        metrics,
        draws=settings.bootstrap,
        flips=settings.randomisation,
        seed=context.config.seed,
    )


def measure(
    graph: Triples, question: TestQuestion, ranked: Sequence[int], metrics: Sequence[str]
) -> dict[str, float]:
    """The metrics of a ranking, each from 0 to 1.

    `answer_triple@k` is 1 if one of the first k triples bears an answer (`graph.answer_rows`).
    `answer_recall@k` is the share of the answers that are head or tail of one; an answer that the
    graph lacks counts as one that is not.
    """
    bearing, answers = set(question.answer_rows), set(question.answer_nodes)
    total = len(answers) + question.absent
    values = {}
    for name in metrics:
        kind, cutoff = parse_metric(name)
        first = np.asarray(ranked[:cutoff], np.int64)
        if kind == "answer_triple":
            values[name] = float(not bearing.isdisjoint(first.tolist()))
        else:
            ends = set(graph.head[first].tolist()) | set(graph.tail[first].tolist())
            values[name] = len(ends & answers) / total if total else 0.0
    return values


def by_system(rows: Sequence[Mapping]) -> dict[str, dict[str, Mapping]]:
    """system -> question -> row of `questions.parquet`."""
    out: dict[str, dict[str, Mapping]] = {}
    for row in rows:
        out.setdefault(row["system"], {})[row["question"]] = row
    return out
