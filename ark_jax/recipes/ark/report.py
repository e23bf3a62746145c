"""What the report of an ARK run shows, from what `report_data` reads of its stages."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ark_jax.evaluate.significance import smallest_difference
from ark_jax.pipeline.recipe import search_command
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_json, load_rows
from ark_jax.recipes.ark import report_data as data
from ark_jax.recipes.ark.curriculum import (
    RERANKER,
    asks_writer,
    mine_name,
    stage_name,
    systems,
    trained_stages,
)
from ark_jax.recipes.common.corpus import Passages, load_questions, stored_chunks
from ark_jax.recipes.common.evaluate import verdict
from ark_jax.recipes.common.models import WARM_READER
from ark_jax.recipes.common.report import Counts, labelled, load_curve
from ark_jax.recipes.common.written_from import note_on_test
from ark_jax.report import graph_drawing, sections, svg
from ark_jax.report.page import Section, format_number, html
from ark_jax.report.results import judged, results

LEGEND = (  # marks of the graph, and their meaning
    ("seed", "M10 1L19 10L10 19L1 10Z", "seed: found from the answer"),
    ("small", "M3 10a7 7 0 1 0 14 0a7 7 0 1 0 -14 0", "small community"),
    ("large", "M3 10a7 7 0 1 0 14 0a7 7 0 1 0 -14 0", "large community only"),
    ("relation", "M0 10L20 10", "relation"),
    ("similar", "M0 10L20 10", "similar names or descriptions"),
)
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


def describe(context: Context, counts: Counts) -> tuple[str, list[Section]]:
    """The verdict, and the page's sections.

    It reads only the stages of this config: a workdir may hold those of another one too.
    """
    config = context.config
    evaluated = load_json(context / "evaluate" / "metrics.json")
    table, metrics = evaluated["table"], evaluated["metrics"]
    rows = load_rows(context / "evaluate" / "questions.parquet")
    texts = Passages(stored_chunks(context))
    held_out = {question.id: question for question in load_questions(context, "held_out")}
    mined = [stage for stage in config.train.stages if mine_name(stage) in counts]
    names = ("base", systems(config).last)
    curriculum = trained_stages(config)
    trained = [name for name in (*curriculum, RERANKER) if name in counts]
    is_cut = data.cut_answers(context)
    search = ["Search your documents with it", search_command(context.workdir)]
    statement = filter(None, (verdict(table, metrics, curriculum), note_on_test(context)))
    return " ".join(statement), [
        sections.facts([*_facts(config, counts), search]),
        results(table, metrics),
        sections.training({name: load_curve(context / name / "curve.jsonl") for name in trained}),
        separation(
            {stage_name(stage): data.load_cosines(context, stage) for stage in mined},
            {stage_name(stage): counts[mine_name(stage)] for stage in mined},
        ),
        community(data.load_community(context) if "communities" in counts else {}),
        examples(data.load_examples(context, mined, texts, with_rewrites="rewrite" in counts)),
        sections.moves(*data.find_moves(rows, names, held_out, evaluated["gold"], texts, is_cut)),
        sections.answers(**data.answers_shown(config, rows, names, held_out, is_cut)),
        judged(load_json(context / "judge" / "judge.json") if "judge" in counts else {}),
        sections.set_aside(_losses(counts), data.load_quarantined(context, counts)),
    ]


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
            "Smallest difference in nDCG@10 that so many can tell from chance",
            f"{smallest_difference(counts['evaluate']['questions']):.2f}",
        ],
        ["Searched", SEARCHED[found["pool"]]],
        *_graph_facts(config, counts),
        ["Retriever", Path(config.retriever.path).name],
        *reranker,
        ["Generator", Path(config.generator.path).name],
        ["Reader", data.reader_name(config) + trained],
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
        *labelled(counts, LOSSES),
        *([["Recorded replies whose prompt has changed since", drifted]] if asking else []),
        ["Passages cut to fit the generator", counts["score"]["cut_passages"]],
        ["Held-out questions without marked evidence", unmarked],
        *labelled(counts, OPTIONAL_LOSSES),
        *written,
    ]


def _reasons(head: list, reasons: Mapping[str, int]) -> list[list]:
    """A count of what was lost, and how much of it for each reason."""
    return [head, *([f"of these: {reason}", count] for reason, count in reasons.items())]


def separation(cosines: Mapping[str, Mapping], mined: Mapping[str, Mapping]) -> Section:
    """The cosines and the difficulty of positives and hard negatives, by stage.

    Args:
        cosines: those of `positive` and `negative` passages.
        mined: what the stages that mined count.
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
    about = (
        "The cosine of question and passage, by the model that mined a stage's negatives. The more "
        "the two histograms overlap, the harder the negatives are."
    )
    gaps, listed = _difficulty(mined)
    return Section(title, anchor, [about, html.grid([*figures, *gaps]), *listed])


def _cosine_figure(
    i: int, stage: str, positive: np.ndarray, negative: np.ndarray, x_range: tuple[float, float]
) -> str:
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
    """The gaps to the hardest negatives as a figure, and each stage's negatives as a table."""
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


def community(example: Mapping) -> Section:
    """A question's community, as a drawing and as a table."""
    if not example or not example["nodes"]:
        empty = "No community is drawn: the run rewrote no question, or found no community."
        return Section("A community", "community", [], empty)
    nodes = sorted(example["nodes"], key=lambda node: -node["rank"])
    rows = [
        [n["name"], n["type"], graph_drawing.membership(n), format_number(n["rank"], 5)]
        for n in nodes
    ]
    heads = ["entity", "type", "community", "#PageRank"]
    listed = html.table("Entities by rank", heads, rows, "entities")
    title = f"Community around {example['answer']}"
    drawing = graph_drawing.graph("graph", title, example["nodes"], example["edges"])
    about = (
        "The entities near the answer in the knowledge graph. Larger marks have a higher "
        "personalised PageRank. The rewritten questions use these entities. The table below has "
        "all names; the drawing leaves out those without room."
    )
    body = [
        about,
        html.question(example["question"], [example["answer"]]),
        html.wide_figure("Graph of the community", drawing, LEGEND),
        html.fold(f"All {len(rows)} entities as a table", listed),
    ]
    return Section("A community", "community", body)


def examples(listed: Sequence[Mapping]) -> Section:
    """Training questions with their positives and hard negatives; the first is open."""
    if not listed:
        return Section("Examples", "examples", [], "No example questions were recorded.")
    has = lambda part: any(example[part] for example in listed)
    rewrites, origin = (" its rewrites,", " with the rewrites") if has("rewritten") else ("", "")
    negatives = f", and the hard negatives mined{origin}" if has("negatives") else ""
    about = (
        f"The training data of some questions: the question,{rewrites} the passages chosen as "
        f"positives{negatives}. Forward is the score of the answer given passage and question. "
        "Backward is the score of the question given passage and answer. Retriever is the cosine."
    )
    cards = [_example_card(example, i == 0) for i, example in enumerate(listed)]
    return Section("Examples", "examples", [html.answers_note(about), *cards])


def _example_card(example: Mapping, is_open: bool) -> str:
    """One question with its rewrites, positives and hard negatives."""
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
    """A table of passages with the scores they were chosen by."""
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
