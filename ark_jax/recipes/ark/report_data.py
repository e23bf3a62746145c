"""What the report of an ARK run reads from its stages: cosines, examples, moves, answers."""

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ark_jax.data.records import Question
from ark_jax.graph.store import KnowledgeGraph
from ark_jax.pipeline import own_functions
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import read_table, stream_rows
from ark_jax.recipes.ark.curriculum import mine_name, stage_name
from ark_jax.recipes.ark.score import load_positives
from ark_jax.recipes.common.corpus import load_questions
from ark_jax.recipes.common.models import reader_path, trains_reader
from ark_jax.recipes.common.report import Counts
from ark_jax.recipes.common.systems import DEPTH


def load_cosines(context: Context, stage: int) -> dict[str, list[float]]:
    """The cosines of a stage's positives and negatives to their questions."""

    def load(name: str) -> list[float]:
        table = read_table(context / mine_name(stage) / f"{name}.parquet")
        return table["cosine"].to_pylist() if len(table) else []  # without rows it has no columns

    return {"positive": load("positives"), "negative": load("negatives")}


def rows_with(path: Path, column: str, values: Collection[str], limit: int | None = None) -> list:
    """The first rows of a file that have one of these values in a column."""
    table = read_table(path)
    if not len(table):  # it has no columns
        return []
    is_wanted = pc.is_in(table[column], pa.array(values, pa.string()))
    return table.filter(is_wanted).slice(0, limit).to_pylist()


def load_community(context: Context, limit: int = 200) -> dict:
    """The most connected large community of the first `limit` questions, as the report draws it."""
    graph = KnowledgeGraph.load(context / "graph")
    path = context / "communities" / "communities.parquet"
    edges = np.concatenate([graph.edges, graph.similar])
    inside = lambda row: np.isin(edges, row["nodes"]).all(1)
    large = rows_with(path, "size", ["large"], limit)
    row = max(large, key=lambda row: (inside(row).sum(), row["question"]), default=None)
    if row is None:
        return {}
    small = {
        node
        for smaller in rows_with(path, "question", [row["question"]])
        if smaller["size"] == "small"
        for node in smaller["nodes"]
    }
    positions = {node: i for i, node in enumerate(row["nodes"])}
    question = next(q for q in load_questions(context, "train") if q.id == row["question"])
    similar = {
        tuple(map(int, edges[i])): bool(i >= len(graph.edges)) for i in np.flatnonzero(inside(row))
    }
    nodes = [
        {
            "name": graph.names[node],
            "type": graph.types[node],
            "rank": rank,
            "seed": node in row["seeds"],
            "small": node in small,
        }
        for node, rank in zip(row["nodes"], row["ranks"], strict=True)
    ]
    drawn = [
        {"a": positions[a], "b": positions[b], "similarity": is_similar}
        for (a, b), is_similar in similar.items()
    ]
    answer = question.answers[0]
    return {"question": question.question, "answer": answer, "nodes": nodes, "edges": drawn}


