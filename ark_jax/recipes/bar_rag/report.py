"""What the report of a BAR-RAG run shows, read from its finished stages."""

from collections.abc import Sequence
from pathlib import Path

from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_json, load_rows
from ark_jax.recipes.bar_rag.filter import filter_of
from ark_jax.recipes.bar_rag.measures import measured_questions, passages_read
from ark_jax.recipes.bar_rag.readers import UNTUNED, WARM, stage_of, tuned_readers
from ark_jax.recipes.bar_rag.report_sections import EXAMPLES, LEARNING, NEEDED, REMOVAL, SIZES, WAYS
from ark_jax.recipes.common.corpus import Passages, stored_chunks
from ark_jax.recipes.common.evaluate import verdict
from ark_jax.recipes.common.group_tables import by_system
from ark_jax.recipes.common.report import Counts, labelled, load_curve
from ark_jax.report import page

GAINED, LOST = 6, 2  # questions shown that training helped most, and least
LOSSES = {
    ("data", "duplicates"): "Documents or questions that came again",
    ("pool", "questions_without_usable_answer"): "Questions whose reference answers have no word, "
    "left out",
    ("warm", "without_gold"): "Training questions without a passage that holds the answer, not "
    "shown to the warm reader",
    ("warm", "cut_prompts"): "Prompts of the warm start that were cut to fit the reader",
}
# Counts of an iteration's stages -> labels.
OF_ITERATIONS = {
    ("filter", "too_hard"): "questions left out as too hard",
    ("filter", "too_easy"): "questions left out as too easy",
    ("filter", "no_set_better_than_another"): "questions left out, since no set is better than "
    "another",
    ("filter", "unreadable"): "replies of the selector in the filter that name no set",
    ("select", "unreadable"): "replies of the selector in training that name no set",
    ("evidence", "unreadable"): "questions read with their nearest passages, since the selector "
    "named no set",
    ("read", "cut_prompts"): "prompts that were cut to fit the reader",
}


def gather(context: Context, counts: Counts) -> dict:
    """The data of the page's sections."""
    evaluated = load_json(context / "evaluate" / "metrics.json")
    table, tuned = evaluated["table"], tuned_readers(context.config)
    iterations = range(1, context.config.iterations + 1)
    labels = LOSSES | {
        (stage_of(kind, i), name): f"Iteration {i}: {label}"
        for i in iterations
        for (kind, name), label in OF_ITERATIONS.items()
    }
    moved = {}
    if table and len(tuned) > 1:
        moved = {"verdict": verdict(table, evaluated["metrics"], base="warm reader")}
    return {
        **moved,
        "metrics": evaluated["metrics"],
        "base": evaluated["base"],
        "table": table,
        "sizes": evaluated.get("sizes", {}),
        "needed": evaluated.get("needed", []),
        "removal": evaluated.get("removal", {}),
        "ways": _ways(context, evaluated.get("ways", {})),
        "facts": _facts(context, counts),
        "learning": _learning(context, counts),
        "examples": _examples(context) if table else [],
        "counts": labelled(counts, labels),
    }


