"""What the report of a GPR run shows, read from its finished stages."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_json, load_rows
from ark_jax.recipes.core import report
from ark_jax.recipes.core.tables import by_system
from ark_jax.recipes.gpr.data import HEADLINE, load_test
from ark_jax.recipes.gpr.evaluate import CUTOFFS, Systems, conclusion
from ark_jax.recipes.graphs import graph_size, load_graph, texts_of
from ark_jax.report import results, sections
from ark_jax.report.page import Section
from ark_jax.report.questions import ask_rankings, question_section

QUARANTINED = 6  # replies that are shown
LOSSES = {
    ("data", "duplicates"): "Triples that came again, stored once",
    ("data", "without_name"): "Entities without a name, called by their id",
    ("data", "without_topic"): "Test questions whose topic was not found",
    ("data", "without_answer_in_graph"): "Test questions without an answer in the graph: misses",
    ("data", "out_of_reach"): "Test questions whose answers lie too far from the topic: misses",
    ("evaluate", "unanswered"): "Prompts that the reader did not answer",
}


def describe(context: Context, counts: report.Counts) -> tuple[list[str], list[Section]]:
    """What ships, if it was measured, and the page's sections."""
    evaluated = load_json(context / "evaluate" / "metrics.json")
    table, metrics = evaluated["table"], evaluated["metrics"]
    quarantine = [
        {"stage": "questions", **row}
        for row in load_rows(context / "questions" / "quarantine.parquet")[:QUARANTINED]
    ]
    return conclusion(context), [
        results.results(table, metrics, headline=HEADLINE),
        results.by_group(evaluated["groups"], metrics),
        sections.facts(_facts(context, counts)),
        _questions(context),
        Section(
            "By number of triples",
            "depth",
            _results_by_cutoff(table) if table else [],
            "Nothing was measured.",
        ),
        sections.training({"train": report.load_curve(context / "train" / "curve.jsonl")}),
        sections.set_aside(report.labelled_counts(counts, LOSSES), quarantine),
    ]


def _facts(context: Context, counts: report.Counts) -> list[list]:
    data, config = counts["data"], context.config
    return [
        ["Graph", graph_size(data)],
        ["Training questions", counts["questions"]["questions"]],
        ["Test questions", data["test_questions"]],
        *report.smallest_difference_fact(data["test_questions"]),
        ["Retriever", Path(config.retriever.path).name],
        ["DualEncoder", config.train.towers],
        ["Steps", counts["train"]["steps"]],
    ]


def _results_by_cutoff(table: Sequence[Mapping]) -> list[str]:
    """A table for each metric, by the number of triples fetched, as HTML."""
    return [
        results.result_table(
            f"{results.metric_heading(metric)} among the first k triples",
            table,
            [f"{metric}@{k}" for k in CUTOFFS],
            "base",
        )
        for metric in ("answer_triple", "answer_recall")
    ]


def _questions(context: Context) -> Section:
    """All test questions, from the base to the last system."""
    graph, config, questions = load_graph(context), context.config, load_test(context)
    rows = by_system(load_rows(context / "evaluate" / "questions.parquet")) if questions else {}
    rows = {name: rows[name] for name in rows if name in Systems(config).names}
    asked = ask_rankings(
        questions,
        rows,
        lambda question: set(question.answer_rows),
        lambda row: row["ranked"],
        lambda triple: texts_of(graph, config, np.asarray([triple], np.int64))[0],
    )
    compared = ("base", Systems(config).names[-1])
    return question_section(asked, compared, "rank of the first triple that bears an answer")
