"""What the report of a STAR run shows, read from its finished stages."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ark_jax.evaluate.significance import smallest_difference
from ark_jax.graph.beam import FoundPath
from ark_jax.graph.relation_paths import GoldPath
from ark_jax.graph.steps import Steps
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_json, load_rows
from ark_jax.recipes.common.group_tables import by_system, group_section
from ark_jax.recipes.common.report import Counts, labelled, load_curve
from ark_jax.recipes.star.data import PathQuestion, load_questions, load_steps
from ark_jax.recipes.star.evaluate import found_paths, path_fact
from ark_jax.recipes.star.measures import STANDARD
from ark_jax.recipes.star.paths import load_paths
from ark_jax.recipes.star.search import BASE, TUNED
from ark_jax.report import graph_drawing, page
from ark_jax.report.html import empty_note, escape, figure, references, table
from ark_jax.report.results import metric_heading

EXAMPLES, LOST = 6, 2  # questions that training helped, and that it did not
ENDS = 4  # entities at the end of a path that are drawn
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


def gather(context: Context, counts: Counts) -> dict:
    """The data of the page's sections."""
    evaluated = load_json(context / "evaluate" / "metrics.json")
    return {
        "metrics": evaluated["metrics"],
        "table": evaluated["table"],
        "groups": evaluated["groups"],
        "facts": _facts(context, counts),
        "curves": {"train": load_curve(context / "train" / "curve.jsonl")},
        "examples": _examples(context) if evaluated["table"] else [],
        "counts": labelled(counts, LOSSES),
    }


def _facts(context: Context, counts: Counts) -> list[list]:
    data, paths, config = counts["data"], counts["paths"], context.config
    size = (
        f"{data['triples']:,} triples, {data['nodes']:,} entities, {data['relations']:,} relations"
    )
    measured = []
    if tested := data["test_questions"]:
        smallest = f"{smallest_difference(tested):.2f}"
        measured = [
            ["Smallest difference that so many can tell from chance", smallest],
            ["Pairs that base scored", counts["baselines"]["pairs"]],
            ["Pairs that the trained scorer read", counts["evaluate"]["pairs"]],
        ]
    return [
        ["Graph", size],
        ["Training questions", data["train_questions"]],
        ["Different paths of these", paths["train_different_paths"]],
        ["Test questions", tested],
        *measured,
        ["Base model", Path(config.retriever.path).name],
        ["Head", config.train.head],
        *([["Steps", counts["train"]["steps"]]] if "steps" in counts["train"] else []),
    ]


def _examples(context: Context) -> list[dict]:
    """Questions that training gained most on, and those that it lost most on."""
    steps, gold = load_steps(context), load_paths(context, "test")
    rows = by_system(load_rows(context / "evaluate" / "questions.parquet"))
    gains = {id: row["f1"] - rows[BASE][id]["f1"] for id, row in rows[TUNED].items()}
    questions = {question.id: question for question in load_questions(context, "test")}
    chosen = sorted(gains, key=lambda id: (-gains[id], id))[:EXAMPLES]
    lost = sorted(gains, key=lambda id: (gains[id], id))[:LOST]
    chosen += [id for id in lost if id not in chosen]
    return [
        {
            "question": questions[id].question,
            "answers": list(questions[id].answers),
            "sides": {
                system: _side(steps, found_paths(rows[system][id]), questions[id], gold.get(id, ()))
                for system in (BASE, TUNED)
            },
        }
        for id in chosen
    ]


def _side(
    steps: Steps, paths: Sequence[FoundPath], question: PathQuestion, gold: Sequence[GoldPath]
) -> dict:
    """What one system found: [text, whether it is a shortest path], and the first path drawn."""
    shortest = {(path.topic, path.steps) for path in gold}
    return {
        "paths": [[path_fact(steps, x), (x.topic, x.steps) in shortest] for x in paths],
        "drawing": _drawn(steps, paths[0], question) if paths else {},
    }