def load_examples(
    context: Context,
    mined: Sequence[int],
    texts: Mapping[str, str],
    *,
    with_rewrites: bool,
    count: int = 3,
) -> list[dict]:
    """Training questions with their positives, hard negatives and scores."""
    positives = load_positives(context / "positives")
    questions = [q for q in load_questions(context, "train") if q.id in positives]
    questions = questions[:: max(len(questions) // count, 1)][:count]
    ids = [question.id for question in questions]
    rows = lambda folder, name: rows_with(context / folder / f"{name}.parquet", "question", ids)
    key = lambda row: (row["question"], row["chunk"])
    raw = {key(row): row for row in rows("score", "scores") if row["answer"] == 0}
    unified = {key(row): row["score"] for row in rows("positives", "positives")}
    negatives = {stage: rows(mine_name(stage), "negatives") for stage in mined}
    rewritten = rows("rewrite", "rewritten") if with_rewrites else []

    def passage(question: str, chunk: str, cosine: float | None = None) -> dict:
        row = raw.get((question, chunk), {})
        return {
            "chunk": chunk,
            "text": texts[chunk],
            "forward": row.get("forward"),
            "backward": row.get("backward"),
            "retriever": row.get("retriever", cosine),
            "score": unified.get((question, chunk)),
        }

    def example(question: Question) -> dict:
        own = lambda rows: [row for row in rows if row["question"] == question.id]
        sizes = ("large", "small") if with_rewrites else ()
        return {
            "question": question.question,
            "answers": question.answers,
            "rewritten": {
                size: [row["text"] for row in own(rewritten) if row["size"] == size]
                for size in sizes
            },
            "positives": [passage(question.id, chunk) for chunk in positives[question.id]],
            "negatives": {
                stage_name(stage): [
                    passage(question.id, row["chunk"], row["cosine"]) for row in own(found)[:4]
                ]
                for stage, found in negatives.items()
            },
        }

    return list(map(example, questions))


def load_quarantined(context: Context, counts: Counts, limit: int = 20) -> list[dict]:
    """The first replies of each step that could not be used."""
    replies = []
    for stage, item in (("extract", "chunk"), ("questions", "item"), ("rewrite", "item")):
        if stage not in counts:
            continue
        table = read_table(context / stage / "quarantine.parquet")
        replies += [
            {"stage": stage, "item": row[item], "reason": row["reason"], "text": row["text"]}
            for row in itertools.islice(stream_rows(table), limit)
        ]
    return replies


def find_moves(
    rows: list[dict],
    names: tuple[str, str],
    questions: Mapping[str, Question],
    gold: Mapping[str, list[list[str]]],
    texts: Mapping[str, str],
    is_cut: Callable[[str | None], bool],
    limit: int = 5,
) -> tuple[dict, list[dict], list[dict]]:
    """How many questions rose and fell from the first to the last system, and the largest moves.

    A question moves by the rank of its first needed passage.
    """
    base, last = names
    needed = {id: {chunk for holders in gold[id] for chunk in holders} for id in questions}
    compared = {(row["system"], row["question"]): row for row in rows if row["system"] in names}

    def rank(system: str, id: str) -> int | None:
        ranked = compared[system, id]["ranked"][:DEPTH]
        return next((i for i, chunk in enumerate(ranked, 1) if chunk in needed[id]), None)

    ranks = {id: (rank(base, id), rank(last, id)) for id in questions}
    depth = lambda rank: np.log2(rank or DEPTH + 1)
    gain = {id: depth(before) - depth(after) for id, (before, after) in ranks.items()}

    def describe(id: str) -> dict:
        of_systems = {system: compared[system, id] for system in names}
        found = [chunk for row in reversed(of_systems.values()) for chunk in row["ranked"]]
        firsts = {system: next(iter(row["ranked"]), None) for system, row in of_systems.items()}
        return {
            "question": questions[id].question,
            "answers": questions[id].answers,
            "passage": texts[next(chunk for chunk in found if chunk in needed[id])],
            "before": ranks[id][0],
            "after": ranks[id][1],
            "first": {system: chunk and {"text": texts[chunk]} for system, chunk in firsts.items()},
            "given": {
                system: None if is_cut(row["answer"]) else row["answer"]
                for system, row in of_systems.items()
            },
        }

    order = sorted(gain, key=lambda id: (-gain[id], id))
    rose = [id for id in order if gain[id] > 0]
    fell = [id for id in reversed(order) if gain[id] < 0]
    tally = {"rose": len(rose), "fell": len(fell), "stayed": len(order) - len(rose) - len(fell)}
    return tally, list(map(describe, rose[:limit])), list(map(describe, fell[:limit]))


def reader_name(config) -> str:
    """Who answers, as the report calls it."""
    match config.reader.backend:
        case "openai":
            return config.reader.model
        case "replay":
            return "recorded replies"
        case own if own_functions.is_own(own):
            return own
    return Path(config.reader.path or config.generator.path).name


def cut_answers(context: Context) -> Callable[[str | None], bool]:
    """Whether an answer of a local reader fills `evaluate.max_new_tokens`, so that its end lacks.

    Of other readers no answer is known to be cut.
    """
    config = context.config
    if config.reader.backend != "local":
        return lambda answer: False
    from ark_jax.text.tokens import load_tokenizer

    tokenizer = load_tokenizer(reader_path(context) or config.generator.path)
    count = lambda text: len(tokenizer(text, add_special_tokens=False)["input_ids"])
    return lambda answer: answer is not None and count(answer) >= config.evaluate.max_new_tokens


def answers_shown(
    config,
    rows: list[dict],
    names: tuple[str, str],
    questions: Mapping[str, Question],
    is_cut: Callable[[str | None], bool],
    limit: int = 10,
) -> dict:
    """`rows`: answers of the first and the last system to the first questions; `about`: whose.

    Args:
        rows: of `questions.parquet`.
        is_cut: answers that are left out; so is a question whose answers all are.
    """
    replies = {(row["system"], row["question"]): row["answer"] for row in rows}
    read = [q for q in questions.values() if replies[names[0], q.id] is not None]
    if not read:
        return {}
    uncut = {
        q.id: {name: replies[name, q.id] for name in names if not is_cut(replies[name, q.id])}
        for q in read
    }
    cut = len(names) * len(read) - sum(map(len, uncut.values()))
    shown = [
        {
            "question": q.question,
            "answers": q.answers,
            "given": {name: uncut[q.id].get(name) for name in names},
        }
        for q in read
        if uncut[q.id]
    ]
    return {"about": _sentences(config, cut, is_empty=not shown), "rows": shown[:limit]}


def _sentences(config, cut: int, *, is_empty: bool) -> str:
    """Who answered, and how many answers are left out."""
    trained = trains_reader(config)
    who = reader_name(config) + ", which this run trained to answer," * trained
    limit = config.evaluate.max_new_tokens
    if is_empty:
        fix = "" if trained else "; config.reader.warm=True teaches it to answer"
        return (
            f"No answer is shown: those of {who} are all cut at {limit} tokens "
            f"(config.evaluate.max_new_tokens){fix}."
        )
    left_out = f" {cut:,} answers that were cut at {limit} tokens are left out." if cut else ""
    return f"Answers of {who} from the passages that each system retrieves.{left_out}"
