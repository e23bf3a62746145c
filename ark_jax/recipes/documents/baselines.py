"""The baselines stage: the results of untrained systems, and reasons against training."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from ark_jax.data.evidence import most_chunks
from ark_jax.evaluate.retrieval import measure
from ark_jax.evaluate.significance import (
    DEVIATION,
    POWER,
    detectable_difference,
    smallest_difference,
)
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_json, save_json
from ark_jax.recipes.core.tables import as_text, tabulate
from ark_jax.recipes.documents.corpus import gold_passages, load_questions, stored_chunks
from ark_jax.recipes.documents.evaluate import RETRIEVAL
from ark_jax.recipes.documents.retrieve import (
    WORDS,
    Systems,
    ids_without_own,
    load_search,
    own_results,
    ranked_file,
    retrieve_baselines,
)
from ark_jax.retrieval.searcher import Fused, Searcher
from ark_jax.runtime.log import say

STAGE = "baselines"
FILE = "metrics.json"
BOTH = f"{WORDS}+base"
CEILING = 0.95  # of recall@10: what is left is often wrong marks
GAIN = 0.1  # of nDCG@10: what tuning gained in study 2 (notebooks/README.md)
ENOUGH = math.ceil((POWER * DEVIATION / GAIN) ** 2)  # questions that can tell such a gain


def measure_baselines(context: Context, folder: Path) -> dict:
    """Retrieves with the untrained systems; stores and prints their table and the doubts."""
    counts = retrieve_baselines(context, folder)
    systems = Systems(context.config.evaluate, expand=context.config.search.expand)
    questions, chunks = load_questions(context, "held_out"), stored_chunks(context)
    gold, _ = gold_passages(context, questions, chunks.by_document)
    judged = [question for question in questions if gold[question.id]] or questions
    first = ("base", WORDS)
    names = [*first, *(name for name in systems.untuned if name not in first)]
    searchers: dict[str, Searcher] = {
        name: load_search(ranked_file(folder, name), judged) for name in names
    }
    own = own_results(context, judged, chunks)
    parts = [searchers[WORDS], searchers["base"]]
    searchers[BOTH] = Fused(parts, systems.depth + most_chunks(own))
    shown = [*first, BOTH, *names[len(first) :]]
    found = ids_without_own(searchers, shown, judged, own, systems.depth)
    rows = [
        {"system": name, "question": id, **measure(ranked, gold[id], RETRIEVAL)}
        for name, rankings in found.items()
        for id, ranked in rankings.items()
    ]
    # A seed of its own: runs of a sweep with other seeds share this stage.
    table = tabulate(rows, RETRIEVAL, seed=0, parts={BOTH: WORDS})
    doubts = doubts_about(table, len(judged))
    save_json({"metrics": RETRIEVAL, "table": table, "doubts": doubts}, folder / FILE)
    say(as_text(table, RETRIEVAL))
    say(f"  {len(judged):,} held-out questions: {detectable_difference(len(judged))}")
    for doubt in doubts:
        say(f"  {doubt}")
    return counts


def doubts_about(table: Sequence[Mapping], questions: int) -> list[str]:
    """Reasons against training, each with what to do instead, in sentences.

    Args:
        table: untrained systems, with recall@10.
        questions: number of questions in the table.
    """
    recall = lambda row: row["values"].get("recall@10", {"mean": 0.0})["mean"]
    best, doubts = max(table, key=recall), []
    if recall(best) > CEILING:
        doubts.append(
            f"{best['system']} has a recall@10 of {recall(best):.3f}: training has hardly anything "
            "to gain; ask harder questions, search a larger pool, or keep "
            f"{best['system']} as it is"
        )
    if questions < ENOUGH:
        doubts.append(
            f"{questions:,} questions tell no gain below {smallest_difference(questions):.2f} from "
            f"chance, and training seldom gains more than {GAIN}: ask at least {ENOUGH}, or hold "
            "each question out once (ark-jax sweep, sweep=folds)"
        )
    return doubts


def stored_doubts(folder: Path) -> list[str]:
    """The doubts in the finished folder of the stage."""
    return load_json(folder / FILE)["doubts"]


def notes_for_plan(context: Context, done: set[str]) -> list[str]:
    """The notes of a plan on the baselines, if a run has measured them."""
    # A run of an earlier version has ranked them only.
    if STAGE not in done or not (context / STAGE / FILE).is_file():
        return []
    stored = load_json(context / STAGE / FILE)
    means = {row["system"]: row["values"]["ndcg@10"]["mean"] for row in stored["table"]}
    listed = ", ".join(f"{name} {mean:.3f}" for name, mean in means.items())
    return [f"without training nDCG@10 is {listed}", *stored["doubts"]]
