"""What the report of an ARK run shows."""

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ark_jax.data.records import Question
from ark_jax.evaluate.significance import smallest_difference
from ark_jax.pipeline import own_functions
from ark_jax.pipeline.recipe import search_command
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_json, load_rows, read_table, stream_rows
from ark_jax.recipes.ark.alignment import load_positives
from ark_jax.recipes.ark.curriculum import (
    RERANKER,
    asks_writer,
    mine_name,
    stage_name,
    systems,
    trained_stages,
    trainings,
)
from ark_jax.recipes.core.ask import section_of
from ark_jax.recipes.core.models import WARM_READER, trains_reader
from ark_jax.recipes.core.report import Counts, labelled_counts, load_curve
from ark_jax.recipes.core.tables import by_system
from ark_jax.recipes.documents import choice, corpus
from ark_jax.recipes.documents.evaluate import headline
from ark_jax.recipes.documents.retrieve import DEPTH
from ark_jax.recipes.documents.written_questions import note_on_test
from ark_jax.report import sections, svg
from ark_jax.report.page import Section, format_number, html
from ark_jax.report.questions import ask_rankings, question_section
from ark_jax.report.results import by_test_set, judge_verdicts, result_table, results


def load_cosines(context: Context, mined: str) -> dict[str, list[float]]:
    """`positive`, `negative` -> the cosines of passages to their questions, as a stage mined."""

    def load_column(name: str) -> list[float]:
        table = read_table(context / mined / f"{name}.parquet")
        return table["cosine"].to_pylist() if len(table) else []  # without rows it has no columns

    return {"positive": load_column("positives"), "negative": load_column("negatives")}


def rows_with(path: Path, column: str, values: Collection[str]) -> list:
    """The rows of a file that have one of these values in a column."""
    table = read_table(path)
    if not len(table):  # it has no columns
        return []
    is_wanted = pc.is_in(table[column], pa.array(values, pa.string()))
    return table.filter(is_wanted).to_pylist()


