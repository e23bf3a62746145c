"""What came of it: evaluate, export."""

import itertools
import json
import shutil
from pathlib import Path

from ark_jax import __version__, hosts
from ark_jax.data.records import Document, Question
from ark_jax.log import say
from ark_jax.pipeline import Context, read_manifest
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

METRICS = ("recall@5", "recall@10", "ndcg@10", "mrr", "answer_f1")
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
    with hosts.own(folder / "known.jsonl") as kept:
        known = answers.read(lm, list(asked.values()), kept=kept, max_new_tokens=c.max_new_tokens,
                             batch_tokens=context.config.generator.batch_tokens, label="read answers")
        kept.unlink(missing_ok=True)
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
    if not hosts.first(path.is_file):
        documents = {d for q in questions for d in q.documents}
        everything = [x for document, some in chunks.items() if document in documents for x in some]
        at = {x.id: i for i, x in enumerate(everything)}
        vectors = encode(context, name, [x.text for x in everything], "document", f"embed chunks, {name}")
        queries = encode(context, name, [q.question for q in questions], "query", f"embed questions, {name}")
        scopes: dict[tuple[int, ...], list[int]] = {}
        for i, q in enumerate(questions):
            scope = [at[x.id] for x in pool(q, chunks)] if context.config.evaluate.scope == "document" else range(len(everything))
            scopes.setdefault(tuple(scope), []).append(i)
        rows: list[dict] = [{}] * len(questions)
        for scope, asking in scopes.items():
            found, _ = top_k(queries[asking], vectors[list(scope)], DEPTH)
            for i, best in zip(asking, found, strict=True):
                rows[i] = {"question": questions[i].id, "ranked": [everything[scope[j]].id for j in best]}

        def keep() -> None:
            save_rows(rows, path.with_suffix(".new"))
            path.with_suffix(".new").rename(path)

        hosts.first(keep)
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
    return f"{head} on the held-out questions: {tell(better + worse) or 'nothing moved'}.{setback}"


def export(context: Context, folder: Path) -> dict:
    """The tuned retriever as a sentence-transformers folder, with a model card that holds its numbers."""
    from ark_jax.models import card

    last, path = systems(context.config)[-1], context.config.retriever.path
    model = context / last / "model"
    for file in (file for file in model.rglob("*") if file.is_file()):  # copytree would pack a full disk into another error
        (folder / file.relative_to(model)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, folder / file.relative_to(model))
    table = load_json(context / "evaluate" / "metrics.json")["table"]
    local = Path(path).expanduser().exists()
    name = Path(path).name if local else path
    text = card.text(folder, title=f"{name}, tuned with ARK", base="" if local else path, about=_about(context, name, table))
    (folder / "README.md").write_text(text, encoding="utf-8")
    return {"model": last}


def _about(context: Context, base: str, table: list[dict]) -> str:
    """The model card's part on method, data and metrics."""
    c, counts = context.config, read_manifest(context / "data")["counts"]
    header = "| system | " + " | ".join(NAMES[m] for m in METRICS) + " |\n|---" * 1 + "|---" * len(METRICS) + "|"
    rows = "\n".join("| " + " | ".join([row["system"], *(f"{row['values'][m]['mean']:.3f} [{row['values'][m]['low']:.3f}, "
                     f"{row['values'][m]['high']:.3f}]" for m in METRICS)]) + " |" for row in table)
    return f"""Base model: {base}. Tuned by ark_jax {__version__} with answer-centric contrastive learning (ARK, ACL 2026) on
{counts['train_questions']} questions; measured on {counts['held_out_questions']} held-out questions
{"over documents it never saw" if counts["split_by"] == "document" else "that may share passages with those"} (mean and 95 %
bootstrap interval):

{header}
{rows}

{verdict(table)}

Training settings: `{json.dumps(c.train.to_dict(), default=list)}`."""
