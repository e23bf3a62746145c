"""What the report of an ARK run shows, read from its finished stages."""

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ark_jax.data.records import Question
from ark_jax.evaluate.significance import smallest_difference
from ark_jax.graph.store import KnowledgeGraph
from ark_jax.pipeline.recipe import search_command
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_json, load_rows, read_table, stream_rows
from ark_jax.recipes.ark.curriculum import (
    RERANKER,
    asks_writer,
    mine_name,
    stage_name,
    systems,
    trained_stages,
)
from ark_jax.recipes.ark.report_answers import answers_shown, cut_answers, reader_name
from ark_jax.recipes.ark.score import load_positives
from ark_jax.recipes.common.corpus import Passages, load_questions, stored_chunks
from ark_jax.recipes.common.evaluate import verdict
from ark_jax.recipes.common.models import WARM_READER
from ark_jax.recipes.common.report import Counts, labelled, load_curve
from ark_jax.recipes.common.systems import DEPTH
from ark_jax.recipes.common.written_from import note_on_test

SEARCHED = {"corpus": "the whole corpus", "documents": "the documents of the question"}
# Losses that a stage always counts, and losses that a stage counts only if there are any.
LOSSES = {
    ("rewrite", "quarantined"): "Rewriting replies quarantined",
    ("rewrite", "dropped_with_the_answer"): "Rewritten questions dropped, as they hold the answer",
}
OPTIONAL_LOSSES = {
    ("rewrite", "not_rewritten"): "Training questions that were not rewritten",
    ("candidates", "cut_by_the_retriever"): "Training chunks longer than the retriever reads, "
    "which it cuts",
    (WARM_READER, "cut_prompts"): "Prompts of the reader's training that were cut to fit it",
    ("evaluate", "without_gold"): "Held-out questions without a gold passage",
    ("evaluate", "cut_to_fit_the_reader"): "Held-out questions whose passages or documents were "
    "cut to fit the reader",
    ("evaluate", "unanswered"): "Prompts that the reader did not answer",
    ("judge", "disqualified"): "Verdicts of the judge that could not be used",
}


def gather(context: Context, counts: Counts) -> dict:
    """The data of the page's sections.

    It reads only the stages of this config: a workdir may hold those of another one too.
    """
    config = context.config
    evaluated = load_json(context / "evaluate" / "metrics.json")
    rows = load_rows(context / "evaluate" / "questions.parquet")
    texts = Passages(stored_chunks(context))
    held_out = {question.id: question for question in load_questions(context, "held_out")}
    mined = [stage for stage in config.train.stages if mine_name(stage) in counts]
    last = systems(config).last
    curriculum, note = trained_stages(config), note_on_test(context)
    trained = [name for name in (*curriculum, RERANKER) if name in counts]
    is_cut = cut_answers(context)
    return {
        "verdict": " ".join(
            filter(None, (verdict(evaluated["table"], evaluated["metrics"], curriculum), note))
        ),
        "metrics": evaluated["metrics"],
        "table": evaluated["table"],
        "facts": [
            *_facts(config, counts),
            ["Search your documents with it", search_command(context.workdir)],
        ],
        "curves": {name: load_curve(context / name / "curve.jsonl") for name in trained},
        "distributions": {stage_name(stage): _cosines(context, stage) for stage in mined},
        "difficulty": {stage_name(stage): counts[mine_name(stage)] for stage in mined},
        "community": _community(context) if "communities" in counts else {},
        "examples": _examples(context, mined, texts, with_rewrites="rewrite" in counts),
        **_moves(rows, last, held_out, evaluated["gold"], texts, is_cut),
        "answers": answers_shown(config, rows, ("base", last), held_out, is_cut),
        "counts": _losses(counts),
        "quarantine": _quarantined(context, counts),
        "judge": load_json(context / "judge" / "judge.json") if "judge" in counts else {},
    }


