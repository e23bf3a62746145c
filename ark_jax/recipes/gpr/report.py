"""What the report of a GPR run shows, read from its finished stages."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ark_jax.evaluate.significance import smallest_difference
from ark_jax.graph.triples import Triples
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_json, load_rows
from ark_jax.recipes.common.graph_data import load_graph, texts_of
from ark_jax.recipes.common.group_tables import by_system, group_section
from ark_jax.recipes.common.report import Counts, labelled, load_curve
from ark_jax.recipes.gpr.data import TestQuestion, load_test
from ark_jax.recipes.gpr.evaluate import CUTOFFS
from ark_jax.recipes.gpr.retrieve import Systems
from ark_jax.report import graph_drawing, page, svg
from ark_jax.report.html import empty_note, escape, figure, references, table
from ark_jax.report.results import metric_heading

EXAMPLES, SHOWN = 6, 10  # questions, and triples of each
LOSSES = {
    ("data", "duplicates"): "Triples that came again, stored once",
    ("data", "without_name"): "Entities without a name, called by their id",
    ("data", "without_topic"): "Test questions whose topic was not found",
    ("data", "without_answer_in_graph"): "Test questions without an answer in the graph: misses",
    ("data", "out_of_reach"): "Test questions whose answers lie too far from the topic: misses",
    ("evaluate", "unanswered"): "Prompts that the reader did not answer",
}


def gather(context: Context, counts: Counts) -> dict:
    """The data of the page's sections."""
    evaluated = load_json(context / "evaluate" / "metrics.json")
    data = {
        "metrics": evaluated["metrics"],
        "table": evaluated["table"],
        "groups": evaluated["groups"],
        "facts": _facts(context, counts),
        "curves": {"train": load_curve(context / "train" / "curve.jsonl")},
        "examples": [],
        "counts": labelled(counts, LOSSES),
        "quarantine": [
            {"stage": "questions", **row}
            for row in load_rows(context / "questions" / "quarantine.parquet")[:EXAMPLES]
        ],
    }
    if evaluated["table"]:
        data["examples"] = _examples(context)
    return data


def _facts(context: Context, counts: Counts) -> list[list]:
    data, config = counts["data"], context.config
    size = (
        f"{data['triples']:,} triples, {data['nodes']:,} entities, {data['relations']:,} relations"
    )
    tested = data["test_questions"]
    limits = []
    if tested:
        smallest = f"{smallest_difference(tested):.2f}"
        limits = [["Smallest difference that so many can tell from chance", smallest]]
    return [
        ["Graph", size],
        ["Training questions", counts["questions"]["questions"]],
        ["Test questions", tested],
        *limits,
        ["Retriever", Path(config.retriever.path).name],
        ["DualEncoder", config.train.towers],
        ["Steps", counts["train"]["steps"]],
    ]


def _examples(context: Context) -> list[dict]:
    """Questions that the trained system answers and base does not, then the other way round."""
    graph, config = load_graph(context), context.config
    rows = by_system(load_rows(context / "evaluate" / "questions.parquet"))
    last, metric = Systems(config).names[-1], "answer_triple@10"
    gains = {id: row[metric] - rows["base"][id][metric] for id, row in rows[last].items()}
    questions = {question.id: question for question in load_test(context)}
    chosen = sorted(gains, key=lambda id: (-gains[id], id))[:EXAMPLES]
    chosen += [id for id in sorted(gains, key=lambda id: (gains[id], id))[:2] if id not in chosen]
    return [
        {
            "question": questions[id].question,
            "answers": list(questions[id].answers),
            "lists": {
                system: _listed(graph, config, rows[system][id]["ranked"], questions[id])
                for system in ("base", last)
            },
            "drawing": _drawn(graph, rows[last][id]["ranked"], questions[id]),
        }
        for id in chosen
    ]


def _listed(graph: Triples, config, ranked: Sequence[int], question: TestQuestion) -> list[list]:
    """[text, whether it bears an answer] of the first triples."""
    first = np.asarray(ranked[:SHOWN], np.int64)
    bearing = set(question.answer_rows)
    texts = texts_of(graph, config, first)
    return [[text, int(row) in bearing] for text, row in zip(texts, first, strict=True)]


