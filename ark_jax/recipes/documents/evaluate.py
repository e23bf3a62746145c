"""The stages baselines and evaluate: systems on the held-out questions, and several folds."""

import collections
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ark_jax.data.evidence import most_chunks
from ark_jax.data.records import Question
from ark_jax.evaluate.answers import LIKELIHOOD, needs_replies
from ark_jax.evaluate.retrieval import measure
from ark_jax.evaluate.significance import detectable_difference
from ark_jax.pipeline import own_functions
from ark_jax.pipeline.manifest import read_manifest
from ark_jax.pipeline.recipe import Pooled
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_json, load_rows, save_json, save_rows
from ark_jax.recipes.core import own_parts
from ark_jax.recipes.core.baselines import FILE, STAGE, doubts_about, save_results
from ark_jax.recipes.core.models import load_generator, reader_path
from ark_jax.recipes.core.tables import (
    as_text,
    best_system,
    say_groups,
    tables_by_group,
    tabulate,
    test_name,
)
from ark_jax.recipes.documents import corpus, reader, retrieve, written_questions
from ark_jax.recipes.documents.choice import chosen_fusion
from ark_jax.recipes.documents.reader import fit_all, retrieved_passages
from ark_jax.recipes.documents.reader_training import answer_likelihoods
from ark_jax.report.results import describe_difference, is_significant
from ark_jax.retrieval.searcher import Fused, Searcher
from ark_jax.runtime.log import say

RETRIEVAL = ("recall@5", "recall@10", "ndcg@10", "mrr")  # always measured, to compare runs by
MODEL_CARD_METRICS = (*RETRIEVAL, "answer_f1")


def evaluate(
    context: Context, folder: Path, *, systems_of: Callable[[object], retrieve.Systems]
) -> dict:
    """Measures all systems on the held-out questions."""
    systems = systems_of(context.config)
    settings, chunks = context.config.evaluate, corpus.stored_chunks(context)
    questions = corpus.load_questions(context, "held_out")
    gold, unmarked = corpus.gold_passages(context, questions, chunks.by_document)
    fusion = chosen_fusion(context, systems)
    rankings = retrieve.retrieve_all(context, systems, questions, chunks, folder, fusion)
    read = reader.questions_to_answer(questions, settings.read)
    reading = _read(context, rankings, read, corpus.Passages(chunks), folder)
    measured = tuple(dict.fromkeys((*RETRIEVAL, *settings.metrics)))
    rows = [
        _measure(name, question, ranking[question.id], gold, reading, measured, settings.answers)
        for name, ranking in rankings.items()
        for question in questions
    ]
    save_rows(rows, folder / "questions.parquet")
    columns = (*settings.metrics, *(settings.answers if read else ()))
    make_table = functools.partial(
        tabulate,
        metrics=tuple(dict.fromkeys((*measured, *columns))),
        seed=context.config.seed,
        parts=systems.lexical_parts,
    )
    table, sets = make_table(rows), corpus.questions_by_test_set(context, questions)
    tables = tables_by_group(rows, sets, make_table)
    results = {"metrics": columns, "table": table, "gold": gold}
    save_json(results | ({"groups": tables} if tables else {}), folder / "metrics.json")
    means = {row["system"]: {m: v["mean"] for m, v in row["values"].items()} for row in table}
    context.metrics.write("evaluate", **means)
    say_groups(tables, sets, columns)
    say(as_text(table, columns))
    without_gold = sum(not passages for passages in gold.values())
    answerable = len(questions) - without_gold or len(questions)
    say(f"  {answerable:,} held-out questions: {detectable_difference(answerable)}")
    if note := written_questions.note_on_test(context):
        say(f"  {note}")
    return {
        "questions": len(questions),
        "systems": len(rankings),
        "without_marked_evidence": unmarked,
        **reading.counts,
        **({"without_gold": without_gold} if without_gold else {}),
        **({"cut_to_fit_the_reader": reading.cut} if reading.cut else {}),
    }


class _Reading(NamedTuple):
    """A reader's answers from the passages of all systems.

    Attributes:
        counts: for the manifest.
        cut: the number of questions whose texts were cut.
        answers: (system, question) -> answer; empty if none is needed.
        likelihoods: (system, question) -> `answer_likelihood`; empty if it is not asked for.
    """

    counts: dict
    cut: int = 0
    answers: Mapping[tuple[str, str], str] = {}
    likelihoods: Mapping[tuple[str, str], float] = {}


