"""The evidence stages: the set of passages from which the reader learns, of each question."""

from pathlib import Path

import numpy as np

from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_rows, save_rows
from ark_jax.recipes.bar_rag.filter import load_kept
from ark_jax.recipes.bar_rag.pool import PoolVectors, load_pools
from ark_jax.recipes.bar_rag.readers import stage_of
from ark_jax.recipes.bar_rag.selectors import load_selector
from ark_jax.recipes.bar_rag.updates import stage_seed
from ark_jax.recipes.common.reader_training import PooledQuestion

EVIDENCE_SETTINGS = ("read.evidence", "filter.reader", "select.passages")
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
        {"question_id": pooled.id, "chunk_ids": [pooled.chunk_ids[place] for place in places]}
        for pooled, places in zip(questions, sets, strict=True)
    ]
    save_rows(rows, folder / "sets.parquet")
    needed = {pooled.id: {x for holders in pooled.gold for x in holders} for pooled in questions}
    holding = sum(not needed[row["question_id"]].isdisjoint(row["chunk_ids"]) for row in rows)
    return {"questions": len(rows), "share_with_gold": round(holding / len(rows), 4)}


def _sets(context: Context, questions: list[PooledQuestion], iteration: int) -> list[np.ndarray]:
    """The places of each question's set in its pool."""
    config = context.config
    k, by = config.select.passages, config.read.evidence
    if by == "retrieved":
        return [np.arange(min(k, len(pooled.chunk_ids))) for pooled in questions]
    if by == "random":
        seed = stage_seed(config, stage_of("evidence", iteration))
        draw = lambda pooled: np.random.default_rng([seed, pooled.number]).permutation(
            len(pooled.chunk_ids)
        )
        return [draw(pooled)[:k] for pooled in questions]
    selector, vectors, sets = load_selector(context, iteration), PoolVectors(context), []
    for start in range(0, len(questions), BLOCK):
        pools = vectors.pools(questions[start : start + BLOCK])
        sets += [best.sets[0] for best in selector.best(pools, k=k)]
    return sets


def load_evidence(context: Context, iteration: int) -> list[tuple[PooledQuestion, list[str]]]:
    """The questions that the reader learns from, and their sets."""
    rows = load_rows(context / stage_of("evidence", iteration) / "sets.parquet")
    pools = {pooled.id: pooled for pooled in load_pools(context, "train")}
    return [(pools[row["question_id"]], row["chunk_ids"]) for row in rows]
