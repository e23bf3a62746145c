"""What the report of a BAR-RAG run shows, read from its finished stages."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_json, load_rows
from ark_jax.recipes.bar_rag.evaluate import conclusion, measured_questions, passages_read
from ark_jax.recipes.bar_rag.rollouts import UNTUNED, WARM, stage_of, tuned_readers
from ark_jax.recipes.bar_rag.select import filter_of
from ark_jax.recipes.core.report import Counts, labelled_counts, load_curve
from ark_jax.recipes.core.tables import by_system
from ark_jax.recipes.documents.corpus import Passages, stored_chunks
from ark_jax.recipes.documents.evaluate import verdict
from ark_jax.report import results, sections, svg
from ark_jax.report.page import Section, html
from ark_jax.report.questions import Asked, question_section

ABOUT_NEEDED = (
    "What the readers answer from the passages that hold the answer, wherever the retriever ranks "
    "them. Questions without such a passage are left out."
)
BINS = 10  # of a histogram of answer probabilities
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


def describe(context: Context, counts: Counts) -> tuple[list[str], list[Section]]:
    """The verdict, what ships, and the page's sections."""
    evaluated = load_json(context / "evaluate" / "metrics.json")
    table, metrics, base = evaluated["table"], evaluated["metrics"], evaluated["base"]
    labels = LOSSES | {
        (stage_of(kind, i), name): f"Iteration {i}: {label}"
        for i in range(1, context.config.iterations + 1)
        for (kind, name), label in OF_ITERATIONS.items()
    }
    said = conclusion(context)
    if table and len(tuned_readers(context.config)) > 1:
        said = [verdict(table, metrics, base="warm reader"), *said]
    sizes, needed, removal, ways = map(evaluated.get, ("sizes", "needed", "removal", "ways"))
    return said, [
        results.results(table, metrics, base),
        *results.by_test_set(evaluated, metrics),
        sections.facts(_facts(context, counts)),
        _questions(context),
        Section(
            "Numbers of passages",
            "sizes",
            _results_by_size(sizes, metrics, base) if sizes else [],
            "No other numbers of passages were measured.",
        ),
        Section(
            "The needed passages alone",
            "needed",
            [ABOUT_NEEDED, _comparison_table("reader", "the needed passages alone", needed)]
            if needed
            else [],
            "No held-out question has a passage that is known to hold its answer.",
        ),
        Section(
            "Without cited passages",
            "removal",
            _removal_tables(removal or {}),
            "No answer was measured without the passages that it cites.",
        ),
        Section(
            "Ways to choose passages",
            "ways",
            _ways_to_choose(context, ways) if ways else [],
            "No selector was trained in this run.",
        ),
        sections.training(_curves(context, counts)),
        sections.set_aside(labelled_counts(counts, labels)),
    ]


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
                f"Sets whose answer probability was computed, and known already, iteration {i}",
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


def _results_by_size(sizes: Mapping[str, Sequence], metrics: Sequence[str], base: str) -> list[str]:
    """A note, and a table of each metric by the number of retrieved passages, as HTML."""
    columns = [f"first {size}" for size in sizes]
    intro = f"By how many of the retrieved passages a reader gets. Differences are to {base}."
    tables = []
    for metric in metrics:
        rows = []
        for reader_rows in zip(*sizes.values(), strict=True):  # one of each size
            cells = [row["values"][metric] for row in reader_rows]
            values = dict(zip(columns, cells, strict=True))
            rows.append({"system": reader_rows[0]["system"], "values": values})
        name = f"{results.metric_heading(metric)} by number of passages"
        tables.append(results.result_table(name, rows, columns, base, head="reader"))
    return [intro, *tables]


