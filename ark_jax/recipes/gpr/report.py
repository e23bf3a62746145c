"""What the report of a GPR run shows, read from its finished stages."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ark_jax.graph.triples import Triples
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_json, load_rows
from ark_jax.recipes.core.report import (
    Counts,
    gained_and_lost,
    labelled_counts,
    load_curve,
    smallest_difference_fact,
)
from ark_jax.recipes.core.tables import by_system
from ark_jax.recipes.gpr.data import HEADLINE, TestQuestion, load_test
from ark_jax.recipes.gpr.evaluate import CUTOFFS, Systems, conclusion
from ark_jax.recipes.graphs.graph_data import (
    DRAWING_CAPTION,
    draw_triples,
    graph_size,
    load_graph,
    texts_of,
)
from ark_jax.report import results, sections, svg
from ark_jax.report.page import Section, html

EXAMPLES, LOST, SHOWN = 6, 2, 10  # questions helped and harmed, and triples of each
LOSSES = {
    ("data", "duplicates"): "Triples that came again, stored once",
    ("data", "without_name"): "Entities without a name, called by their id",
    ("data", "without_topic"): "Test questions whose topic was not found",
    ("data", "without_answer_in_graph"): "Test questions without an answer in the graph: misses",
    ("data", "out_of_reach"): "Test questions whose answers lie too far from the topic: misses",
    ("evaluate", "unanswered"): "Prompts that the reader did not answer",
}


def describe(context: Context, counts: Counts) -> tuple[str, list[Section]]:
    """What ships, if it was measured, and the page's sections."""
    evaluated = load_json(context / "evaluate" / "metrics.json")
    table, metrics = evaluated["table"], evaluated["metrics"]
    quarantine = [
        {"stage": "questions", **row}
        for row in load_rows(context / "questions" / "quarantine.parquet")[:EXAMPLES]
    ]
    return " ".join(conclusion(context)), [
        sections.facts(_facts(context, counts)),
        results.results(table, metrics),
        results.by_group(evaluated["groups"], metrics),
        Section(
            "By number of triples",
            "depth",
            _results_by_cutoff(table) if table else [],
            "Nothing was measured.",
        ),
        sections.training({"train": load_curve(context / "train" / "curve.jsonl")}),
        Section(
            "Questions and their triples",
            "examples",
            _examples(context) if table else [],
            "No test question is there to show.",
        ),
        sections.set_aside(labelled_counts(counts, LOSSES), quarantine),
    ]


def _facts(context: Context, counts: Counts) -> list[list]:
    """[label, value] of each fact."""
    data, config = counts["data"], context.config
    return [
        ["Graph", graph_size(data)],
        ["Training questions", counts["questions"]["questions"]],
        ["Test questions", data["test_questions"]],
        *smallest_difference_fact(data["test_questions"]),
        ["Retriever", Path(config.retriever.path).name],
        ["DualEncoder", config.train.towers],
        ["Steps", counts["train"]["steps"]],
    ]


def _results_by_cutoff(table: Sequence[Mapping]) -> list[str]:
    """A table and a chart for each metric, by the number of triples fetched, as HTML."""
    pieces, last = [], table[-1]
    for metric in ("answer_triple", "answer_recall"):
        heading = results.metric_heading(metric)
        means = {
            row["system"]: [row["values"][f"{metric}@{k}"]["mean"] for k in CUTOFFS]
            for row in table
            if f"{metric}@{CUTOFFS[0]}" in row["values"]
        }
        rows = [[system, *(f"{mean:.3f}" for mean in values)] for system, values in means.items()]
        heads = ["system", *(f"#{k}" for k in CUTOFFS)]
        pieces.append(html.table(f"{heading} among the first k triples", heads, rows, "even"))
        drawing = svg.line_chart(
            f"depth-{metric}",
            f"{heading} of {last['system']}",
            CUTOFFS,
            means[last["system"]],
            x_title="triples fetched (k)",
            y_title=f"{heading} (0 to 1)",
        )
        pieces.append(html.figure(drawing, f"{heading} of {last['system']}"))
    return pieces


def _examples(context: Context) -> list[str]:
    """HTML cards of the questions that gained most over base, then of those that lost most."""
    graph, config = load_graph(context), context.config
    rows = by_system(load_rows(context / "evaluate" / "questions.parquet"))
    last = Systems(config).names[-1]
    gains = {id: row[HEADLINE] - rows["base"][id][HEADLINE] for id, row in rows[last].items()}
    questions = {question.id: question for question in load_test(context)}
    chosen = gained_and_lost(gains, EXAMPLES, LOST)
    return [
        html.card(
            questions[id].question,
            questions[id].answers,
            [
                html.sides(
                    (
                        system,
                        [_list_triples(graph, config, rows[system][id]["ranked"], questions[id])],
                    )
                    for system in ("base", last)
                ),
                *_draw_first_triples(
                    f"triples-{i}", graph, rows[last][id]["ranked"], questions[id]
                ),
            ],
            i == 0,
        )
        for i, id in enumerate(chosen)
    ]


def _list_triples(graph: Triples, config, ranked: Sequence[int], question: TestQuestion) -> str:
    """The first triples as an HTML list; those that bear an answer are marked."""
    first = np.asarray(ranked[:SHOWN], np.int64)
    texts = texts_of(graph, config, first)
    bearing = set(question.answer_rows)
    return html.numbered(
        (text, int(row) in bearing) for text, row in zip(texts, first, strict=True)
    )


def _draw_first_triples(
    name: str, graph: Triples, ranked: Sequence[int], question: TestQuestion
) -> list[str]:
    """A figure of the first triples as a graph; none without triples."""
    first = np.asarray(ranked[:SHOWN], np.int64)
    heads, tails = graph.head[first].tolist(), graph.tail[first].tolist()
    if not heads:
        return []
    drawing = draw_triples(
        name,
        f"Triples fetched for: {question.question}",
        dict.fromkeys([*heads, *tails]),
        zip(heads, tails, strict=True),
        graph,
        topics=question.topics,
        answers=question.answer_nodes,
    )
    return [html.figure(drawing, "The triples fetched", DRAWING_CAPTION)]