def _facts(config, counts: Counts) -> list[list]:
    data, written = counts["data"], counts.get("questions", {})
    return [
        ["Documents", data["documents"]],
        ["Chunks", data["chunks"]],
        ["Training questions", data["train_questions"] + written.get("train_questions", 0)],
        ["Held-out questions", data["held_out_questions"] + written.get("held_out_questions", 0)],
        *_written_facts(written),
        [
            "Smallest difference in nDCG@10 that so many can tell from chance",
            f"{smallest_difference(counts['evaluate']['questions']):.2f}",
        ],
        ["Searched", SEARCHED[data["pool"]]],
        *_graph_facts(config, counts),
        ["Retriever", Path(config.retriever.path).name],
        *_reranker_facts(config, counts.get(RERANKER, {})),
        ["Generator", Path(config.generator.path).name],
        ["Reader", f"{reader_name(config)}{_reader_training(counts.get(WARM_READER, {}))}"],
    ]


def _graph_facts(config, counts: Counts) -> list[list]:
    """The size of the graph, if the run built one, and the model that was asked to write."""
    size = "none: no stage of this run reads one"
    if graph := counts.get("graph"):
        size = (
            f"{graph['nodes']:,} nodes, {graph['edges']:,} edges, "
            f"{graph['augmented_edges']:,} with those of similarity"
        )
    if not asks_writer(config):
        return [["Graph", size]]
    local = Path(config.llm.path or config.generator.path).name
    llm = {
        "replay": "recorded replies",
        "none": "none: statistics, templates",
        "openai": config.llm.model,
        "local": f"{local}, on this run's devices",
    }
    return [["Graph", size], ["LLM", llm[config.llm.backend]]]


def _reader_training(trained: Mapping) -> str:
    """How long the reader was trained to answer, if it was."""
    return f", trained in {trained['steps']:,} steps" if trained else ""


def _reranker_facts(config, trained: Mapping) -> list[list]:
    """What a trained reranker began from, and how many questions it learned from."""
    if not trained:
        return []
    base = Path(config.reranker.path).name
    return [["Reranker", f"begins as {base}, {trained['lists']:,} questions"]]


def _written_facts(written: Mapping) -> list[list]:
    """How many questions were written, if any, and of how many passages each."""
    if not written:
        return []
    train, held_out = written["train_questions"], written["held_out_questions"]
    text = f"{train:,} for training ({written['joined_questions']:,} of two passages)"
    return [["Written questions", text + (f", {held_out:,} held out" if held_out else "")]]


def _losses(counts: Counts) -> list[list]:
    """What was rejected, cut or set aside, in words and numbers."""
    asking = [counts[stage] for stage in ("extract", "rewrite", "questions") if stage in counts]
    drifted = sum(step.get("drifted_prompts", 0) for step in asking)
    unmarked = counts["evaluate"]["without_marked_evidence"]
    return [
        *_quarantined_records(counts.get("extract", {})),
        *labelled(counts, LOSSES),
        *([["Recorded replies whose prompt has changed since", drifted]] if asking else []),
        ["Passages cut to fit the generator", counts["score"]["cut_passages"]],
        ["Held-out questions without marked evidence", unmarked],
        *labelled(counts, OPTIONAL_LOSSES),
        *_dropped(counts.get("questions", {})),
    ]


def _quarantined_records(extracted: Mapping) -> list[list]:
    """Records of the graph that could not be used, by reason."""
    if not extracted:
        return []
    return [
        ["Extraction records quarantined", extracted["quarantined"]],
        *([f"of these: {reason}", n] for reason, n in extracted["quarantine_reasons"].items()),
    ]


def _dropped(written: Mapping) -> list[list]:
    """Written questions that were dropped, by reason."""
    if not written:
        return []
    return [
        ["Replies with questions quarantined", written["quarantined"]],
        ["Written questions dropped", written["dropped"]],
        *([f"of these: {reason}", count] for reason, count in written["drop_reasons"].items()),
    ]


def _cosines(context: Context, stage: int) -> dict[str, list[float]]:
    """The cosines of a stage's positives and negatives to their questions."""

    def load(name: str) -> list[float]:
        table = read_table(context / mine_name(stage) / f"{name}.parquet")
        return table["cosine"].to_pylist() if len(table) else []  # without rows it has no columns

    return {"positive": load("positives"), "negative": load("negatives")}


def _rows_with(path: Path, column: str, values: Collection[str], limit: int | None = None) -> list:
    """The first rows of a file that have one of these values in a column."""
    table = read_table(path)
    if not len(table):  # it has no columns
        return []
    is_wanted = pc.is_in(table[column], pa.array(values, pa.string()))
    return table.filter(is_wanted).slice(0, limit).to_pylist()