def _read(
    context: Context,
    rankings: dict[str, retrieve.Rankings],
    questions: list[Question],
    texts: Mapping[str, str],
    folder: Path,
) -> _Reading:
    """The reader's answers, or the likelihoods of reference answers, or both, as asked for."""
    config, settings = context.config, context.config.evaluate
    documents = corpus.load_documents(context) if "full" in rankings else ()
    retrieved = retrieved_passages(rankings, questions, texts, documents, settings.passages)
    backend = config.reader.backend
    if own_functions.is_own(backend):
        answers = own_parts.answer_all(backend, retrieved, questions, folder)
        unanswered = sum(not answer for answer in answers.values())
        return _Reading({"unanswered": unanswered}, answers=answers)
    form, cut = reader.reading_prompt(config), 0
    passages = {key: form.join(passages) for key, passages in retrieved.items()}
    if not passages:
        return _Reading({"answered": 0})
    if backend == "local":  # an endpoint reports a text that is too long
        lm = load_generator(context, reader_path(context))
        passages, cut = fit_all(lm, form, questions, passages, settings.max_new_tokens)
    filled = {
        (name, question.id): form.fill(question.question, passages[name, question.id])
        for name in rankings
        for question in questions
    }
    answers, counts, likelihoods = {}, {}, {}
    if needs_replies(settings.answers):
        replies, counts = reader.answer_prompts(context, filled.values(), form)
        answers = {key: replies[prompt] for key, prompt in filled.items()}
    if LIKELIHOOD in settings.answers:  # of a local reader alone
        tokens = config.generator.batch_tokens
        likelihoods = answer_likelihoods(lm, form, filled, questions, folder, tokens)
    return _Reading(counts, cut, answers, likelihoods)


def _measure(
    system: str,
    question: Question,
    ranked: list[str],
    gold: dict[str, list[list[str]]],
    reading: _Reading,
    metrics: Sequence[str],
    answer_metrics: Sequence[str],
) -> dict:
    """A row of `questions.parquet`."""
    from ark_jax.evaluate import answers, retrieval

    # A question without a relevant passage cannot compare retrievers. If all questions are such,
    # their metrics are 0.
    unmeasured = system == "full" or (not gold[question.id] and any(gold.values()))
    answer = reading.answers.get((system, question.id))
    measures = (
        dict.fromkeys(metrics)
        if unmeasured
        else retrieval.measure(ranked, gold[question.id], metrics)
    )
    unread = answer is None or not question.answers
    scores = {
        name: None if unread else answers.ANSWER_METRICS[name](answer, question.answers)
        for name in dict.fromkeys(("answer_f1", "exact_match", *answer_metrics))
        if name != LIKELIHOOD
    }
    if LIKELIHOOD in answer_metrics:
        scores[LIKELIHOOD] = reading.likelihoods.get((system, question.id))
    row = {"system": system, "question": question.id, "answer": answer, "ranked": ranked}
    return {**row, **measures, **scores}


def first_passage(context: Context) -> Callable[[dict], str]:
    """A function of a row of `questions.parquet` that gives the best passage of its system."""
    passages = corpus.Passages(corpus.stored_chunks(context))
    return lambda row: passages[row["ranked"][0]] if row["ranked"] else ""


def headline(evaluated: Path, seed: int, curriculum: Sequence[str] = ()) -> str:
    """What a finished table shows: the best system against base and BM25, and the last tuned one.

    Args:
        evaluated: the folder of the stage.
        curriculum: as of `verdict`.
    """
    stored = load_json(evaluated / "metrics.json")
    rows = load_rows(evaluated / "questions.parquet")
    return _headline(rows, stored["table"], stored["metrics"], seed, curriculum)


def _headline(
    rows: list[dict],
    table: list[dict],
    columns: Sequence[str],
    seed: int,
    curriculum: Sequence[str] = (),
) -> str:
    best = best_system(rows, "ndcg@10", against=("base", retrieve.WORDS), seed=seed)
    return f"{best} {table[-1]['system']}: {verdict(table, columns, curriculum)}"


