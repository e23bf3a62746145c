"""The evaluate stage: every reader on what the retriever finds for the held-out questions."""

import functools
from collections.abc import Sequence
from pathlib import Path

from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import save_json, save_rows
from ark_jax.recipes.bar_rag.baselines import load_baselines
from ark_jax.recipes.bar_rag.evidence import shuffled
from ark_jax.recipes.bar_rag.measures import (
    CITED_ALONE,
    METRICS,
    NEEDED,
    RETRIEVED,
    WITHOUT_CITED,
    measure_reader,
    measured_questions,
    passages_read,
    set_rows,
    size_name,
)
from ark_jax.recipes.bar_rag.readers import WARM, reader_before, tuned_readers
from ark_jax.recipes.bar_rag.rollouts import DrawnSet
from ark_jax.recipes.bar_rag.selectors import load_selector
from ark_jax.recipes.bar_rag.success import Success
from ark_jax.recipes.bar_rag.updates import stage_seed
from ark_jax.recipes.common.reader_training import PooledQuestion
from ark_jax.recipes.common.table import as_text, tabulate
from ark_jax.runtime.log import say
from ark_jax.select.zone import histogram

RANDOM, NEAREST, SELECTED = "random", "nearest", "selected"  # ways to choose a set to train on


def check_evaluation(config) -> None:
    """Refuses more passages than a pool holds.

    Raises:
        ValueError: the field and what to change.
    """
    largest = max(passages_read(config), *config.evaluate.sizes, 0)
    if largest > config.pool.size:
        name = "passages" if passages_read(config) == largest else "sizes"
        raise ValueError(
            f"config.evaluate.{name}: {largest} passages, but a pool has config.pool.size="
            f"{config.pool.size}; set one of them otherwise"
        )


def compares_ways(config) -> bool:
    """Whether a trained selector is there, whose sets can be compared with others."""
    return config.iterations > 0 and config.read.evidence == SELECTED


def evaluate(context: Context, folder: Path) -> dict:
    """Measures and compares; stores a row per reader, question and set, and the tables."""
    config, questions = context.config, measured_questions(context)
    if not questions:
        say("  no held-out question has a pool: nothing is measured")
        save_json({"metrics": METRICS, "base": WARM, "table": []}, folder / "metrics.json")
        return {"questions": 0}
    rows = load_baselines(context)
    for name in tuned_readers(config):
        if name != WARM:
            rows += measure_reader(context, name, folder)
    compare = functools.partial(tabulate, seed=config.seed, cluster="document")
    ways = _ways(context, questions, rows)
    results = [row for row in rows if row["set"] == RETRIEVED]
    table = compare(results, METRICS, base=WARM)
    results_by_kind = {
        "metrics": METRICS,
        "base": WARM,
        "table": table,
        "sizes": {
            str(size): _of_set(rows, size_name(size), compare) for size in config.evaluate.sizes
        },
        "needed": _of_set(rows, NEEDED, compare),
        "removal": {row["system"]: _removal(rows, row["system"], compare) for row in table},
        "ways": _compare_ways(ways, compare),
    }
    save_rows(results, folder / "questions.parquet")
    save_rows([*rows, *ways], folder / "sets.parquet")
    save_json(results_by_kind, folder / "metrics.json")
    means = {row["system"]: {m: v["mean"] for m, v in row["values"].items()} for row in table}
    context.metrics.write("evaluate", **means)
    _say_results(results_by_kind, len(questions), passages_read(config))
    return {"questions": len(questions), "systems": len(table), "sets": len(rows) + len(ways)}


def _of_set(rows: Sequence[dict], kind: str, compare) -> list[dict]:
    """The table of readers where their chunks are chosen in this way; empty if none is."""
    chosen = [row for row in rows if row["set"] == kind]
    return compare(chosen, METRICS, base=WARM) if chosen else []


def _removal(rows: Sequence[dict], system: str, compare) -> dict:
    """A reader's values with all chunks, without those it cites, and from these alone.

    They are of the questions whose answer cites a chunk.
    """
    of_system = [row for row in rows if row["system"] == system]
    citing = {row["question"] for row in of_system if row["set"] == WITHOUT_CITED}
    compared = [
        {**row, "system": kind}
        for kind in (RETRIEVED, WITHOUT_CITED, CITED_ALONE)
        for row in of_system
        if row["set"] == kind and row["question"] in citing
    ]
    return {"questions": len(citing), "table": compare(compared, METRICS) if compared else []}


def _ways(
    context: Context, questions: Sequence[PooledQuestion], rows: Sequence[dict]
) -> list[dict]:
    """p of held-out questions by how a set to train on is chosen, under the selector's reader."""
    config = context.config
    if not compares_ways(config):
        return []
    last = config.iterations
    reader, k = reader_before(last), config.select.passages
    success = Success(context, reader)
    success.remember(
        DrawnSet(question_id=row["question"], chunk_ids=row["chunk_ids"], p=row["p"])
        for row in rows
        if row["system"] == reader
    )
    seed = stage_seed(config, "evaluate")
    chosen = {
        RANDOM: [shuffled(pooled, seed)[:k] for pooled in questions],
        NEAREST: [list(pooled.chunk_ids[:k]) for pooled in questions],
        SELECTED: [best.chunk_ids for best in load_selector(context, last).best(questions)],
    }
    measured = []
    for way, of_questions in chosen.items():
        measured += set_rows(reader, way, list(zip(questions, of_questions, strict=True)), success)
    return measured


def _compare_ways(ways: Sequence[dict], compare) -> dict:
    """The table of p by way and its histograms, from 0 in steps of .1 to 1."""
    if not ways:
        return {}
    of_way = [{**row, "system": row["set"]} for row in ways]
    values: dict[str, list[float]] = {}
    for row in ways:
        values.setdefault(row["set"], []).append(row["p"])
    return {
        "reader": ways[0]["system"],
        "table": compare(of_way, ("p",), base=NEAREST),
        "histograms": {way: histogram(p).tolist() for way, p in values.items()},
    }


def _say_results(results: dict, questions: int, passages: int) -> None:
    say(f"  {questions:,} held-out questions, {passages} retrieved passages each")
    say(as_text(results["table"], METRICS, WARM))
    means = lambda table, metric: ", ".join(
        f"{row['system']} {row['values'][metric]['mean']:.3f}" for row in table
    )
    for size, table in results["sizes"].items():
        say(f"  exact match of {size} retrieved: {means(table, 'exact_match')}")
    if results["needed"]:
        say(f"  exact match of the needed passages: {means(results['needed'], 'exact_match')}")
    for system, removal in results["removal"].items():
        if values := means(removal["table"], "exact_match"):
            say(f"  exact match of {system}, {removal['questions']:,} questions: {values}")
    if results["ways"]:
        values = means(results["ways"]["table"], "p")
        say(f"  p of {results['ways']['reader']} by how passages are chosen: {values}")