def _removal_tables(parts: Mapping[str, Mapping]) -> list[str]:
    """A note, and a table for each reader that cites, as HTML; empty if no answer cites."""
    pieces = []
    for system, part in parts.items():
        name = f"{system}, {part['questions']:,} questions whose answer cites a passage"
        if part["table"]:
            pieces += [html.subhead(name), _comparison_table("passages", name, part["table"])]
    intro = (
        "Each reader answers again without the passages that its answer cites, and from these "
        "alone. An answer without citations cites the passages that contain it. A reader that uses "
        "what it is given falls in the first case and not in the second."
    )
    return [intro, *pieces] if pieces else []


def _comparison_table(head: str, name: str, rows: Sequence[Mapping]) -> str:
    """An HTML table whose base is the row that was not tested against another."""
    metrics = list(rows[0]["values"])
    base = next(row for row in rows if "against_base" not in row["values"][metrics[0]])
    return results.result_table(name, rows, metrics, base["system"], head=head)


def _ways_to_choose(context: Context, ways: Mapping) -> list[str]:
    """A note, histograms and a table of probabilities by the way of choosing passages, as HTML."""
    p: dict[str, list[float]] = {way: [] for way in ways["histograms"]}
    for row in load_rows(context / "evaluate" / "sets.parquet"):
        if row["system"] == ways["reader"] and row["set"] in p:
            p[row["set"]].append(row["p"])
    *compared, selected = p
    figures = [
        html.figure(
            svg.histograms(
                f"ways-{i}",
                f"Answer probability of {selected} and of {way} sets",
                (selected, p[selected]),
                (way, p[way]),
                x_title="probability of a reference answer",
                x_range=(0.0, 1.0),
                things="questions",
                bins=BINS,
            ),
            f"{selected} and {way}",
            f"{len(p[selected]):,} held-out questions",
        )
        for i, way in enumerate(compared)
    ]
    intro = (
        f"Answer probability of held-out questions under the reader {ways['reader']}, from "
        "passages that are drawn, nearest to the question, or selected. The selector is rewarded "
        "for one near its centre."
    )
    table = _comparison_table("passages", "Answer probability by way of choosing", ways["table"])
    return [intro, html.grid(figures), table]


def _curves(context: Context, counts: Counts) -> dict[str, list[dict]]:
    """stage that trained -> its losses, or the mean reward of each step."""
    kinds = [
        (kind, i) for i in range(1, context.config.iterations + 1) for kind in ("select", "read")
    ]
    curves = {}
    for stage in (WARM, *(stage_of(kind, i) for kind, i in kinds)):
        if not counts.get(stage, {}).get("steps"):
            continue
        files = [context / stage / name for name in ("sets.parquet", "answers.parquet")]
        rewards: dict[int, list[float]] = {}
        for row in (row for path in files if path.is_file() for row in load_rows(path)):
            rewards.setdefault(row["step"], []).append(row["reward"])
        means = {step: sum(x) / len(x) for step, x in sorted(rewards.items())}
        curves[stage] = [
            {"step": step, "reward": mean} for step, mean in means.items()
        ] or load_curve(context / stage / "curve.jsonl")
    return curves


def _questions(context: Context) -> Section:
    """All measured questions, from the reader that training began with to the last tuned one."""
    rows = by_system(load_rows(context / "evaluate" / "questions.parquet"))
    passages, asked = Passages(stored_chunks(context)), []
    for pooled in measured_questions(context) if rows else ():
        of_reader = {name: rows[name][pooled.id] for name in rows}
        read = {
            name: [(passages[chunk], chunk in row["cited"]) for chunk in row["chunk_ids"]]
            for name, row in of_reader.items()
        }
        values = {name: row["p"] for name, row in of_reader.items()}
        answers = {name: row["answer"] for name, row in of_reader.items()}
        question = pooled.question
        texts = (pooled.id, question.question, list(question.answers))
        asked.append(Asked(*texts, values, read, answers))
    last = tuned_readers(context.config)[-1]
    compared = (WARM if last != WARM else UNTUNED, last)
    note = "Under each reader stand the passages that it read."
    measure = "answer probability"
    return question_section(asked, compared, measure, ranks=False, mark="cited", note=note)