def _facts(context: Context, counts: Counts) -> list[list]:
    config, data = context.config, counts["data"]
    facts = [
        ["Chunks", data["chunks"]],
        ["Training questions", data["train_questions"]],
        ["Held-out questions measured", counts["evaluate"]["questions"]],
        ["Chunks of a pool", config.pool.size],
        ["Chunks that a reader gets", passages_read(config)],
        ["Pools that hold a needed passage", f"{counts['pool']['share_of_pools_with_gold']:.0%}"],
        ["Retriever", Path(config.retriever.path).name],
        ["Reader", Path(config.generator.path).name],
        ["Steps of the warm start", counts[WARM]["steps"]],
    ]
    for i in range(1, config.iterations + 1):
        filtered, read = counts[filter_of(context.config, i)], counts[stage_of("read", i)]
        selected = counts.get(stage_of("select", i), {})
        saved = filtered["sets_remembered"] + selected.get("sets_remembered", 0)
        computed = filtered["sets_computed"] + selected.get("sets_computed", 0)
        questions_kept = f"{filtered['kept']:,} of {filtered['questions']:,}"
        facts += [
            [f"Questions to train on, iteration {i}", questions_kept],
            [
                f"Sets whose p was computed, and known already, iteration {i}",
                f"{computed:,}, {saved:,}",
            ],
            [f"Steps of the reader, iteration {i}", read["steps"]],
        ]
        facts += [
            [f"{label}, iteration {i}", f"{part[name]:.0%}"]
            for label, part, name in (
                ("Sets in groups that teach the selector", selected, "live_share"),
                ("Answers in groups that teach the reader", read, "live_share"),
                ("Answers in groups of one outcome and several rewards", read, "phantom_share"),
                ("Answers that ended", read, "ended_share"),
            )
            if name in part
        ]
    return facts


def _ways(context: Context, ways: dict) -> dict:
    """The table of ways to choose passages, and p of each question by way."""
    if not ways:
        return {}
    values: dict[str, list[float]] = {way: [] for way in ways["histograms"]}
    for row in load_rows(context / "evaluate" / "sets.parquet"):
        if row["system"] == ways["reader"] and row["set"] in values:
            values[row["set"]].append(row["p"])
    return {"reader": ways["reader"], "table": ways["table"], "p": values}


def _learning(context: Context, counts: Counts) -> list[dict]:
    """A curve of each stage that trained something: what it shows, and its values by step."""
    stages = [WARM]
    for i in range(1, context.config.iterations + 1):
        stages += [stage_of("select", i), stage_of("read", i)]
    curves = []
    for stage in stages:
        if not counts.get(stage, {}).get("steps"):
            continue
        drawn = [context / stage / name for name in ("sets.parquet", "answers.parquet")]
        if drawn := [path for path in drawn if path.is_file()]:
            rewards: dict[int, list[float]] = {}
            for row in load_rows(drawn[0]):
                rewards.setdefault(row["step"], []).append(row["reward"])
            values = [sum(row) / len(row) for _, row in sorted(rewards.items())]
            curves.append({"stage": stage, "shows": "mean reward", "values": values})
        else:
            losses = [row["loss"] for row in load_curve(context / stage / "curve.jsonl")]
            curves.append({"stage": stage, "shows": "loss (nats per token)", "values": losses})
    return curves


def _examples(context: Context) -> list[dict]:
    """The questions on which p rose most from the warm reader to the last one, and least."""
    rows = by_system(load_rows(context / "evaluate" / "questions.parquet"))
    last = tuned_readers(context.config)[-1]
    before = WARM if last != WARM else UNTUNED
    gains = {id: row["p"] - rows[before][id]["p"] for id, row in rows[last].items()}
    ordered = sorted(gains, key=lambda id: (-gains[id], id))
    chosen = [*ordered[:GAINED], *ordered[max(GAINED, len(ordered) - LOST) :]]
    questions = {pooled.id: pooled.question for pooled in measured_questions(context)}
    passages = Passages(stored_chunks(context))
    systems = list(dict.fromkeys((UNTUNED, WARM, last)))
    return [
        {
            "question": questions[id].question,
            "answers": list(questions[id].answers),
            "passages": [passages[chunk] for chunk in rows[last][id]["chunk_ids"]],
            "given": {name: _answer_and_p(rows[name][id]) for name in systems},
        }
        for id in chosen
    ]


def _answer_and_p(row: dict) -> dict:
    return {"answer": row["answer"], "p": row["p"]}


SECTIONS: Sequence[page.Section] = (
    page.FACTS,
    page.RESULTS,
    SIZES,
    NEEDED,
    REMOVAL,
    WAYS,
    LEARNING,
    EXAMPLES,
    page.COUNTS,
    page.SPENT,
    page.MANIFEST,
)