def _community(context: Context, limit: int = 200) -> dict:
    """The most connected large community of the first `limit` questions, as the report draws it."""
    graph = KnowledgeGraph.load(context / "graph")
    path = context / "communities" / "communities.parquet"
    edges = np.concatenate([graph.edges, graph.similar])
    inside = lambda row: np.isin(edges, row["nodes"]).all(1)
    large = _rows_with(path, "size", ["large"], limit)
    row = max(large, key=lambda row: (inside(row).sum(), row["question"]), default=None)
    if row is None:
        return {}
    small = {
        node
        for smaller in _rows_with(path, "question", [row["question"]])
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


def _examples(
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
    rows = lambda folder, name: _rows_with(
        context / folder / f"{name}.parquet", "question", [q.id for q in questions]
    )
    scores = rows("score", "scores")
    raw = {(row["question"], row["chunk"]): row for row in scores if row["answer"] == 0}
    weighted = rows("positives", "positives")
    unified = {(row["question"], row["chunk"]): row["score"] for row in weighted}
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

    examples = []
    for question in questions:
        of_question = lambda rows, question=question: [
            r for r in rows if r["question"] == question.id
        ]
        hard = {
            stage_name(stage): [
                passage(question.id, row["chunk"], row["cosine"])
                for row in of_question(negatives[stage])[:4]
            ]
            for stage in mined
        }
        versions = {
            size: [row["text"] for row in of_question(rewritten) if row["size"] == size]
            for size in ("large", "small")
            if with_rewrites
        }
        example = {
            "question": question.question,
            "answers": list(question.answers),
            "rewritten": versions,
            "positives": [passage(question.id, chunk) for chunk in positives[question.id]],
            "negatives": hard,
        }
        examples.append(example)
    return examples


def _quarantined(context: Context, counts: Counts, limit: int = 20) -> list[dict]:
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


def _moves(
    rows: list[dict],
    last: str,
    questions: Mapping[str, Question],
    gold: Mapping[str, list[list[str]]],
    texts: Mapping[str, str],
    is_cut: Callable[[str | None], bool],
    limit: int = 5,
) -> dict:
    """Held-out questions whose first needed passage rose or fell the most.

    It also counts all questions whose passage rose or fell.
    """
    needed = {id: {chunk for holders in gold[id] for chunk in holders} for id in questions}
    compared = {
        (row["system"], row["question"]): row for row in rows if row["system"] in ("base", last)
    }

    def rank(system: str, question: str) -> int | None:
        ranked = compared[system, question]["ranked"][:DEPTH]
        return next((i for i, id in enumerate(ranked, 1) if id in needed[question]), None)

    ranks = {id: (rank("base", id), rank(last, id)) for id in questions}
    beyond = DEPTH + 1
    gain = {
        id: np.log2(before or beyond) - np.log2(after or beyond)
        for id, (before, after) in ranks.items()
    }

    def first_passage(system: str, question: str) -> dict | None:
        best = next(iter(compared[system, question]["ranked"]), None)
        return best and {"text": texts[best]}

    def whole_answer(system: str, question: str) -> str | None:
        answer = compared[system, question]["answer"]
        return None if is_cut(answer) else answer

    def describe(question: str) -> dict:
        before, after = ranks[question]
        passage_id = next(
            id
            for system in (last, "base")
            for id in compared[system, question]["ranked"]
            if id in needed[question]
        )
        return {
            "question": questions[question].question,
            "answers": list(questions[question].answers),
            "passage": texts[passage_id],
            "before": before,
            "after": after,
            "first": {system: first_passage(system, question) for system in ("base", last)},
            "given": {system: whole_answer(system, question) for system in ("base", last)},
        }

    order = sorted(gain, key=lambda id: (-gain[id], id))
    rose = [id for id in order if gain[id] > 0]
    fell = [id for id in reversed(order) if gain[id] < 0]
    stayed = len(order) - len(rose) - len(fell)
    return {
        "tally": {"rose": len(rose), "fell": len(fell), "stayed": stayed},
        "wins": list(map(describe, rose[:limit])),
        "losses": list(map(describe, fell[:limit])),
    }
