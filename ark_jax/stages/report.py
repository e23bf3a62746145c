"""What the report shows, read from the finished stages."""

import json
import shutil
from pathlib import Path

import numpy as np

from ark_jax.data.records import Question
from ark_jax.graph.store import KnowledgeGraph
from ark_jax.log import read_rows, say
from ark_jax.pipeline import Context
from ark_jax.stages.curriculum import positives_of
from ark_jax.stages.files import chunks_of, load_json, load_rows, questions_of
from ark_jax.stages.outcome import DEPTH, METRICS, systems, verdict


def report(context: Context, folder: Path) -> dict:
    """One page on the whole run."""
    from ark_jax.evaluate.report import render

    page = render(_report_data(context))
    (folder / "report.html").write_text(page, encoding="utf-8")
    # A copy where a user looks for it; the stage's own is the one that is tracked.
    shutil.copyfile(folder / "report.html", context.workdir / "report.html.new")
    (context.workdir / "report.html.new").rename(context.workdir / "report.html")
    say(f"  {context.workdir / 'report.html'}")
    return {"bytes": len(page.encode())}


def _report_data(context: Context) -> dict:
    """Everything the page shows, read from the finished stages."""
    c = context.config
    stages = [f"stage{s}" for s in c.train.stages]
    manifests = {path.parent.name: load_json(path) for path in sorted(context.workdir.glob("*/manifest.json"))}
    counts = {name: m["counts"] for name, m in manifests.items()}
    evaluated = load_json(context / "evaluate" / "metrics.json")
    rows = load_rows(context / "evaluate" / "questions.parquet")
    texts = {x.id: x.text for some in chunks_of(context).values() for x in some}
    held_out = {q.id: q for q in questions_of(context, "held_out")}
    mined = [s for s in c.train.stages if (context / f"mine{s}").is_dir()]
    spread = lambda s, name: [r["cosine"] for r in load_rows(context / f"mine{s}" / f"{name}.parquet")]
    wins, losses = _moved(rows, systems(c)[-1], held_out, evaluated["gold"], texts)
    return {
        "title": "ARK run", "verdict": verdict(evaluated["table"]), "metrics": list(METRICS), "table": evaluated["table"],
        "facts": [["Documents", counts["data"]["documents"]], ["Chunks", counts["data"]["chunks"]],
                  ["Training questions", counts["data"]["train_questions"]],
                  ["Held-out questions", counts["data"]["held_out_questions"]],
                  ["Graph", f"{counts['graph']['nodes']} nodes, {counts['graph']['edges']} edges, "
                            f"{counts['graph']['augmented_edges']} with those of similarity"],
                  ["LLM", {"replay": "recorded replies", "none": "none: statistics, templates", "openai": c.llm.model,
                           "local": f"{Path(c.llm.path or c.generator.path).name}, on this run's devices"}[c.llm.backend]],
                  ["Retriever", Path(c.retriever.path).name], ["Generator and reader", Path(c.generator.path).name]],
        "curves": {name: list(map(json.loads, (context / name / "curve.jsonl").read_text().splitlines())) for name in stages},
        "distributions": {f"stage{s}": {"positive": spread(s, "positives"), "negative": spread(s, "negatives")} for s in mined},
        "community": _community(context), "examples": _examples(context, mined, texts), "wins": wins, "losses": losses,
        "answers": _answers(rows, systems(c), held_out),
        "counts": [["Extraction records quarantined", counts["extract"]["quarantined"]],
                   *([f"of these: {why}", n] for why, n in counts["extract"]["quarantine_reasons"].items()),
                   ["Rewriting replies quarantined", counts["rewrite"]["quarantined"]],
                   ["Rewritten questions that hold the answer", counts["rewrite"]["holding_the_answer"]],
                   ["Recorded replies whose prompt has changed since",
                    counts["extract"]["drifted_prompts"] + counts["rewrite"]["drifted_prompts"]],
                   ["Passages cut to fit the generator", counts["score"]["cut_passages"]],
                   ["Held-out questions without marked evidence", counts["evaluate"]["without_marked_evidence"]]],
        "usage": [{"stage": name, **counts[name]["llm"]} for name in ("extract", "rewrite")],
        "times": _times(context), "manifest": {name: {k: m[k] for k in ("counts", "config", "external", "version")}
                                               for name, m in manifests.items()},
    }


def _times(context: Context) -> list[list]:
    """Seconds of the latest run of each stage, in the order they ran."""
    latest: dict[str, float] = {}
    for row in read_rows(context.metrics.path):
        if isinstance(row, dict) and "seconds" in row:
            latest.pop(row["stage"], None)
            latest[row["stage"]] = row["seconds"]
    return [[stage, seconds] for stage, seconds in latest.items()]


