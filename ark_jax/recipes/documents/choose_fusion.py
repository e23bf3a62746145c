"""The fusion stage: training questions decide how BM25 and the last tuned retriever are fused."""

from collections.abc import Callable, Collection
from pathlib import Path

import numpy as np

from ark_jax.data.evidence import most_chunks
from ark_jax.evaluate.retrieval import measures
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import save_json
from ark_jax.recipes.documents.corpus import gold_passages, load_questions, stored_chunks
from ark_jax.recipes.documents.retrieve import (
    WORDS,
    Systems,
    ids_without_own,
    own_results,
    search_systems,
)
from ark_jax.retrieval.fusion import Fusion, load_fusion, save_fusion
from ark_jax.retrieval.searcher import Fused
from ark_jax.runtime import distributed
from ark_jax.runtime.log import say

STAGE = "fusion"
METRIC = "ndcg@10"
# Close to 1, too: as shares of the best, cosines differ less than scores of words.
DENSE_WEIGHTS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98)
ENOUGH = 50  # questions that choose; of fewer, nDCG@10 has a standard error above .05


def candidates(depth: int) -> list[Fusion]:
    """The fusions to choose from; if several are best, the first is chosen."""
    sums = [
        Fusion(bm25=round(1 - weight, 2), dense=weight, depth=depth, by="scores")
        for weight in DENSE_WEIGHTS
    ]
    return [Fusion(depth=depth), *sums]


def choose_fusion(
    context: Context,
    folder: Path,
    *,
    systems_of: Callable[[object], Systems],
    learned: Callable[[Context], Collection[str]],
) -> dict:
    """Chooses how vectors and words are fused, by nDCG@10 on training questions.

    A retriever is too good at questions that it has learned from, and they would give it too much
    weight. So the other questions choose; all do if these are fewer than `ENOUGH`.

    Args:
        systems_of: config -> the systems that it compares.
        learned: the ids of the training questions that the retriever has learned from.
    """
    systems = systems_of(context.config)
    questions, chunks = load_questions(context, "train"), stored_chunks(context)
    gold, _ = gold_passages(context, questions, chunks.by_document)
    judged = [question for question in questions if gold[question.id]]
    learned_from = learned(context)
    unlearned = [question for question in judged if question.id not in learned_from]
    choosing, remark = judged, ""
    if len(unlearned) >= ENOUGH:
        choosing, remark = unlearned, " that the retriever has not learned from"
    fusions = candidates(systems.depth)
    rows = [{"fusion": repr(fusion), METRIC: 0.0} for fusion in fusions]
    if judged:
        # The documents of all questions are searched, also if some do not choose.
        own, names = own_results(context, judged, chunks), (WORDS, systems.last)
        depth = systems.depth + most_chunks(own)
        found = search_systems(context, folder, names, judged, chunks, depth)
        parts = [found[name] for name in names]
        for fusion, row in zip(fusions, rows, strict=True):
            fused = {"": Fused(parts, depth, fusion.join)}
            found = ids_without_own(fused, [""], judged, own, systems.depth)[""]
            run = {question.id: found[question.id] for question in choosing}
            values = measures(run, {id: gold[id] for id in run}, [METRIC])
            row[METRIC] = float(np.mean([value[METRIC] for value in values.values()]))
    best = max(range(len(fusions)), key=lambda i: rows[i][METRIC])
    distributed.on_first_process(lambda: save_fusion(fusions[best], folder))
    save_json(rows, folder / "candidates.json")
    say(
        f"  {len(choosing):,} training questions{remark}: {METRIC} {rows[best][METRIC]:.3f} by "
        f"{fusions[best]}, {rows[0][METRIC]:.3f} by reciprocal ranks"
    )
    return {"questions": len(choosing), "by": fusions[best].by, "dense": fusions[best].dense}


def chosen_fusion(context: Context, systems: Systems) -> Fusion:
    """The fusion of a run: what the stage has chosen, else reciprocal ranks."""
    if context.config.evaluate.fusion == "chosen":
        return load_fusion(context / STAGE)
    return Fusion(depth=systems.depth)
