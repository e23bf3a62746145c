"""What the report of a STAR run shows, read from its finished stages."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ark_jax.graph.beam import FoundPath
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_json, load_rows
from ark_jax.recipes.core import report
from ark_jax.recipes.core.tables import by_system
from ark_jax.recipes.graphs import ALONE, graph_size
from ark_jax.recipes.star.data import load_paths, load_questions, load_steps
from ark_jax.recipes.star.evaluate import conclusion, found_paths, path_fact
from ark_jax.recipes.star.search import BASE, BIASES, STANDARD, TUNED
from ark_jax.report import results, sections
from ark_jax.report.page import Section, html
from ark_jax.report.questions import ask_rankings, question_section

LOSSES = {
    ("data", "duplicates"): "Triples that came again, stored once",
    ("data", "without_name"): "Entities without a name, called by their id",
    ("data", "train_without_topic"): "Questions without a topic, not trained on",
    ("data", "train_without_answer_in_graph"): "Questions without an answer in the graph, not "
    "trained on",
    ("paths", "train_topic_is_answer"): "Questions whose topic is the answer, not trained on",
    ("paths", "train_out_of_reach"): "Questions whose answers lie too far away, not trained on",
    ("paths", "train_cut_by_limits"): "Training questions whose paths a limit cuts",
    ("data", "test_without_topic"): "Test questions without a topic: misses",
    ("data", "test_without_answer_in_graph"): "Test questions without an answer in the graph: "
    "misses",
    ("paths", "test_topic_is_answer"): "Test questions whose topic is the answer: misses",
    ("paths", "test_out_of_reach"): "Test questions whose answers lie too far away: misses",
    ("evaluate", "large_sets_cut"): "Large sets of entities of which only some were asked to go on",
    ("evaluate", "unanswered"): "Prompts that the reader did not answer",
}


def describe(context: Context, counts: report.Counts) -> tuple[list[str], list[Section]]:
    """What ships, if it was measured, and the page's sections."""
    evaluated = load_json(context / "evaluate" / "metrics.json")
    table, metrics = evaluated["table"], evaluated["metrics"]
    return conclusion(context), [
        results.results(table, metrics),
        results.by_group(evaluated["groups"], metrics),
        sections.facts(_facts(context, counts)),
        _questions(context),
        Section(
            "Paths and biases",
            "biases",
            [*_paths(table), *_biases(context)] if table else [],
            "Nothing was measured.",
        ),
        sections.training({"train": report.load_curve(context / "train" / "curve.jsonl")}),
        sections.set_aside(report.labelled_counts(counts, LOSSES)),
    ]


def _facts(context: Context, counts: report.Counts) -> list[list]:
    data, paths, config = counts["data"], counts["paths"], context.config
    measured = []
    if data["test_questions"]:
        measured = [
            *report.smallest_difference_fact(data["test_questions"]),
            ["Pairs that base scored", counts["baselines"]["pairs"]],
            ["Pairs that the trained scorer read", counts["evaluate"]["pairs"]],
        ]
    return [
        ["Graph", graph_size(data)],
        ["Training questions", data["train_questions"]],
        ["Different paths of these", paths["train_different_paths"]],
        ["Test questions", data["test_questions"]],
        *measured,
        ["Base model", Path(config.retriever.path).name],
        ["Head", config.train.head],
        *(
            [label, counts["train"][name]]
            for name, label in (("steps", "Steps"), ("chosen_epoch", "Epoch chosen"))
            if name in counts["train"]
        ),
    ]


def _paths(table: Sequence[Mapping]) -> list[str]:
    """A table of hits, path hits and detours by system, as HTML."""
    rows = [row for row in table if row["system"] != ALONE]
    note = (
        "A detour is a hit whose path is none of the shortest ones: the answer was reached by "
        "another way, or by chance."
    )
    return [note, results.result_table("Hits, paths and detours", rows, STANDARD, BASE)]


FEATURES = {"similar": "look like the question", "rare": "ask for a rare path"}


def _biases(context: Context) -> list[str]:
    """Errors by bias, and how often right and wrong first paths show each feature, as HTML."""
    rows = by_system(load_rows(context / "evaluate" / "questions.parquet"))
    shares = [f"#{state} that {text}" for text in FEATURES.values() for state in ("right", "wrong")]
    heads = ["system", *(f"#{results.metric_heading(name)}" for name in BIASES), *shares]
    cells = []
    for system, of_question in rows.items():
        if system == ALONE:
            continue
        listed = list(of_question.values())
        parts = [[row for row in listed if row["wrong"] == wrong] for wrong in (0, 1)]
        values = [(name, listed) for name in BIASES]
        values += [(name, part) for name in FEATURES for part in parts]
        means = [np.mean([row[name] for row in part]) if part else None for name, part in values]
        cells.append([system, *("" if mean is None else f"{mean:.3f}" for mean in means)])
    note = (
        "A shortcut error is a wrong first path that looks like its question, a long-tail error a "
        "wrong one where the path asked for is rare. A feature that more of the wrong paths have "
        "than of the right ones is a bias."
    )
    return [note, html.table("Errors and their biases", heads, cells, "even")]


def _questions(context: Context) -> Section:
    """All test questions, from the base to the tuned system."""
    steps, gold = load_steps(context), load_paths(context, "test")
    questions = load_questions(context, "test")
    rows = by_system(load_rows(context / "evaluate" / "questions.parquet")) if questions else {}
    rows = {name: rows[name] for name in rows if name != ALONE}
    asked = ask_rankings(
        questions,
        rows,
        lambda question: {(path.topic, path.steps) for path in gold.get(question.id, ())},
        lambda row: [(path.topic, path.steps) for path in found_paths(row)],
        lambda found: path_fact(steps, FoundPath(*found, 0.0)),
    )
    return question_section(asked, (BASE, TUNED), "rank of the first shortest path to an answer")