def _community(context: Context) -> dict:
    """The large community of the question whose one is most connected, as drawn in the report."""
    made = KnowledgeGraph.load(context / "graph")
    rows = load_rows(context / "communities" / "communities.parquet")
    edges = {(int(a), int(b)): False for a, b in made.edges} | {(int(a), int(b)): True for a, b in made.similar}
    large = [r for r in rows if r["size"] == "large"]
    inside = lambda r: sum(a in set(r["nodes"]) and b in set(r["nodes"]) for a, b in edges)
    row = max(large, key=lambda r: (inside(r), r["question"]))
    small = next(r for r in rows if r["size"] == "small" and r["question"] == row["question"])
    at = {node: i for i, node in enumerate(row["nodes"])}
    question = next(q for q in questions_of(context, "train") if q.id == row["question"])
    return {"question": question.question, "answer": question.answers[0],
            "nodes": [{"name": made.names[n], "type": made.types[n], "rank": rank, "seed": n in row["seeds"],
                       "small": n in small["nodes"]} for n, rank in zip(row["nodes"], row["ranks"], strict=True)],
            "edges": [{"a": at[a], "b": at[b], "similarity": similar}
                      for (a, b), similar in edges.items() if a in at and b in at]}


def _examples(context: Context, mined: list[int], texts: dict[str, str], most: int = 3) -> list[dict]:
    """Training questions with their positives, hard negatives and scores."""
    raw = {(r["question"], r["chunk"]): r for r in load_rows(context / "score" / "scores.parquet") if r["answer"] == 0}
    unified = {(r["question"], r["chunk"]): r["score"] for r in load_rows(context / "positives" / "positives.parquet")}
    hard = {s: load_rows(context / f"mine{s}" / "negatives.parquet") for s in mined}
    rewritten = load_rows(context / "rewrite" / "rewritten.parquet")

    def shown(question: str, chunk: str, cosine: float | None = None) -> dict:
        row = raw.get((question, chunk), {})
        return {"chunk": chunk, "text": texts[chunk], "forward": row.get("forward"), "backward": row.get("backward"),
                "retriever": row.get("retriever", cosine), "score": unified.get((question, chunk))}

    out = []
    chosen = positives_of(context)
    questions = [q for q in questions_of(context, "train") if q.id in chosen]
    for q in questions[:: max(len(questions) // most, 1)][:most]:
        of = lambda rows, q=q: [r for r in rows if r["question"] == q.id]
        out.append({
            "question": q.question, "answers": list(q.answers),
            "rewritten": {size: [r["text"] for r in of(rewritten) if r["size"] == size] for size in ("large", "small")},
            "positives": [shown(q.id, chunk) for chunk in chosen[q.id]],
            "negatives": {f"stage{s}": [shown(q.id, r["chunk"], r["cosine"]) for r in of(hard[s])[:4]] for s in mined}})
    return out


def _moved(rows: list[dict], last: str, questions: dict[str, Question], gold, texts, most: int = 5) -> tuple[list, list]:
    """Held-out questions whose first needed passage rose or fell the most."""
    def first(row: dict) -> int | None:
        needed = {id for holders in gold[row["question"]] for id in holders}
        return next((i + 1 for i, id in enumerate(row["ranked"]) if id in needed), None)

    ranks = {name: {r["question"]: first(r) for r in rows if r["system"] == name} for name in ("base", last)}
    beyond = lambda rank: rank or DEPTH + 1
    gain = {q: np.log2(beyond(ranks["base"][q])) - np.log2(beyond(ranks[last][q])) for q in questions}
    passage = lambda q: texts[gold[q][0][0]] if gold[q] else ""
    tell = lambda q: {"question": questions[q].question, "answers": list(questions[q].answers), "passage": passage(q),
                      "before": ranks["base"][q], "after": ranks[last][q]}
    order = sorted(gain, key=lambda q: (-gain[q], q))
    return [tell(q) for q in order if gain[q] > 0][:most], [tell(q) for q in reversed(order) if gain[q] < 0][:most]


def _answers(rows: list[dict], names: list[str], questions: dict[str, Question], most: int = 10) -> list[dict]:
    given = {(r["system"], r["question"]): r["answer"] for r in rows}
    ends = (names[0], names[-1])
    return [{"question": q.question, "answers": list(q.answers), "given": {name: given[name, q.id] for name in ends}}
            for q in list(questions.values())[:most]]
