"""What came of it: evaluate, export."""

import itertools
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ark_jax import __version__
from ark_jax.data.records import Question
from ark_jax.evaluate.outcomes import ALPHA, heading, significant
from ark_jax.log import say
from ark_jax.pipeline import Context, read_manifest
from ark_jax.stages import reading, systems
from ark_jax.stages.files import (
    Texts,
    chunks_of,
    evidence_of,
    load_json,
    pool,
    questions_of,
    save_json,
    save_rows,
)
from ark_jax.text import prompts

RETRIEVAL = ("recall@5", "recall@10", "ndcg@10", "mrr")  # always measured: what sweeps are compared by
METRICS = (*RETRIEVAL, "answer_f1")
NAMES = {metric: heading(metric) for metric in METRICS}


def evaluate(context: Context, folder: Path) -> dict:
    """Every system on the held-out questions: ranks, answers, metrics with intervals, differences to base with p-values."""
    from ark_jax.evaluate import answers, retrieval

    c, chunks = context.config.evaluate, chunks_of(context)
    questions = questions_of(context, "held_out")
    gold, unmarked = _gold(context, questions, chunks)
    ranked = systems.rank(context, questions, chunks, folder)
    some = reading.answered(questions, c.read)
    context_of, cut = systems.contexts(context, ranked, some, Texts(chunks))
    template = prompts.load("read", context.config.prompts.read)
    asked = {(name, q.id): answers.prompt(template, q.question, context_of(name, q)) for name in ranked for q in some}
    known, told = reading.read(context, asked.values()) if asked else ({}, {"answered": 0})
    rows, measured = [], tuple(dict.fromkeys((*RETRIEVAL, *c.metrics)))
    told_right = tuple(dict.fromkeys(("answer_f1", "exact_match", *c.answers)))
    for name, lists in ranked.items():
        for q in questions:
            given = known[asked[name, q.id]] if (name, q.id) in asked else None
            # What nobody can find tells nothing of who finds it; where there is nothing at all to find, that is told in zeros.
            unmeasured = name == "full" or (not gold[q.id] and any(gold.values()))
            found = dict.fromkeys(measured) if unmeasured else retrieval.measure(lists[q.id], gold[q.id], measured)
            rows.append({"system": name, "question": q.id, "answer": given, "ranked": lists[q.id], **found,
                         **{m: None if given is None else answers.METRICS[m](given, q.answers) for m in told_right}})
    save_rows(rows, folder / "questions.parquet")
    columns = (*c.metrics, *(c.answers if some else ()))
    table = tabulate(rows, tuple(dict.fromkeys((*measured, *columns))), draws=c.bootstrap, flips=c.randomisation,
                     seed=context.config.seed)
    save_json({"metrics": columns, "table": table, "gold": gold}, folder / "metrics.json")
    context.metrics.write("evaluate", **{row["system"]: {m: v["mean"] for m, v in row["values"].items()} for row in table})
    say(_as_text(table, columns))
    counts = {"questions": len(questions), "systems": len(ranked), "without_marked_evidence": unmarked, **told}
    without = sum(not passages for passages in gold.values())
    return counts | ({"without_gold": without} if without else {}) | ({"cut_to_fit_the_reader": cut} if cut else {})


def _gold(context: Context, questions: list[Question], chunks) -> tuple[dict[str, list[list[str]]], int]:
    """question -> needed passages, each as the chunks that hold it. Without marked evidence, or if the config says so, any chunk
    of the question's documents that contains an answer will do."""
    from ark_jax.evaluate.retrieval import answer_chunks

    marked, by_evidence = evidence_of(context, questions, chunks), context.config.evaluate.gold == "evidence"
    gold = {q.id: marked[q.id] if marked[q.id] and by_evidence else answer_chunks(q.answers, pool(q, chunks)) for q in questions}
    return gold, sum(not passages for passages in marked.values())


def tabulate(rows: list[dict], metrics: Sequence[str], *, draws: int, flips: int, seed: int) -> list[dict]:
    """Systems by metrics, in the order of the rows: `{"system", "values": {metric: {"mean", "low", "high"}}}`.

    A value of a later system than the first, base, has `against_base`: the mean of the questions' differences, its 95 % bootstrap
    interval `low` and `high`, `p` of the paired randomisation test, and `p_holm`, corrected for so many systems. A metric
    that a system has no value of, such as recall without retrieval, is left out.

    Args:
        rows: one of each system and question, the questions in one order; None is a question that a metric leaves out, for all
            systems that have the metric.
        draws: of the bootstrap.
        flips: of the randomisation test.
    """
    from ark_jax.evaluate.retrieval import interval
    from ark_jax.evaluate.significance import holm, sign_flip

    table = [{"system": name, "values": {}} for name in dict.fromkeys(row["system"] for row in rows)]
    for metric in metrics:
        each = {row["system"]: [] for row in rows if row[metric] is not None}
        for row in rows:
            if row[metric] is not None:
                each[row["system"]].append(row[metric])
        cells = {name: interval(values, draws=draws, seed=seed) for name, values in each.items()}
        base, *compared = each
        moved = {name: np.subtract(each[name], each[base]) for name in compared}
        if moved:
            p = sign_flip(np.stack(list(moved.values()), 1), draws=flips, seed=seed)
            for name, raw, corrected in zip(compared, p, holm(p), strict=True):
                against = interval(moved[name], draws=draws, seed=seed)
                cells[name]["against_base"] = {"difference": against.pop("mean"), **against, "p": float(raw),
                                               "p_holm": float(corrected)}
        for row in table:
            if row["system"] in cells:
                row["values"][metric] = cells[row["system"]]
    return table