def verdict(
    table: list[dict], columns: Sequence[str], curriculum: Sequence[str] = (), base: str = "base"
) -> str:
    """One sentence that compares the last system with the base; a second one if nDCG@10 fell.

    Args:
        curriculum: systems of which each was tuned from the one before; falls of nDCG@10 between
            them are named.
        base: the name of the base in the sentence, after "the".
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
        (False, False): "No significant difference from",
    }[bool(better), bool(worse)]
    if (better or worse) and level:
        details = f"{describe(better + worse)}; no significant difference: {describe(level)}"
    else:
        details = describe(better + worse + level)
    ordered = [row for row in table if row["system"] in ("base", *curriculum)]
    ndcg = lambda row: row["values"]["ndcg@10"]["mean"]
    falls = [b["system"] for a, b in itertools.pairwise(ordered) if ndcg(b) < ndcg(a)]
    setback = f" nDCG@10 fell at {' and '.join(falls)}." if falls else ""
    return f"{head} the {base} on the held-out questions: {details} ({test_name(table)}).{setback}"


def pool_folds(workdirs: Sequence[Path]) -> Pooled:
    """All systems over the questions of all folds, with intervals and paired tests."""
    folders = [workdir / "evaluate" for workdir in workdirs]
    results = [load_json(folder / "metrics.json") for folder in folders]
    by_fold = [load_rows(folder / "questions.parquet") for folder in folders]
    _check_folds(workdirs, by_fold)
    rows = [
        {"run": workdir.name, **row}
        for workdir, fold_rows in zip(workdirs, by_fold, strict=True)
        for row in fold_rows
    ]
    metrics = results[0]["metrics"]
    means = [name for result in results for row in result["table"] for name in row["values"]]
    measured = tuple(dict.fromkeys([*means, *metrics]))
    _leave_out_questions_without_gold(rows, results, measured)
    seed = read_manifest(folders[0])["config"]["seed"]
    table = tabulate(rows, measured, seed=seed)
    columns = tuple(metric for metric in metrics if metric in table[-1]["values"])
    questions = len({row["question"] for row in rows})
    notes = (
        _headline(rows, table, columns, seed),
        f"{questions:,} held-out questions: {detectable_difference(questions)}.",
    )
    return Pooled(rows, columns, table, notes)


def _check_folds(workdirs: Sequence[Path], by_fold: Sequence[list[dict]]) -> None:
    first, *later_workdirs = workdirs
    for workdir in later_workdirs:
        if _split_settings(workdir) != _split_settings(first):
            raise ValueError(
                f"{workdir.name} and {first.name} divide different inputs, or one input by "
                "different settings: run all folds again"
            )
    counts = collections.Counter(id for rows in by_fold for id in {row["question"] for row in rows})
    if repeated := [id for id, count in counts.items() if count > 1]:
        raise ValueError(f"several runs hold out the question {min(repeated)!r}: drop one of them")
    for workdir, rows in zip(workdirs, by_fold, strict=True):
        if differing := {row["system"] for row in rows} ^ {row["system"] for row in by_fold[0]}:
            raise ValueError(
                f"only one of {workdir.name} and {first.name} measured {min(differing)!r}: run all "
                "folds with the same settings"
            )


def _split_settings(workdir: Path) -> tuple[dict, dict]:
    """The settings and inputs that decide a run's split, except for its fold."""
    manifest = read_manifest(workdir / "data")
    settings = {name: x for name, x in manifest["config"].items() if name != "data.fold"}
    folds = {"folds": manifest["config"]["data.fold"][1]}
    return settings | folds, manifest["external"]


def _leave_out_questions_without_gold(
    rows: Sequence[dict], results: Sequence[dict], metrics: Sequence[str]
) -> None:
    """Sets the retrieval metrics of questions without gold passages to None, in place.

    A run does this itself unless none of its questions has gold passages; then they are 0.
    """
    from ark_jax.evaluate.answers import ANSWER_COLUMNS

    gold = {id: passages for result in results for id, passages in result["gold"].items()}
    if not any(gold.values()):
        return
    unknown = dict.fromkeys(metric for metric in metrics if metric not in ANSWER_COLUMNS)
    for row in rows:
        if not gold[row["question"]]:
            row.update(unknown)


doubts_about_retrieval = functools.partial(
    doubts_about,
    metric="recall@10",
    harder="ask harder questions, search a larger pool",
    keeping=" (ark-jax index MODEL CORPUS --out=DIR)",
    advice=", or hold each question out once (ark-jax sweep, sweep=folds)",
)


def measure_baselines(context: Context, folder: Path) -> dict:
    """Measures the untrained systems, to know what training has to beat."""
    counts = retrieve.retrieve_baselines(context, folder)
    systems = retrieve.Systems(context.config.evaluate, expand=context.config.search.expand)
    questions, chunks = corpus.load_questions(context, "held_out"), corpus.stored_chunks(context)
    gold, _ = corpus.gold_passages(context, questions, chunks.by_document)
    judged = [question for question in questions if gold[question.id]] or questions
    first = ("base", retrieve.WORDS)
    names = [*first, *(name for name in systems.untuned if name not in first)]
    searchers: dict[str, Searcher] = {
        name: retrieve.load_search(retrieve.ranked_file(folder, name), judged) for name in names
    }
    excluded = retrieve.own_results(context, judged, chunks)
    parts = [searchers[retrieve.WORDS], searchers["base"]]
    searchers[retrieve.BOTH] = Fused(parts, systems.depth + most_chunks(excluded))
    shown = [*first, retrieve.BOTH, *names[len(first) :]]
    found = retrieve.ids_without_own(searchers, shown, judged, excluded, systems.depth)
    rows = [
        {"system": name, "question": id, **measure(ranked, gold[id], RETRIEVAL)}
        for name, rankings in found.items()
        for id, ranked in rankings.items()
    ]
    parts = {retrieve.BOTH: retrieve.WORDS}
    save_results(folder, rows, RETRIEVAL, "ndcg@10", doubt=doubts_about_retrieval, parts=parts)
    return counts


def notes_for_plan(context: Context, done: set[str]) -> list[str]:
    """The notes of a plan on the baselines, if a run has measured them."""
    # A run of an earlier version has ranked them only.
    if STAGE not in done or not (context / STAGE / FILE).is_file():
        return []
    stored = load_json(context / STAGE / FILE)
    means = {row["system"]: row["values"]["ndcg@10"]["mean"] for row in stored["table"]}
    listed = ", ".join(f"{name} {mean:.3f}" for name, mean in means.items())
    return [f"without training nDCG@10 is {listed}", *stored["doubts"]]
