"""The evaluate stage: every system on the held-out questions, with intervals and p-values."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

from ark_jax.data.records import Question
from ark_jax.evaluate.significance import what_can_be_told
from ark_jax.pipeline import own_functions
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import save_json, save_rows
from ark_jax.recipes.common import own_reader, reader, retrieve, written_from
from ark_jax.recipes.common.choose_fusion import chosen_fusion
from ark_jax.recipes.common.corpus import (
    Passages,
    chunks_by_document,
    gold_passages,
    load_questions,
)
from ark_jax.recipes.common.reader_passages import passages_for_reader, retrieved_passages
from ark_jax.recipes.common.systems import Systems
from ark_jax.recipes.common.table import as_text, tabulate, test_name
from ark_jax.report.results import describe_difference, is_significant
from ark_jax.runtime.log import say

EVALUATION_SETTINGS = (
    *(
        f"evaluate.{name}"
        for name in (
            "scope",
            "gold",
            "metrics",
            "answers",
            "baselines",
            "retrievers",
            "hybrids",
            "fusion",
            "rerank",
            "read",
            "passages",
            "max_new_tokens",
            "bootstrap",
            "randomisation",
        )
    ),
    *(f"reader.{name}" for name in ("backend", "base_url", "temperature")),
)
RETRIEVAL = ("recall@5", "recall@10", "ndcg@10", "mrr")  # always measured, to compare runs by
MODEL_CARD_METRICS = (*RETRIEVAL, "answer_f1")


def evaluate(context: Context, folder: Path, *, systems: Systems) -> dict:
    """Retrieves, reads and measures; stores a row per system and question, and the table."""
    settings, chunks = context.config.evaluate, chunks_by_document(context)
    questions = load_questions(context, "held_out")
    gold, unmarked = gold_passages(context, questions, chunks)
    fusion = chosen_fusion(context, systems)
    rankings = retrieve.retrieve_all(context, systems, questions, chunks, folder, fusion)
    read = reader.questions_to_answer(questions, settings.read)
    replies, reader_counts, cut = _read(context, rankings, read, Passages(chunks), folder)
    measured = tuple(dict.fromkeys((*RETRIEVAL, *settings.metrics)))
    rows = [
        _measure(name, question, ranking[question.id], gold, replies, measured, settings.answers)
        for name, ranking in rankings.items()
        for question in questions
    ]
    save_rows(rows, folder / "questions.parquet")
    columns = (*settings.metrics, *(settings.answers if read else ()))
    table = tabulate(
        rows,
        tuple(dict.fromkeys((*measured, *columns))),
        draws=settings.bootstrap,
        flips=settings.randomisation,
        seed=context.config.seed,
        parts=systems.lexical_parts,
    )
    save_json({"metrics": columns, "table": table, "gold": gold}, folder / "metrics.json")
    means = {row["system"]: {m: v["mean"] for m, v in row["values"].items()} for row in table}
    context.metrics.write("evaluate", **means)
    say(as_text(table, columns))
    without_gold = sum(not passages for passages in gold.values())
    answerable = len(questions) - without_gold or len(questions)
    say(f"  {answerable:,} held-out questions: {what_can_be_told(answerable)}")
    if note := written_from.note_on_test(context):
        say(f"  {note}")
    return {
        "questions": len(questions),
        "systems": len(rankings),
        "without_marked_evidence": unmarked,
        **reader_counts,
        **({"without_gold": without_gold} if without_gold else {}),
        **({"cut_to_fit_the_reader": cut} if cut else {}),
    }


def _read(
    context: Context,
    rankings: dict[str, retrieve.Rankings],
    questions: list[Question],
    texts: Mapping[str, str],
    folder: Path,
) -> tuple[dict[tuple[str, str], str], dict, int]:
    """(system, question) -> answer; the reader's counts; for how many questions texts were cut."""
    retrieved = retrieved_passages(context, rankings, questions, texts)
    if own_functions.is_own(context.config.reader.backend):
        answers = own_reader.answer_all(context, retrieved, questions, folder)
        return answers, {"unanswered": sum(not answer for answer in answers.values())}, 0
    form = reader.reading_prompt(context.config)
    passages, cut = passages_for_reader(context, retrieved, questions, form)
    filled = {
        (name, question.id): form.fill(question.question, passages[name, question.id])
        for name in rankings
        for question in questions
    }
    if not filled:
        return {}, {"answered": 0}, cut
    replies, counts = reader.answer_prompts(context, filled.values(), form)
    return {key: replies[prompt] for key, prompt in filled.items()}, counts, cut


def _measure(
    system: str,
    question: Question,
    ranked: list[str],
    gold: dict[str, list[list[str]]],
    replies: Mapping[tuple[str, str], str],
    metrics: Sequence[str],
    answer_metrics: Sequence[str],
) -> dict:
    """A row of `questions.parquet`."""
    from ark_jax.evaluate import answers, retrieval

    # A question that nobody can answer tells nothing of who retrieves. If this holds for all
    # questions, zeros say so.
    unmeasured = system == "full" or (not gold[question.id] and any(gold.values()))
    answer = replies.get((system, question.id))
    measures = (
        dict.fromkeys(metrics)
        if unmeasured
        else retrieval.measure(ranked, gold[question.id], metrics)
    )
    unread = answer is None or not question.answers
    scores = {
        name: None if unread else answers.ANSWER_METRICS[name](answer, question.answers)
        for name in dict.fromkeys(("answer_f1", "exact_match", *answer_metrics))
    }
    row = {"system": system, "question": question.id, "answer": answer, "ranked": ranked}
    return {**row, **measures, **scores}


def verdict(
    table: list[dict], columns: Sequence[str], curriculum: Sequence[str] = (), base: str = "base"
) -> str:
    """One sentence on last system and base: what differs by more than chance, and what does not.

    Args:
        curriculum: systems that were tuned one from the other; a fall of nDCG@10 is named.
        base: what the sentence calls the base, after "the".
    """
    last = {metric: table[-1]["values"][metric] for metric in columns}
    moved = {
        metric: value["against_base"] for metric, value in last.items() if "against_base" in value
    }
    better = [m for m in moved if is_significant(last[m]) and moved[m]["difference"] > 0]
    worse = [m for m in moved if is_significant(last[m]) and moved[m]["difference"] < 0]
    level = [m for m in moved if m not in (*better, *worse)]

    def describe(metrics: Sequence[str]) -> str:
        return ", ".join(describe_difference(metric, moved[metric]) for metric in metrics)

    head = {
        (True, True): "Better and worse than",
        (True, False): "Better than",
        (False, True): "Worse than",
        (False, False): "Not told apart from",
    }[bool(better), bool(worse)]
    if (better or worse) and level:
        details = f"{describe(better + worse)}; not told apart: {describe(level)}"
    else:
        details = describe(better + worse + level)
    ordered = [row for row in table if row["system"] in ("base", *curriculum)]
    ndcg = lambda row: row["values"]["ndcg@10"]["mean"]
    falls = [b["system"] for a, b in itertools.pairwise(ordered) if ndcg(b) < ndcg(a)]
    setback = f" nDCG@10 fell at {' and '.join(falls)}." if falls else ""
    return f"{head} the {base} on the held-out questions: {details} ({test_name(table)}).{setback}"