def _as_text(table: list[dict], columns: Sequence[str]) -> str:
    """The closing table for a terminal: mean and 95 % interval, and a mark where it differs from base."""
    wide = max(9, *(len(row["system"]) + 2 for row in table))
    lines = ["  " + "system".ljust(wide) + "".join(heading(m).rjust(22) for m in columns)]
    for row in table:
        values = [row["values"].get(m) for m in columns]
        cells = list(map(_cell, values))
        marks = ["*" if significant(v) else " " for v in values]
        lines.append("  " + row["system"].ljust(wide) + "".join(
            mark + cell.rjust(21) for mark, cell in zip([" ", *marks], [*cells, ""], strict=True)).rstrip())
    if len(table) > 1:
        found = any(significant(v) for row in table for v in row["values"].values())
        lines.append(("  * differs from base, " if found else "  No difference from base has ") + f"p < {ALPHA}: {_test(table)}")
    return "\n".join(lines)


def _cell(v: dict | None) -> str:
    return "{mean:.3f} [{low:.3f}, {high:.3f}]".format(**v) if v else "–"


def _test(table: list[dict]) -> str:
    many = ", Holm-corrected over systems" if len(table) > 2 else ""
    return f"paired randomisation test, two-sided{many}"


def verdict(table: list[dict], columns: Sequence[str] = METRICS) -> str:
    """One honest sentence on the last stage against the base: what differs by more than chance, and what does not."""
    last = {m: table[-1]["values"][m] for m in columns}
    moved = {m: v["against_base"] for m, v in last.items() if "against_base" in v}
    better = [m for m in moved if significant(last[m]) and moved[m]["difference"] > 0]
    worse = [m for m in moved if significant(last[m]) and moved[m]["difference"] < 0]
    p = lambda x: "p < 0.001" if x < 0.001 else f"p = {x:.2g}"
    tell = lambda some: ", ".join(f"{heading(m)} {moved[m]['difference']:+.3f} ({p(moved[m]['p_holm'])})" for m in some)
    head = {(True, True): "Better and worse than the base", (True, False): "Better than the base",
            (False, True): "Worse than the base", (False, False): "Not told apart from the base"}[bool(better), bool(worse)]
    left = [m for m in moved if m not in (*better, *worse)]
    told = f"{tell(better + worse)}; not told apart: {tell(left)}" if (better or worse) and left else tell(better + worse + left)
    stages = [row for row in table if row["system"] in ("base", "stage0", "stage1", "stage2", "stage3")]
    steps = [row["system"] for before, row in itertools.pairwise(stages)
             if row["values"]["ndcg@10"]["mean"] < before["values"]["ndcg@10"]["mean"]]
    setback = f" nDCG@10 fell at {' and '.join(steps)}." if steps else ""
    return f"{head} on the held-out questions: {told} ({_test(table)}).{setback}"


def export(context: Context, folder: Path) -> dict:
    """The tuned retriever as a sentence-transformers folder, with a model card that holds its numbers."""
    from ark_jax.models import card

    last, path = systems.trained(context.config)[-1], context.config.retriever.path
    model = context / last / "model"
    for file in (file for file in model.rglob("*") if file.is_file()):  # copytree would pack a full disk into another error
        (folder / file.relative_to(model)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, folder / file.relative_to(model))
    evaluated = load_json(context / "evaluate" / "metrics.json")
    local = Path(path).expanduser().exists()
    name = Path(path).name if local else path
    about = _about(context, name, evaluated)
    values = next(row["values"] for row in evaluated["table"] if row["system"] == last)
    text = card.text(folder, title=f"{name}, tuned with ARK", base="" if local else path, about=about,
                     results=_results(context, values))
    (folder / "README.md").write_text(text, encoding="utf-8")
    return {"model": last}


def _results(context: Context, values: dict) -> list:
    """The metrics of the exported model as the hub's evaluation results. Data of one's own have no name there."""
    from huggingface_hub import EvalResult

    questions = read_manifest(context / "evaluate")["counts"]["questions"]
    return [EvalResult(task_type="information-retrieval", task_name="Information Retrieval", dataset_type="unknown",
                       dataset_name=f"{questions:,} held-out questions", metric_type=metric, metric_name=NAMES[metric],
                       metric_value=round(values[metric]["mean"], 4)) for metric in METRICS if metric in values]


def _about(context: Context, base: str, evaluated: dict) -> str:
    """The model card's part on method, data and metrics."""
    c, counts = context.config, read_manifest(context / "data")["counts"]
    table, columns = evaluated["table"], evaluated["metrics"]
    lines = [["system", *map(heading, columns)], ["---"] * (len(columns) + 1)]
    for row in table:
        values = [row["values"].get(m) for m in columns]
        lines.append([row["system"], *map(_cell, values)])
    shown = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return f"""Base model: {base}. Tuned by ark_jax {__version__} with answer-centric contrastive learning (ARK, ACL 2026) on
{counts['train_questions']} questions; measured on {counts['held_out_questions']} held-out questions
{"over documents it never saw" if counts["split_by"] == "document" else "that may share passages with those"} (mean and 95 %
bootstrap interval):

{shown}

{verdict(table, columns)}

Training settings: `{json.dumps(c.train.to_dict(), default=list)}`."""
