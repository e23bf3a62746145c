"""The baselines stage: the results of untrained systems, and reasons against training."""

import functools
from pathlib import Path

from ark_jax.data.evidence import most_chunks
from ark_jax.evaluate.retrieval import measure
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_json
from ark_jax.recipes.core.baselines import FILE, STAGE, doubts_about, save_results
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

BOTH = f"{WORDS}+base"
doubts_about_retrieval = functools.partial(
    doubts_about,
    metric="recall@10",
    harder="ask harder questions, search a larger pool",
    keeping=" (ark-jax index MODEL CORPUS --out=DIR)",
    more=", or hold each question out once (ark-jax sweep, sweep=folds)",
)


def measure_baselines(context: Context, folder: Path) -> dict:
    """Measures the untrained systems, to know what training has to beat."""
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
    parts = {BOTH: WORDS}
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