def load_examples(
    context: Context,
    mined: Mapping[str, str],
    texts: Mapping[str, str],
    *,
    with_rewrites: bool,
    count: int = 3,
) -> list[dict]:
    """At most `count` training questions, evenly spread, with positives, hard negatives and scores.

    Args:
        mined: training stage -> the one that mined its hard negatives.
        texts: chunk id -> passage.
    """
    positives = load_positives(context / "positives")
    questions = [q for q in corpus.load_questions(context, "train") if q.id in positives]
    questions = questions[:: max(len(questions) // count, 1)][:count]
    ids = [question.id for question in questions]
    rows = lambda folder, name: rows_with(context / folder / f"{name}.parquet", "question", ids)
    key = lambda row: (row["question"], row["chunk"])
    raw = {key(row): row for row in rows("score", "scores") if row["answer"] == 0}
    unified = {key(row): row["score"] for row in rows("positives", "positives")}
    negatives = {stage: rows(name, "negatives") for stage, name in mined.items()}
    rewritten = rows("rewrite", "rewritten") if with_rewrites else []

    def passage(question: str, chunk: str, cosine: float | None = None) -> dict:
        """A chunk with its scores; None if it was not scored."""
        row = raw.get((question, chunk), {})
        return {
            "chunk": chunk,
            "text": texts[chunk],
            "forward": row.get("forward"),
            "backward": row.get("backward"),
            "retriever": row.get("retriever", cosine),
            "score": unified.get((question, chunk)),
        }

    def example_of(question: Question) -> dict:
        rows_of = lambda rows: [row for row in rows if row["question"] == question.id]
        sizes = ("large", "small") if with_rewrites else ()
        return {
            "question": question.question,
            "answers": question.answers,
            "rewritten": {
                size: [row["text"] for row in rows_of(rewritten) if row["size"] == size]
                for size in sizes
            },
            "positives": [passage(question.id, chunk) for chunk in positives[question.id]],
            "negatives": {
                stage: [
                    passage(question.id, row["chunk"], row["cosine"]) for row in rows_of(found)[:4]
                ]
                for stage, found in negatives.items()
            },
        }

    return list(map(example_of, questions))


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


def reader_name(config) -> str:
    """The name of the reader in the report."""
    match config.reader.backend:
        case "openai":
            return config.reader.model
        case "replay":
            return "recorded replies"
        case function if own_functions.is_own(function):
            return function
    return Path(config.reader.path or config.generator.path).name


def _questions(context: Context, gold: Mapping[str, list[list[str]]], shipped: str) -> Section:
    """All held-out questions, from the base to what ships or, if that is the base, what is last."""
    config, texts = context.config, corpus.Passages(corpus.stored_chunks(context))
    rows = by_system(load_rows(context / "evaluate" / "questions.parquet"))
    rows = {name: rows[name] for name in rows if name != "full"}  # which ranks nothing
    asked = ask_rankings(
        corpus.load_questions(context, "held_out"),
        rows,
        lambda question: {chunk for holders in gold[question.id] for chunk in holders},
        lambda row: row["ranked"][:DEPTH],
        texts.__getitem__,
    )
    trained = " trained in this run" * trains_reader(config)
    is_read = any(answer for entry in asked for answer in entry.given.values())
    note = f"The answers are those of {reader_name(config)}{trained}." if is_read else ""
    last = shipped if shipped in rows and shipped != "base" else systems(config).last
    return question_section(asked, ("base", last), "rank of the first needed passage", note=note)


WRITERS = ("extract", "seeds", "rewrite", "questions")  # stages that may ask a language model
SCORES = ("forward", "backward", "retriever", "score")
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


def describe(context: Context, counts: Counts) -> tuple[list[str], list[Section]]:
    """The verdict, and the page's sections.

    It reads only the stages of this config: a workdir may hold those of another one too.
    """
    config = context.config
    evaluated = load_json(context / "evaluate" / "metrics.json")
    table, metrics = evaluated["table"], evaluated["metrics"]
    texts = corpus.Passages(corpus.training_chunks(context))
    mined = {
        stage_name(*training): mine_name(*training)
        for training in trainings(config)
        if mine_name(*training) in counts
    }
    curriculum = trained_stages(config)
    trained = [name for name in (*curriculum, RERANKER) if name in counts]
    search = ["Search your documents with it", html.command(search_command(context.workdir))]
    shown = headline(context / "evaluate", config.seed, curriculum)
    chosen = choice.load_choice(context)
    statement = filter(None, (*choice.sentences(chosen), shown, note_on_test(context)))
    return [*statement], [
        results(table, metrics),
        *by_test_set(evaluated, metrics),
        sections.facts([*_facts(config, counts), search]),
        _questions(context, evaluated["gold"], chosen["system"]),
        _candidates(chosen),
        sections.training({name: load_curve(context / name / "curve.jsonl") for name in trained}),
        separation(
            {stage: load_cosines(context, name) for stage, name in mined.items()},
            {stage: counts[name] for stage, name in mined.items()},
        ),
        examples(load_examples(context, mined, texts, with_rewrites="rewrite" in counts)),
        judge_verdicts(load_json(context / "judge" / "judge.json") if "judge" in counts else {}),
        sections.set_aside(_losses(counts), load_quarantined(context, counts)),
    ]


def _candidates(chosen: Mapping) -> Section:
    """The systems that may ship, measured on the questions that chose one."""
    table, questions = chosen["development"], f"{chosen['questions']:,} training questions"
    said = choice.sentences(chosen)[0]
    body = [
        f"{said} Means over {questions} that trained nothing, differences to base, and 95 % "
        "bootstrap intervals.",
        result_table("Systems that may ship", table, [choice.METRIC], "base", starred=True),
    ]
    return Section("What ships", "choice", body if table else [], said)


def _facts(config, counts: Counts) -> list[list]:
    found, written = counts["data"], counts.get("questions", {})
    trained, reranker = "", []
    if WARM_READER in counts:
        trained = f", trained in {counts[WARM_READER]['steps']:,} steps"
    if RERANKER in counts:
        lists = counts[RERANKER]["lists"]
        base = Path(config.reranker.path).name
        reranker = [["Reranker", f"begins as {base}, {lists:,} questions"]]
    return [
        ["Documents", found["documents"]],
        ["Chunks", found["chunks"]],
        ["Training questions", found["train_questions"] + written.get("train_questions", 0)],
        ["Held-out questions", found["held_out_questions"] + written.get("held_out_questions", 0)],
        *_written_facts(written),
        [
            "Smallest difference in nDCG@10 that a test on so many detects",
            f"{smallest_difference(counts['evaluate']['questions']):.2f}",
        ],
        ["Searched", SEARCHED[found["pool"]]],
        *_graph_facts(config, counts),
        ["Retriever", Path(config.retriever.path).name],
        *reranker,
        ["Generator", Path(config.generator.path).name],
        ["Reader", reader_name(config) + trained],
    ]


def _graph_facts(config, counts: Counts) -> list[list]:
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
    facts = [["Graph", size], ["LLM", llm[config.llm.backend]]]
    if config.rewriter.model and config[section_of(config, "rewriter")].backend == "openai":
        facts.append(["Rewriter", config.rewriter.model])
    return facts


def _written_facts(written: Mapping) -> list[list]:
    if not written:
        return []
    train, held_out = written["train_questions"], written["held_out_questions"]
    text = f"{train:,} for training ({written['joined_questions']:,} of two passages)"
    return [["Written questions", text + (f", {held_out:,} held out" if held_out else "")]]


def _losses(counts: Counts) -> list[list]:
    asking = [counts[stage] for stage in WRITERS if stage in counts]
    drifted = sum(step.get("drifted_prompts", 0) for step in asking)
    unmarked = counts["evaluate"]["without_marked_evidence"]
    extracted, written = [], []
    if x := counts.get("extract"):
        head = ["Extraction records quarantined", x["quarantined"]]
        extracted = _reasons(head, x["quarantine_reasons"])
    if x := counts.get("questions"):
        written = [
            ["Replies with questions quarantined", x["quarantined"]],
            *_reasons(["Written questions dropped", x["dropped"]], x["drop_reasons"]),
        ]
    return [
        *extracted,
        *labelled_counts(counts, LOSSES),
        *([["Recorded replies whose prompt has changed since", drifted]] if asking else []),
        ["Passages cut to fit the generator", counts["score"]["cut_passages"]],
        ["Held-out questions without marked evidence", unmarked],
        *labelled_counts(counts, OPTIONAL_LOSSES),
        *written,
    ]


def _reasons(head: list, reasons: Mapping[str, int]) -> list[list]:
    """A row with its total, then a row for each reason."""
    return [head, *([f"of these: {reason}", count] for reason, count in reasons.items())]


def separation(cosines: Mapping[str, Mapping], mined: Mapping[str, Mapping]) -> Section:
    """The cosines and the difficulty of positives and hard negatives, by stage.

    Args:
        cosines: stage -> what `load_cosines` returns.
        mined: stage -> the counts of its mining.
    """
    title, anchor = "Positives and hard negatives", "separation"
    samples = {
        stage: (svg.finite(d["positive"]), svg.finite(d["negative"]))
        for stage, d in cosines.items()
    }
    if not samples:
        empty = "No hard negatives were mined in this run, so there are no similarities to compare."
        return Section(title, anchor, [], empty)
    values = np.concatenate([sample for pair in samples.values() for sample in pair])
    if not len(values):
        empty = "No cosine similarities were recorded for the mined passages."
        return Section(title, anchor, [], empty)
    # One range for all stages, in steps of 0.05.
    low, high = math.floor(values.min() * 20) / 20, math.ceil(values.max() * 20) / 20
    x_range = low, max(high, low + 0.05)
    figures = [
        _cosine_figure(i, stage, *pair, x_range) for i, (stage, pair) in enumerate(samples.items())
    ]
    intro = (
        "The cosine of question and passage, by the model that mined a stage's negatives. The more "
        "the two histograms overlap, the harder the negatives are."
    )
    gaps, listed = _difficulty(mined)
    return Section(title, anchor, [intro, html.grid([*figures, *gaps]), *listed])


def _cosine_figure(
    i: int, stage: str, positive: np.ndarray, negative: np.ndarray, x_range: tuple[float, float]
) -> str:
    """A figure with the histograms of a stage's cosines; `i` makes its id unique."""
    drawing = svg.histograms(
        f"cosines-{i}",
        f"Cosines of {stage}",
        ("positives", positive),
        ("hard negatives", negative),
        x_title="cosine similarity (−1 to 1)",
        x_range=x_range,
    )
    caption = f"{len(positive):,} positives, {len(negative):,} hard negatives"
    if len(positive) and len(negative):
        negatives_below = np.searchsorted(np.sort(negative), positive, "left")
        percent = 100 * (negatives_below.mean() / len(negative))
        caption += f"; the positive has the higher cosine in {percent:.0f} % of all pairs"
    return html.figure(drawing, stage, caption)


def _difficulty(mined: Mapping[str, Mapping]) -> tuple[list[str], list[str]]:
    """HTML: [figure of the gaps to the hardest negatives], [table of negatives by stage].

    Both are empty if no stage counted gaps.
    """
    gaps = [
        (stage, *(d["gap_to_hardest"][percentile] for percentile in ("p50", "p10", "p90")))
        for stage, d in mined.items()
        if "gap_to_hardest" in d
    ]
    if not gaps:
        return [], []
    drawing = svg.interval_plot(
        "difficulty",
        "Gap to the hardest negative of every stage",
        gaps,
        reference=0.0,
        x_title="cosine of positive − of negative",
    )
    caption = (
        "The cosine of the nearest positive minus that of the hardest negative: median, with 10th "
        "to 90th percentile over the questions. Below 0 the negative has the higher cosine."
    )
    rules = list(dict.fromkeys(rule for d in mined.values() for rule in d["dropped"]))
    share = lambda x: "–" if x is None else f"{100 * x:.1f} %"
    rows = [
        [
            stage,
            d["model"],
            f"{d['negatives']:,}",
            format_number(d.get("mean_gap_to_hardest")),
            share(d.get("share_above_the_positive")),
            f"{d['holding_the_answer']:,}",
            *(f"{d['dropped'].get(rule, 0):,}" for rule in rules),
            f"{d['questions_without']:,}",
        ]
        for stage, d in mined.items()
    ]
    heads = ["stage", "mined by", "#negatives", "#mean gap", "#above the positive"]
    heads += ["#with an answer", *(f"#dropped: {rule}" for rule in rules), "#questions without"]
    listed = html.table("Hard negatives by stage", heads, rows, "even")
    return [html.figure(drawing, "Difficulty", caption)], [listed]


def examples(listed: Sequence[Mapping]) -> Section:
    """Training questions with their positives and hard negatives; the first is open."""
    if not listed:
        return Section("Examples", "examples", [], "No example questions were recorded.")
    any_has = lambda part: any(example[part] for example in listed)
    rewrites, origin = (
        (" its rewrites,", " with the rewrites") if any_has("rewritten") else ("", "")
    )
    negatives = f", and the hard negatives mined{origin}" if any_has("negatives") else ""
    intro = (
        f"The training data of some questions: the question,{rewrites} the passages chosen as "
        f"positives{negatives}. Forward is the score of the answer given passage and question. "
        "Backward is the score of the question given passage and answer. Retriever is the cosine."
    )
    cards = [_example_card(example, i == 0) for i, example in enumerate(listed)]
    return Section("Examples", "examples", [html.answers_note(intro), *cards])


def _example_card(example: Mapping, is_open: bool) -> str:
    answers, pieces = example["answers"], []
    if example["rewritten"]:
        missing = html.missing("No rewrite was accepted.")
        lists = [
            (
                f"Rewritten with the {size} community",
                [html.numbered((text, False) for text in texts) if texts else missing],
            )
            for size, texts in example["rewritten"].items()
        ]
        pieces.append(html.sides(lists))
    if example["positives"]:
        pieces.append(_scored_passages("Positives", example["positives"], answers))
    else:
        pieces.append(html.missing("No positives were chosen."))
    for stage, rows in example["negatives"].items():
        if rows:
            pieces.append(_scored_passages(f"Hard negatives of {stage}", rows, answers))
        else:
            pieces.append(html.missing(f"No hard negatives were mined for {stage}."))
    return html.card(example["question"], answers, pieces, is_open)


def _scored_passages(caption: str, rows: Sequence[Mapping], answers: Sequence[str]) -> str:
    body = [
        [
            html.code(row["chunk"]),
            html.passage(row["text"], answers),
            *(format_number(row[score]) for score in SCORES),
        ]
        for row in rows
    ]
    heads = ["chunk", "passage", *("#" + score for score in SCORES)]
    return html.table(caption, heads, body, "passages")
