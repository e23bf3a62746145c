"""What the report shows, read from the finished stages."""

import json
import shutil
from pathlib import Path

import numpy as np

from ark_jax.data.records import Question
from ark_jax.graph.store import KnowledgeGraph
from ark_jax.log import read_rows, say
from ark_jax.pipeline import Context, read_manifest
from ark_jax.stages.curriculum import positives_of
from ark_jax.stages.files import Texts, chunks_of, load_json, load_rows, questions_of
from ark_jax.stages.outcome import verdict
from ark_jax.stages.systems import DEPTH, trained

# Counts that a stage has where there is something to count.
COUNTS = {("rewrite", "not_rewritten"): "Training questions that were not rewritten",
          ("score", "cut_by_the_retriever"): "Training chunks longer than the retriever reads, which it cuts",
          ("evaluate", "without_gold"): "Held-out questions without a gold passage",
          ("evaluate", "cut_to_fit_the_reader"): "Held-out questions whose documents were cut to fit the reader (full)",
          ("evaluate", "unanswered"): "Prompts that the reader did not answer",
          ("judge", "disqualified"): "Verdicts of the judge that could not be used"}


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
    """Everything the page shows, read from the finished stages of this config; the workdir may hold others'."""
    from ark_jax.stages import stages

    c = context.config
    manifests = {stage.name: read_manifest(context / stage.name) for stage in stages(c) if stage.name != "report"}
    counts = {name: m["counts"] for name, m in manifests.items()}
    evaluated = load_json(context / "evaluate" / "metrics.json")
    rows = load_rows(context / "evaluate" / "questions.parquet")
    texts = Texts(chunks_of(context))
    held_out = {q.id: q for q in questions_of(context, "held_out")}
    mined = [s for s in c.train.stages if f"mine{s}" in counts]
    spread = lambda s, name: [r["cosine"] for r in load_rows(context / f"mine{s}" / f"{name}.parquet")]
    return {
        "title": "ARK run", "verdict": verdict(evaluated["table"], evaluated["metrics"]),
        "metrics": evaluated["metrics"], "table": evaluated["table"],
        "facts": [["Documents", counts["data"]["documents"]], ["Chunks", counts["data"]["chunks"]],
                  ["Training questions", counts["data"]["train_questions"]],
                  ["Held-out questions", counts["data"]["held_out_questions"]],
                  ["Graph", f"{counts['graph']['nodes']:,} nodes, {counts['graph']['edges']:,} edges, "
                            f"{counts['graph']['augmented_edges']:,} with those of similarity"],
                  ["LLM", {"replay": "recorded replies", "none": "none: statistics, templates", "openai": c.llm.model,
                           "local": f"{Path(c.llm.path or c.generator.path).name}, on this run's devices"}[c.llm.backend]],
                  ["Retriever", Path(c.retriever.path).name], ["Generator and reader", Path(c.generator.path).name]],
        "curves": {name: list(map(json.loads, (context / name / "curve.jsonl").read_text().splitlines()))
                   for name in trained(c)[1:] if name != "merged"},
        "distributions": {f"stage{s}": {"positive": spread(s, "positives"), "negative": spread(s, "negatives")} for s in mined},
        "difficulty": {f"stage{s}": counts[f"mine{s}"] for s in mined},
        "community": _community(context), "examples": _examples(context, mined, texts),
        **_moved(rows, trained(c)[-1], held_out, evaluated["gold"], texts),
        "answers": _answers(rows, trained(c), held_out),
        "counts": [["Extraction records quarantined", counts["extract"]["quarantined"]],
                   *([f"of these: {why}", n] for why, n in counts["extract"]["quarantine_reasons"].items()),
                   ["Rewriting replies quarantined", counts["rewrite"]["quarantined"]],
                   ["Rewritten questions that hold the answer", counts["rewrite"]["holding_the_answer"]],
                   ["Recorded replies whose prompt has changed since",
                    counts["extract"]["drifted_prompts"] + counts["rewrite"]["drifted_prompts"]],
                   ["Passages cut to fit the generator", counts["score"]["cut_passages"]],
                   ["Held-out questions without marked evidence", counts["evaluate"]["without_marked_evidence"]],
                   *([label, counts[stage][name]] for (stage, name), label in COUNTS.items() if name in counts.get(stage, ()))],
        "quarantine": _quarantined(context),
        "judge": load_json(context / "judge" / "judge.json") if "judge" in counts else {},
        "usage": [{"stage": name, **some["llm"]} for name, some in counts.items() if some.get("llm", {}).get("calls")],
        "times": _times(context, set(counts)), "manifest": {name: {k: m[k] for k in ("counts", "config", "external", "version")}
                                                            for name, m in manifests.items()},
    }