def _drawn(steps: Steps, path: FoundPath, question: PathQuestion) -> dict:
    """Nodes and edges of one way to each of the first ends, as `graph_drawing.graph` takes them."""
    answers = set(question.answer_nodes)
    ends = sorted(steps.reach(path.topic, path.steps).tolist(), key=lambda x: x not in answers)
    edges = {edge for end in ends[:ENDS] for edge in _way(steps, path, end)}
    nodes = list(dict.fromkeys([path.topic, *(node for edge in sorted(edges) for node in edge)]))
    places = {node: place for place, node in enumerate(nodes)}
    described = [
        {
            "name": steps.graph.nodes.name(node),
            "type": "topic" if node == path.topic else "answer" if node in answers else "entity",
            "rank": 2.0 if node in answers or node == path.topic else 1.0,
            "seed": node == path.topic,
            "small": node in answers,
        }
        for node in nodes
    ]
    drawn = [{"a": places[a], "b": places[b], "similarity": False} for a, b in sorted(edges)]
    return {"nodes": described, "edges": [edge for edge in drawn if edge["a"] != edge["b"]]}


def _way(steps: Steps, path: FoundPath, end: int) -> list[tuple[int, int]]:
    """The edges of one way along a path's relations to a node that it reaches."""
    levels = [np.array([path.topic])]
    for step in path.steps[:-1]:
        levels.append(steps.follow(levels[-1], step))
    edges = []
    for level, step in zip(reversed(levels), reversed(path.steps), strict=True):
        _, _, starts = steps.edges_back(np.array([end]))
        candidates = np.intersect1d(np.unique(starts), level)
        start = next(
            node for node in candidates.tolist() if end in steps.follow(np.array([node]), step)
        )
        edges.append((start, end))
        end = start
    return edges


def metrics_section(data: Mapping) -> str:
    """The section of standard metrics, in which shortcuts stand beside hits."""
    if not data["table"]:
        return empty_note("Nothing was measured.")
    heads = ["system", *(f"#{metric_heading(name)}" for name in STANDARD)]
    rows = [
        [escape(row["system"]), *(f"{row['values'][name]['mean']:.3f}" for name in STANDARD)]
        for row in data["table"]
    ]
    note = (
        "<p>A shortcut is a hit whose path is none of the shortest ones: the answer was reached "
        "by chance or by a detour.</p>"
    )
    return note + table("Hits, paths and shortcuts", heads, rows, "even")


def examples(data: Mapping) -> str:
    """The section of questions with the paths that base and the trained system find."""
    if not data["examples"]:
        return empty_note("No test question is there to show.")
    return "".join(_example(i, example) for i, example in enumerate(data["examples"]))


def _example(number: int, example: Mapping) -> str:
    sides = "".join(
        f"<div><h4>{escape(system)}</h4>{_listed(side, f'{system}-{number}', example)}</div>"
        for system, side in example["sides"].items()
    )
    return (
        f'<details class="card"{" open" if number == 0 else ""}>'
        f'<summary><h3 dir="auto">{escape(example["question"])}</h3></summary>'
        f'{references(example["answers"])}<div class="two">{sides}</div></details>'
    )


def _listed(side: Mapping, name: str, example: Mapping) -> str:
    items = "".join(
        f'<li dir="auto">{f"<mark>{escape(text)}</mark>" if is_gold else escape(text)}</li>'
        for text, is_gold in side["paths"]
    )
    if not side["drawing"]:
        return f"<ol>{items}</ol><p>No path was found.</p>"
    nodes, edges = side["drawing"]["nodes"], side["drawing"]["edges"]
    drawing = graph_drawing.graph(
        f"paths-{name}",
        f"First path for: {example['question']}",
        nodes,
        edges,
        desc=f"{len(nodes)} entities on the first path. The topic is a diamond, answers are "
        "discs, other entities rings.",
    )
    caption = "Diamond: topic. Discs: answers."
    return f"<ol>{items}</ol>{figure(drawing, 'The first path', caption)}"


SECTIONS = (
    page.FACTS,
    page.RESULTS,
    page.Section("shortcuts", "Paths and shortcuts", metrics_section),
    page.Section("groups", "By group", group_section),
    page.TRAINING,
    page.Section("examples", "Questions and their paths", examples),
    page.COUNTS,
    page.SPENT,
    page.MANIFEST,
)
