"""What came of it: evaluate, export, report."""

import itertools
import json
import shutil
from pathlib import Path

import numpy as np

from ark_jax import __version__
from ark_jax.data.records import Document, Question
from ark_jax.graph.store import KnowledgeGraph
from ark_jax.log import read_rows, say
from ark_jax.pipeline import Context, read_manifest
from ark_jax.stages.curriculum import positives_of
from ark_jax.stages.files import (
    chunks_of,
    encode,
    generator,
    load_json,
    load_rows,
    pool,
    questions_of,
    save_json,
    save_rows,
)
from ark_jax.text import prompts

RETRIEVAL = ("recall@5", "recall@10", "ndcg@10", "mrr")
METRICS = (*RETRIEVAL, "answer_f1")
DEPTH = 20  # retrieved chunks kept per question
NAMES = {"recall@5": "recall@5", "recall@10": "recall@10", "ndcg@10": "nDCG@10", "mrr": "MRR", "answer_f1": "answer F1"}


def systems(config) -> list[str]:
    return ["base", *(f"stage{stage}" for stage in config.train.stages)]


def evaluate(context: Context, folder: Path) -> dict:
    """Base and every stage on the held-out questions: ranks, answers, metrics with intervals."""
    from ark_jax.evaluate import answers, retrieval

    c, chunks = context.config.evaluate, chunks_of(context)
    questions = questions_of(context, "held_out")
    gold, unmarked = _gold(context, questions, chunks)
    ranked = {name: _ranked(context, name, questions, chunks, folder) for name in systems(context.config)}
    texts = {x.id: x.text for some in chunks.values() for x in some}
    template, lm = prompts.load("read", context.config.prompts.read), generator(context)
    asked = {(name, q.id): answers.ask(lm, template, q.question, [texts[id] for id in lists[q.id][: c.passages]])
             for name, lists in ranked.items() for q in questions}
    known = answers.read(lm, list(asked.values()), kept=folder / "known.jsonl", max_new_tokens=c.max_new_tokens,
                         batch_tokens=context.config.generator.batch_tokens, label="read answers")
    (folder / "known.jsonl").unlink(missing_ok=True)
    rows = []
    for name, lists in ranked.items():
        for q in questions:
            given = known[asked[name, q.id]]
            rows.append({"system": name, "question": q.id, "answer": given, "answer_f1": answers.f1(given, q.answers),
                         "exact_match": answers.exact_match(given, q.answers), "ranked": lists[q.id],
                         **retrieval.metrics(lists[q.id], gold[q.id])})
    save_rows(rows, folder / "questions.parquet")
    table = [{"system": name, "values": {metric: retrieval.interval(
        [r[metric] for r in rows if r["system"] == name], draws=c.bootstrap, seed=context.config.seed) for metric in METRICS}}
        for name in ranked]
    save_json({"table": table, "gold": gold}, folder / "metrics.json")
    say(_as_text(table))
    return {"questions": len(questions), "systems": len(ranked), "without_marked_evidence": unmarked}


def _gold(context: Context, questions: list[Question], chunks) -> tuple[dict[str, list[list[str]]], int]:
    """question -> needed passages, each as the chunks that hold it. Without marked evidence, any chunk of the
    question's documents that contains an answer will do."""
    from ark_jax.evaluate.retrieval import gold_chunks

    documents = {d.id: d.text for d in load_rows(context / "data" / "documents.parquet", Document)}
    gold, unmarked = {}, 0
    for q in questions:
        some = pool(q, chunks)
        gold[q.id] = gold_chunks(q.evidence, documents, some)
        if not gold[q.id]:
            unmarked += 1
            holding = [x.id for x in some if any(a.lower() in x.text.lower() for a in q.answers)]
            gold[q.id] = [holding] if holding else []
    return gold, unmarked


def _ranked(context: Context, name: str, questions: list[Question], chunks, folder: Path) -> dict[str, list[str]]:
    """question -> the ids of its first `DEPTH` chunks; kept per system, so that a killed run goes on."""
    from ark_jax.search import top_k

    path = folder / f"ranked-{name}.parquet"
    if not path.is_file():
        documents = {d for q in questions for d in q.documents}
        everything = [x for document, some in chunks.items() if document in documents for x in some]
        at = {x.id: i for i, x in enumerate(everything)}
        vectors = encode(context, name, [x.text for x in everything], "document", f"embed chunks, {name}")
        queries = encode(context, name, [q.question for q in questions], "query")
        scopes: dict[tuple[int, ...], list[int]] = {}
        for i, q in enumerate(questions):
            scope = [at[x.id] for x in pool(q, chunks)] if context.config.evaluate.scope == "document" else range(len(everything))
            scopes.setdefault(tuple(scope), []).append(i)
        rows: list[dict] = [{}] * len(questions)
        for scope, asking in scopes.items():
            found, _ = top_k(queries[asking], vectors[list(scope)], DEPTH)
            for i, best in zip(asking, found, strict=True):
                rows[i] = {"question": questions[i].id, "ranked": [everything[scope[j]].id for j in best]}
        save_rows(rows, path.with_suffix(".new"))
        path.with_suffix(".new").rename(path)
    return {row["question"]: row["ranked"] for row in load_rows(path)}