def _times(context: Context, stages: set[str]) -> list[list]:
    """Seconds of the latest run of each of the stages, in the order they ran."""
    latest: dict[str, float] = {}
    for row in read_rows(context.metrics.path):
        if isinstance(row, dict) and "seconds" in row and row["stage"] in stages:
            latest.pop(row["stage"], None)
            latest[row["stage"]] = row["seconds"]
    return [[stage, seconds] for stage, seconds in latest.items()]


def _community(context: Context, most: int = 200) -> dict:
    """The large community of that question, of the first `most`, whose one is most connected, as drawn in the report."""
    made = KnowledgeGraph.load(context / "graph")
    rows = load_rows(context / "communities" / "communities.parquet")
    edges = np.concatenate([made.edges, made.similar])
    inside = lambda row: np.isin(edges, row["nodes"]).all(1)
    row = max([r for r in rows if r["size"] == "large"][:most], key=lambda r: (inside(r).sum(), r["question"]), default=None)
    if row is None:
        return {}
    small = {n for r in rows if r["size"] == "small" and r["question"] == row["question"] for n in r["nodes"]}
    at = {node: i for i, node in enumerate(row["nodes"])}
    question = next(q for q in questions_of(context, "train") if q.id == row["question"])
    kinds = {tuple(map(int, edges[i])): bool(i >= len(made.edges)) for i in np.flatnonzero(inside(row))}
    return {"question": question.question, "answer": question.answers[0],
            "nodes": [{"name": made.names[n], "type": made.types[n], "rank": rank, "seed": n in row["seeds"],
                       "small": n in small} for n, rank in zip(row["nodes"], row["ranks"], strict=True)],
            "edges": [{"a": at[a], "b": at[b], "similarity": similar} for (a, b), similar in kinds.items()]}


def _examples(context: Context, mined: list[int], texts: Texts, most: int = 3) -> list[dict]:
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


def _quarantined(context: Context, most: int = 20) -> list[dict]:
    """The first replies of each step that could not be used."""
    out = []
    for stage, item in (("extract", "chunk"), ("rewrite", "item")):
        out += [{"stage": stage, "item": row[item], "reason": row["reason"], "text": row["text"]}
                for row in load_rows(context / stage / "quarantine.parquet")[:most]]
    return out


def _moved(rows: list[dict], last: str, questions: dict[str, Question], gold, texts, most: int = 5) -> dict:
    """Held-out questions whose first needed passage rose or fell the most, and how many did at all."""
    needed = {q: {id for holders in gold[q] for id in holders} for q in questions}
    at = {(row["system"], row["question"]): row for row in rows if row["system"] in ("base", last)}
    rank = lambda name, q: next((i for i, id in enumerate(at[name, q]["ranked"][:DEPTH], 1) if id in needed[q]), None)
    ranks = {q: (rank("base", q), rank(last, q)) for q in questions}
    beyond = lambda r: r or DEPTH + 1
    gain = {q: np.log2(beyond(before)) - np.log2(beyond(after)) for q, (before, after) in ranks.items()}

    def first(name: str, q: str) -> dict | None:
        best = next(iter(at[name, q]["ranked"]), None)
        return best and {"text": texts[best]}

    def tell(q: str) -> dict:
        before, after = ranks[q]
        return {"question": questions[q].question, "answers": list(questions[q].answers),
                "passage": texts[next(id for name in (last, "base") for id in at[name, q]["ranked"] if id in needed[q])],
                "before": before, "after": after,
                "first": {name: first(name, q) for name in ("base", last)},
                "given": {name: at[name, q]["answer"] for name in ("base", last)}}

    order = sorted(gain, key=lambda q: (-gain[q], q))
    rose, fell = [q for q in order if gain[q] > 0], [q for q in reversed(order) if gain[q] < 0]
    return {"tally": {"rose": len(rose), "fell": len(fell), "stayed": len(order) - len(rose) - len(fell)},
            "wins": list(map(tell, rose[:most])), "losses": list(map(tell, fell[:most]))}


def _answers(rows: list[dict], names: list[str], questions: dict[str, Question], most: int = 10) -> list[dict]:
    given = {(r["system"], r["question"]): r["answer"] for r in rows}
    ends = (names[0], names[-1])
    return [{"question": q.question, "answers": list(q.answers), "given": {name: given[name, q.id] for name in ends}}
            for q in [q for q in questions.values() if given[ends[0], q.id] is not None][:most]]