def _drawn(graph: Triples, ranked: Sequence[int], question: TestQuestion) -> dict:
    """Nodes and edges of the first triples, as `graph_drawing.graph` takes them."""
    first = np.asarray(ranked[:SHOWN], np.int64)
    nodes = list(dict.fromkeys([*graph.head[first].tolist(), *graph.tail[first].tolist()]))
    places = {node: place for place, node in enumerate(nodes)}
    answers, topics = set(question.answer_nodes), set(question.topics)
    described = [
        {
            "name": graph.nodes.name(node),
            "type": "topic" if node in topics else "answer" if node in answers else "entity",
            "rank": 2.0 if node in answers | topics else 1.0,
            "seed": node in topics,
            "small": node in answers,
        }
        for node in nodes
    ]
    ends = zip(graph.head[first].tolist(), graph.tail[first].tolist(), strict=True)
    edges = [{"a": places[a], "b": places[b], "similarity": False} for a, b in ends if a != b]
    return {"nodes": described, "edges": edges}


def depth(data: Mapping) -> str:
    """The section of results by the number of triples that are fetched."""
    if not data["table"]:
        return empty_note("Nothing was measured.")
    out = ""
    for metric in ("answer_triple", "answer_recall"):
        heads = ["system", *(f"#{k}" for k in CUTOFFS)]
        rows = [
            [escape(row["system"])]
            + [f"{row['values'][f'{metric}@{k}']['mean']:.3f}" for k in CUTOFFS]
            for row in data["table"]
        ]
        heading = metric_heading(metric)
        out += table(f"{heading} among the first k triples", heads, rows, "even")
        last = data["table"][-1]
        drawing = svg.line_chart(
            f"depth-{metric}",
            f"{heading} of {last['system']}",
            CUTOFFS,
            [last["values"][f"{metric}@{k}"]["mean"] for k in CUTOFFS],
            x_title="triples fetched (k)",
            y_title=f"{heading} (0 to 1)",
        )
        out += figure(drawing, f"{heading} of {last['system']}", "")
    return out


def examples(data: Mapping) -> str:
    """The section of questions with the triples that base and the trained system fetch."""
    if not data["examples"]:
        return empty_note("No test question is there to show.")
    return "".join(_example(i, example) for i, example in enumerate(data["examples"]))


def _example(number: int, example: Mapping) -> str:
    sides = ""
    for system, rows in example["lists"].items():
        items = "".join(
            f'<li dir="auto">{f"<mark>{escape(text)}</mark>" if bears else escape(text)}</li>'
            for text, bears in rows
        )
        sides += f"<div><h4>{escape(system)}</h4><ol>{items}</ol></div>"
    nodes = example["drawing"]["nodes"]
    topics = ", ".join(str(node["name"]) for node in nodes if node["seed"]) or "none"
    drawing = ""
    if nodes:
        title = f"Triples fetched for: {example['question']}"
        drawing = graph_drawing.graph(
            f"triples-{number}",
            title,
            nodes,
            example["drawing"]["edges"],
            desc=f"{len(nodes)} entities of the first triples. Topics, as diamonds: {topics}. "
            "Answers are discs, other entities rings.",
        )
        drawing = figure(drawing, "The triples fetched", "Diamonds: topics. Discs: answers.")
    return (
        f'<details class="card"{" open" if number == 0 else ""}>'
        f'<summary><h3 dir="auto">{escape(example["question"])}</h3></summary>'
        f'{references(example["answers"])}<div class="two">{sides}</div>{drawing}</details>'
    )


SECTIONS = (
    page.FACTS,
    page.RESULTS,
    page.Section("groups", "By group", group_section),
    page.Section("depth", "By number of triples", depth),
    page.TRAINING,
    page.Section("examples", "Questions and their triples", examples),
    page.COUNTS,
    page.SPENT,
    page.MANIFEST,
)
