"""The evaluate stage: every system on the test questions, over all and by group."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ark_jax.graph.triples import Triples
from ark_jax.pipeline.stage import Context
from ark_jax.recipes.common.fact_reader import LISTS, SHOWN, reply_columns
from ark_jax.recipes.common.graph_data import load_graph
from ark_jax.recipes.common.group_tables import questions_by_group, save_nothing, save_tables
from ark_jax.recipes.gpr.data import HEADLINE, TestQuestion, load_test
from ark_jax.recipes.gpr.read import read_triples
from ark_jax.recipes.gpr.retrieve import Systems, parse_metric, retrieve_all

# Always measured, for curves over k and to compare runs by.
CUTOFFS = (1, 5, 10, 20, 50, 100)
CURVES = tuple(f"{name}@{k}" for name in ("answer_triple", "answer_recall") for k in CUTOFFS)


def evaluate(context: Context, folder: Path) -> dict:
    """Retrieves and measures; stores a row per system and question, and the tables."""
    questions, graph = load_test(context), load_graph(context)
    if not questions:
        save_nothing(folder)
        return {"questions": 0}
    systems = Systems(context.config)
    rankings = retrieve_all(context, systems, folder)
    replies, counts = read_triples(context, graph, rankings, questions, folder)
    columns = context.config.evaluate.metrics
    searched = tuple(dict.fromkeys((*columns, *CURVES)))
    rows = [
        {"system": name, "question": question.id, "group": question.group}
        | {"ranked": ranking[question.id]}
        | measure(graph, question, ranking[question.id], searched)
        | reply_columns(replies.get((name, question.id)))
        for name, ranking in rankings.items()
        for question in questions
    ]
    save_tables(
        context,
        folder,
        rows,
        questions_by_group(questions),
        columns=(*columns, *(LISTS[name] for name in SHOWN if replies)),
        measured=(*searched, *(LISTS.values() if replies else ())),
        headline=HEADLINE,
    )
    return {"questions": len(questions), "systems": len(rankings), **counts}


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