def _as_text(table: list[dict]) -> str:
    """The closing table for a terminal: mean and 95 % interval."""
    lines = ["  " + "system".ljust(9) + "".join(NAMES[m].rjust(22) for m in METRICS)]
    for row in table:
        cells = ["{mean:.3f} [{low:.3f}, {high:.3f}]".format(**row["values"][m]).rjust(22) for m in METRICS]
        lines.append("  " + row["system"].ljust(9) + "".join(cells))
    return "\n".join(lines)


def verdict(table: list[dict]) -> str:
    """One honest sentence on the last stage against the base."""
    base, last = table[0]["values"], table[-1]["values"]
    moved = {m: last[m]["mean"] - base[m]["mean"] for m in METRICS}
    better, worse = [m for m in METRICS if moved[m] > 0], [m for m in METRICS if moved[m] < 0]
    tell = lambda some: ", ".join(f"{NAMES[m]} {moved[m]:+.3f}" for m in some)
    head = "Better than the base" if not worse and better else "Mixed against the base" if better else "No better than the base"
    steps = [row["system"] for before, row in itertools.pairwise(table)
             if row["values"]["ndcg@10"]["mean"] < before["values"]["ndcg@10"]["mean"]]
    setback = f" nDCG@10 fell at {' and '.join(steps)}." if steps else ""
    return f"{head} on the held-out documents: {tell(better + worse) or 'nothing moved'}.{setback}"


def export(context: Context, folder: Path) -> dict:
    """The tuned retriever as a sentence-transformers folder, with a model card that holds its numbers."""
    last = systems(context.config)[-1]
    shutil.copytree(context / last / "model", folder, dirs_exist_ok=True)
    table = load_json(context / "evaluate" / "metrics.json")["table"]
    (folder / "README.md").write_text(_card(context, table), encoding="utf-8")
    return {"model": last}


def _card(context: Context, table: list[dict]) -> str:
    """The model card: base model, method, data, metrics, use."""
    c, counts = context.config, read_manifest(context / "data")["counts"]
    header = "| system | " + " | ".join(NAMES[m] for m in METRICS) + " |\n|---" * 1 + "|---" * len(METRICS) + "|"
    rows = "\n".join("| " + " | ".join([row["system"], *(f"{row['values'][m]['mean']:.3f} [{row['values'][m]['low']:.3f}, "
                     f"{row['values'][m]['high']:.3f}]" for m in METRICS)]) + " |" for row in table)
    base = c.retriever.path if not Path(c.retriever.path).exists() else Path(c.retriever.path).name
    return f"""---
library_name: sentence-transformers
pipeline_tag: sentence-similarity
tags: [sentence-transformers, feature-extraction, ark]
---

# {base}, tuned with ARK

Base model: {base}. Tuned by ark_jax {__version__} with answer-centric contrastive learning (ARK, ACL 2026) on
{counts['train_questions']} questions; measured on {counts['held_out_questions']} questions over documents it never saw
(mean and 95 % bootstrap interval):

{header}
{rows}

{verdict(table)}

```python
from sentence_transformers import SentenceTransformer
model = SentenceTransformer("path/to/this/folder")
vectors = model.encode(["a passage"])
```

Training settings: `{json.dumps(c.train.to_dict(), default=list)}`. The licence is the base model's.
"""


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
                  ["Graph", f"{counts['graph']['nodes']} nodes, {counts['graph']['edges']} edges"],
                  ["LLM", {"replay": "recorded replies", "none": "none: statistics, templates"}.get(c.llm.backend, c.llm.model)],
                  ["Retriever", Path(c.retriever.path).name], ["Generator and reader", Path(c.generator.path).name]],
        "curves": {name: list(map(json.loads, (context / name / "curve.jsonl").read_text().splitlines())) for name in stages},
        "distributions": {f"stage{s}": {"positive": spread(s, "positives"), "negative": spread(s, "negatives")} for s in mined},
        "community": _community(context), "examples": _examples(context, mined, texts), "wins": wins, "losses": losses,
        "answers": _answers(rows, systems(c), held_out),
        "counts": [["Extraction records quarantined", counts["extract"]["quarantined"]],
                   ["Rewriting replies quarantined", counts["rewrite"]["quarantined"]],
                   ["Rewritten questions that hold the answer", counts["rewrite"]["holding_the_answer"]],
                   ["Recorded replies whose prompt has changed since",
                    counts["extract"]["drifted_prompts"] + counts["rewrite"]["drifted_prompts"]],
                   ["Passages cut to fit the generator", counts["score"]["cut_passages"]],
                   ["Held-out questions without marked evidence", counts["evaluate"]["without_marked_evidence"]]],
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
