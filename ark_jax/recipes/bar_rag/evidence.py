"""The evidence stages: the set of passages from which the reader learns, of each question."""

from pathlib import Path

import numpy as np

from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_rows, save_rows
from ark_jax.recipes.bar_rag.choices import ChosenSet
from ark_jax.recipes.bar_rag.filter import load_kept
from ark_jax.recipes.bar_rag.pool import load_pools
from ark_jax.recipes.bar_rag.readers import stage_of
from ark_jax.recipes.bar_rag.selectors import load_selector
from ark_jax.recipes.bar_rag.updates import stage_seed
from ark_jax.recipes.common.reader_training import PooledQuestion
from ark_jax.runtime.log import say

BLOCK = 1024  # questions whose sets the selector chooses at a time


def choose_evidence(context: Context, folder: Path, *, iteration: int) -> dict:
    """Stores one set of every question that the reader is to learn from."""
    config = context.config
    if config.filter.reader:
        questions = load_kept(context, iteration)
    else:
        questions = load_pools(context, "train")
    sets = _sets(context, questions, iteration)
    rows = [
        {"question_id": pooled.id, "chunk_ids": chosen_set.chunk_ids, "problem": chosen_set.problem}
        for pooled, chosen_set in zip(questions, sets, strict=True)
    ]
    if unreadable := sum(bool(chosen_set.problem) for chosen_set in sets):
        say(
            f"  {unreadable:,} replies of the selector name no set of passages: the nearest ones "
            "take its place"
        )
    save_rows(rows, folder / "sets.parquet")
    needed = {pooled.id: {x for holders in pooled.gold for x in holders} for pooled in questions}
    holding = sum(not needed[row["question_id"]].isdisjoint(row["chunk_ids"]) for row in rows)
    return {
        "questions": len(rows),
        "share_with_gold": round(holding / len(rows), 4),
        **({"unreadable": unreadable} if unreadable else {}),
    }


def _sets(context: Context, questions: list[PooledQuestion], iteration: int) -> list[ChosenSet]:
    """The set of each question."""
    config = context.config
    if config.read.evidence == "selected":
        selector, sets = load_selector(context, iteration), []
        for start in range(0, len(questions), BLOCK):
            sets += selector.best(questions[start : start + BLOCK])
        return sets
    chosen = [list(pooled.chunk_ids) for pooled in questions]
    if config.read.evidence == "random":
        seed = stage_seed(config, stage_of("evidence", iteration))
        chosen = [shuffled(pooled, seed) for pooled in questions]
    return [ChosenSet(ids[: config.select.passages]) for ids in chosen]


def shuffled(pooled: PooledQuestion, seed: int) -> list[str]:
    """The chunks of a pool in an order that follows from the seed and the question."""
    order = np.random.default_rng([seed, pooled.number]).permutation(len(pooled.chunk_ids))
    return [pooled.chunk_ids[place] for place in order]


def load_evidence(context: Context, iteration: int) -> list[tuple[PooledQuestion, list[str]]]:
    """The questions that the reader learns from, and their sets."""
    rows = load_rows(context / stage_of("evidence", iteration) / "sets.parquet")
    pools = {pooled.id: pooled for pooled in load_pools(context, "train")}
    return [(pools[row["question_id"]], row["chunk_ids"]) for row in rows]
